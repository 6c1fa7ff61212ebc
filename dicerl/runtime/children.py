"""What the child processes of the ``process`` runtime do, and how they are started.

Each child talks to the supervisor over a pipe of its own, so a child that dies breaks nobody
else's; sequences and parameters stay in shared memory that has no name, so the kernel frees it with
the last process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.behaviour import Behaviour
from dicerl.agent.weights import Weights
from dicerl.config import Config, seeding
from dicerl.envs import EnvSpec, make_vector_env
from dicerl.errors import DicerlError
from dicerl.parts.actor import Actor, Episode
from dicerl.parts.evaluator import Evaluator
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Arrays, Store
from dicerl.records import checkpoint
from dicerl.records.timing import Times
from dicerl.runtime.setup import Plan, keep_freed_memory, take_long_turns

HEARTBEAT = 0.5  # seconds
TIMES_EVERY = 0.25  # seconds between an actor's words on where its time went
FRESH = 0.02  # seconds for which a temperature drawn ahead may be used
# of what is likely to be used in that time is drawn ahead: what is left over was drawn in vain
SPARE = 0.75


@dataclass
class Shared:
    """What every child gets."""

    config: Config
    spec: EnvSpec
    plan: Plan
    store: Store
    parameters: ParameterServer
    weights: Weights
    make_env: bytes  # cloudpickled callable or None
    on_batch: bytes  # the same


def start(role: Callable[..., None], shared: Shared, *args: Any) -> tuple[Any, Connection]:
    """A child process in ``role`` and this side's end of its pipe."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    # Threads that wait busily would starve the process that shares their core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # the first start would do it, and unblock the signals that are held below
    resource_tracker.ensure_running()
    with _without_main(), _holding_signals():
        process = context.Process(
            target=_child,
            args=(role, os.getpid(), theirs, shared, *args),
            daemon=True,
            name=role.__name__,
        )
        process.start()
    theirs.close()
    return process, ours


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Spawned children would run the user's script again unless it is guarded; ours need nothing
    from it.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        if "__file__" in hidden:
            del main.__file__
        main.__spec__ = None
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


