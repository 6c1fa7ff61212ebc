"""A suite's results: every run's score, and per variant and setting IQM, mean and median with
intervals, and the probability of improvement; of a sweep, each variant's best setting.
"""

from __future__ import annotations

import json
from collections.abc import Collection
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
    swept = len(plan.settings) > 1
    runs = []
    for run in plan.runs:
        line: dict[str, Any] = {
            "game": run.game,
            "variant": run.variant,
            **({"setting": run.setting} if swept else {}),
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
        **({"settings": plan.settings} if swept else {}),
        "unit": "hns" if atari else "return",
        "reference": REFERENCE if atari else None,
        "against": plan.against,
        "runs": runs,
    }
    if with_statistics:
        found["statistics"] = {
            group_name(variant, setting): _statistics(found, variant, setting)
            for variant in plan.variants
            for setting in plan.settings
        }
        if swept:
            found["best"] = {variant: best(found, variant) for variant in plan.variants}
    return found


def group_name(variant: str, setting: str) -> str:
    """Of the runs that differ in game and seed only."""
    return f"{variant} · {setting}" if setting else variant


def all_atari(games: list[str]) -> bool:
    """Whether every game is one of the 57, so that scores can be normalised."""
    try:
        return all(table_name(game) for game in games)
    except DicerlError:
        return False


def scores_of(
    found: dict[str, Any], variant: str, setting: str, seeds: Collection[int] | None = None
) -> dict[str, list[float]]:
    """{game: scores of the finished runs}, in HNS or raw; only games that have some. ``seeds``
    leaves out the runs of others.
    """
    unit = "hns" if found["unit"] == "hns" else "score"
    table: dict[str, list[float]] = {game: [] for game in found["games"]}
    for run in found["runs"]:
        if (run["variant"], run.get("setting", "")) == (variant, setting) and (
            run["score"] is not None and (seeds is None or run["seed"] in seeds)
        ):
            table[run["game"]].append(run[unit])
    return {game: scores for game, scores in table.items() if scores}


def _statistics(found: dict[str, Any], variant: str, setting: str) -> dict[str, Any]:
    scores = scores_of(found, variant, setting)
    out: dict[str, Any] = {"games": len(scores), "runs": sum(map(len, scores.values()))}
    for name, statistic in STATISTICS.items():
        out[name] = _plain(interval(statistic, scores)) if scores else None
    if found["against"] not in (None, variant):
        other = scores_of(found, found["against"], setting)
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


def best(found: dict[str, Any], variant: str) -> dict[str, Any] | None:
    """The setting with the highest IQM among those whose runs have all finished, and how far to
    trust that; None where fewer than two have.

    ``not_told_apart`` counts the settings whose interval overlaps its own. The highest of several
    noisy scores is optimistic; ``held_out`` is not: for every seed, the score in it of the setting
    that is best in the other seeds.
    """
    complete = [
        setting
        for setting in found["settings"]
        if sum(map(len, scores_of(found, variant, setting).values()))
        == len(found["games"]) * len(found["seeds"])
    ]
    if len(complete) < 2:
        return None
    intervals = {
        setting: found["statistics"][group_name(variant, setting)]["iqm"] for setting in complete
    }
    winner = max(complete, key=lambda setting: float(intervals[setting]["value"]))
    return {
        "setting": winner,
        "config": found["settings"][winner],
        "iqm": intervals[winner],
        "settings": len(complete),
        "not_told_apart": sum(
            setting != winner and own["high"] >= intervals[winner]["low"]
            for setting, own in intervals.items()
        ),
        "held_out": _held_out(found, variant, complete),
    }


def _held_out(found: dict[str, Any], variant: str, settings: list[str]) -> float | None:
    if len(found["seeds"]) < 2:
        return None
    scores: dict[str, list[float]] = {game: [] for game in found["games"]}
    for seed in found["seeds"]:
        others = [other for other in found["seeds"] if other != seed]
        chosen = max(
            settings, key=lambda setting: float(iqm(scores_of(found, variant, setting, others)))
        )
        for game, its in scores_of(found, variant, chosen, [seed]).items():
            scores[game] += its
    return round(float(iqm(scores)), 6)


def _plain(value: Interval) -> dict[str, float]:
    return {name: round(number, 6) for name, number in value._asdict().items()}


def write(found: dict[str, Any], path: Path) -> None:
    """Write the file completely or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    temporary.replace(path)
