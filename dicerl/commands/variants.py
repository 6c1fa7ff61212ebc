"""``dicerl variants``: every variant, what it changes, and the paper's three characteristics."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dicerl.config.presets import VARIANTS, characteristics


def add_parser(commands: Any) -> None:
    """Add ``variants`` to argparse's subparsers; its one option is ``--json``."""
    parser = commands.add_parser(
        "variants",
        help="list the variants",
        allow_abbrev=False,
        description=(
            "Every variant with what it changes, and the paper's three characteristics: is there a"
            " closed-form family of behaviours, is the objective free of it, is the choice adapted?"
        ),
        epilog="example: dicerl variants --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Print the table of variants, or all of it as JSON; return 0."""
    if args.json:
        print(
            json.dumps(
                {
                    name: {
                        "text": text,
                        "changes": changes,
                        "characteristics": characteristics(name),
                    }
                    for name, (text, changes) in VARIANTS.items()
                }
            )
        )
        return 0
    from rich.table import Table

    from dicerl.records.progress import output

    marks = ("C", "O", "A")  # of the three characteristics: their names would take all the width
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("variant", *marks):
        table.add_column(title, no_wrap=True)
    table.add_column("what it is")
    for name, (text, _) in VARIANTS.items():
        table.add_row(name, *["✓" if yes else "×" for yes in characteristics(name).values()], text)
    console = output()
    console.print(table)
    names = zip(marks, characteristics("dice"), strict=True)
    console.print(f"\n{', '.join(f'{mark}: {name}' for mark, name in names)}", style="dim")
    return 0
