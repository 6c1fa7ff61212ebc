"""What children do: actor, learner, evaluator. Each has its own channel to the supervisor, so a
child that dies breaks no other's; the data they work on is shared.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.behaviour import Behaviour
from dicerl.agent.weights import Weights
from dicerl.config import Config, seeding
from dicerl.envs import EnvSpec, VectorEnv, make_vector_env
from dicerl.errors import CheckpointError, DicerlError, told
from dicerl.parts.actor import Actor, Episode
from dicerl.parts.evaluator import Evaluator
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.replicas import LostReplica, Replicas
from dicerl.parts.sequence import Arrays, Store
from dicerl.parts.staging import Outcome
from dicerl.records import checkpoint
from dicerl.records.timing import Times
from dicerl.records.vocabulary import ACTOR_STAGES, LEARNER_STAGES, stage_fields
from dicerl.runtime.base import Role
from dicerl.runtime.coordinator import BAD_BATCHES
from dicerl.runtime.messages import (
    Alive,
    Batch,
    BatchProgress,
    Crashed,
    Drawn,
    EpisodesEnded,
    Evaluate,
    Evaluated,
    Failed,
    NotSaved,
    Play,
    Publish,
    Published,
    Pulled,
    Save,
    Saved,
    Skipped,
    Slots,
    SlotsWanted,
    TimesSpent,
    Written,
)
from dicerl.runtime.setup import Plan

HEARTBEAT = 0.5  # seconds
GONE = EOFError, BrokenPipeError, ConnectionResetError  # the supervisor: what a channel raises
TIMES_EVERY = 0.25  # seconds between two TimesSpent of an actor
FRESH = 0.02  # seconds for which a behaviour drawn ahead may be used
# the part of the expected use in that time that is drawn ahead: what is left over is never used
SPARE = 0.75


class Channel(Protocol):
    """A child's connection to the supervisor; closed, it raises EOFError or an error of the
    connection.
    """

    def send(self, message: Any) -> None: ...

    def receive(self) -> Any:
        """Wait for the next message and return it."""
        ...

    def waits(self) -> bool:
        """Whether a message is waiting."""
        ...


def save(folder: Path, tensors: checkpoint.Tensors, steps_trained: int = 0) -> Saved | NotSaved:
    """Write the tensors of a checkpoint on this machine."""
    try:
        for name, group in tensors.items():
            checkpoint.write_tensors(folder, name, group)
    except (OSError, CheckpointError) as error:
        return NotSaved(str(error))
    return Saved(steps_trained)


def alone() -> Replicas | None:
    """No learner trains batches together with another."""
    return None


@dataclass
class Shared:
    """What every child gets; store, parameters and weights are in shared memory."""

    config: Config
    spec: EnvSpec
    plan: Plan
    store: Store
    parameters: ParameterServer
    weights: Weights
    make_env: bytes  # cloudpickled callable or None
    on_batch: bytes  # the same
    # (folder, tensors, steps_trained) -> the message that answers Save
    save: Callable[..., Any] = save
    # a learner's: wait for those that train every batch together with it
    join: Callable[[], Replicas | None] = alone


def pickled(name: str, function: Callable[..., Any] | None) -> bytes:
    """A user's callable, to be sent to children; ``name`` is the argument's, for the error."""
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as error:  # whatever its parts raise
        raise DicerlError(
            f"{name} cannot be sent to another process: {told(error)}; let it"
            " make what it needs when it is called, or use runtime.kind=serial"
        ) from error


def actor_role(
    channel: Channel, shared: Shared, number: int, incarnation: int, first_env: int, num_envs: int
) -> None:
    """Act in ``num_envs`` environments, numbered from ``first_env``; write windows into lent slots.
    ``number`` and ``incarnation`` are the actor's.
    """
    torch.set_num_threads(1)
    config = shared.config
    reported = 0
    reported_at = time.monotonic()
    reserved: list[int] = []  # slots for the windows under way

    def steps() -> int:
        """Agent steps since the last call."""
        nonlocal reported, reported_at
        fresh, reported = actor.agent_steps - reported, actor.agent_steps
        reported_at = time.monotonic()
        return fresh

    def reserve(count: int) -> None:
        channel.send(SlotsWanted(steps(), count))
        with actor.times("waiting"):  # while the collector is full
            reserved.extend(_expect(Slots, channel).slots)

    def send_sequences(windows: Arrays) -> None:
        columns = list(range(num_envs))
        stock.flush()  # the vote learns of an episode before its end is trained
        while columns:
            if not reserved:
                reserve(len(columns))
            slots = reserved[: len(columns)]
            with actor.times("copying"):
                shared.store.write(slots, windows, columns[: len(slots)])
            channel.send(Written(slots))
            del reserved[: len(slots)]
            columns = columns[len(slots) :]

    def ask(episodes: list[Episode], wanted: int) -> None:
        channel.send(EpisodesEnded(steps() if episodes else 0, episodes, wanted))

    stock = BehaviourStock(ask, lambda: _expect(Drawn, channel).behaviours)
    channel.send(Alive())
    env = make_vector_env(config, num_envs, cloudpickle.loads(shared.make_env), num_threads=1)
    with _closed_at_the_end(channel, env):
        actor = Actor(
            ActorCritic(config, shared.spec),
            env,
            rng=np.random.default_rng(seeding.stream(config.seed, "actor", number, incarnation)),
            env_seed=seeding.integer(
                seeding.stream(config.seed, "environment", number, incarnation)
            ),
            get_parameters=shared.parameters.pull,
            send_sequences=send_sequences,
            end_episodes=stock.end_episodes,
            next_behaviours=stock.next_behaviours,
            first_env=first_env,
            number=number,
            incarnation=incarnation,
        )
        actor.times = Times(*ACTOR_STAGES)
        timed = time.monotonic()
        while True:
            if actor.act():
                # Wait before the next windows begin, not when they are complete: then their steps
                # would age, and the policy that took them.
                reserve(num_envs)
            actor.advance()
            if time.monotonic() - reported_at > HEARTBEAT:
                stock.flush()
                channel.send(Alive(steps()))
            if time.monotonic() - timed > TIMES_EVERY:
                timed = time.monotonic()
                channel.send(TimesSpent(actor.times.take()))


def learner_role(channel: Channel, shared: Shared) -> None:
    """Train batches, publish parameters, write the tensors of checkpoints."""
    torch.set_num_threads(1)  # the learner's threads split batches, not operations
    config, plan = shared.config, shared.plan
    times = Times(*LEARNER_STAGES)

    def publish(vector: Tensor, version: int) -> None:
        with times("pushing"):
            shared.parameters.push(vector, version)

    replicas = shared.join()
    batches = iter(range(BAD_BATCHES))  # that may still be sent

    def skipped(outcome: Outcome) -> None:
        if replicas is not None and not replicas.first:
            return  # the first one has the whole batch's losses
        batch = outcome.batch if next(batches, None) is not None else None
        channel.send(Skipped(outcome.update, outcome.loss, outcome.norm, batch))

    learner = Learner(
        ActorCritic(config, shared.spec),
        plan.total_updates,
        plan.device,
        plan.learner_threads,
        shared.weights,
        publish if replicas is None or replicas.first else None,
        replicas,
        skipped,
        in_parts=True,
    )
    on_batch = cloudpickle.loads(shared.on_batch)
    trained, diagnostics = False, None
    while True:
        # One message an update: a trained batch is reported when the next one is copied, or at once
        # if none is waiting.
        if trained and not channel.waits():
            learner.settle()
            channel.send(BatchProgress([], trained, diagnostics))
            trained, diagnostics = False, None
        with times("starved"):
            message = channel.receive()
        match message:
            case Batch(slots, diagnose, number, columns):
                with times("copying"):
                    batch = shared.store.read(slots, learner.buffers(len(slots)))
                channel.send(BatchProgress(slots, trained, diagnostics))
                if on_batch is not None:
                    learner.fetch()
                    try:
                        on_batch(learner, batch)
                    except GONE as error:  # not that of our channel
                        raise RuntimeError(f"on_batch raised {told(error)}") from error
                with times("training"):
                    diagnostics = learner.update(batch, diagnose, number, columns)
                trained = True
                if diagnostics is not None:
                    diagnostics |= stage_fields("learner", times.take())
            case Publish():
                learner.publish()
                channel.send(Published())
            case Save(folder):
                learner.fetch()
                weights = learner.weights
                tensors = {
                    "model": learner.network.state_dict(),
                    "optimizer": weights.optimizer_tensors(),
                }
                channel.send(shared.save(Path(folder), tensors, weights.steps_trained))
            case _:
                raise TypeError(f"a learner has no use for {message!r}")


def evaluator_role(channel: Channel, shared: Shared) -> None:
    """Play evaluation episodes with the newest parameters, whenever asked to."""
    torch.set_num_threads(1)
    config = shared.config
    model = ActorCritic(config, shared.spec)
    evaluator = Evaluator(model, cloudpickle.loads(shared.make_env), env_threads=1)
    version = -1
    with _closed_at_the_end(channel, evaluator):
        while True:
            message = channel.receive()
            match message:
                case Evaluate():
                    newest = shared.parameters.pull(model.flat.vector, version)
                    version = version if newest is None else newest
                    channel.send(Pulled(version))
                case Play(region):
                    seed = seeding.stream(config.seed, "evaluation", max(version, 0))
                    result = evaluator.evaluate(region, seed, lambda: channel.send(Alive()))
                    channel.send(Evaluated(result))
                case Save(folder):
                    channel.send(shared.save(Path(folder), {"model": model.network.state_dict()}))
                case _:
                    raise TypeError(f"an evaluator has no use for {message!r}")


ROLES: dict[Role, Callable[..., None]] = {
    "actor": actor_role,
    "learner": learner_role,
    "evaluator": evaluator_role,
}


def run_role(role: Callable[..., None], channel: Channel, shared: Shared, *args: Any) -> None:
    """Run a role until it raises, and send the reason: ``Failed`` or ``Crashed``. What the channel
    raises when it is closed is raised here too, and the loss of another learner.
    """
    try:
        role(channel, shared, *args)
    except (*GONE, LostReplica):
        raise
    except _Said:
        pass
    except BaseException as error:
        _send_reason(channel, error)


def _send_reason(channel: Channel, error: BaseException) -> None:
    if isinstance(error, DicerlError):
        channel.send(Failed(str(error)))
    else:
        channel.send(Crashed(told(error), traceback.format_exc()))


class _Said(Exception):
    """A role has ended, and the reason was sent."""


@contextlib.contextmanager
def _closed_at_the_end(channel: Channel, opened: VectorEnv | Evaluator) -> Iterator[None]:
    """Close environments when a role ends: they may own processes or files. The reason is sent
    before, since closing may take long or fail.
    """
    try:
        yield
    except GONE:
        raise
    except BaseException as error:
        _send_reason(channel, error)
        raise _Said from error
    finally:
        with contextlib.suppress(DicerlError):
            opened.close()


def _expect(kind: type[Any], channel: Channel) -> Any:
    """The next message, which must be of this kind."""
    message = channel.receive()
    if not isinstance(message, kind):
        raise TypeError(f"expected {kind.__name__}, got {message!r}")
    return message


class BehaviourStock:
    """Behaviours drawn ahead: where episodes end often, one request serves many of them, and the
    supervisor wakes less often. Ended episodes wait here for the next request.

    What was drawn is used within FRESH seconds or not at all: no episode starts with what the vote
    preferred long ago.
    """

    def __init__(
        self, ask: Callable[[list[Episode], int], None], answer: Callable[[], list[Behaviour]]
    ) -> None:
        """``ask`` sends ended episodes and the number of behaviours wanted; ``answer`` waits for
        those.
        """
        self._ask, self._answer = ask, answer
        self._stock: list[Behaviour] = []
        self._asked = 0.0  # time of the last request
        self._used = 0  # behaviours since then, while the stock was fresh
        self._ended: list[Episode] = []  # not sent yet

    def end_episodes(self, episodes: list[Episode]) -> None:
        """Keep ended episodes for the next request."""
        self._ended += episodes

    def next_behaviours(self, wanted: int) -> Callable[[], list[Behaviour]]:
        """Take ``wanted`` behaviours from the stock, or request them; the callable returns them."""
        passed = time.monotonic() - self._asked
        if passed < FRESH:
            self._used += wanted
            if len(self._stock) >= wanted:
                taken, self._stock = self._stock[:wanted], self._stock[wanted:]
                return lambda: taken
        spare = int(self._used / max(passed, 1e-3) * FRESH * SPARE)
        self._ask(self._ended, wanted + spare)
        self._asked, self._used, self._ended = self._asked + passed, 0, []

        def take() -> list[Behaviour]:
            drawn = self._answer()
            self._stock = drawn[wanted:]
            return drawn[:wanted]

        return take

    def flush(self) -> None:
        """Send all ended episodes."""
        if self._ended:
            self._ask(self._ended, 0)
            self._ended = []
