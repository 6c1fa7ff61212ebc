"""What is refused: values outside their range, and fields that contradict each other."""

from __future__ import annotations

import math

from dicerl.config.config import Config
from dicerl.config.fields import get
from dicerl.errors import ConfigError

# name -> (smallest, largest): refused outside.
_RANGES: dict[str, tuple[float, float]] = {
    "frames": (1, 1e13),
    "seed": (0, 2**63 - 1),
    "log_every": (1, 1e9),
    "env.action_repeat": (1, 64),
    "env.frame_stack": (1, 64),
    "env.image_size": (16, 512),
    "env.noop_max": (0, 10_000),
    "env.sticky_actions": (0, 0.999),
    "env.reward_scale": (1e-9, 1e9),
    "env.max_episode_frames": (1, 1e9),
    "network.hidden": (1, 65_536),
    "network.lstm": (0, 65_536),
    "network.forget_bias": (-10, 10),
    "network.statistics_steps": (1, 1e8),
    "network.statistics_floor": (1e-6, 1e6),
    "network.statistics_clip": (0.1, 1e6),
    "behaviour.inv_temperature": (0, 1e6),
    "behaviour.epsilon": (0, 1),
    "collector.replay": (0, 0.99),
    "collector.replay_capacity": (1, 1e8),
    "loss.auxiliary": (0, 1e6),
    "bandit.num_bandits": (1, 10_000),
    "bandit.num_candidates": (1, 10_000),
    "bandit.ucb_scale": (0, 1e6),
    "bandit.max_inv_temperature": (1e-6, 1e6),
    "bandit.accuracy": (1e-4, 10),
    "sequence.burn_in": (0, 100_000),
    "sequence.length": (1, 100_000),
    "sequence.batch": (1, 1e6),
    "sequence.reuse": (1, 1000),
    "sequence.capacity": (0, 1e8),
    "loss.discount": (0, 1),
    "loss.value": (0, 1e6),
    "loss.q": (0, 1e6),
    "loss.policy": (0, 1e6),
    "loss.entropy": (0, 1e6),
    "loss.rho_bar": (1e-6, 1e6),
    "loss.c_bar": (1e-6, 1e6),
    "optimizer.learning_rate": (0, 10),
    "optimizer.warmup": (0, 1e9),
    "optimizer.weight_decay": (0, 10),
    "optimizer.beta1": (0, 0.9999999),
    "optimizer.beta2": (0, 0.9999999),
    "optimizer.eps": (1e-12, 1),
    "optimizer.clip_norm": (1e-9, 1e12),
    "runtime.num_envs": (1, 100_000),
    "runtime.num_actors": (0, 4096),
    "runtime.num_learners": (0, 64),
    "runtime.learner_threads": (0, 4096),
    "runtime.push_every": (1, 1e6),
    "runtime.pull_every": (1, 1e6),
    "runtime.stuck_seconds": (0.1, 1e6),
    "runtime.max_restarts": (0, 1e6),
    "evaluation.every": (0, 1e13),
    "evaluation.episodes": (1, 100_000),
    "evaluation.max_steps": (1, 1e9),
    "checkpoint.every": (0, 1e13),
    "checkpoint.keep": (1, 1e6),
}


def validate(config: Config) -> Config:
    """The config itself, or a ConfigError that names the field, the value and what would be
    right.
    """
    for name, (low, high) in _RANGES.items():
        value = get(config, name)
        if not low <= value <= high:
            raise ConfigError(name, value, f"it must lie between {low:g} and {high:g}")
    for name in ("bandit.learning_rates", "bandit.widths"):
        values = get(config, name)
        if not values or not all(0 <= v <= 1000 for v in values):
            raise ConfigError(name, values, "it needs at least one value, each between 0 and 1000")
    _validate_combinations(config)
    if config.runtime.num_actors > config.runtime.num_envs:
        raise ConfigError(
            "runtime.num_actors",
            config.runtime.num_actors,
            f"runtime.num_envs is only {config.runtime.num_envs}",
        )
    if 0 < config.sequence.capacity < config.sequence.batch:
        raise ConfigError(
            "sequence.capacity",
            config.sequence.capacity,
            f"it must hold a batch: at least {config.sequence.batch}",
        )
    if config.bandit.accuracy > math.log1p(config.bandit.max_inv_temperature):
        most = math.log1p(config.bandit.max_inv_temperature)
        raise ConfigError(
            "bandit.accuracy",
            config.bandit.accuracy,
            f"it leaves no tile; it must be at most {most:.3g}",
        )
    return config


def _validate_combinations(config: Config) -> None:
    behaviour, loss = config.behaviour, config.loss
    if loss.estimator == "drtrace" and loss.critic != "casa":
        raise ConfigError(
            "loss.estimator",
            loss.estimator,
            f"with loss.critic {loss.critic} it learns nothing: its V - Q terms need E_pi[A] = 0, "
            "which only loss.critic casa gives",
        )
    if behaviour.source == "trainable" and behaviour.family != "boltzmann":
        raise ConfigError(
            "behaviour.source",
            behaviour.source,
            f"it needs behaviour.family boltzmann, not {behaviour.family}",
        )
    if behaviour.source == "trainable" and not behaviour.inv_temperature > 0:
        raise ConfigError(
            "behaviour.inv_temperature",
            behaviour.inv_temperature,
            "where it is trainable it must start above 0",
        )
    mixture = behaviour.mixture
    if len(mixture) != 3 or not 0 <= mixture[0] <= mixture[1] <= 1e6 or not 0 <= mixture[2] <= 1:
        raise ConfigError(
            "behaviour.mixture",
            mixture,
            "it must be 1/tau1,1/tau2,w with 0 <= 1/tau1 <= 1/tau2 and w from 0 to 1",
        )
    replayed = config.replayed
    if config.collector.replay and not 0 < replayed < config.sequence.batch:
        raise ConfigError(
            "collector.replay",
            config.collector.replay,
            f"of a batch of {config.sequence.batch} it must leave at least one "
            "new and one older sequence",
        )
    if replayed and config.collector.replay_capacity < replayed:
        raise ConfigError(
            "collector.replay_capacity",
            config.collector.replay_capacity,
            f"a batch takes {replayed} of them; that is the least",
        )
