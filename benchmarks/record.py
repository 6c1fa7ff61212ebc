"""Which tile is best? Ways to choose it from what a Record remembers, on simulated returns; prints
the share of the best mean return that the chosen tile has, the mean over seeds.

    python benchmarks/record.py             12 seeds of 2,500 episodes, about 2 minutes
    python benchmarks/record.py --seeds 3
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dicerl.core import BanditVote, record
from dicerl.core.bandit import MAX_X

Floats = NDArray[np.float64]
Choice = Callable[[record.Record], Floats]
TILES = np.arange(39)
WIDTHS = (1.5, 3.0, 5.0, 8.0, 12.0)


def deviation(seen: record.Record) -> float:
    total = seen.number.sum()
    return math.sqrt(max(seen.square / total - (seen.sum.sum() / total) ** 2, 0.0))


def kernel(width: float) -> Floats:
    return np.asarray(np.exp(-(((TILES[:, None] - TILES) / width) ** 2) / 2))


def window(width: float) -> Choice:
    """The Record's own merit, with another width."""

    def merits(seen: record.Record) -> Floats:
        number = np.maximum(kernel(width) @ seen.number, 1e-12)
        return np.asarray(kernel(width) @ seen.sum / number - deviation(seen) / np.sqrt(number))

    return merits


def together(*widths: float) -> Choice:
    """The mean of the merits that several widths give."""
    return lambda seen: np.asarray(np.mean([window(width)(seen) for width in widths], axis=0))


def line(width: float) -> Choice:
    """A line fitted around each tile instead of a mean, less its standard error."""

    def merits(seen: record.Record) -> Floats:
        found = np.full(len(TILES), -np.inf)
        for tile, near in enumerate(kernel(width)):
            if near @ seen.number < 1:
                continue
            x = np.stack([np.ones(len(TILES)), (TILES - tile) / width])  # [2, K]
            inner = (x * near * seen.number) @ x.T + np.diag([1e-6, 1e-3 * near @ seen.number])
            height = np.linalg.solve(inner, x * near)[0]  # [K], what each return counts for
            error = deviation(seen) * math.sqrt(height**2 @ seen.number)
            found[tile] = height @ seen.sum - error
        return found

    return merits


def adaptive(seen: record.Record) -> Floats:
    """For each tile the widest window whose mean agrees with those of all narrower ones (Lepski),
    less its standard error.
    """
    means, errors = [], []
    for width in WIDTHS:
        k = kernel(width)
        number = np.maximum(k @ seen.number, 1e-12)
        means.append(k @ seen.sum / number)
        errors.append(deviation(seen) * np.sqrt(np.maximum(k**2 @ seen.number, 1e-12)) / number)
    best, agrees = means[0] - errors[0], np.ones(len(TILES), np.bool_)
    for j in range(1, len(WIDTHS)):
        for i in range(j):
            agrees &= np.abs(means[j] - means[i]) <= errors[j] + errors[i]
        best = np.where(agrees, means[j] - errors[j], best)
    return best


def greediest(seen: record.Record) -> Floats:
    """Of the tiles whose mean is not clearly below that of the best by the Record's own merit, a
    quarter of the difference's standard error, the one of the largest 1/tau.
    """
    near = kernel(record.WIDTH)
    number = np.maximum(near @ seen.number, 1e-12)
    mean, error = near @ seen.sum / number, deviation(seen) / np.sqrt(number)
    best = int(np.argmax(mean - error))
    alike = mean - mean[best] >= -0.25 * np.hypot(error, error[best])
    return np.where(alike & (number >= 5), TILES, -np.inf)


def gaussian_process(seen: record.Record) -> Floats:
    """Posterior mean less its deviation; the prior varies by half of the noise over ten tiles."""
    known = seen.number > 0.05
    noise = deviation(seen) ** 2
    prior = 0.25 * noise * kernel(10.0)
    across = prior[:, known]
    inner = prior[np.ix_(known, known)] + np.diag(noise / seen.number[known])
    weights = np.linalg.solve(inner, across.T)  # [known, K]
    mean = weights.T @ (seen.sum[known] / seen.number[known])
    return np.asarray(mean - np.sqrt(np.maximum(np.diag(prior) - (across * weights.T).sum(1), 0)))


def logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def bell(x: Floats, centre: float, width: float) -> Floats:
    return np.asarray(np.exp(-(((x - centre) / width) ** 2) / 2))


SEAQUEST = (
    [0.0, 0.7, 1.1, 1.8, 2.37, 2.7, 3.05, 3.43, MAX_X],
    [0.5, 1.5, 5.0, 9.5, 14.8, 15.0, 16.3, 16.4, 16.6],
)
# name: (mean return at x when a share t of the run is over, deviation of one return)
PROFILES: dict[str, tuple[Callable[[Floats, float], Floats], float]] = {
    "seaquest": (lambda x, t: np.interp(x, *SEAQUEST), math.nan),  # nan: exponential returns
    "plateau": (lambda x, t: 30 * logistic(2 * (x - 2.5)), 15.0),
    "narrow peak": (lambda x, t: 5 * bell(x, 3.0, 0.3) + 2 * logistic(x), 2.0),
    "small bump": (lambda x, t: 10 * logistic(3 * (x - 1.5)) - 1.5 * logistic(6 * (x - 3)), 5.0),
    "moving peak": (lambda x, t: 5 * bell(x, 1.2 + 1.6 * t, 0.5), 2.0),
}
# name: (merits, of all episodes what is remembered: 1 / this)
CHOICES: dict[str, tuple[Choice, int]] = {
    "the record as it is": (record.Record.merits, record.FRACTION),
    "window of 4 tiles": (window(4.0), record.FRACTION),
    "window of 5 tiles": (window(5.0), record.FRACTION),
    "windows of 3, 5 and 8 tiles together": (together(3.0, 5.0, 8.0), record.FRACTION),
    "a line fitted over 5 tiles": (line(5.0), record.FRACTION),
    "a line fitted over 8 tiles": (line(8.0), record.FRACTION),
    "last quarter": (record.Record.merits, 4),
    "last half": (record.Record.merits, 2),
    "the widest window that agrees with all narrower ones": (adaptive, record.FRACTION),
    "a Gaussian process, length 10 tiles": (gaussian_process, record.FRACTION),
    "the greediest of those that are alike": (greediest, record.FRACTION),
}


def shares(name: str, fraction: int, seed: int, episodes: int) -> dict[str, float]:
    """What each choice with this ``fraction`` gets of the best mean return at the end."""
    mean, noise = PROFILES[name]
    record.FRACTION = fraction
    vote, rng = BanditVote(seed=seed, record=300), np.random.default_rng(seed + 1000)
    for episode in range(episodes):
        t = episode / episodes
        x = vote.sample()
        value = float(mean(np.array(x), t))
        g = value * rng.exponential() if math.isnan(noise) else value + noise * rng.normal()
        vote.update(x, g if name == "moving peak" else (0.3 + 0.7 * t) * g)  # agents grow better
    assert vote._record is not None
    found = {}
    for choice, (merits, its_fraction) in CHOICES.items():
        if its_fraction == fraction:
            merit = np.where(vote.counts() >= 1, merits(vote._record), -np.inf)
            edges = vote.bandits[0].edges(int(np.argmax(merit)))
            best = mean(np.linspace(0, MAX_X, 400), 1.0).max()
            found[choice] = float(mean(np.linspace(*edges, 10), 1.0).mean() / best)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=12, help="how many (default 12)")
    parser.add_argument("--episodes", type=int, default=2500, help="of each vote (default 2500)")
    args = parser.parse_args()
    rows: dict[str, list[float]] = {choice: [] for choice in CHOICES}
    for name in PROFILES:
        found: dict[str, list[float]] = {choice: [] for choice in CHOICES}
        for fraction in dict.fromkeys(fraction for _, fraction in CHOICES.values()):
            for seed in range(args.seeds):
                for choice, share in shares(name, fraction, seed, args.episodes).items():
                    found[choice].append(share)
        for choice, values in found.items():
            rows[choice].append(float(np.mean(values)))
    print(f"| a region chosen by | {' | '.join(PROFILES)} |")
    print("| --- |" + " --- |" * len(PROFILES))
    for choice, values in rows.items():
        print(f"| {choice} | {' | '.join(f'{value:.3f}' for value in values)} |")


if __name__ == "__main__":
    main()
