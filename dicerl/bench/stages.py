"""Throughput of each stage on one thread, and the limit they set.

    limit = cores / (1/env + 1/infer + uses * (1/train + burn_in/T * 1/burn_in_forward)),    uses = reuse * batch / (batch - replayed)

Every rate is in agent steps per second. A feed-forward network has no burn-in to pay for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dicerl.actor import sample
from dicerl.config import Config
from dicerl.core.family import PARAMETERS
from dicerl.core.policy import log_probs
from dicerl.envs import EnvSpec, make_vector_env
from dicerl.learner import Learner
from dicerl.runtime.setup import Plan, build_network, keep_freed_memory
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
