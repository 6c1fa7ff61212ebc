"""The Bandits Vote Algorithm, BVA (docs/paper.md 2.4): which temperatures pay, found by an ensemble
of tile-coded bandits.

The searched quantity is x = log(1 + 1/tau), so that 1/tau = exp(x) - 1; 1/tau in [0, 50] is x in
[0, log 51].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dicerl.core.record import Baseline, Record, finite

Floats = NDArray[np.float64]
MAX_X = math.log(51.0)
MODES = ("argmax", "random")
# of a bandit that a config or a checkpoint asks for: its tables grow with the square
MOST_TILES = 500


def inv_temperature_from_x(x: Any) -> Any:
    """1/tau = exp(x) - 1; x = 0 gives exactly 0."""
    return np.expm1(x)


def x_from_inv_temperature(inv_temperature: Any) -> Any:
    """x = log(1 + 1/tau)."""
    return np.log1p(inv_temperature)


class Bandit:
    """One bandit: K = floor((right - left) / accuracy) tiles of equal width that cover [left,
    right] exactly.

    weights w and counts N are vectors of K; d = num_candidates.
    """

    def __init__(
        self,
        mode: str,
        left: float,
        right: float,
        accuracy: float,
        width: int,
        learning_rate: float,
        num_candidates: int,
        ucb_scale: float = 1.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it can be 'argmax' or 'random'")
        if not right > left or not accuracy > 0:
            raise ValueError(
                f"a bandit needs left < right and accuracy > 0; got [{left}, {right}] and"
                f" {accuracy}"
            )
        if width < 0 or num_candidates < 1:
            raise ValueError(
                f"a bandit needs width >= 0 and num_candidates >= 1; got {width} and"
                f" {num_candidates}"
            )
        # 1e-9: (0.3 - 0) / 0.1 is 2.9999999999999996 in floating point and means 3 tiles.
        self.num_tiles = math.floor((right - left) / accuracy + 1e-9)
        if self.num_tiles < 1:
            raise ValueError(
                f"accuracy {accuracy} leaves no tile in [{left}, {right}]; it must be at most"
                f" {right - left}"
            )
        self.mode, self.left, self.right, self.accuracy = mode, left, right, accuracy
        self.width, self.learning_rate = width, learning_rate
        self.num_candidates, self.ucb_scale = num_candidates, ucb_scale
        self.weights: Floats = np.zeros(self.num_tiles)
        self.counts: NDArray[np.int64] = np.zeros(self.num_tiles, np.int64)
        tiles = np.arange(self.num_tiles)
        # 1 where tile j lies in the window [i - width, i + width] of tile i: [K (i), K (j)]
        self.window: Floats = (abs(tiles[:, None] - tiles) <= width).astype(np.float64)
        self._mean_over_window = self.window / self.window.sum(1, keepdims=True)

    def tile(self, x: float) -> int:
        """floor((clip(x) - left) / tile width); x = right falls in the last tile."""
        clipped = min(max(x, self.left), self.right)
        return min(
            int((clipped - self.left) * self.num_tiles / (self.right - self.left)),
            self.num_tiles - 1,
        )

    def edges(self, tile: int) -> tuple[float, float]:
        """The tile's borders in x."""
        width = (self.right - self.left) / self.num_tiles
        return self.left + tile * width, (
            self.right if tile == self.num_tiles - 1 else self.left + (tile + 1) * width
        )

    def values(self) -> Floats:
        """V_i = mean of w over [i - width, i + width], cut at the borders with the denominator cut
        too (eq. bandit_eval).
        """
        return np.asarray(self._mean_over_window @ self.weights)

    def scores(self) -> Floats:
        """(V_i - mean V) / std V + c sqrt(log(1 + sum N) / (1 + N_i)) (eq. bandit_score); first
        term 0 where std is 0.
        """
        values = self.values()
        mean = float(np.add.reduce(values)) / self.num_tiles
        centred = values - mean
        std = math.sqrt(float(centred @ centred) / self.num_tiles)
        ucb = self.ucb_scale * np.sqrt(
            math.log1p(int(np.add.reduce(self.counts))) / (1.0 + self.counts)
        )
        if std <= 1e-12 * max(1.0, abs(mean)):  # equal but for rounding
            return np.asarray(ucb)
        return np.asarray(centred / std + ucb)

    def candidates(self, rng: np.random.Generator, scores: Floats | None = None) -> Floats:
        """d points x, one uniformly inside each chosen tile: the top d scores, or d drawn without
        replacement.

        ``scores`` may be given where they are known.
        """
        if scores is None:
            scores = self.scores()
        d = min(self.num_candidates, self.num_tiles)
        if self.mode == "argmax":
            # ties are broken at random
            tiles = np.lexsort((rng.random(self.num_tiles), -scores))[:d]
        else:
            # Gumbel top-d: exactly d draws without replacement from softmax(scores).
            tiles = np.argsort(-(scores + rng.gumbel(size=self.num_tiles)))[:d]
        width = (self.right - self.left) / self.num_tiles
        return np.asarray(self.left + (tiles + rng.random(d)) * width)

    def update(self, x: float, g: float) -> None:
        """w_j += lr (g - V_i) for every j in the window of i = tile(x); N_i += 1 (eq.
        bandit_update).
        """
        if not math.isfinite(g):
            raise ValueError(f"a bandit was given the return {g}; it must be finite")
        i = self.tile(x)
        value = self._mean_over_window[i] @ self.weights
        self.weights += self.learning_rate * (g - value) * self.window[i]
        self.counts[i] += 1


