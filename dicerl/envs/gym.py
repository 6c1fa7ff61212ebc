"""Any Gymnasium environment whose spaces envs/spaces.py knows, N in one process."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.metadata
import os
import re
import signal
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any

import gymnasium
import numpy as np

from dicerl.envs.base import EnvSpec
from dicerl.envs.masks import KEY, Masks
from dicerl.envs.patience import TimeIsUp
from dicerl.envs.spaces import SUPPORTED, Encode, actions_of, observations_of
from dicerl.envs.trust import import_named
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed, nearest, shortened, told

# what rewards and ends of episodes usually are; anything else is looked at
NUMBERS = {float, int, bool, np.float32, np.float64, np.int64, np.bool_}


def end_copy(process: int) -> None:
    """End this process if it is a copy of ``process`` that an environment made by a fork and that
    came back from it, or raised: both would write the same files and pipes.
    """
    if os.getpid() != process:
        os._exit(0)


def pass_on(error: BaseException, process: int) -> None:
    """Raise what came out of an environment and is not its own: an error of ours, the end of our
    patience, or Ctrl-C, which names its signal while a run trains (runtime/launch.py). Anything
    else, sys.exit as well, would end the run without a reason. In a copy of ``process``, end it.
    """
    end_copy(process)
    if isinstance(error, TimeIsUp):
        raise EnvironmentFailed(str(error)) from None
    if isinstance(error, KeyboardInterrupt) and not error.args:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise error
    elif isinstance(error, DicerlError | KeyboardInterrupt):
        raise error


def maker(env_id: str) -> Callable[..., gymnasium.Env]:
    """A callable that makes one environment (it also takes render_mode). An id may name the module
    that registers it: ``module:MyEnv-v0``.
    """
    module, _, name = env_id.rpartition(":")
    own = ids_of(env_id)
    if name not in gymnasium.registry:
        register_plugins()
    if name not in gymnasium.registry:
        why = _unknown_of(module, name, own) if module else _unknown(name)
        raise ConfigError("env.id", env_id, why)
    return functools.partial(gymnasium.make, name, disable_env_checker=True)


def ids_of(name: str) -> list[str]:
    """Import the module that ``module:...`` names; return the ids that it registers."""
    before = set(gymnasium.registry)
    import_named(name)
    module = name.rpartition(":")[0]
    return [i for i, spec in gymnasium.registry.items() if i not in before or _home(spec) == module]


def _home(spec: Any) -> str:
    """The module that an environment's entry point is in."""
    point = spec.entry_point
    return (
        str(point).partition(":")[0] if isinstance(point, str) else getattr(point, "__module__", "")
    )


def _nearest_id(name: str, ids: list[str]) -> str:
    """The id among ``ids`` whose name is close, whatever the version; '' if none is."""
    words = {_unversioned(i): i for i in ids}
    close = difflib.get_close_matches(_unversioned(name), words, n=1, cutoff=0.7)
    return words[close[0]] if close else ""


def _unversioned(name: str) -> str:
    return re.sub(r"-v\d+$", "", name).lower()


def _unknown_of(module: str, name: str, own: list[str]) -> str:
    """What to say where ``module`` registers the ids ``own``, and not this one."""
    if not own:
        return (
            f"{module} registers no environment; it must call gymnasium.register(id=...), or train"
            " its class from Python: dicerl.train(MyEnv)"
        )
    close = _nearest_id(name, own)
    if close:
        return f"{module} registers no such environment; did you mean {module}:{close}?"
    shown = ", ".join(f"{module}:{i}" for i in own[:5]) + ", ..." * (len(own) > 5)
    return f"{module} registers no such environment; it has {shown}"


def _unknown(name: str) -> str:
    """What to say of a name that nothing installed has."""
    from dicerl.envs.atari import ATARI_57

    ids = [
        i
        for i, spec in gymnasium.registry.items()
        if not i.startswith("ALE/") and "ale_py" not in str(spec.entry_point)
    ]
    game = nearest(re.sub(r"^ALE/|-v\d+$", "", name), ATARI_57, 0.7)
    other = f"; did you mean {close}?" if (close := _nearest_id(name, ids)) else ""
    # ids where a version or a namespace was given, games for a plain word
    wants_id = re.search(r"/|-v\d+$", name) and not name.startswith("ALE/")
    hint = (other or game) if wants_id else (game or other)
    return "no Atari game and no registered Gymnasium environment has that name" + (
        hint or "; name the module that registers your own: my_module:MyEnv-v0"
    )