@contextlib.contextmanager
def _holding_signals() -> Iterator[None]:
    """Ctrl-C on the terminal is the supervisor's alone: a child starts with it blocked and then
    ignores it, and the supervisor gets what came meanwhile when the child has started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _child(
    role: Callable[..., None], parent: int, pipe: Connection, shared: Shared, *args: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a service manager tells the whole group; the supervisor ends us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    _die_with(parent)
    keep_freed_memory()
    take_long_turns()
    try:
        role(pipe, shared, *args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the supervisor has gone or let us go
    except DicerlError as error:
        pipe.send(("failed", str(error)))
    except BaseException as error:
        pipe.send(("crashed", f"{type(error).__name__}: {error}", traceback.format_exc()))


class Ahead:
    """Temperatures asked for ahead of need: where episodes end often, one question for many of
    them; the supervisor then wakes less often.

    What was drawn is used within FRESH seconds or not at all: no episode starts with what the vote
    thought long ago.
    """

    def __init__(
        self, ask: Callable[[list[Episode], int], None], hear: Callable[[], list[Behaviour]]
    ) -> None:
        self._ask, self._hear = ask, hear
        self._stock: list[Behaviour] = []
        self._asked = 0.0
        self._used = 0  # while what was drawn then was fresh
        self._ended: list[Episode] = []  # not told yet

    def end(self, episodes: list[Episode]) -> None:
        self._ended += episodes

    def next(self, wanted: int) -> Callable[[], list[Behaviour]]:
        passed = time.monotonic() - self._asked
        if passed < FRESH:
            self._used += wanted
            if len(self._stock) >= wanted:
                taken, self._stock = self._stock[:wanted], self._stock[wanted:]
                return lambda: taken
        spare = int(self._used / max(passed, 1e-3) * FRESH * SPARE)
        self._ask(self._ended, wanted + spare)
        self._asked, self._used, self._ended = self._asked + passed, 0, []

        def answer() -> list[Behaviour]:
            drawn = self._hear()
            self._stock = drawn[wanted:]
            return drawn[:wanted]

        return answer

    def tell(self) -> None:
        """Of every episode that ended."""
        if self._ended:
            self._ask(self._ended, 0)
            self._ended = []


def actor_role(
    pipe: Connection, shared: Shared, number: int, incarnation: int, first_env: int, num_envs: int
) -> None:
    """-> ("alive", steps) | ("slots", steps, wanted) | ("sequences", slots) | ("episodes", steps,
    [Episode], wanted) | ("times", fractions) <- [slot, ...] after "slots", [(1/tau,), ...] after
    "episodes" where any are wanted.
    """
    torch.set_num_threads(1)
    config = shared.config
    reported = 0
    heard = time.monotonic()

    def steps() -> int:
        nonlocal reported, heard
        fresh, reported = actor.agent_steps - reported, actor.agent_steps
        heard = time.monotonic()
        return fresh

    def send_sequences(windows: Arrays) -> None:
        columns = list(range(num_envs))
        ahead.tell()  # what is trained was told
        while columns:
            pipe.send(("slots", steps(), len(columns)))
            with actor.times("waiting"):
                slots = pipe.recv()  # waits here while the collector is full
            with actor.times("copying"):
                shared.store.write(slots, windows, columns[: len(slots)])
            pipe.send(("sequences", slots))
            columns = columns[len(slots) :]

    def tell_episodes(episodes: list[Episode], wanted: int) -> None:
        pipe.send(("episodes", steps() if episodes else 0, episodes, wanted))

    ahead = Ahead(tell_episodes, pipe.recv)
    pipe.send(("alive", 0))
    actor = Actor(
        ActorCritic(config, shared.spec),
        make_vector_env(config, num_envs, cloudpickle.loads(shared.make_env), num_threads=1),
        rng=np.random.default_rng(seeding.stream(config.seed, "actor", number, incarnation)),
        env_seed=seeding.integer(seeding.stream(config.seed, "environment", number, incarnation)),
        get_parameters=shared.parameters.pull,
        send_sequences=send_sequences,
        end_episodes=ahead.end,
        next_behaviours=ahead.next,
        first_env=first_env,
        incarnation=incarnation,
    )
    actor.times = Times("environment", "inference", "copying", "waiting")
    told = time.monotonic()
    while True:
        actor.act()
        actor.advance()
        if time.monotonic() - heard > HEARTBEAT:
            ahead.tell()
            pipe.send(("alive", steps()))
        if time.monotonic() - told > TIMES_EVERY:
            told = time.monotonic()
            pipe.send(("times", actor.times.take()))


def learner_role(pipe: Connection, shared: Shared) -> None:
    """-> ("progress", slots taken, whether a batch was trained, its diagnostics or None) |
    ("pushed",) | ("saved", steps trained) | ("not_saved", reason) <- ("batch", slots, whether to
    diagnose, its number) | ("push",) | ("save", folder)
    """
    torch.set_num_threads(1)  # the learner's threads share batches, not operations
    config, plan = shared.config, shared.plan
    times = Times("training", "copying", "pushing", "starved")

    def publish(flat: Tensor, version: int) -> None:
        with times("pushing"):
            shared.parameters.push(flat, version)

    learner = Learner(
        ActorCritic(config, shared.spec),
        plan.total_updates,
        plan.device,
        plan.learner_threads,
        shared.weights,
        publish,
    )
    on_batch = cloudpickle.loads(shared.on_batch)
    waiting = select.poll()
    waiting.register(pipe.fileno(), select.POLLIN)
    trained, diagnostics = False, None
    while True:
        # One message an update: that one was trained is told with taking the next, unless there is
        # none yet.
        if trained and not waiting.poll(0):
            pipe.send(("progress", [], trained, diagnostics))
            trained, diagnostics = False, None
        with times("starved"):
            message = pipe.recv()
        if message[0] == "batch":
            with times("copying"):
                batch = shared.store.read(message[1])
            pipe.send(("progress", message[1], trained, diagnostics))
            if on_batch is not None:
                learner.fetch()
                on_batch(learner, batch)
            with times("training"):
                diagnostics = learner.update(batch, diagnose=message[2], number=message[3])
            trained = True
            if diagnostics is not None:
                diagnostics |= {f"learner_{name}": part for name, part in times.take().items()}
        elif message[0] == "push":
            learner.publish()
            pipe.send(("pushed",))
        else:
            folder = Path(message[1])
            learner.fetch()
            try:
                checkpoint.write_tensors(folder, "model", learner.network.state_dict())
                checkpoint.write_tensors(folder, "optimizer", learner.weights.optimizer_tensors())
                pipe.send(("saved", learner.weights.steps_trained))
            except OSError as error:
                pipe.send(("not_saved", str(error)))


def evaluator_role(pipe: Connection, shared: Shared) -> None:
    """-> ("alive",) | ("evaluated", result, version)    <- ("evaluate", region)"""
    torch.set_num_threads(1)
    config = shared.config
    model = ActorCritic(config, shared.spec)
    evaluator = Evaluator(model, cloudpickle.loads(shared.make_env), env_threads=1)
    version = -1
    while True:
        _, region = pipe.recv()
        newest = shared.parameters.pull(model.flat.vector, version)
        version = version if newest is None else newest
        result = evaluator.evaluate(
            region,
            seeding.stream(config.seed, "evaluation", max(version, 0)),
            lambda: pipe.send(("alive",)),
        )
        pipe.send(("evaluated", result, version))
