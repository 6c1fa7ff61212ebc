"""The table as text: for a terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dicerl.scores.reference import SYSTEM_TITLES, read
from dicerl.scores.table import REFERENCES, SUMMARY

METRICS = {"score": "Score", "hns": "HNS (%)", "saber": "SABER (%)"}
TOPS = {"score": REFERENCES, "hns": ("random", "human"), "saber": ("random", "human_world_record")}
TITLES = {"random": "Random", "human": "Human", "human_world_record": "Record", **SYSTEM_TITLES}
MARK = "†"


@dataclass(frozen=True)
class Cell:
    """A cell of a table, already as text."""

    text: str = ""
    corrected: bool = False  # a misprint stands here in the paper
    best: bool = False  # of the systems in this row


@dataclass(frozen=True)
class Sheet:
    """A table with its title, in no form yet."""

    title: str
    header: list[str]
    rows: list[list[Cell]]
    fixed: int  # leading columns, repeated in every part of a sheet that is split to fit a width
    footer: int = 0  # rows at the end, below a line


def sheet(data: dict[str, Any], metric: str) -> Sheet:
    """One row per game; the references, then ``metric`` of every system; mean and median at
    the end.
    """
    marked = {(c["game"], c["system"], c["cell"]) for c in data["corrections"]}
    systems, tops = list(data["systems"]), TOPS[metric]
    rows = []
    for game, row in data["games"].items():
        values = [row[s][metric] if s in row else None for s in systems]
        top = max(v for v in values if isinstance(v, float))
        rows.append(
            [
                Cell(game.replace("_", " ")),
                *(Cell(plain(row[t]), (game, "", t) in marked) for t in tops),
                *(
                    Cell(_text(v, metric), (game, s, metric) in marked, v == top)
                    for s, v in zip(systems, values, strict=True)
                ),
            ]
        )
    footer = [f"{metric}_mean", f"{metric}_median"] if metric != "score" else []
    for name in footer:
        means = [data["systems"][s][name] for s in systems]
        rows.append(
            [
                Cell(name.split("_")[1]),
                *(Cell() for _ in tops),
                *(Cell(f"{v:.2f}", best=v == max(means)) for v in means),
            ]
        )
    return Sheet(
        f"{METRICS[metric]}, {len(data['games'])} games",
        ["Game", *(TITLES[t] for t in tops), *map(title, systems)],
        rows,
        1 + len(tops),
        len(footer),
    )


def summary_sheet(data: dict[str, Any]) -> Sheet:
    """One row per system: mean and median of HNS and SABER."""
    frames = {row["system"]: row["frames"] for row in read("printed_summary.csv")}
    rows = [
        [
            Cell(title(s)),
            Cell(frames.get(s, "")),
            Cell(str(values.get("games", len(data["games"])))),
            *(Cell(f"{values[name]:.2f}") for name in SUMMARY),
        ]
        for s, values in data["systems"].items()
    ]
    header = ["System", "Frames", "Games", "HNS mean", "HNS median", "SABER mean", "SABER median"]
    return Sheet("Mean and median over games, in percent", header, rows, len(header))


def notes(data: dict[str, Any]) -> list[str]:
    """Where the numbers come from, and which cells differ from the paper (or are misprints, as
    printed).
    """
    lines = [f"Reference: {data['reference']}."]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for c in data["corrections"]:
        groups.setdefault((c["game"], c["cell"], c["why"]), []).append(c)
    for (game, cell, why), found in groups.items():
        cells = ", ".join(
            f"{title(c['system']) + ' ' if c['system'] else ''}{_pair(c, data['as_printed'])}"
            for c in found
        )
        name = METRICS[cell] if cell in METRICS else TITLES[cell]
        lines.append(f"{MARK} {game.replace('_', ' ')}, {name}: {cells}: {why}.")
    return lines


def _pair(c: dict[str, Any], as_printed: bool) -> str:
    printed = plain(c["printed"]) if isinstance(c["printed"], float) else c["printed"]
    right = plain(c["corrected"])
    return f"{printed} (should be {right})" if as_printed else f"{right} (printed {printed})"


def title(system: str) -> str:
    """How a system is written; own columns ("own dice") as they are."""
    return TITLES.get(system, system)


def plain(value: float) -> str:
    """13720 and 351200.12: no more decimals than there are."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(value: float | str | None, metric: str) -> str:
    if value is None:
        return "–"
    return (
        value if isinstance(value, str) else plain(value) if metric == "score" else f"{value:.2f}"
    )


