"""The paper's scores of 57 Atari games, and what is computed from them: HNS and SABER, in percent.

    HNS   = (G - random) / (human - random)
    SABER = min(200 %, (G - random) / (world record - random))

``atari57.csv`` holds the scores with the paper's misprints corrected, ``misprints.csv`` what is
printed instead.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from dicerl.errors import DicerlError, nearest

# the systems of the tables, in the paper's order, and how each is written
SYSTEM_TITLES = {
    "dice": "DiCE",
    "baseline": "Baseline",
    "rainbow": "Rainbow",
    "impala": "IMPALA",
    "laser": "LASER",
    "r2d2": "R2D2",
    "ngu": "NGU",
    "agent57": "Agent57",
}
SYSTEMS = tuple(SYSTEM_TITLES)
REFERENCE = (
    "Xiao et al. 2021, arXiv:2106.00707, appendix: 57 games, random, human and world-record scores"
    " as used there"
)


def read(name: str) -> list[dict[str, str]]:
    """The rows of one of this package's .csv files."""
    with files("dicerl.scores").joinpath(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@lru_cache(maxsize=1)
def _scores() -> dict[str, dict[str, float]]:
    return {
        row.pop("game"): {name: float(value) for name, value in row.items()}
        for row in read("atari57.csv")
    }


def reference_scores() -> dict[str, dict[str, float]]:
    """{game: {"random", "human", "human_world_record", "dice", "baseline", "rainbow", ...}},
    misprints corrected.
    """
    return {game: dict(row) for game, row in _scores().items()}


def table_name(game: str) -> str:
    """A game's name in the tables: pong for pong, Pong, ALE/Pong-v5."""
    if game in _scores():
        return game
    from dicerl.envs.atari import game_name

    name = game_name(game)
    if name not in _scores():
        raise DicerlError(
            f"game is {game!r}; the tables have 57 Atari"
            f" games{nearest(game, _scores()) or ', for example pong'}"
        )
    return str(name)


def hns(game: str, score: float) -> float:
    """Human-normalised score in percent: 0 is random play, 100 a human."""
    return _normalised(game, score, "human")


def saber(game: str, score: float) -> float:
    """Score in percent of the human world record, cut at 200."""
    return min(200.0, _normalised(game, score, "human_world_record"))


def _normalised(game: str, score: float, top: str) -> float:
    if not math.isfinite(score):
        raise DicerlError(f"the score of {game} is {score}; it must be finite")
    row = _scores()[table_name(game)]
    return 100 * (float(score) - row["random"]) / (row[top] - row["random"])


def summary(scores: Mapping[str, float]) -> dict[str, float]:
    """Mean and median of HNS and SABER over the given games, in percent."""
    if not scores:
        raise DicerlError("scores is empty; a summary needs at least one game")
    human = [hns(game, score) for game, score in scores.items()]
    record = [saber(game, score) for game, score in scores.items()]
    return {
        "hns_mean": statistics.fmean(human),
        "hns_median": statistics.median(human),
        "saber_mean": statistics.fmean(record),
        "saber_median": statistics.median(record),
    }
