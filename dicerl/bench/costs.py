"""What an agent step and an update cost: the seconds of a core that the parts of a run take, with
everything they do beside the stages of stages.py (recording, copying, pulling, publishing).

An actor and a learner are measured as they work in a run: in processes of their own and at the
same time, so that they disturb each other's caches, by the processor time that each takes. So other
work on the machine changes little. What takes turns in one process (``serial``) is measured alone.
A learner on a GPU, or threads of one that takes turns, are measured by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from dicerl.agent.behaviour import Behaviours
from dicerl.bench.memory import resident_bytes
from dicerl.bench.stages import random_batch
from dicerl.config import Config
from dicerl.envs import EnvSpec, make_vector_env, random_actions
from dicerl.errors import DicerlError
from dicerl.parts.actor import Actor, Episode
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Arrays, Store, schema, window_length
from dicerl.runtime.messages import Crashed, Failed
from dicerl.runtime.processes import start_process
from dicerl.runtime.setup import build_model

# Frames of a large network's measured batch: seconds instead of a minute, and as costly each.
FRAMES = 512
RESETS = 64  # steps of random play that say how often episodes start in a batch


@dataclass(frozen=True)
class Work:
    """What to measure."""

    config: Config
    spec: EnvSpec
    device: torch.device
    num_envs: int  # of the actor
    threads: int  # of the learner
    sequences: int  # of a measured batch
    alone: bool  # one process takes turns

    @property
    def by_clock(self) -> bool:
        """Whether seconds are those of a clock, not of a core: where it waits for a GPU, or for
        its own threads.
        """
        return self.device.type != "cpu" or (self.alone and self.threads > 1)


def measured_sequences(config: Config, small: bool, device: torch.device) -> int:
    """How many sequences of a batch to measure: all, unless images are large and on the CPU, where
    a part costs its part.
    """
    if small or device.type != "cpu":
        return config.sequence.batch
    return max(1, min(config.sequence.batch, FRAMES // window_length(config)))


def costs(work: Work, seconds: float, say: Callable[[str], None]) -> dict[str, float]:
    """{"step_seconds" of an agent step, "update_seconds" of an update, "read_seconds" of these to
    read its batch, "valid_fraction" of an actor's steps that are agent steps, "episode_steps",
    "actor_bytes", "learner_bytes" of their processes, and what they were measured with}.
    """
    if work.alone:
        found: dict[str, float] = {}
        for role, name in ((_act, "an actor"), (_learn, "a learner")):
            say(f"{name} alone …")
            here = _Here(seconds)
            role(here, work)
            found |= here.found
    else:
        say("an actor beside a learner …")
        found = _together((_act, _learn), work, seconds)
    scale = work.config.sequence.batch / work.sequences
    for name in ("update_seconds", "read_seconds"):
        found[name] *= scale
    return found | {"num_envs": work.num_envs, "threads": work.threads, "sequences": work.sequences}


class _Here:
    """The channel of a role that is measured in this process."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, 0.0
        self.found: dict[str, float] = {}

    def send(self, message: dict[str, float]) -> None:
        self.found |= message

    def receive(self) -> None:
        self._end = time.perf_counter() + self._seconds

    def waits(self) -> bool:
        return time.perf_counter() > self._end


def _together(
    roles: tuple[Callable[..., None], ...], work: Work, seconds: float
) -> dict[str, float]:
    """What each role finds, all of them at work at the same time."""
    found: dict[str, float] = {}
    children = [start_process(role, cast(Any, work)) for role in roles]
    try:
        for _, pipe in children:  # everybody is warm
            _expect(pipe.recv())
        for _, pipe in children:
            pipe.send("go")
        time.sleep(seconds)
        for _, pipe in children:
            pipe.send("stop")
        for _, pipe in children:
            found |= _expect(pipe.recv())
    except EOFError:
        raise DicerlError("a process that was measured died; is there enough memory?") from None
    finally:
        for process, pipe in children:
            process.kill()
            process.join()
            pipe.close()
    return found


