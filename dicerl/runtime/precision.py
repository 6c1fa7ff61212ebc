"""``runtime.precision``: whether the torso of this machine's network is faster in bfloat16.

Weights, optimizer, LSTM, heads, losses and targets are float32 in any case. Actors and learners
compute the torso alike, so that the policy that acts is the one that is trained.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.networks import Network
from dicerl.config import Config
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError

WORTH = 1.1  # times as fast, at least: less is not worth the rounding
SECONDS = 0.2  # of each measurement
ROUNDS = 3
FRAMES = 64  # of a measured batch


def resolved(config: Config, spec: EnvSpec, runtime: str, device: torch.device) -> Config:
    """``config`` with a precision in the place of ``auto``; bfloat16 is refused where there is no
    torso of images. Serial runs are to give the same numbers everywhere: float32. Runs beside a
    GPU, whose actors stay on the CPU, have float32, too.
    """
    if config.runtime.precision == "bfloat16" and not spec.is_image:
        raise ConfigError(
            "runtime.precision",
            "bfloat16",
            f"it is for images; {spec.name} observes {spec.observation_shape}: use float32 or auto",
        )
    if config.runtime.precision != "auto":
        return config
    measured = runtime == "process" and device.type == "cpu" and spec.is_image and has_bfloat16()
    faster = measured and speedup(config, spec) >= WORTH
    return config.replace(**{"runtime.precision": "bfloat16" if faster else "float32"})


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def speedup(config: Config, spec: EnvSpec) -> float:
    """How many times as fast the torso is trained in bfloat16, on one thread: the median ratio of
    alternating measurements.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        networks = [
            # with the weights laid out as a learner has them
            ActorCritic(config.replace(**{"runtime.precision": precision}), spec).network
            for precision in ("float32", "bfloat16")
        ]
        for network in networks:
            network.allow_gradient_in_parts()
        shape = (FRAMES, *spec.observation_shape)
        observation = torch.from_numpy(np.ones(shape, spec.observation_dtype))
        ratios = []
        for _ in range(ROUNDS):
            full, half = (_seconds(network, observation) for network in networks)
            ratios.append(full / half)
        return statistics.median(ratios)
    finally:
        torch.set_num_threads(threads)


def _seconds(network: Network, observation: torch.Tensor) -> float:
    """Seconds of one pass forward and backward."""

    def once() -> None:
        features = network.torso(observation, observation.new_zeros(FRAMES, dtype=torch.float32))
        torch.autograd.grad(
            features.sum(), list(network.parameters()), allow_unused=True, materialize_grads=True
        )

    once()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        once()
        count += 1
    return (time.perf_counter() - start) / count
