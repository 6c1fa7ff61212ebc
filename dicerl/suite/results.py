"""A suite's results: every run's score, and per variant IQM, mean and median with intervals, and
the probability of improvement.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError
from dicerl.scores.reference import REFERENCE, hns, table_name
from dicerl.scores.statistics import (
    Interval,
    interval,
    iqm,
    mean,
    median,
    probability_of_improvement,
)
from dicerl.suite.plan import Plan

STATISTICS = {"iqm": iqm, "mean": mean, "median": median}


def results(plan: Plan, with_statistics: bool = True) -> dict[str, Any]:
    """What ``--json`` prints and suite.json holds."""
    atari = all_atari(plan.games)
    runs = []
    for run in plan.runs:
        line: dict[str, Any] = {
            "game": run.game,
            "variant": run.variant,
            "seed": run.seed,
            "run": str(run.directory),
            "state": run.state,
            "frames": run.frames,
            "score": run.score,
        }
        if atari:
            line["hns"] = None if run.score is None else hns(run.game, run.score)
        if run.reason:
            line["reason"] = run.reason
        runs.append(line)
    found: dict[str, Any] = {
        "suite": str(plan.directory),
        "complete": all(run.state == "finished" for run in plan.runs),
        "games": plan.games,
        "variants": plan.variants,
        "seeds": plan.seeds,
        "preset": plan.preset,
        "config": plan.changes,
        "unit": "hns" if atari else "return",
        "reference": REFERENCE if atari else None,
        "against": plan.against,
        "runs": runs,
    }
    if with_statistics:
        found["statistics"] = {variant: _statistics(found, variant) for variant in plan.variants}
    return found


def all_atari(games: list[str]) -> bool:
    """Whether every game is one of the 57, so that scores can be normalised."""
    try:
        return all(table_name(game) for game in games)
    except DicerlError:
        return False


def scores_of(found: dict[str, Any], variant: str) -> dict[str, list[float]]:
    """{game: scores of the finished runs}, in HNS or raw; only games that have some."""
    unit = "hns" if found["unit"] == "hns" else "score"
    table = {
        game: [
            run[unit]
            for run in found["runs"]
            if run["game"] == game and run["variant"] == variant and run["score"] is not None
        ]
        for game in found["games"]
    }
    return {game: scores for game, scores in table.items() if scores}


def _statistics(found: dict[str, Any], variant: str) -> dict[str, Any]:
    scores = scores_of(found, variant)
    out: dict[str, Any] = {"games": len(scores), "runs": sum(map(len, scores.values()))}
    for name, statistic in STATISTICS.items():
        out[name] = _plain(interval(statistic, scores)) if scores else None
    if found["against"] not in (None, variant):
        other = scores_of(found, found["against"])
        both = [game for game in scores if game in other]
        out["probability_of_improvement"] = (
            _plain(
                interval(
                    probability_of_improvement,
                    {game: scores[game] for game in both},
                    {game: other[game] for game in both},
                )
            )
            if both
            else None
        )
    return out


def _plain(value: Interval) -> dict[str, float]:
    return {name: round(number, 6) for name, number in value._asdict().items()}


def write(found: dict[str, Any], path: Path) -> None:
    """Write the file completely or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    temporary.replace(path)