# --- forms


def terminal(console: Console, page: Sheet) -> None:
    """Split into as many parts as the width requires; each repeats the leading columns."""
    widths = [
        2 + max(len(h), *(len(row[i].text) + row[i].corrected for row in page.rows))
        for i, h in enumerate(page.header)
    ]
    part = list(range(page.fixed))
    for column in range(page.fixed, len(page.header)):
        if len(part) > page.fixed and sum(widths[i] for i in part) + widths[column] > console.width:
            console.print(_part(page, part))
            part = list(range(page.fixed))
        part.append(column)
    console.print(_part(page, part))


def _part(page: Sheet, columns: list[int]) -> Table:
    table = Table(
        title=page.title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        header_style="dim",
    )
    for i in columns:
        table.add_column(page.header[i], justify="left" if i == 0 else "right", no_wrap=True)
    for number, row in enumerate(page.rows):
        cells = []
        for i in columns:
            style = "bold" if row[i].best else ""
            cells.append(
                Text(
                    row[i].text + MARK * row[i].corrected,
                    style="yellow " + style if row[i].corrected else style,
                )
            )
        if page.footer and number == len(page.rows) - page.footer:
            table.add_row()
        table.add_row(*cells)
    return table


def markdown(page: Sheet) -> str:
    """A Markdown table under a heading; the best of a row is bold."""

    def cell(c: Cell) -> str:
        return (f"**{c.text}**" if c.best else c.text) + MARK * c.corrected

    lines = [
        f"### {page.title}",
        "",
        "| " + " | ".join(page.header) + " |",
        "| --- |" + " ---: |" * (len(page.header) - 1),
    ]
    return "\n".join(
        [*lines, *("| " + " | ".join(cell(c) for c in row) + " |" for row in page.rows)]
    )


def latex(page: Sheet) -> str:
    """A table for the booktabs package."""

    def cell(c: Cell) -> str:
        text = tex(c.text)
        return (rf"\textbf{{{text}}}" if c.best else text) + r"$^\dagger$" * c.corrected

    lines = [" & ".join(map(cell, row)) + r" \\" for row in page.rows]
    if page.footer:
        lines.insert(len(lines) - page.footer, r"\midrule")
    return "\n".join(
        [
            rf"% {tex(page.title)}",
            rf"\begin{{tabular}}{{l{'r' * (len(page.header) - 1)}}}",
            r"\toprule",
            " & ".join(tex(h) for h in page.header) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def tex(text: str) -> str:
    """``text`` with LaTeX's special characters escaped, as far as the tables use them."""
    return (
        text.replace("_", r"\_").replace("%", r"\%").replace(MARK, r"$^\dagger$").replace("–", "--")
    )


def comma_separated(data: dict[str, Any]) -> str:
    """One row per game with all its numbers; the last column lists the cells misprinted in the
    paper.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            "game",
            *REFERENCES,
            *(f"{s}_{m}".replace(" ", "_") for s in data["systems"] for m in METRICS),
            "misprinted",
        ]
    )
    for game, row in data["games"].items():
        marked = [
            f"{c['system']}_{c['cell']}".strip("_")
            for c in data["corrections"]
            if c["game"] == game
        ]
        writer.writerow(
            [
                game,
                *(plain(row[name]) for name in REFERENCES),
                *(
                    _text(row[s][m], m) if s in row else ""
                    for s in data["systems"]
                    for m in METRICS
                ),
                ";".join(marked),
            ]
        )
    return file.getvalue()
