"""Statistics over runs and tasks, with intervals (Agarwal et al. 2021, "Deep RL at the Edge of the
Statistical Precipice").

Scores are an array [runs, tasks], or {task: runs} where tasks have different numbers of runs.
Inside, they are ``Tasks``: one array [..., runs] per task, so that the same function serves one
table and thousands of resampled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dicerl.errors import DicerlError


class Tasks(list[np.ndarray]):
    """One array [..., runs] for each task."""


Scores = Tasks | Mapping[str, Any] | np.ndarray
Statistic = Callable[..., Any]  # of one Scores, or two; float, or [...] for Tasks with leading axes


class Interval(NamedTuple):
    """A statistic of the scores and the ends of its interval."""

    value: float
    low: float
    high: float


def as_tasks(scores: Scores) -> Tasks:
    """The scores as ``Tasks``; empty ones and those that are not finite are refused."""
    if isinstance(scores, Tasks):
        return scores
    if isinstance(scores, Mapping):
        tasks = Tasks(np.asarray(runs, float) for runs in scores.values())
    else:
        array = np.asarray(scores, float)
        if array.ndim != 2:
            raise DicerlError(f"scores have shape {array.shape}; they must be [runs, tasks]")
        tasks = Tasks(array.T)
    if not tasks or any(
        runs.ndim != 1 or not len(runs) or not np.isfinite(runs).all() for runs in tasks
    ):
        raise DicerlError(
            "scores need at least one task, and at least one run of each; every score must be"
            " finite"
        )
    return tasks


def iqm(scores: Scores) -> Any:
    """Interquartile mean: of all runs of all tasks together, without the lowest and the highest
    quarter.
    """
    every = np.sort(np.concatenate(as_tasks(scores), -1), -1)  # [..., runs of all tasks]
    cut = every.shape[-1] // 4
    return every[..., cut : every.shape[-1] - cut].mean(-1)


def mean(scores: Scores) -> Any:
    """Mean over tasks of the mean over runs."""
    return _task_means(scores).mean(-1)


def median(scores: Scores) -> Any:
    """Median over tasks of the mean over runs."""
    return np.median(_task_means(scores), -1)


def _task_means(scores: Scores) -> np.ndarray:
    return np.stack([runs.mean(-1) for runs in as_tasks(scores)], -1)  # [..., tasks]


def probability_of_improvement(x: Scores, y: Scores) -> Any:
    """P(X > Y) + P(X = Y) / 2 for a run of x and a run of y on the same task, averaged over tasks;
    tasks in the same order.
    """
    ours, theirs = as_tasks(x), as_tasks(y)
    if len(ours) != len(theirs) or (
        isinstance(x, Mapping) and isinstance(y, Mapping) and list(x) != list(y)
    ):
        raise DicerlError("x and y must have the same tasks in the same order")
    wins = []
    for a, b in zip(ours, theirs, strict=True):
        a, b = a[..., :, None], b[..., None, :]  # every run against every run
        wins.append(((a > b) + 0.5 * (a == b)).mean((-2, -1)))
    return np.stack(wins, -1).mean(-1)


def interval(
    statistic: Statistic,
    *scores: Scores,
    confidence: float = 0.95,
    resamples: int = 50_000,
    seed: int = 0,
) -> Interval:
    """The statistic with its stratified bootstrap interval (percentile method).

    Stratified: runs are resampled within each task, never across tasks, and independently for each
    of ``scores``.
    """
    tables = [as_tasks(s) for s in scores]
    rng = np.random.default_rng(seed)
    values = np.concatenate(
        [
            statistic(*(_resample(t, count, rng) for t in tables))
            for count in _chunks(tables, resamples)
        ]
    )
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(statistic(*tables)), float(low), float(high))


def _resample(tasks: Tasks, count: int, rng: np.random.Generator) -> Tasks:
    # [count, runs] each
    return Tasks(runs[rng.integers(len(runs), size=(count, len(runs)))] for runs in tasks)


def _chunks(tables: list[Tasks], resamples: int) -> Iterator[int]:
    """How many resamples at a time, so that some ten megabytes suffice."""
    cells = sum(len(runs) for tasks in tables for runs in tasks)
    size = max(1, 1_000_000 // cells)
    for start in range(0, resamples, size):
        yield min(size, resamples - start)
