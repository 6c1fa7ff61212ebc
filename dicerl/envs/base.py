"""The interface of a vector environment: next-step autoreset, terminated apart from truncated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
    # An observation is a stack of this many frames along its first axis, newest last, and zero
    # before an episode's first. 1: no stack.
    frame_stack: int = 1

    @property
    def is_image(self) -> bool:
        """Whether an observation has rows and columns; else it is a vector."""
        return len(self.observation_shape) >= 2

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