@functools.cache
def register_plugins(but: str = "") -> None:
    """Register environments that installed packages announce by entry point (MinAtar does), all
    ``but`` one; Gymnasium 1.x no longer does this.
    """
    for entry in importlib.metadata.entry_points(group="gymnasium.envs"):
        if entry.name == but:
            continue
        try:
            entry.load()()
        except Exception as error:  # somebody else's broken package must not stop this run
            warnings.warn(
                f"environments of {entry.value} could not be registered: {error}", stacklevel=2
            )


def seeds(seed: int, count: int) -> list[int]:
    """A seed for each of ``count`` environments, derived from ``seed``."""
    return [int(s) % 2**31 for s in np.random.SeedSequence(seed).generate_state(count)]


def spaces_of(env: gymnasium.Env, name: str) -> tuple[Any, Any]:
    """(action space, observation space) of an environment; one without is an error."""
    found = []
    for what in ("action_space", "observation_space"):
        try:
            space = getattr(env, what, None)
        except Exception as error:
            raise EnvironmentFailed(f"{name} raised where its {what} is: {told(error)}") from error
        if space is None:
            raise DicerlError(f"{name} has no {what}; {SUPPORTED}")
        found.append(space)
    return found[0], found[1]


def spec_of(actions: Any, observations: Any, name: str) -> tuple[EnvSpec, Encode | None]:
    """The spec of an environment with these spaces, and what encodes its observations, if they must
    be.
    """
    acts, seen = actions_of(actions, name), observations_of(observations, name)
    spec = EnvSpec(
        name=name,
        observation_shape=seen.shape,
        observation_dtype=seen.dtype,
        num_actions=acts.count,
        first_action=acts.first,
        branches=acts.branches,
        branch_starts=acts.starts,
        action_shape=acts.shape,
        images=seen.images,
        space=None if seen.encode is None else observations,
    )
    return spec, seen.encode


