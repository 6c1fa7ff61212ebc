"""Curves of several runs as one: the mean over seeds, each seed as far as it got."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]  # frames, values


class Mean(NamedTuple):
    """Mean, lowest and highest seed at some frames, and how many seeds are behind each.    [N]"""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray


def smooth(curve: Curve, last: float, points: int) -> Curve:
    """Means over equal cells of [0, last]; cells without a point are left out."""
    x, y = curve
    if len(x) <= points // 2:
        return x, y
    cell = np.minimum((x / max(last, 1) * points).astype(int), points - 1)
    count = np.bincount(cell, minlength=points)
    used = count > 0
    mean_x, mean_y = (np.bincount(cell, v, points)[used] / count[used] for v in curve)
    return mean_x, mean_y


def over_seeds(curves: Sequence[tuple[Hashable, Curve]], near: float) -> Mean:
    """The mean over seeds of (seed, curve) pairs, none of them empty. Runs of one seed count once,
    with their mean.

    A run counts from its first to its last point, and ``near`` frames beyond: what a figure cannot
    show.
    """
    places = meeting_points([x for _, (x, _) in curves])
    grid = np.array([np.mean([curves[run][1][0][i] for run, i in place]) for place in places])
    rows = np.full((len(curves), len(grid)), np.nan)
    for row, (_, (x, y)) in zip(rows, curves, strict=True):
        inside = (grid >= x[0] - near) & (grid <= x[-1] + near)
        row[inside] = np.interp(grid[inside], x, y)
    for k, place in enumerate(places):
        for run, i in place:
            rows[run, k] = curves[run][1][1][i]
    seeds = [seed for seed, _ in curves]
    values = np.array(
        [_mean(rows[[s == seed for s in seeds]]) for seed in dict.fromkeys(seeds)]
    )  # [seeds, N]
    return Mean(
        grid, _mean(values), np.nanmin(values, 0), np.nanmax(values, 0), np.isfinite(values).sum(0)
    )


def _mean(rows: np.ndarray) -> np.ndarray:
    """Over the first axis, of what is known; NaN where nothing is.    [R, N] -> [N]"""
    known = np.isfinite(rows)
    total = np.where(known, rows, 0.0).sum(0)
    return np.asarray(np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan))


def meeting_points(xs: Sequence[np.ndarray]) -> list[list[tuple[int, int]]]:
    """Which points of runs are one: lists of (run, index), in order; at most one of each run.

    Seeds are logged and evaluated at slightly different frames. Points of two runs meet if they
    are closer to each other than half the way to their own neighbours.
    """
    points = sorted(
        (
            float(x[i]),
            run,
            i,
            float(x[i] - x[i - 1]) if i else float(x[i]),  # from its neighbour before, or the start
            float(x[i + 1] - x[i]) if i + 1 < len(x) else np.inf,
        )
        for run, x in enumerate(xs)
        for i in range(len(x))
    )
    places: list[list[tuple[int, int]]] = []
    first, room = 0.0, -1.0  # of the place that is filled
    for at, run, i, before, after in points:
        taken = not places or any(run == other for other, _ in places[-1])
        if taken or 2 * (at - first) > min(before, room):
            places.append([])
            first, room = at, after
        places[-1].append((run, i))
    return places


def mean_time(seconds: np.ndarray) -> np.ndarray:
    """When runs reached some frames, on average: NaN in a row where its run does not count. Where
    one drops out, time goes on at the pace of the others.    [R, N] -> [N]
    """
    steps = _mean(np.diff(seconds, axis=1, prepend=0.0))
    known = np.isfinite(seconds).any(0)
    return np.asarray(np.where(known, np.nancumsum(steps), np.nan))
