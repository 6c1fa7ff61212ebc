"""``dicerl scores``: the paper's tables, with your own runs as extra columns."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dicerl.errors import LONGEST, printable


def add_parser(commands: Any) -> None:
    """Add ``scores`` to argparse's subparsers, with one option for each form."""
    parser = commands.add_parser(
        "scores",
        help="the paper's tables of 57 games, own runs beside them",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Scores, HNS and SABER of the paper's eight systems on 57 Atari games. Own runs are"
            " extra columns: the newest\nevaluation of each run, averaged over the seeds of a"
            " variant. Cells that are misprinted in the paper are\ncorrected and marked."
        ),
        epilog=(
            "examples:\n  dicerl scores runs/pong-dice-0 runs/pong-dice-1 --games pong\n"
            "  dicerl scores suites/mine --metric saber\n  dicerl scores --latex > table.tex"
        ),
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="own runs, or directories of runs")
    parser.add_argument(
        "--metric",
        choices=("score", "hns", "saber"),
        help="one table only (default: hns on the terminal, all three in Markdown and LaTeX)",
    )
    parser.add_argument(
        "--games",
        nargs="+",
        default=[],
        metavar="GAME",
        help="only these games; means and medians are then over these",
    )
    parser.add_argument(
        "--as-printed",
        action="store_true",
        help="the cells as the paper prints them, misprints and all",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables in Markdown")
    form.add_argument("--latex", action="store_true", help="tables in LaTeX (booktabs)")
    form.add_argument("--csv", action="store_true", help="one row a game, every number")
    form.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Print the tables in the form asked for, notes on left-out runs to stderr; return 0."""
    from dicerl.scores.own import own_scores
    from dicerl.scores.table import build

    own, left_out = own_scores(args.runs)
    data = build(
        own, [game for word in args.games for game in word.split(",") if game], args.as_printed
    )
    for line in left_out:
        print(printable(f"note: {line[:LONGEST]}"), file=sys.stderr)
    if args.json:
        print(json.dumps(data))
        return 0

    from dicerl.records.progress import output
    from dicerl.scores import render

    if args.csv:
        print(render.comma_separated(data), end="")
        return 0
    metrics = (
        [args.metric]
        if args.metric
        else list(render.METRICS)
        if args.markdown or args.latex
        else ["hns"]
    )
    pages = [*(render.sheet(data, metric) for metric in metrics), render.summary_sheet(data)]
    if args.markdown:
        print("\n\n".join([*map(render.markdown, pages), *render.notes(data)]))
    elif args.latex:
        print(
            "\n\n".join(
                [
                    *map(render.latex, pages),
                    "\n".join(f"% {render.tex(line)}" for line in render.notes(data)),
                ]
            )
        )
    else:
        console = output()
        for page in pages:
            render.terminal(console, page)
            console.print()
        for line in render.notes(data):
            console.print(line, markup=False)
    return 0
