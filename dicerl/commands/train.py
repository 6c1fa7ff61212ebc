"""``dicerl train ENV``: a new run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dicerl.config import RuntimeConfig
from dicerl.config.options import add_config, config_of
from dicerl.errors import printable

if TYPE_CHECKING:
    from dicerl.records.run import Run


KEEP_GOING = "--keep-going"


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
            " --optimizer.learning-rate 1e-3\n  dicerl train pong --keep-going"
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
    parser.add_argument(
        KEEP_GOING,
        action="store_true",
        help=(
            "if the command itself is killed or crashes, start it again from its last checkpoint"
            " (as often as runtime.max_restarts allows)"
        ),
    )


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
    from dicerl.envs.trust import module_of

    config = config_of(args, preset_for)  # mistakes are reported before torch is imported
    if args.keep_going:
        from dicerl.records.run import fresh_directory

        made = [] if config.run_dir else [fresh_directory(config)]
        directory = Path(config.run_dir or made[0])
        consent = ["--trust"] if module_of(config.env.id) else []  # it was named here
        shown = ["--json"] * args.json + ["--quiet"] * args.quiet

        def again() -> list[str] | None:
            if not (directory / "config.json").exists():
                return None  # it died before there was a run
            return ["resume", str(directory), *consent, *shown]

        try:
            return keep_going(args, config.runtime, again, [f"--run-dir={path}" for path in made])
        finally:
            for path in made:
                with contextlib.suppress(OSError):  # unless nothing was written there
                    path.rmdir()
    from dicerl.api import train

    return finish(train(config, quiet=args.quiet), args)


def keep_going(
    args: argparse.Namespace,
    limits: RuntimeConfig,
    again: Callable[[], list[str] | None],
    more: list[str],
) -> int:
    """Run this command, with ``more`` arguments, in a process that is started ``again`` if it dies;
    return its exit code.
    """
    from dicerl.runtime.keeper import Keeper

    def say(line: str) -> None:
        if not args.quiet:
            print(printable(line), file=sys.stderr, flush=True)

    first = [word for word in args.argv if word != KEEP_GOING] + more
    return Keeper(limits, say).run(first, again)


def finish(run: Run, args: argparse.Namespace) -> int:
    """Print the summary of the training that just ended, if ``--json`` asks for it; return the exit
    code: 0, or 128 and the number of the signal that stopped it (Ctrl-C 130, SIGTERM 143).
    """
    if args.json:
        print(json.dumps({"run": str(run.directory), **run.summary}))
    return 128 + run.signal if run.signal else 0
