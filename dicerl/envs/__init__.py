"""Environments: Atari by its short name, anything else through Gymnasium, or a callable that makes
one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from dicerl.config import Config
from dicerl.envs.atari import AtariEnv, game_name
from dicerl.envs.base import EnvSpec, VectorEnv, require_finite, require_same
from dicerl.envs.filmed import FilmedAtari, FilmedEnv, FilmedGym
from dicerl.envs.gym import GymEnv, maker
from dicerl.envs.masks import mask_of, random_actions
from dicerl.errors import ConfigError

__all__ = [
    "EnvSpec",
    "FilmedEnv",
    "MakeEnv",
    "VectorEnv",
    "callable_id",
    "env_spec",
    "make_filmed_env",
    "make_vector_env",
    "mask_of",
    "preset_for",
    "random_actions",
    "require_finite",
    "require_same",
]

# makes one gymnasium.Env; called without arguments, or with render_mode for a film
MakeEnv = Callable[..., Any]


def make_vector_env(
    config: Config, num_envs: int, make_env: MakeEnv | None = None, num_threads: int = 0
) -> VectorEnv:
    """Make ``num_envs`` environments; ``make_env`` overrides ``config.env.id``. ``num_threads`` is
    for Atari; 0 leaves it to ale-py.
    """
    env: VectorEnv = _make(AtariEnv, GymEnv, config, num_envs, make_env, num_threads)
    return env


def make_filmed_env(
    config: Config, num_envs: int, make_env: MakeEnv | None = None, num_threads: int = 0
) -> FilmedEnv:
    """Make the same environments, with pictures of the first one."""
    env: FilmedEnv = _make(FilmedAtari, FilmedGym, config, num_envs, make_env, num_threads)
    return env


def _make(
    atari: type[Any],
    gym: type[Any],
    config: Config,
    num_envs: int,
    make_env: MakeEnv | None,
    num_threads: int,
) -> Any:
    if make_env is not None:
        return gym(make_env, num_envs, callable_id(make_env).strip("<>"))
    if not config.env.id:
        raise ConfigError(
            "env.id",
            config.env.id,
            "no environment was chosen; for example dicerl.train('CartPole-v1', frames=100_000),"
            f" dicerl.preset({config.preset!r}, env__id='CartPole-v1'), or make_env=MyEnv for your"
            " own",
        )
    if config.env.id.startswith("<"):
        raise ConfigError(
            "env.id",
            config.env.id,
            "this run's environment was made by a Python callable; pass it again as make_env",
        )
    game = game_name(config.env.id)
    if game is not None:
        return atari(game, config.env, num_envs, num_threads)
    return gym(maker(config.env.id), num_envs, config.env.id)


def callable_id(make_env: MakeEnv) -> str:
    """The ``env.id`` of an environment given as a callable: its name in angle brackets."""
    return f"<{getattr(make_env, '__name__', type(make_env).__name__).strip('<>')}>"


def env_spec(config: Config, make_env: MakeEnv | None = None) -> EnvSpec:
    """The environment's spec, read from one instance of it. That is reset: only then a Gymnasium
    environment shows whether it has action masks.
    """
    with contextlib.closing(make_vector_env(config, 1, make_env)) as env:
        if isinstance(env, GymEnv):
            env.reset(0)
        return env.spec


def preset_for(env_id: str) -> str:
    """The name of an environment's default preset."""
    if env_id.startswith("MinAtar/"):
        return "minatar"
    return "laptop" if game_name(env_id) else "classic"