class BanditVote:
    """M bandits with drawn modes, learning rates and widths; each proposes, each learns from every
    (x, g).

    Printed, the bandits learn the returns themselves, from weights of 0: with returns around -20
    tiles never visited look best, with returns around 20 those visited first. With a ``memory`` (in
    episodes) they learn what a ``Baseline`` leaves of them, and with every update all weights decay
    towards 0, the mean, by 1 / memory: old returns were of another agent.

    The best region is the tile with the best value among those with ``min_visits`` or more, or
    with a ``record`` (in episodes) the one that a ``Record`` of these prefers.
    """

    def __init__(
        self,
        num_bandits: int = 7,
        left: float = 0.0,
        right: float = MAX_X,
        accuracy: float = 0.1,
        widths: Sequence[int] = (1, 2, 3),
        learning_rates: Sequence[float] = (0.05, 0.1, 0.2),
        modes: Sequence[str] = MODES,
        num_candidates: int = 7,
        ucb_scale: float = 1.0,
        seed: int | np.random.SeedSequence = 0,
        memory: int = 0,
        min_visits: int = 1,
        record: int = 0,
    ) -> None:
        if num_bandits < 1:
            raise ValueError(f"num_bandits is {num_bandits}; it must be at least 1")
        if min_visits < 1 or memory < 0 or record < 0:
            raise ValueError(
                "a vote needs min_visits >= 1, memory >= 0 and record >= 0; got"
                f" {min_visits}, {memory} and {record}"
            )
        self.min_visits = min_visits
        self._baseline = Baseline(memory) if memory else None
        self._rng = np.random.default_rng(seed)
        self.bandits = [
            Bandit(
                mode=modes[int(self._rng.integers(len(modes)))],
                left=left,
                right=right,
                accuracy=accuracy,
                width=int(widths[int(self._rng.integers(len(widths)))]),
                learning_rate=float(learning_rates[int(self._rng.integers(len(learning_rates)))]),
                num_candidates=num_candidates,
                ucb_scale=ucb_scale,
            )
            for _ in range(num_bandits)
        ]
        self._record = Record(self.bandits[0].num_tiles, record) if record else None
        self._stack()

    def _stack(self) -> None:
        """Keep all weights and counts in one [M, K] array each, of which the bandits hold the rows:
        one update for all.
        """
        self._weights = np.stack([b.weights for b in self.bandits])
        self._counts = np.stack([b.counts for b in self.bandits])
        self._window = np.stack([b.window for b in self.bandits])  # [M, K, K]
        self._mean_over_window = self._window / self._window.sum(2, keepdims=True)
        self._rates = np.array([b.learning_rate for b in self.bandits])
        for bandit, weights, counts in zip(self.bandits, self._weights, self._counts, strict=True):
            bandit.weights, bandit.counts = weights, counts
        self._scores: dict[int, Floats] = {}  # of bandits that were scored since the last update

    def sample(self) -> float:
        """One of the M * d candidates, uniformly: a bandit, then one of its d, so only that bandit
        is scored.
        """
        chosen = int(self._rng.random() * len(self.bandits))
        bandit = self.bandits[chosen]
        if chosen not in self._scores:
            self._scores[chosen] = bandit.scores()
        candidates = bandit.candidates(self._rng, self._scores[chosen])
        return float(candidates[int(self._rng.random() * len(candidates))])

    def update(self, x: float, g: float) -> None:
        """Every bandit learns from (x, g): Bandit.update for all M rows at once."""
        if not math.isfinite(g):
            raise ValueError(f"a bandit was given the return {g}; it must be finite")
        i = self.bandits[0].tile(x)
        if self._record is not None:
            self._record.update(i, g)
        if self._baseline is not None:
            g = self._baseline.remove(g)
            self._weights *= 1.0 - 1.0 / self._baseline.memory
        window = self._window[:, i]  # [M, K], 1 inside each bandit's window of tile i
        value = np.einsum("mk,mk->m", self._mean_over_window[:, i], self._weights)
        self._weights += (self._rates * (g - value))[:, None] * window
        self._counts[:, i] += 1
        self._scores.clear()

    def values(self) -> Floats:
        """The value of each tile, in returns: the average over the bandits.    [K]"""
        removed = 0.0 if self._baseline is None else self._baseline.mean + self._baseline.drift
        return np.asarray(np.mean([bandit.values() for bandit in self.bandits], axis=0)) + removed

    def counts(self) -> NDArray[np.int64]:
        """Visits of each tile.    [K]"""
        return self.bandits[0].counts.copy()

    def merits(self) -> Floats:
        """What the best region is chosen by: the values, or the record's merits.    [K]"""
        return self.values() if self._record is None else self._record.merits()

    def best_region(self) -> tuple[float, float]:
        """[low, high) in x of the best tile among those visited ``min_visits`` times, or as often
        as any; the whole range where none was visited.
        """
        first = self.bandits[0]
        most = int(first.counts.max())
        if not most:
            return first.left, first.right
        known = first.counts >= min(self.min_visits, most)
        return first.edges(int(np.argmax(np.where(known, self.merits(), -np.inf))))

    def describe(self) -> list[dict[str, Any]]:
        """The drawn mode, width and learning rate of each bandit: a visible seed effect, so it is
        logged.
        """
        return [
            {"mode": b.mode, "width": b.width, "learning_rate": b.learning_rate}
            for b in self.bandits
        ]

    def state_dict(self) -> dict[str, Any]:
        """All of it as a JSON-able value, random state included."""
        first = self.bandits[0]
        return {
            "left": first.left,
            "right": first.right,
            "accuracy": first.accuracy,
            "num_candidates": first.num_candidates,
            "ucb_scale": first.ucb_scale,
            "min_visits": self.min_visits,
            "baseline": None if self._baseline is None else asdict(self._baseline),
            "record": None if self._record is None else self._record.state_dict(),
            "rng": self._rng.bit_generator.state,
            "bandits": [
                {**drawn, "weights": b.weights.tolist(), "counts": b.counts.tolist()}
                for b, drawn in zip(self.bandits, self.describe(), strict=True)
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the vote that gave ``state``."""
        common = {
            k: finite(state[k])
            for k in ("left", "right", "accuracy", "num_candidates", "ucb_scale")
        }
        common["num_candidates"] = int(common["num_candidates"])
        bandits = []
        for saved in state["bandits"]:
            drawn = {k: finite(saved[k]) for k in ("width", "learning_rate")}
            sizes = {len(saved["weights"]), len(saved["counts"])}
            tiles = (common["right"] - common["left"]) / common["accuracy"]
            # before it is made: its tables have the square of so many entries
            if sizes != {math.floor(tiles + 1e-9)} or tiles > MOST_TILES + 1:
                raise ValueError(
                    f"a saved bandit has {len(saved['weights'])} weights; its range asks for"
                    f" {tiles:.0f}"
                )
            bandit = Bandit(saved["mode"], **drawn, **common)
            bandit.weights[:] = [finite(w) for w in saved["weights"]]
            bandit.counts[:] = [finite(n, 0) for n in saved["counts"]]
            bandits.append(bandit)
        if not bandits:
            raise ValueError("a saved vote has no bandits")
        self.bandits = bandits
        self._stack()
        # missing in states from before there were a baseline and a record
        self.min_visits = finite(state.get("min_visits", 1), 0)
        saved_baseline = state.get("baseline")
        self._baseline = (
            None if saved_baseline is None else Baseline.from_state_dict(saved_baseline)
        )
        saved_record = state.get("record")
        self._record = None if saved_record is None else Record.from_state_dict(saved_record)
        if self._record is not None and len(self._record.number) != self.bandits[0].num_tiles:
            raise ValueError("a saved record has another number of tiles than its bandits")
        self._rng.bit_generator.state = state["rng"]


class JointVote:
    """BVA over several quantities at once: one BanditVote, so one tile-coded table, for each.

    A coordinate's table learns the return averaged over how the others are drawn. As each narrows
    down, the others see a clearer picture: coordinate ascent with D * K numbers a bandit, where a
    product grid would need K^D.
    """

    def __init__(self, votes: Sequence[BanditVote]) -> None:
        self.votes = list(votes)

    def sample(self) -> tuple[float, ...]:
        return tuple(vote.sample() for vote in self.votes)

    def update(self, x: Sequence[float], g: float) -> None:
        for vote, coordinate in zip(self.votes, x, strict=True):
            vote.update(float(coordinate), g)

    def best_region(self) -> list[tuple[float, float]]:
        """[low, high) of each coordinate."""
        return [vote.best_region() for vote in self.votes]

    def state_dict(self) -> list[dict[str, Any]]:
        return [vote.state_dict() for vote in self.votes]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for vote, saved in zip(self.votes, state, strict=True):
            vote.load_state_dict(saved)
