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


def add_trust(parser: argparse.ArgumentParser, whose: str) -> None:
    """``--trust``, for every command that may import what a file names."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help=f"import the module that {whose} names (module:MyEnv-v0): that runs its code",
    )


def run(args: argparse.Namespace) -> int:
    """Train a new run from the options; return 0, or what shells expect of a stop by a signal."""
    from dicerl.envs import preset_for

    config = config_of(args, preset_for)  # mistakes are reported before torch is imported
    from dicerl.api import train

    return finish(train(config, quiet=args.quiet), args)


def finish(run: Run, args: argparse.Namespace) -> int:
    """Print the summary of the training that just ended, if ``--json`` asks for it; return the exit
    code: 0, or 128 and the number of the signal that stopped it (Ctrl-C 130, SIGTERM 143).
    """
    if args.json:
        print(json.dumps({"run": str(run.directory), **run.summary}))
    return 128 + run.signal if run.signal else 0
