"""``dicerl train ENV``: a new run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from dicerl.config.options import add_config, config_of

if TYPE_CHECKING:
    from dicerl.records.run import Run


def add_parser(commands: Any) -> None:
    """Add ``train`` to argparse's subparsers, with every config field as an option."""
    parser = commands.add_parser(
        "train",
        help="train a new run",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Train a new run. Ctrl-C stops it with a checkpoint; `dicerl resume RUN` goes on."
        ),
        epilog=(
            "examples:\n  dicerl train pong\n  dicerl train MinAtar/Breakout-v1 --variant baseline"
            " --seed 1\n  dicerl train my_module:MyEnv-v0 --preset classic --frames 500000"
            " --optimizer.learning-rate 1e-3"
        ),
    )
    add_config(parser)
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--quiet``, for every command that trains."""
    parser.add_argument(
        "--json", action="store_true", help="print a summary of the run as JSON at its end"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing while it trains")


def run(args: argparse.Namespace) -> int:
    """Train a new run from the options; return 0, stopped or complete."""
    from dicerl.envs import preset_for

    config = config_of(args, preset_for)  # mistakes are reported before torch is imported
    from dicerl.api import train

    print_summary(train(config, quiet=args.quiet), args)
    return 0


def print_summary(run: Run, args: argparse.Namespace) -> None:
    """The summary of the training that just ended, if ``--json`` asks for it."""
    if args.json:
        print(json.dumps({"run": str(run.directory), **run.summary}))
