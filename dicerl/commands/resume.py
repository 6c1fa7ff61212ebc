"""``dicerl resume RUN``: continue a run."""

from __future__ import annotations

import argparse
from typing import Any

from dicerl.commands.train import KEEP_GOING, add_output, add_trust, finish, keep_going
from dicerl.config.options import add_fields, given_fields
from dicerl.config.resuming import why_fixed


def add_parser(commands: Any) -> None:
    """Add ``resume`` to argparse's subparsers, with options for the settings that may change."""
    parser = commands.add_parser(
        "resume",
        help="go on with a run",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Go on from a run's newest whole checkpoint, with its own settings but for those given"
            " here."
        ),
        epilog=(
            "examples:\n  dicerl resume runs/pong-dice-0\n  dicerl resume runs/pong-dice-0 --frames"
            " 2e7 --optimizer.learning-rate 1e-4\n  dicerl resume runs/pong-dice-0 --runtime serial"
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory")
    add_trust(parser, "the run's config.json")
    add_output(parser)
    add_fields(parser, hidden=(), untold=why_fixed)


def run(args: argparse.Namespace) -> int:
    """Train on from the newest intact checkpoint; return the exit code as ``train`` does."""
    given = given_fields(args, hidden=())
    if args.keep_going:
        from dicerl.config.resuming import changed
        from dicerl.records.run import Run

        run = Run.open(args.run)
        config, _ = changed(run.config, given)
        same = [word for word in args.argv if word != KEEP_GOING]
        return keep_going(args, config.runtime, run.directory, lambda: same, [])
    from dicerl.api import resume

    return finish(resume(args.run, quiet=args.quiet, changes=given, trust=args.trust), args)
