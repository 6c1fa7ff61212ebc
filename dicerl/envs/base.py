"""The interface of a vector environment: next-step autoreset, terminated apart from truncated."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dicerl.errors import EnvironmentFailed


@dataclass(frozen=True)
class EnvSpec:
    """Observations, actions and names of an environment."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype  # uint8 or bool images, float32 vectors
    num_actions: int
    action_repeat: int = 1
    first_action: int = 0  # the environment's own number for our action 0
    game: str = ""  # Atari game's short name, empty elsewhere
    # of a MultiDiscrete: actions are combinations of branches of these sizes, the last one fastest
    branches: tuple[int, ...] = ()
    branch_starts: tuple[int, ...] = ()  # the environment's own first number of each
    action_shape: tuple[int, ...] = ()
    images: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (offset, shape) inside a flat vector
    # the environment's own, where its observations have to be encoded (envs/spaces.py)
    space: Any = field(default=None, compare=False)
    # Whether it says at every step which actions are allowed (envs/masks.py). A Gymnasium
    # environment that says so in ``info`` is known for it after a reset.
    masked: bool = False
    # An observation is a stack of this many frames along its first axis, newest last, and zero
    # before an episode's first. 1: no stack.
    frame_stack: int = 1

    @property
    def is_image(self) -> bool:
        """Whether an observation has rows and columns; else it is a vector."""
        return len(self.observation_shape) >= 2

    def environment_actions(self, actions: np.ndarray) -> list[Any]:
        """Actions [N], numbered from 0, as the environment knows them."""
        if not self.branches:
            numbers: list[Any] = (actions + self.first_action).tolist()
            return numbers
        chosen = np.stack(np.unravel_index(actions, self.branches), -1) + self.branch_starts
        return list(chosen.reshape(len(actions), *self.action_shape))

    @property
    def channels_last(self) -> bool:
        """Whether the shape is (H, W, C): the last axis is the smallest of the three."""
        shape = self.observation_shape
        return len(shape) == 3 and shape[2] < shape[0] and shape[2] <= shape[1]


class VectorEnv(Protocol):
    """N environments in lock-step, with next-step autoreset.

    An episode's last step (terminated or truncated) returns the final observation; the next
    ``step`` ignores that environment's action, resets it, and returns its first observation with
    reward 0.

    One whose spec is ``masked`` also has ``mask`` [N, A], bool: the actions allowed at the present
    observations, at least one of each environment.

    One may have ``rest(ended)``, which is told the environments [N] that need no more steps until
    the next ``reset``; what they return means nothing then.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Reset every environment; return the first observations [N, ...]."""
        ...

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Take actions [N], numbered from 0; return (observations [N, ...], raw rewards [N],
        terminated [N], truncated [N]).
        """
        ...

    def close(self) -> None:
        """Close every environment; none is stepped after that."""
        ...


def require_finite(spec: EnvSpec, what: str, values: np.ndarray) -> None:
    """Raise EnvironmentFailed unless all ``values`` are finite; ``what`` is the message's word for
    one of them. A NaN must be caught at its source: in the learner it is only a loss that became
    nan.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise EnvironmentFailed(
            f"{spec.name} gave the {what} {values[~np.isfinite(values)][0]}; {what}s must be finite"
        )


def require_torch_as_it_was(name: str, made: bool = False) -> None:
    """Raise EnvironmentFailed if an environment has changed what torch computes with in all of this
    process: everything that is trained would be computed so. The default device, which takes a
    while to ask for, is looked at only when one was ``made``.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.get_default_dtype() is not torch.float32:
        wrong = f"made {torch.get_default_dtype()} torch's default type"
    elif torch.is_inference_mode_enabled():
        wrong = "left torch in inference mode"
    elif made and torch.get_default_device().type != "cpu":
        wrong = f"made {torch.get_default_device()} torch's default device"
    else:
        return
    raise EnvironmentFailed(f"{name} {wrong}; it must leave that as it is")


def require_same(env: EnvSpec, spec: EnvSpec) -> None:
    """Raise EnvironmentFailed unless an environment made now observes and acts like the one the
    network was built for.
    """
    given, wanted = (
        (s.observation_shape, s.observation_dtype, s.num_actions, s.first_action)
        for s in (env, spec)
    )
    if given != wanted:
        (shape, dtype, actions, _), (first_shape, first_dtype, first_actions, _) = given, wanted
        raise EnvironmentFailed(
            f"{env.name} observes {shape} {dtype} and has {actions} actions, but when it was first"
            f" made {first_shape} {first_dtype} and {first_actions}; it must always be the same"
        )
