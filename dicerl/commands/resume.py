"""``dicerl resume RUN``: continue a run."""

from __future__ import annotations

import argparse
from typing import Any

from dicerl.commands.train import add_output, print_summary


def add_parser(commands: Any) -> None:
    """Add ``resume`` to argparse's subparsers; all settings are the run's own."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run",
        allow_abbrev=False,
        description="Go on from a run's newest whole checkpoint.",
        epilog="example: dicerl resume runs/pong-dice-0",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Train on from the newest intact checkpoint; return 0, stopped or complete."""
    from dicerl.api import resume

    print_summary(resume(args.run, quiet=args.quiet), args)
    return 0
