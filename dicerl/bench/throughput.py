"""Throughput of each stage on one thread, the limit they set, and the whole beside it.

    limit = cores / (1/env + 1/infer + uses * (1/train + burn_in/T * 1/burn_in_forward)),    uses = reuse * batch / (batch - replayed)

Every rate is in agent steps per second. A feed-forward network has no burn-in to pay for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dicerl.actor import sample
from dicerl.api import run_to_end
from dicerl.config import Config, validate
from dicerl.core.family import PARAMETERS
from dicerl.core.policy import log_probs
from dicerl.envs import EnvSpec, env_spec, make_vector_env
from dicerl.learner import Learner
from dicerl.progress import Progress
from dicerl.run import Run
from dicerl.runtime.setup import Plan, build_network, keep_freed_memory, plan, prepare_network
from dicerl.sequence import Arrays, allocate, schema, window_length


def rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """Steps per second of ``call``, which does ``steps`` of them; the best of three stretches, since others only slow it."""
    call()
    best = 0.0
    for _ in range(3):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 3 or count == 0:
            call()
            count += 1
        best = max(best, count * steps / (time.perf_counter() - start))
    return best


def stages(config: Config, spec: EnvSpec, machine: Plan, seconds: float, say: Callable[[str], None]) -> dict[str, float]:
    """Environment, inference, burn-in forward and training alone, each on one thread at the run's real batch sizes."""
    keep_freed_memory()
    torch.set_num_threads(1)
    rng = np.random.default_rng(config.seed)
    n = max(1, config.runtime.num_envs // machine.num_actors)
    env = make_vector_env(config, n, num_threads=1)
    observation = env.reset(config.seed)
    say("environment alone …")
    result = {"env_steps_per_s": rate(lambda: env.step(rng.integers(spec.num_actions, size=n)), n, seconds)}
    env.close()

    network = build_network(config, spec)
    inv = torch.full((n,), 10.0)
    state = network.initial_state(n)

    @torch.inference_mode()
    def infer() -> None:
        out = network.unroll(torch.from_numpy(observation)[None], state, None)
        sample(log_probs(out.advantage[0], inv).numpy(), rng)

    say("inference alone …")
    result["inference_steps_per_s"] = rate(infer, n, seconds)

    trained = config.replace(**{"sequence.burn_in": 0})
    learner = Learner(trained, network, machine.total_updates, machine.device)
    batch = _batch(trained, spec, observation, rng)
    size, length = config.sequence.batch, config.sequence.length
    burn_in = config.sequence.burn_in if config.network.lstm else 0
    if burn_in:
        warm = np.ascontiguousarray(np.resize(batch["observation"], (burn_in, size, *spec.observation_shape)))
        zero = network.initial_state(size)

        @torch.no_grad()
        def forward() -> None:
            network.unroll(torch.from_numpy(warm).to(machine.device), zero, None)

        say("burn-in forward alone …")
        result["burn_in_steps_per_s"] = rate(forward, burn_in * size, seconds)
    else:
        result["burn_in_steps_per_s"] = float("inf")
    say("training alone …")
    result["train_steps_per_s"] = rate(lambda: learner.update(batch), length * size, seconds)
    uses = config.sequence.reuse * size / (size - config.replayed)
    cost = 1 / result["env_steps_per_s"] + 1 / result["inference_steps_per_s"] + uses * (
        1 / result["train_steps_per_s"] + burn_in / length / result["burn_in_steps_per_s"])
    result["limit_steps_per_s"] = machine.cores / cost
    if not burn_in:
        result["burn_in_steps_per_s"] = 0.0
    return result


def _batch(config: Config, spec: EnvSpec, observation: np.ndarray, rng: np.random.Generator) -> Arrays:
    """A batch of the right shape with plausible contents."""
    batch = allocate(schema(config, spec), window_length(config), config.sequence.batch)
    batch["observation"][:] = np.resize(observation, batch["observation"].shape)
    batch["action"][:] = rng.integers(spec.num_actions, size=batch["action"].shape)
    batch["valid"][:] = True
    batch["discount"][:] = config.loss.discount
    batch["log_prob"][:] = -np.log(spec.num_actions)
    batch["scale"][:] = 1.0
    for name in PARAMETERS[config.behaviour.family]:
        batch[name][:] = 10.0 if name.startswith("inv") else 0.1
    batch["created"][:] = time.time()
    return batch


class Stopwatch(Progress):
    """Counts agent steps over a stretch that begins when the learner has made its first updates."""

    def __init__(self, seconds: float, repeat: int) -> None:
        super().__init__("", quiet=True)
        self._seconds, self._repeat = seconds, repeat
        self._start: tuple[float, int] | None = None
        self._end: tuple[float, int] | None = None

    def update(self, values: dict[str, Any], force: bool = False) -> None:
        now = (time.perf_counter(), values["frames"])
        if self._start is None and values["updates"] >= 10:
            self._start = now
        elif self._start is not None and now[0] - self._start[0] >= self._seconds:
            self._end = self._end or now

    def done(self) -> bool:
        return self._end is not None

    def steps_per_s(self) -> float:
        if self._start is None or self._end is None:
            return 0.0
        return (self._end[1] - self._start[1]) / self._repeat / (self._end[0] - self._start[0])


def whole(config: Config, spec: EnvSpec, machine: Plan, seconds: float) -> float:
    """Agent steps per second of a real run, evaluation and checkpoints aside."""
    watch = Stopwatch(seconds, spec.action_repeat)
    with tempfile.TemporaryDirectory() as folder:
        long = config.replace(**{
            "run_dir": f"{folder}/run", "frames": 10**12, "evaluation.every": 0, "checkpoint.every": 0, "tensorboard": False,
            "optimizer.warmup": 1000.0})
        run_to_end(Run.create(long), spec, machine, prepare_network(long, spec, None), None, None, True, progress=watch, stop_when=watch.done)
    return watch.steps_per_s()


def bench(config: Config, seconds: float = 20.0, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    config = validate(config)
    spec = env_spec(config)
    machine = plan(config, spec)
    result = stages(config, spec, machine, max(1.0, seconds / 5), say)
    say(f"the whole, runtime {machine.runtime}, for {seconds:.0f} s …")
    steps = whole(config, spec, machine, seconds)
    rounded = {k: round(v, 1) for k, v in result.items()}
    return {
        "env": spec.name, "preset": config.preset, "runtime": machine.runtime, "cores": machine.cores, **rounded,
        "whole_steps_per_s": round(steps, 1), "efficiency": round(steps / result["limit_steps_per_s"], 4),
    }
