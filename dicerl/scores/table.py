"""The whole table as one value: what ``dicerl scores --json`` prints, and the source of every
other form.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dicerl.errors import DicerlError
from dicerl.scores.own import Own
from dicerl.scores.reference import (
    REFERENCE,
    SYSTEMS,
    hns,
    read,
    reference_scores,
    saber,
    summary,
    table_name,
)

REFERENCES = ("random", "human", "human_world_record")
SUMMARY = ("hns_mean", "hns_median", "saber_mean", "saber_median")


def build(
    own: Own | None = None, games: Sequence[str] = (), as_printed: bool = False
) -> dict[str, Any]:
    """{"reference", "as_printed", "systems": {system: summary}, "games": {game: {...}},
    "corrections": [...]}.

    ``games`` restricts rows and summaries to some games. ``as_printed`` gives the paper's
    cells, misprints and all.
    """
    if as_printed and games:
        raise DicerlError(
            "games cannot be chosen together with as-printed; the printed means are over all 57"
            " games"
        )
    reference = reference_scores()
    rows = list(dict.fromkeys(table_name(game) for game in games)) or list(reference)
    table: dict[str, dict[str, Any]] = {}
    for game in rows:
        table[game] = {name: reference[game][name] for name in REFERENCES}
        for system in SYSTEMS:
            table[game][system] = _cells(game, reference[game][system])
        for column, scores in (own or {}).items():
            if game in scores:
                table[game][column] = _cells(game, statistics.fmean(scores[game])) | {
                    "runs": len(scores[game])
                }
    systems: dict[str, dict[str, Any]] = {
        system: summary({game: reference[game][system] for game in rows}) for system in SYSTEMS
    }
    for column in own or {}:
        played = {game: row[column]["score"] for game, row in table.items() if column in row}
        if played:
            systems[column] = summary(played) | {"games": len(played)}
    corrections = _corrections(table)
    if as_printed:
        _print_as_paper(table, systems, corrections)
    name = (
        f"{REFERENCE}; {'as printed, misprints and all' if as_printed else 'misprints corrected'}"
    )
    return {
        "reference": name,
        "as_printed": as_printed,
        "systems": systems,
        "games": table,
        "corrections": corrections,
    }


def _cells(game: str, score: float) -> dict[str, Any]:
    return {"score": score, "hns": hns(game, score), "saber": saber(game, score)}


def _corrections(table: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The misprints among these games: where they stand, what is printed, what is right."""
    found = []
    for row in read("misprints.csv"):
        if row["game"] in table:
            place = table[row["game"]]
            right = place[row["system"]][row["cell"]] if row["system"] else place[row["cell"]]
            found.append({**row, "printed": _number(row["printed"]), "corrected": round(right, 2)})
    return found


def _number(text: str) -> float | str:
    """As a number if it is one: one printed cell is "441/32"."""
    try:
        return float(text)
    except ValueError:
        return text


def _two_digits(value: float) -> float:
    """Halves go up, as in the paper: one cell is 53.125."""
    return round(value + 1e-9, 2)


def _print_as_paper(
    table: dict[str, dict[str, Any]],
    systems: dict[str, dict[str, Any]],
    corrections: list[dict[str, Any]],
) -> None:
    for row in table.values():
        for system in SYSTEMS:
            cells = row[system]
            row[system] = {
                "score": cells["score"],
                "hns": _two_digits(cells["hns"]),
                "saber": _two_digits(cells["saber"]),
            }
    for c in corrections:
        place = table[c["game"]][c["system"]] if c["system"] else table[c["game"]]
        place[c["cell"]] = c["printed"]
    for row in read("printed_summary.csv"):
        systems[row["system"]] = {name: float(row[name]) for name in SUMMARY}
