"""Three small environments: one that is learned in seconds, one that needs memory, one that counts
its steps.

    dicerl train dicerl.envs.toy:Catch-v0 --preset classic
    dicerl train dicerl.envs.toy:TMaze-v0 --preset classic --network.lstm 64 --sequence.burn-in 10
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Catch(gymnasium.Env):
    """A ball falls down a board of ``rows`` × ``columns``; the paddle in the last row catches it
    (+1) or not (-1).
    """

    action_space = Discrete(3)  # left, stay, right

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        self.rows, self.columns = rows, columns
        self.observation_space = Box(0.0, 1.0, (rows * columns,), np.float32)

    def _observe(self) -> np.ndarray:
        board = np.zeros((self.rows, self.columns), np.float32)
        board[self._row, self._column] = 1.0
        board[-1, self._paddle] = 1.0
        return board.ravel()

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Ball in the first row of a random column, paddle in the middle; return (board, {})."""
        super().reset(seed=seed)
        self._row, self._column, self._paddle = (
            0,
            int(self.np_random.integers(self.columns)),
            self.columns // 2,
        )
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move the paddle by ``action`` - 1, the ball a row down; the last row ends the episode."""
        self._paddle = int(np.clip(self._paddle + action - 1, 0, self.columns - 1))
        self._row += 1
        last = self._row == self.rows - 1
        reward = (1.0 if self._paddle == self._column else -1.0) if last else 0.0
        return self._observe(), reward, last, False, {}


class TMaze(gymnasium.Env):
    """A cue at the start shows which way to turn at the end of a corridor; in the corridor the
    agent moves by itself.

    +1 for the correct turn, 0 for the wrong one: without memory the best mean return is 0.5.
    """

    action_space = Discrete(2)  # turn left, turn right; in the corridor neither matters

    def __init__(self, length: int = 10) -> None:
        self.length = length
        # cue (only at the start), at the start, at the junction
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)

    def _observe(self) -> np.ndarray:
        start, junction = self._place == 0, self._place == self.length
        return np.array([self._cue if start else 0.0, start, junction], np.float32)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw the cue and go to the start; return (observation, {})."""
        super().reset(seed=seed)
        self._cue, self._place = (1.0 if self.np_random.random() < 0.5 else -1.0), 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Go one place on; at the junction turn by ``action``, which ends the episode."""
        if self._place == self.length:
            return self._observe(), float((action == 0) == (self._cue > 0)), True, False, {}
        self._place += 1
        return self._observe(), 0.0, False, False, {}


class Counting(gymnasium.Env):
    """Observes (environment's own number, episode, step), to prove that no step is lost, doubled or
    reordered.

    Episodes have random lengths and end alternately by termination and truncation; the reward is
    the step's number.
    """

    action_space = Discrete(4)
    observation_space = Box(-np.inf, np.inf, (3,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode, of 1 to 29 steps; with a ``seed``, as another environment."""
        super().reset(seed=seed)
        if seed is not None:
            self._identity, self._episode = float(self.np_random.integers(1 << 20)), -1
        self._episode += 1
        self._step, self._last = 0, int(self.np_random.integers(1, 30))
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.array([self._identity, self._episode, self._step], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Count one step, whatever ``action`` is; the reward is its number."""
        self._step += 1
        end = self._step == self._last
        terminates = self._episode % 2 == 0
        return self._observe(), float(self._step), end and terminates, end and not terminates, {}


for _name, _kind in (("Catch-v0", Catch), ("TMaze-v0", TMaze), ("Counting-v0", Counting)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=f"{__name__}:{_kind.__name__}")
