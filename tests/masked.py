"""An environment with action masks, whose best action of all is never allowed; for the tests of
those, also in children.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

ALLOWED = ({1, 2}, {2}, {0, 1, 3})  # by step modulo 3; the best of them is the last
NEVER = 4
STEPS = 7  # of an episode


def allowed(place: int) -> np.ndarray:
    """The mask at a step of an episode."""
    return np.array([action in ALLOWED[place % 3] for action in range(5)], np.int8)


class Masked(gymnasium.Env):
    """Five actions, numbered from 2: reward 1 for the largest that is allowed, and an error for one
    that is not. Observes the step, modulo 3. Episodes end alternately by termination and
    truncation, and then the mask forbids all, or is missing.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    action_space: Any = Discrete(5, start=2)
    observation_space: Any = Box(0, 1, (3,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._place = 0
        return self._observe(), self._info()

    def _observe(self) -> Any:
        return np.eye(3, dtype=np.float32)[self._place % 3]

    def _mask(self) -> np.ndarray:
        return allowed(self._place) * (self._place < STEPS)

    def _info(self) -> dict[str, Any]:
        if self._place == STEPS and self._episode % 2:
            return {}
        return {"action_mask": self._mask()}

    def _number(self, action: Any) -> int:
        return int(action) - 2

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        number = self._number(action)
        if not allowed(self._place)[number]:
            raise RuntimeError(f"action {number} is forbidden at step {self._place}")
        reward = float(number == max(ALLOWED[self._place % 3]))
        self._place += 1
        end = self._place == STEPS
        terminates = self._episode % 2 == 0
        return self._observe(), reward, end and terminates, end and not terminates, self._info()

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), self._place, np.uint8)


class Entry(Masked):
    """The same, with the mask as an entry of the observation."""

    observation_space = Dict({"seen": Box(0, 1, (3,), np.float32), "action_mask": Box(0, 1, (5,))})

    def _observe(self) -> Any:
        return {"seen": super()._observe(), "action_mask": self._mask().astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        return {}


class Branches(Masked):
    """The same with a second branch, of which only 1 and 2 are allowed."""

    action_space = MultiDiscrete([5, 3], start=[2, 0])

    def _number(self, action: Any) -> int:
        if action[1] == 0:
            raise RuntimeError("0 is forbidden in the second branch")
        return int(action[0]) - 2

    def _info(self) -> dict[str, Any]:
        info = super()._info()
        if info:
            info["action_mask"] = (info["action_mask"], np.array([0, 1, 1], np.int8))
        return info
