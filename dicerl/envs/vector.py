"""N environments that step together: a ``gymnasium.vector.VectorEnv``, at its own speed.

    dicerl.train(dicerl.vector(make))

calls ``make(num_envs)`` for as many environments as are needed: one to look at its spaces, the
share of each actor, two for each episode of an evaluation. EnvPool's environments have their seeds
from when they are made, and ``reset`` cannot change them: their ``make`` takes a seed, too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from dicerl.envs.gym import end_copy, pass_on, seeds, spec_of
from dicerl.envs.masks import KEY, Masks, in_observation
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed, told


@dataclass(frozen=True)
class VectorMaker:
    """A callable that makes a vector environment of a given size, marked as such."""

    make: Callable[..., Any]

    def __call__(self, num_envs: int, **kwargs: Any) -> Any:
        """Make ``num_envs`` environments."""
        return self.make(num_envs, **kwargs)

    @cached_property
    def takes_seed(self) -> bool:
        """Whether it asks for a seed: a parameter ``seed`` without a default."""
        try:
            asked = inspect.signature(self.make).parameters.get("seed")
        except (TypeError, ValueError):
            return False
        return asked is not None and asked.default is asked.empty

    @property
    def __name__(self) -> str:
        """That of the callable: a run is named after it."""
        return getattr(self.make, "__name__", type(self.make).__name__)


def vector(make: Callable[..., Any]) -> VectorMaker:
    """Mark ``make`` as making a ``gymnasium.vector.VectorEnv``: ``make(num_envs)`` returns one of
    that many environments. It stands wherever ``make_env`` does. With a parameter ``seed`` (and no
    default for it) it is ``make(num_envs, seed=...)``, and called for each seeded reset: for
    environments that are seeded when they are made, as EnvPool's are.

    The environment resets itself with the step after an episode's last (Gymnasium's
    ``AutoresetMode.NEXT_STEP``), as ``SyncVectorEnv`` and ``AsyncVectorEnv`` do by default.
    """
    if not callable(make):
        raise DicerlError(f"vector was given {make!r}; it must be a callable: make(num_envs)")
    return VectorMaker(make)


def registered(env_id: str) -> VectorMaker:
    """Makes the ``vector_entry_point`` of a registered environment, whose module is imported."""
    name = env_id.rpartition(":")[2]
    if gymnasium.registry[name].vector_entry_point is None:
        raise ConfigError(
            "env.vector", True, f"{env_id} is registered without a vector_entry_point"
        )

    def make(num_envs: int, **kwargs: Any) -> Any:
        return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **kwargs)

    return vector(make)


class GymVector:
    """A Gymnasium vector environment, checked: N rows everywhere, next-step autoreset. With
    ``takes_seed`` it is made anew, with ``make(num_envs, seed=...)``, for each seeded reset.
    """

    def __init__(
        self, make: Callable[..., Any], num_envs: int, name: str, takes_seed: bool = False
    ) -> None:
        self._make, self._takes_seed, self.num_envs = make, takes_seed, num_envs
        self._process = os.getpid()
        self._env = env = self._made(name, 0)
        try:
            self._require_protocol(name)
            self.spec, self._encode = spec_of(
                env.single_action_space, env.single_observation_space, name
            )
        except DicerlError:
            env.close()
            raise
        self._masks = Masks(self.spec, env.single_observation_space, num_envs)
        self._ended = np.zeros(num_envs, np.bool_)

    def _made(self, name: str, seed: int) -> Any:
        try:
            if self._takes_seed:
                env = self._make(self.num_envs, seed=seed)
            else:
                env = self._make(self.num_envs)
        except BaseException as error:
            pass_on(error, self._process)
            raise EnvironmentFailed(
                f"{name} could not be made ({self.num_envs} of it): {told(error)}"
            ) from error
        end_copy(self._process)
        if not isinstance(env, VectorEnv):
            raise DicerlError(
                f"{name} gave {type(env).__name__}; make(num_envs) must give a"
                " gymnasium.vector.VectorEnv"
            )
        return env

    def _require_protocol(self, name: str) -> None:
        env = self._env
        if _is_envpool(env):
            if not self._takes_seed:
                raise DicerlError(
                    f"{name} gave an environment of EnvPool, whose seeds are fixed when it is made:"
                    " every actor would play the same; give dicerl.vector a make(num_envs, seed)"
                    " that passes both to envpool.make"
                )
            if env.is_async:
                raise DicerlError(
                    f"{name} gave an environment of EnvPool that steps some of its environments at"
                    " a time; leave batch_size out"
                )
        for what in ("num_envs", "single_action_space", "single_observation_space"):
            if not hasattr(env, what):
                raise DicerlError(f"{name} has no {what}; a gymnasium.vector.VectorEnv has one")
        if env.num_envs != self.num_envs:
            raise DicerlError(
                f"{name} gave {env.num_envs} environments instead of {self.num_envs};"
                " make(num_envs) must give num_envs"
            )
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            # An actor sees an episode's last observation for one step, in which that environment
            # stands still. In the other modes it has no such step: one of the next episode's would
            # be lost.
            raise DicerlError(
                f"{name} has metadata['autoreset_mode'] {mode}; it must be"
                " AutoresetMode.NEXT_STEP: an episode's last observation comes with its last step,"
                " the next one's first with the step after"
            )

    @property
    def mask(self) -> np.ndarray | None:
        """As ``envs.base.VectorEnv``; None where there are no masks."""
        return self._masks.now

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``envs.base.VectorEnv``. Gymnasium's own vector environments give each environment the
        seed that a plain loop gives it, others get one seed for all.
        """
        given: Any = seed
        if seed is not None:
            each = seeds(seed, self.num_envs)
            if self._takes_seed:
                given = None
                self.close()
                self._env = self._made(self.spec.name, each[0])
            elif isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
                given = each
            else:
                given = each[0]
        self._ended[:] = False
        result = self._call("reset", seed=given)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise EnvironmentFailed(
                f"{self.spec.name} gave {type(result).__name__} in reset; it must return"
                " (observations, infos)"
            )
        observation = self._observations(result[0], "reset")
        self._read_masks("reset", result[0], result[1])
        self.spec = replace(self.spec, masked=self.mask is not None)
        return observation

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``envs.base.VectorEnv``."""
        result = self._call(
            "step",
            np.asarray(self.spec.environment_actions(actions), self._env.single_action_space.dtype),
        )
        if not (isinstance(result, tuple) and len(result) == 5):
            raise EnvironmentFailed(
                f"{self.spec.name} gave {type(result).__name__} in step; it must return"
                " (observations, rewards, terminations, truncations, infos)"
            )
        observation = self._observations(result[0], "step")
        reward = self._row(result[1], np.float32, "rewards")
        terminated = self._row(result[2], np.bool_, "terminations")
        truncated = self._row(result[3], np.bool_, "truncations")
        ended = terminated | truncated
        wrong = self._ended & ((reward != 0) | ended)
        if wrong.any():
            raise EnvironmentFailed(
                f"{self.spec.name} gave a reward or an end in the step after an episode's last"
                f" (environment {np.flatnonzero(wrong)[0]}); with next-step autoreset that step"
                " only resets"
            )
        self._ended = ended
        self._read_masks("step", result[0], result[4])
        return observation, reward, terminated, truncated

    def _read_masks(self, what: str, observations: Any, infos: Any) -> None:
        """Take over the masks of all environments: entries of their observations, or
        ``infos["action_mask"]`` [N, ...], with ``infos["_action_mask"]`` [N] where only some have
        one.
        """
        given = infos.get(KEY) if isinstance(infos, dict) else None
        if given is None and self._masks.found is False:
            return
        seen: Any = [None] * self.num_envs
        if in_observation(self._env.single_observation_space):
            seen = iterate(self._env.observation_space, observations)
        has = np.ones(self.num_envs, np.bool_)
        if given is not None:
            has = np.asarray(infos.get(f"_{KEY}", has))
        self._masks.begin()
        for i, observation in enumerate(seen):
            info = {} if given is None or not has[i] else {KEY: given[i]}
            self._masks.read(what, i, observation, info, bool(self._ended[i]))

    def _call(self, what: str, *args: Any, **kwargs: Any) -> Any:
        try:
            result = getattr(self._env, what)(*args, **kwargs)
        except BaseException as error:
            pass_on(error, self._process)
            raise EnvironmentFailed(f"{self.spec.name} raised in {what}: {told(error)}") from error
        end_copy(self._process)
        return result

    def _observations(self, given: Any, what: str) -> np.ndarray:
        """Observations [N, ...] as an array of our own: the environment may use its own again."""
        spec = self.spec
        if self._encode is not None:
            try:
                each = [self._encode(o) for o in iterate(self._env.observation_space, given)]
                found = np.stack(each)
            except Exception as error:
                raise EnvironmentFailed(
                    f"{spec.name} gave an observation in {what} that is not in its space: {error}"
                ) from error
        else:
            found = np.asarray(given)
        shape, dtype = (self.num_envs, *spec.observation_shape), spec.observation_dtype
        # numbers become float32; to make bytes of them would cut them
        fits = found.dtype == dtype if dtype.kind in "ub" else found.dtype.kind in "biuf"
        if found.shape != shape or not fits:
            raise EnvironmentFailed(
                f"{spec.name} gave observations of shape {found.shape} and dtype {found.dtype} in"
                f" {what}; by its observation space it must be {shape} and {dtype}"
            )
        return np.array(found, dtype)

    def _row(self, given: Any, dtype: Any, what: str) -> np.ndarray:
        found = np.asarray(given)
        if found.shape != (self.num_envs,) or found.dtype.kind not in "biuf":
            raise EnvironmentFailed(
                f"{self.spec.name} gave {what} of shape {found.shape} and dtype {found.dtype};"
                f" they must be {self.num_envs} numbers"
            )
        return np.array(found, dtype)

    def close(self) -> None:
        """Close the environment."""
        self._call("close")


def _is_envpool(env: Any) -> bool:
    """Whether it is one of EnvPool, which need not be installed."""
    return any(of.__module__.startswith("envpool.") for of in type(env.unwrapped).__mro__)