class GymEnv:
    """N Gymnasium environments, stepped one after the other in this process: that costs no more
    than the environments themselves.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, name: str) -> None:
        self._process = os.getpid()
        try:
            self._envs = [make() for _ in range(num_envs)]
        except BaseException as error:
            pass_on(error, self._process)
            raise EnvironmentFailed(f"{name} could not be made: {told(error)}") from error
        end_copy(self._process)
        first = self._envs[0]
        if not isinstance(first, gymnasium.Env):
            how = "; of a vector environment: dicerl.vector(make), with make(num_envs)"
            raise DicerlError(
                f"{name} gave {type(first).__name__}; it must be a gymnasium.Env"
                f"{how * isinstance(first, gymnasium.vector.VectorEnv)}"
            )
        (actions, observations), *others = (spaces_of(env, name) for env in self._envs)
        self.spec, self._encode = spec_of(actions, observations, name)
        seen = self.spec.observation_shape, self.spec.observation_dtype
        for i, (its_actions, its_observations) in enumerate(others, 1):
            its = observations_of(its_observations, name)
            if its_actions != actions or (its.shape, its.dtype) != seen:
                raise EnvironmentFailed(
                    f"{name} acts in {its_actions} and observes {its_observations} (environment"
                    f" {i}), but {actions} and {observations} (environment 0); all must be alike"
                )
        self.num_envs = num_envs
        self._masks = Masks(self.spec, observations, num_envs)
        self._ended = np.zeros(num_envs, np.bool_)
        self._resting: np.ndarray | None = None  # [N], a part of those that have ended

    @property
    def mask(self) -> np.ndarray | None:
        """As ``VectorEnv``; None where there are no masks."""
        return self._masks.now

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``VectorEnv``; an environment that raises is named by its number."""
        seeds = [None] * self.num_envs if seed is None else self.seeds(seed)
        self._ended[:], self._resting = False, None
        self._masks.begin()
        out = np.empty((self.num_envs, *self.spec.observation_shape), self.spec.observation_dtype)
        for i in range(self.num_envs):
            out[i] = self._first(i, seeds[i])
        self.spec = dataclasses.replace(self.spec, masked=self._masks.now is not None)
        return out

    def _first(self, i: int, seed: int | None = None) -> Any:
        """Reset environment ``i``; return its first observation, which must be as its space says.

        An array of another shape might still be broadcast into place, and one of another type cut
        to fit: an agent would learn from nonsense.
        """
        try:
            result = self._envs[i].reset(seed=seed)
        except BaseException as error:
            pass_on(error, self._process)
            raise self._raised("reset", i, error) from error
        end_copy(self._process)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise EnvironmentFailed(
                f"{self.spec.name} gave {type(result).__name__} in reset (environment {i}); it must"
                " return (observation, info)"
            )
        observation = self._require_fit(result[0], "reset", i)
        self._masks.read("reset", i, *result)
        return observation

    def _require_fit(self, observation: Any, what: str, i: int) -> np.ndarray:
        """The observation as an array of real numbers in the spec's shape."""
        if self._encode is not None:
            try:
                return self._encode(observation)
            except Exception as error:
                raise EnvironmentFailed(
                    f"{self.spec.name} gave an observation in {what} (environment {i}) that is not"
                    f" in its space: {error}"
                ) from error
        try:
            array = np.asarray(observation)
        except Exception as error:  # lists of several lengths
            raise self._raised(what, i, error) from error
        if array.shape != self.spec.observation_shape:
            kind = "" if isinstance(observation, np.ndarray) else f" ({type(observation).__name__})"
            raise EnvironmentFailed(
                f"{self.spec.name} gave an observation of shape {array.shape}{kind} in {what}"
                f" (environment {i}); its observation space has shape"
                f" {self.spec.observation_shape}"
            )
        if array.dtype.kind not in "biuf":
            raise EnvironmentFailed(
                f"{self.spec.name} gave an observation of {array.dtype} in {what} (environment"
                f" {i}); its numbers must be real"
            )
        dtype = self.spec.observation_dtype
        if array.dtype != dtype and dtype.kind in "ub":
            lost = array[array.astype(dtype) != array]
            if lost.size:
                raise EnvironmentFailed(
                    f"{self.spec.name} observed {lost[0]} ({array.dtype}) in {what} (environment"
                    f" {i}); its observation space has the type {dtype}"
                )
        return array

    def seeds(self, seed: int) -> list[int]:
        """A seed for each environment, derived from ``seed``."""
        return seeds(seed, self.num_envs)

    def rest(self, ended: np.ndarray) -> None:
        """Step the ``ended`` environments [N] no more until ``reset``; they observe and gain 0
        then.
        """
        self._resting = ended.copy()
        self._ended = self._ended | ended

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``VectorEnv``; an environment that raises is named by its number."""
        n = self.num_envs
        observation = np.empty((n, *self.spec.observation_shape), self.spec.observation_dtype)
        reward = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        masks = self._masks
        masks.begin()
        shape, dtype = self.spec.observation_shape, self.spec.observation_dtype
        plain = self._encode is None
        i = 0
        try:
            for i, (env, action) in enumerate(
                zip(self._envs, self.spec.environment_actions(actions), strict=True)
            ):
                if self._ended[i]:
                    rests = self._resting is not None and self._resting[i]
                    observation[i] = 0 if rests else self._first(i)
                else:
                    next_, gained, ends, cut, info = env.step(action)
                    if not (
                        type(gained) in NUMBERS and type(ends) in NUMBERS and type(cut) in NUMBERS
                    ):
                        self._require_real(i, reward=gained, terminated=ends, truncated=cut)
                    reward[i], terminated[i], truncated[i] = gained, ends, cut
                    usual = plain and type(next_) is np.ndarray and next_.dtype == dtype
                    if usual and next_.shape == shape:
                        observation[i] = next_
                    else:
                        observation[i] = self._require_fit(next_, "step", i)
                    if masks.found is not False or (isinstance(info, dict) and KEY in info):
                        ended = bool(terminated[i] or truncated[i])
                        masks.read("step", i, next_, info, ended)
        except BaseException as error:
            pass_on(error, self._process)
            raise self._raised("step", i, error) from error
        end_copy(self._process)
        self._ended = terminated | truncated
        if self._resting is not None:
            self._ended |= self._resting
        return observation, reward, terminated, truncated

    def _require_real(self, i: int, **values: Any) -> None:
        """Refuse what an array would take for a number: text, None, half of a complex number."""
        for name, value in values.items():
            if not isinstance(value, Real) and np.asarray(value).dtype.kind not in "biuf":
                raise EnvironmentFailed(
                    f"{self.spec.name} gave {shortened(value)} as {name} in step (environment {i});"
                    " it must be a number"
                )

    def _raised(self, what: str, i: int, error: BaseException) -> EnvironmentFailed:
        return EnvironmentFailed(
            f"{self.spec.name} raised in {what} (environment {i}): {told(error)}"
        )

    def close(self) -> None:
        """Close every environment, even if one raises; that is named by its number."""
        raised = None
        for i, env in enumerate(self._envs):
            try:
                env.close()
            except BaseException as error:
                pass_on(error, self._process)
                raised = raised or self._raised("close", i, error)
        end_copy(self._process)
        if raised is not None:
            raise raised
