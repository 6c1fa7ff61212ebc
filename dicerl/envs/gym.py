"""Any Gymnasium environment with Discrete actions and Box observations, N in one process."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed, nearest

SUPPORTED = (
    "supported are Discrete actions and Box observations: images (uint8, bool or float; H×W, H×W×C"
    " or C×H×W) and vectors"
)


def maker(env_id: str) -> Callable[..., gymnasium.Env]:
    """A callable that makes one environment (it also takes render_mode). An id may name the module
    that registers it: ``module:MyEnv-v0``.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError("env.id", env_id, f"its module cannot be imported: {error}") from None
    if name not in gymnasium.registry:
        register_plugins()
    if name not in gymnasium.registry:
        from dicerl.envs.atari import ATARI_57

        # Suggest ids where a version or a namespace was given, games for a plain word.
        ids = [
            i
            for i in gymnasium.registry
            if not i.startswith("ALE/") and "ale_py" not in str(gymnasium.registry[i].entry_point)
        ]
        game = re.sub(r"^ALE/|-v\d+$", "", name)
        hint = (
            nearest(name, ids)
            if re.search(r"/|-v\d+$", name) and not name.startswith("ALE/")
            else nearest(game, ATARI_57)
        )
        hint = hint or nearest(game, ATARI_57) or nearest(name, ids)
        raise ConfigError(
            "env.id",
            env_id,
            f"no Atari game and no registered Gymnasium environment has that name{hint}",
        )
    return functools.partial(gymnasium.make, name, disable_env_checker=True)


@functools.cache
def register_plugins() -> None:
    """Register environments that installed packages announce by entry point (MinAtar does);
    Gymnasium 1.x no longer does this.
    """
    for entry in importlib.metadata.entry_points(group="gymnasium.envs"):
        try:
            entry.load()()
        except Exception as error:  # somebody else's broken package must not stop this run
            warnings.warn(
                f"environments of {entry.value} could not be registered: {error}", stacklevel=2
            )


def observation_spec(space: gymnasium.Space[Any], name: str) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, dtype) in which observations of a space are kept; an unsupported space is an error.
    ``name`` is the environment's, for the message.
    """
    if (
        not isinstance(space, gymnasium.spaces.Box)
        or len(space.shape) not in (1, 2, 3)
        or 0 in space.shape
    ):
        raise DicerlError(f"{name} observes {space}; {SUPPORTED}")
    if len(space.shape) > 1 and space.dtype in (np.uint8, np.bool_):
        return space.shape, np.dtype(space.dtype)
    return space.shape, np.dtype(np.float32)


class GymEnv:
    """N Gymnasium environments, stepped one after the other in this process: that costs no more
    than the environments themselves.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, name: str) -> None:
        try:
            self._envs = [make() for _ in range(num_envs)]
        except DicerlError:
            raise
        except Exception as error:
            raise EnvironmentFailed(
                f"{name} could not be made: {type(error).__name__}: {error}"
            ) from error
        first = self._envs[0]
        if not isinstance(first, gymnasium.Env):
            raise DicerlError(f"{name} gave {type(first).__name__}; it must be a gymnasium.Env")
        if not isinstance(first.action_space, gymnasium.spaces.Discrete):
            raise DicerlError(f"{name} acts in {first.action_space}; {SUPPORTED}")
        shape, dtype = observation_spec(first.observation_space, name)
        self.num_envs = num_envs
        self.spec = EnvSpec(
            name=name,
            observation_shape=shape,
            observation_dtype=dtype,
            num_actions=int(first.action_space.n),
            first_action=int(first.action_space.start),
        )
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``VectorEnv``; an environment that raises is named by its number."""
        seeds = [None] * self.num_envs if seed is None else self.seeds(seed)
        self._ended[:] = False
        out = np.empty((self.num_envs, *self.spec.observation_shape), self.spec.observation_dtype)
        for i, env in enumerate(self._envs):
            try:
                out[i] = env.reset(seed=seeds[i])[0]
            except Exception as error:
                raise self._raised("reset", i, error) from error
        return out

    def seeds(self, seed: int) -> list[int]:
        """A seed for each environment, derived from ``seed``."""
        return [int(s) % 2**31 for s in np.random.SeedSequence(seed).generate_state(self.num_envs)]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``VectorEnv``; an environment that raises is named by its number."""
        n = self.num_envs
        observation = np.empty((n, *self.spec.observation_shape), self.spec.observation_dtype)
        reward = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        i = 0
        try:
            for i, (env, action) in enumerate(
                zip(self._envs, (actions + self.spec.first_action).tolist(), strict=True)
            ):
                if self._ended[i]:
                    observation[i] = env.reset()[0]
                else:
                    observation[i], reward[i], terminated[i], truncated[i], _ = env.step(action)
        except Exception as error:
            raise self._raised("step", i, error) from error
        self._ended = terminated | truncated
        return observation, reward, terminated, truncated

    def _raised(self, what: str, i: int, error: Exception) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"{self.spec.name} raised in {what} (environment {i}): {type(error).__name__}: {error}"
        )

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
