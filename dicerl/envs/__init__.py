"""Environments: Atari by its short name, anything else through Gymnasium, or a callable that makes
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dicerl.config import Config
from dicerl.envs.atari import AtariApart, AtariEnv, game_name, games
from dicerl.envs.base import (
    EnvSpec,
    VectorEnv,
    require_finite,
    require_same,
    require_torch_as_it_was,
)
from dicerl.envs.filmed import FilmedAtari, FilmedEnv, FilmedGym, names_of_actions
from dicerl.envs.gym import GymEnv, maker
from dicerl.envs.masks import mask_of, random_actions
from dicerl.envs.patience import CLOSING, STARTING, Patience
from dicerl.envs.vector import GymVector, VectorMaker, registered
from dicerl.envs.wrappers import configured, with_kwargs
from dicerl.errors import ConfigError, DicerlError

__all__ = [
    "EnvSpec",
    "FilmedEnv",
    "MakeEnv",
    "VectorEnv",
    "action_names",
    "callable_id",
    "env_spec",
    "make_evaluation_env",
    "make_filmed_env",
    "make_vector_env",
    "mask_of",
    "preset_for",
    "random_actions",
    "require_finite",
    "require_same",
    "require_torch_as_it_was",
]

# makes one gymnasium.Env; called with env.kwargs, and with render_mode for a film. Or what
# dicerl.vector returns.
MakeEnv = Callable[..., Any]


def make_vector_env(
    config: Config, num_envs: int, make_env: MakeEnv | None = None, num_threads: int = 0
) -> VectorEnv:
    """Make ``num_envs`` environments; ``make_env`` overrides ``config.env.id``. ``num_threads`` is
    for Atari; 0 leaves it to ale-py.
    """
    env: VectorEnv = _make(AtariEnv, GymEnv, config, num_envs, make_env, num_threads)
    require_torch_as_it_was(env.spec.name, made=True)
    return env


def make_evaluation_env(
    config: Config, num_envs: int, make_env: MakeEnv | None = None, num_threads: int = 0
) -> VectorEnv:
    """Make the same environments, for one episode of each."""
    env: VectorEnv = _make(AtariApart, GymEnv, config, num_envs, make_env, num_threads)
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
        return _single_or_vector(gym, make_env, config, num_envs, callable_id(make_env).strip("<>"))
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
        _require_plain(game, config)
        return atari(game, config.env, num_envs, num_threads)
    make = maker(config.env.id)
    if config.env.vector:
        make = registered(config.env.id)
    return _single_or_vector(gym, make, config, num_envs, config.env.id)


def _single_or_vector(
    gym: type[Any], make: MakeEnv, config: Config, num_envs: int, name: str
) -> Any:
    if not isinstance(make, VectorMaker):
        if config.env.vector:
            raise ConfigError(
                "env.vector", True, f"{name} makes single environments; see dicerl.vector(make)"
            )
        return gym(configured(make, config.env, name), num_envs, name)
    if config.env.wrappers:
        raise ConfigError(
            "env.wrappers",
            ",".join(config.env.wrappers),
            f"wrappers go around single environments, and {name} is a vector of them; wrap it where"
            " it is made",
        )
    if gym is not GymEnv:
        raise DicerlError(
            f"{name} cannot be filmed: it is a vector environment; pass one that makes a single one"
            " as make_env, or leave the video out"
        )
    return GymVector(with_kwargs(make, config.env, name), num_envs, name, make.takes_seed)


def _require_plain(game: str, config: Config) -> None:
    """Refuse what only Gymnasium environments take."""
    for field in ("kwargs", "wrappers", "vector"):
        value = getattr(config.env, field)
        if value:
            raise ConfigError(
                f"env.{field}",
                value,
                f"{game} is played by ale-py's own vector environment, set up to the paper's"
                " protocol by --env.sticky-actions, --env.noop-max and the like; as a plain"
                f" Gymnasium environment it is ale_py:{games()[game]}",
            )


def callable_id(make_env: MakeEnv) -> str:
    """The ``env.id`` of an environment given as a callable: its name in angle brackets."""
    return f"<{getattr(make_env, '__name__', type(make_env).__name__).strip('<>')}>"


def env_spec(config: Config, make_env: MakeEnv | None = None) -> EnvSpec:
    """The environment's spec, read from one instance of it. That is reset: only then a Gymnasium
    environment shows whether it has action masks.
    """
    starting = max(STARTING, config.runtime.stuck_seconds)
    with Patience(config.env.id, config.runtime.stuck_seconds) as patience:
        with patience.within(starting, "being made"):
            env = make_vector_env(config, 1, make_env)
        try:
            if isinstance(env, GymEnv):
                with patience.within(starting, "reset"):
                    env.reset(0)
            return env.spec
        finally:
            with patience.within(CLOSING, "close"):
                env.close()


def action_names(config: Config, make_env: MakeEnv | None = None) -> list[str]:
    """What the environment calls its actions, or their numbers, in the order of our own."""
    env = _make(FilmedAtari, GymEnv, config, 1, make_env, 0)
    try:
        if isinstance(env, FilmedAtari):
            return env.action_names
        return names_of_actions(env._envs[0] if isinstance(env, GymEnv) else env._env, env.spec)
    finally:
        env.close()


def preset_for(env_id: str) -> str:
    """The name of an environment's default preset."""
    if env_id.startswith("MinAtar/"):
        return "minatar"
    return "laptop" if game_name(env_id) else "classic"
