"""What is remembered of episodes' returns: by the search (a running mean to judge them by), and to
choose the best region (what the last episodes say of each tile).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
WIDTH = 3.0  # tiles: deviation of the window in which a Record averages
FRACTION = 8  # of all episodes, what a Record remembers at least: 1 / this
LARGEST = 1e300  # of a saved number
MEMORY = 50  # episodes, at most, of a Record's own baseline: returns grow as the agent learns


def finite(value: Any, least: float = -math.inf) -> Any:
    """A saved number: ``value`` if it is one, finite and at least ``least``; else a ValueError."""
    if type(value) not in (int, float) or not max(least, -LARGEST) <= value <= LARGEST:
        raise ValueError(f"a saved number is {str(value)[:40]!r}")
    return value


@dataclass
class Baseline:
    """The part of a return that says nothing about x: a running mean m of the returns, and their
    drift c, what that mean misses while returns grow or fall.

        a = 1 / min(n, memory)      n = number of returns so far
        m += a (g - m)
        c += a (g - m - c)

    g - m - c is left. It does not change if all returns are shifted, and is scaled with them.
    """

    memory: int  # episodes
    mean: float = 0.0
    drift: float = 0.0
    seen: int = 0

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Baseline:
        """The baseline that gave ``state``."""
        least = {"memory": 1, "seen": 0}
        return cls(**{name: finite(state[name], least.get(name, -math.inf)) for name in state})

    def remove(self, g: float) -> float:
        """Learn from the return ``g``; return what is left of it."""
        self.seen += 1
        rate = 1.0 / min(self.seen, self.memory)
        self.mean += rate * (g - self.mean)
        self.drift += rate * (g - self.mean - self.drift)
        return g - self.mean - self.drift


class Record:
    """The evidence for each of K tiles in about the last ``memory`` episodes, or the last eighth of
    all, if that is more.

    A bandit's value follows the newest returns, as a search must; where returns are noisy and many
    tiles alike, the largest of K such values is a lucky one. The record forgets more slowly, looks
    at more of a tile's neighbours, and distrusts what was seen seldom. g_e is what a Baseline
    leaves of the return of the episode e episodes ago, f_e what is not forgotten of it:

        n_i = sum_e f_e [x_e in tile i]
        s_i = sum_e f_e [x_e in tile i] g_e
        f_e = product over the e episodes since of 1 - 1 / max(memory, episodes so far / 8)
        k_ij = exp(-((i - j) / WIDTH)^2 / 2)
        merit_i = (k s)_i / (k n)_i - d / sqrt((k n)_i)

    with d the deviation of all g_e: the mean around tile i, less its standard error.
    """

    def __init__(self, num_tiles: int, memory: int) -> None:
        self.memory = memory
        self.number: Floats = np.zeros(num_tiles)
        self.sum: Floats = np.zeros(num_tiles)
        self.square = 0.0  # sum over all tiles
        self._baseline = Baseline(min(memory, MEMORY))
        tiles = np.arange(num_tiles)
        self._window = np.exp(-(((tiles[:, None] - tiles) / WIDTH) ** 2) / 2)  # [K, K]

    def update(self, tile: int, g: float) -> None:
        """Remember the return ``g`` of an episode in ``tile``."""
        g = self._baseline.remove(g)
        kept = 1.0 - 1.0 / max(self.memory, self._baseline.seen / FRACTION)
        self.number *= kept
        self.sum *= kept
        self.number[tile] += 1.0
        self.sum[tile] += g
        self.square = self.square * kept + g * g

    def merits(self) -> Floats:
        """merit_i of each tile; -inf everywhere before the first episode.    [K]"""
        total = float(self.number.sum())
        if not total:
            return np.full_like(self.number, -np.inf)
        mean = float(self.sum.sum()) / total
        deviation = math.sqrt(max(self.square / total - mean * mean, 0.0))
        number = np.maximum(self._window @ self.number, 1e-12)  # far from all that was visited
        return np.asarray(self._window @ self.sum / number - deviation / np.sqrt(number))

    def state_dict(self) -> dict[str, Any]:
        """All of it as a JSON-able value."""
        return {
            "memory": self.memory,
            "number": self.number.tolist(),
            "sum": self.sum.tolist(),
            "square": self.square,
            "baseline": asdict(self._baseline),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Record:
        """The record that gave ``state``."""
        record = cls(len(state["number"]), finite(state["memory"], 1))
        record.number[:] = [finite(x, 0) for x in state["number"]]
        record.sum[:] = [finite(x) for x in state["sum"]]
        record.square = finite(state["square"], 0)
        record._baseline = Baseline.from_state_dict(state["baseline"])
        return record
