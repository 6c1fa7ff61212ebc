"""Throughput of each stage on one thread, and the limit they set.

    acting = 1/env + 1/infer
    training = uses * (1/train + burn_in/T * 1/burn_in_forward)
    uses = reuse * batch / (batch - replayed)
    limit = cores / (acting + training)                          on a CPU
            min((cores - 1) / acting, 1 / training)              beside a GPU that trains

Every rate is in agent steps per second; steps that reset an environment do not count. A
feed-forward network has no burn-in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dicerl.agent.actor_critic import sample
from dicerl.config import Config
from dicerl.core.family import NUMBERS
from dicerl.envs import EnvSpec, VectorEnv, make_vector_env, mask_of, random_actions
from dicerl.parts.learner import Learner
from dicerl.parts.sequence import Arrays, allocate, schema, window_length
from dicerl.parts.staging import NOT_TRAINED_ON
from dicerl.runtime.machine import keep_freed_memory
from dicerl.runtime.setup import Plan, build_model


def rate(
    call: Callable[[], Any], steps: float, seconds: float, finish: Callable[[], None] = lambda: None
) -> float:
    """Steps per second of ``call``, which does ``steps`` of them, averaged over the whole time:
    what slows the machine now and then slows a real run, too. ``finish`` waits for what a device
    has not done yet.
    """
    call()
    finish()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count == 0:
        call()
        count += 1
    finish()
    return count * steps / (time.perf_counter() - start)


def uses(config: Config) -> float:
    """How often each step is trained."""
    return config.sequence.reuse * config.sequence.batch / (config.sequence.batch - config.replayed)


def limit(rates: dict[str, float], config: Config, cores: int, on_cpu: bool) -> float:
    """Agent steps per second at most, from the stages' rates."""
    sequence = config.sequence
    acting = 1 / rates["env_steps_per_s"] + 1 / rates["inference_steps_per_s"]
    training = uses(config) / rates["train_steps_per_s"]
    if rates["burn_in_steps_per_s"]:
        before = sequence.burn_in / sequence.length  # steps of burn-in for each trained one
        training += uses(config) * before / rates["burn_in_steps_per_s"]
    if on_cpu:
        return cores / (acting + training)
    return min(max(1, cores - 1) / acting, 1 / training)


def stages(
    config: Config,
    spec: EnvSpec,
    machine: Plan,
    seconds: float,
    say: Callable[[str], None],
    valid: float = 1.0,
) -> dict[str, float]:
    """Environment, inference, burn-in forward and training alone, each on one thread at the run's
    real batch sizes, on random play.

    ``valid`` is the fraction of a run's steps that are agent steps: where episodes are short, the
    reset steps between them cost time in every stage.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    rng = np.random.default_rng(config.seed)
    n = max(1, config.runtime.num_envs // machine.num_actors)
    env = make_vector_env(config, n, num_threads=1)
    env.reset(config.seed)
    say("environment alone …")
    # per second, reset steps included
    slots = rate(lambda: env.step(random_actions(env, rng)), n, seconds)
    batch, observation = random_batch(config, spec, env, rng, valid)
    mask = mask_of(env, spec)
    env.close()
    result = {"env_steps_per_s": valid * slots}

    model = build_model(config, spec)
    state = model.initial_state(n)
    last_action, last_reward = np.resize(batch["action"][-1], n), np.resize(batch["reward"][-1], n)
    behaviour = np.stack(
        [np.resize(batch[name][-1], n) for name in NUMBERS[config.behaviour.family]], 1
    )

    def infer() -> None:
        step = model.step(observation, state, last_action, last_reward, behaviour, mask)
        sample(step.log_pi, rng)

    say("inference alone …")
    result["inference_steps_per_s"] = rate(infer, valid * n, seconds)

    def finish() -> None:
        if machine.device.type == "cuda":
            torch.cuda.synchronize(machine.device)

    burn_in, size, length = config.sequence.burn_in, config.sequence.batch, config.sequence.length
    result["burn_in_steps_per_s"] = 0.0  # there is none
    if burn_in and config.network.lstm:
        model.to(machine.device)
        data = {
            name: torch.from_numpy(x).to(machine.device)
            for name, x in batch.items()
            if name not in NOT_TRAINED_ON
        }
        say("burn-in forward alone …")
        result["burn_in_steps_per_s"] = rate(
            lambda: model.burn_in(data), valid * burn_in * size, seconds, finish
        )
    trained = build_model(config.replace(**{"sequence.burn_in": 0}), spec)
    learner = Learner(
        trained, machine.total_updates, machine.device, in_parts=machine.runtime != "serial"
    )
    fields = schema(config, spec)
    batch = {name: x[burn_in:] if fields[name].per_step else x for name, x in batch.items()}
    say("training alone …")
    result["train_steps_per_s"] = rate(
        lambda: learner.update(batch), valid * length * size, seconds, finish
    )
    on_cpu = machine.device.type == "cpu"
    return result | {"limit_steps_per_s": limit(result, config, machine.cores, on_cpu)}


def random_batch(
    config: Config, spec: EnvSpec, env: VectorEnv, rng: np.random.Generator, valid: float
) -> tuple[Arrays, np.ndarray]:
    """A batch of windows of random play, with some inverse temperature and the fraction of reset
    steps asked for, and the last observations [N, ...]; environments repeat if the batch is larger
    than their number.
    """
    windows = allocate(schema(config, spec), window_length(config), config.sequence.batch)
    columns = np.arange(config.sequence.batch) % env.num_envs
    for t in range(window_length(config)):
        action, mask = random_actions(env, rng), mask_of(env, spec)
        if mask is not None:
            windows["action_mask"][t] = mask[columns]
        observation, reward, terminated, _ = env.step(action)
        seen = observation[:, -1] if spec.frame_stack > 1 else observation
        windows["observation"][t], windows["action"][t], windows["reward"][t] = (
            seen[columns],
            action[columns],
            reward[columns],
        )
        windows["discount"][t] = np.where(terminated, 0.0, config.loss.discount)[columns]
    windows["valid"][:] = rng.random(windows["valid"].shape) < valid
    windows["log_prob"][:] = -np.log(spec.num_actions)
    windows["scale"][:] = 1.0
    for name in NUMBERS[config.behaviour.family]:
        windows[name][:] = 10.0 if name.startswith("inv") else 0.1
    windows["created"][:] = time.time()
    return windows, observation
