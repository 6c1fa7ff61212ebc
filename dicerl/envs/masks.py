"""Action masks: which actions an environment allows now.

A Gymnasium environment gives one in ``info["action_mask"]`` of every reset and step, or as the
entry "action_mask" of a Dict observation (the network sees that, too; it counts where there are
both). It holds 0 or 1 for every action. Where actions are combinations (MultiDiscrete,
MultiBinary), it holds those of each branch, one branch after the other, or is a tuple with one mask
a branch, as ``MultiDiscrete.sample`` takes it; a combination is allowed if each of its parts is.

Elsewhere in the package a mask is an array of bool with an entry for every action, True where it
is allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from dicerl.envs.base import EnvSpec, VectorEnv
from dicerl.errors import EnvironmentFailed

KEY = "action_mask"
EVERY = "it must give one in every reset and step, or never"


def in_observation(space: Space[Any] | None) -> bool:
    """Whether observations of a space have the mask as an entry."""
    return isinstance(space, spaces.Dict) and KEY in space.spaces


def parsed(given: Any, spec: EnvSpec) -> np.ndarray:
    """An environment's own mask as one of all actions, or a ValueError.    [A]"""
    branches = spec.branches or (spec.num_actions,)
    wanted = f"it must have shape ({sum(branches)},)"
    if len(branches) > 1:
        wanted += f": {' + '.join(map(str, branches))}, one branch after the other"
    if isinstance(given, tuple | list) and any(np.ndim(part) for part in given):
        sizes = tuple(np.size(part) for part in given)
        if sizes != branches:
            raise ValueError(f"its parts have {sizes} entries; {wanted}")
        given = np.concatenate([np.ravel(part) for part in given])
    flat = np.asarray(given)
    if flat.shape != (sum(branches),):
        raise ValueError(f"it has shape {flat.shape}; {wanted}")
    mask: np.ndarray = flat.astype(np.bool_)
    if flat.dtype != np.bool_ and not np.array_equal(flat, mask):
        raise ValueError(f"it is {flat.tolist()}; every entry must be 0 or 1")
    if not spec.branches:
        return mask
    first, *rest = np.split(mask, np.cumsum(branches)[:-1])
    for part in rest:
        first = np.logical_and.outer(first, part).ravel()
    return first


class Masks:
    """The masks of N Gymnasium environments, from what their resets and steps return."""

    def __init__(self, spec: EnvSpec, space: Space[Any], num_envs: int) -> None:
        self._spec, self._num_envs, self._entry = spec, num_envs, in_observation(space)
        # None: the first reset tells
        self.found: bool | None = True if self._entry else None
        self.now: np.ndarray | None = None  # [N, A]

    def begin(self) -> None:
        """Make room for those of another step; the last ones may still be in use."""
        if self.now is not None:
            self.now = self.now.copy()
        elif self.found is not False:
            self.now = np.ones((self._num_envs, self._spec.num_actions), np.bool_)

    def read(self, what: str, i: int, observation: Any, info: Any, ended: bool = False) -> None:
        """Take over the mask of environment ``i`` from its ``what``, reset or step. No action
        follows where an episode has ``ended``: there it may be missing, or forbid all, and the mask
        before it stays. (A truncated episode's target may ask for Q of its last observation; of
        actions that are never allowed it would be untrained.)
        """
        source = observation if self._entry else info
        given = source.get(KEY) if isinstance(source, dict) else None
        if self.found is None:
            self.found = given is not None
            self.now = self.now if self.found else None
        if given is None and (ended or not self.found):
            return
        where = f"{what} (environment {i})"
        if given is None:
            raise EnvironmentFailed(
                f"{self._spec.name} gave no action mask in {where}, but before; {EVERY}"
            )
        if self.now is None:
            raise EnvironmentFailed(
                f"{self._spec.name} gave an action mask in {where}, but not before; {EVERY}"
            )
        try:
            mask = parsed(given, self._spec)
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(
                f"{self._spec.name} gave an action mask in {where} that does not fit its"
                f" {self._spec.num_actions} actions: {error}"
            ) from error
        if mask.any():
            self.now[i] = mask
        elif not ended:
            raise EnvironmentFailed(
                f"{self._spec.name} gave an action mask in {where} that forbids every action; one"
                " must be allowed"
            )


def mask_of(env: VectorEnv, spec: EnvSpec) -> np.ndarray | None:
    """The actions allowed at the present observations [N, A], or None where ``spec``, for which the
    network was built, has no masks.
    """
    mask: np.ndarray | None = getattr(env, "mask", None)  # only masked environments need have it
    if (mask is not None) != spec.masked:
        now, first = ("no action mask", "one") if mask is None else ("an action mask", "none")
        raise EnvironmentFailed(
            f"{spec.name} gave {now}, but {first} when it was first reset; {EVERY}"
        )
    return mask


def random_actions(env: VectorEnv, rng: np.random.Generator) -> np.ndarray:
    """Draw an allowed action for each environment, all with the same probability.    [N]"""
    mask: np.ndarray | None = getattr(env, "mask", None)
    if mask is None:
        return rng.integers(env.spec.num_actions, size=env.num_envs)
    action: np.ndarray = np.where(mask, rng.random(mask.shape), -1.0).argmax(1)
    return action
