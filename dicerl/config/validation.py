"""Validation: refuses values outside their range and fields that contradict each other."""

from __future__ import annotations

import math
from typing import Any

from dicerl.config.config import Config, fields_of
from dicerl.config.fields import get
from dicerl.errors import ConfigError


def validate(config: Config) -> Config:
    """Return the config if it is valid; otherwise a ConfigError names the field, the value and what
    would be right.
    """
    for name, (kind, field) in fields_of().items():
        if kind is str and "\0" in get(config, name):
            raise ConfigError(name, get(config, name), "no name can hold the character 0")
        if kind is str:
            _validate_text(name, get(config, name))
        if field.metadata["range"] is not None:
            _validate_range(name, get(config, name), *field.metadata["range"])
    _validate_combinations(config)
    for wrapper in config.env.wrappers:
        module, _, name = wrapper.rpartition(":")
        if not module or not name.isidentifier():
            raise ConfigError(
                "env.wrappers",
                wrapper,
                "it must be module:Name, like gymnasium.wrappers:FlattenObservation; callables go"
                " into make_env",
            )
    if config.evaluation.stop_at:
        _validate_stop_at(config)
    if config.runtime.num_actors > config.runtime.num_envs:
        raise ConfigError(
            "runtime.num_actors",
            config.runtime.num_actors,
            f"runtime.num_envs is only {config.runtime.num_envs}",
        )
    if 0 < config.collector.capacity < config.sequence.batch:
        raise ConfigError(
            "collector.capacity",
            config.collector.capacity,
            f"it must hold a batch: at least {config.sequence.batch}",
        )
    if config.bandit.accuracy > math.log1p(config.bandit.max_inv_temperature):
        most = math.log1p(config.bandit.max_inv_temperature)
        raise ConfigError(
            "bandit.accuracy",
            config.bandit.accuracy,
            f"it leaves no tile; it must be at most {most:.3g}",
        )
    from dicerl.core.bandit import MOST_TILES  # here: the command line starts without numpy

    tiles = math.log1p(config.bandit.max_inv_temperature) / config.bandit.accuracy
    if tiles > MOST_TILES:
        least = math.log1p(config.bandit.max_inv_temperature) / MOST_TILES
        raise ConfigError(
            "bandit.accuracy",
            config.bandit.accuracy,
            f"it makes {tiles:,.0f} tiles, and a vote holds tables of their square; it must be at"
            f" least {least:.2g}",
        )
    return config


def _validate_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(name, value, "it must be text that a file can hold (UTF-8)") from None


def _validate_stop_at(config: Config) -> None:
    stop_at = config.evaluation.stop_at
    try:
        reachable = math.isfinite(float(stop_at))
    except ValueError:
        reachable = False
    if not reachable:
        raise ConfigError("evaluation.stop_at", stop_at, "it must be a finite number, or empty")
    if not config.evaluation.every:
        raise ConfigError(
            "evaluation.stop_at", stop_at, "nothing is evaluated: evaluation.every is 0"
        )


def _validate_range(name: str, value: Any, low: float, high: float) -> None:
    span = f"between {low:g} and {high:g}"
    if isinstance(value, tuple):
        if not value or not all(low <= item <= high for item in value):
            raise ConfigError(name, value, f"it needs at least one value, each {span}")
    elif not low <= value <= high:
        raise ConfigError(name, value, f"it must lie {span}")


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
            f"a batch takes {replayed} of them (sequence.batch is {config.sequence.batch}); that is"
            " the least",
        )