def _expect(message: Any) -> dict[str, float]:
    if isinstance(message, Failed):
        raise DicerlError(message.reason)
    if isinstance(message, Crashed):
        raise RuntimeError(message.traceback)
    return cast("dict[str, float]", message)


def _measure(channel: Any, work: Work, once: Callable[[], None], finish: Callable[[], None]) -> Any:
    """(calls, seconds) of ``once`` between the two messages of the parent."""
    once()
    finish()
    channel.send({})
    channel.receive()
    clock = time.perf_counter if work.by_clock else time.process_time
    start, count = clock(), 0
    while count == 0 or not channel.waits():
        once()
        count += 1
    finish()
    return count, clock() - start


def _act(channel: Any, work: Work) -> None:
    """An actor that writes its windows into a store and draws from a vote of its own."""
    work = replace(work, device=torch.device("cpu"))  # whatever trains
    config, n = work.config, work.num_envs
    torch.set_num_threads(work.threads if work.alone else 1)
    model = build_model(config, work.spec)
    server = ParameterServer(model.flat.vector.numel())
    server.push(model.flat.vector, 0)
    store = Store(schema(config, work.spec), window_length(config), n)
    behaviours, ended = Behaviours(config, 1), [0]
    slots = list(range(n))

    def end(episodes: list[Episode]) -> None:
        ended[0] += len(episodes)

    def draw(wanted: int) -> Callable[[], Any]:
        return lambda: [behaviours.next() for _ in range(wanted)]

    actor = Actor(
        model,
        make_vector_env(config, n, num_threads=0 if work.alone else 1),
        rng=np.random.default_rng(config.seed),
        env_seed=config.seed,
        get_parameters=server.pull,
        send_sequences=lambda windows: store.write(slots, windows, slots),
        end_episodes=end,
        next_behaviours=draw,
    )

    def step() -> None:
        actor.act()
        actor.advance()

    before: list[int] = []

    def warm() -> None:
        before.append(actor.agent_steps)

    count, seconds = _measure(channel, work, step, warm)
    steps = max(1, before[-1] - before[0])
    channel.send(
        {
            "step_seconds": seconds / steps,
            "valid_fraction": steps / (count * n),
            # from the first step on; where none ended, they are at least as long
            "episode_steps": actor.agent_steps / max(1, ended[0]),
            "actor_bytes": resident_bytes(),
        }
    )


def _learn(channel: Any, work: Work) -> None:
    """A learner that reads batches from a store and publishes."""
    config = work.config.replace(**{"sequence.batch": work.sequences})
    torch.set_num_threads(work.threads if work.alone else 1)
    rng = np.random.default_rng(config.seed)
    env = make_vector_env(config, min(work.num_envs, 8), num_threads=1)
    env.reset(config.seed)
    ends = 0
    for _ in range(RESETS):
        _, _, terminated, truncated = env.step(random_actions(env, rng))
        ends += int(np.count_nonzero(terminated | truncated))
    batch, _ = random_batch(config, work.spec, env, rng, 1.0 - ends / (RESETS * env.num_envs))
    env.close()
    store = Store(schema(config, work.spec), window_length(config), work.sequences)
    slots = list(range(work.sequences))
    store.write(slots, batch, slots)
    model = build_model(config, work.spec)
    server = ParameterServer(model.flat.vector.numel())
    learner = Learner(
        model, 10**9, work.device, work.threads, publish=server.push, in_parts=not work.alone
    )
    reading = [0.0]

    def update() -> None:
        start = time.perf_counter()
        read: Arrays = store.read(slots, learner.buffers())
        reading[0] += time.perf_counter() - start
        diagnose = learner.updates % config.log_every == config.log_every - 1
        learner.update(read, diagnose)

    def finish() -> None:
        learner.settle()
        if work.device.type == "cuda":
            torch.cuda.synchronize(work.device)

    count, seconds = _measure(channel, work, update, finish)
    channel.send(
        {
            "update_seconds": seconds / count,
            "read_seconds": reading[0] / (count + 1),
            "learner_bytes": resident_bytes(),
        }
    )
