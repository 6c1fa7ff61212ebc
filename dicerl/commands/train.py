"""``dicerl train ENV``: a new run."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dicerl.config import Config, RuntimeConfig, as_text
from dicerl.config.options import add_config, config_of, show_defaults
from dicerl.config.presets import differences, preset, split
from dicerl.errors import DicerlError, printable

if TYPE_CHECKING:
    from dicerl.records.run import Run


KEEP_GOING = "--keep-going"


def add_parser(commands: Any) -> None:
    """Add ``train`` to argparse's subparsers, with every config field as an option."""
    parser = commands.add_parser(
        "train",
        help="train a new run",
        allow_abbrev=False,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Train a new run. Ctrl-C stops it with a checkpoint; `dicerl resume RUN` goes on."
        ),
        epilog=(
            "examples:\n  dicerl train pong\n  dicerl train CartPole-v1 --help\n  dicerl train"
            " MinAtar/Breakout-v1 --variant baseline --seed 1\n  dicerl train my_module:MyEnv-v0"
            " --preset classic --frames 500000 --optimizer.learning-rate 1e-3\n"
            "  dicerl train pong --preset paper --dry-run"
            "\n  dicerl train pong --keep-going"
        ),
    )
    parser.add_argument(
        "-h",
        "--help",
        action=_Help,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show this; after ENV, --preset or --variant with their defaults, and exit",
    )
    add_config(parser)
    add_output(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what the run would be, with --json its whole config, and start nothing",
    )


class _Help(argparse.Action):
    """``--help`` with the defaults in force for what was named before it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the help and exit."""
        name, variant = split(namespace.preset, namespace.variant)
        try:
            if name is None and namespace.env is not None:
                from dicerl.envs import preset_for

                name = preset_for(namespace.env)
            if name is not None or variant != "dice":
                show_defaults(parser, preset(name or "paper", variant))
        except DicerlError as error:
            parser.error(str(error))
        parser.print_help()
        parser.exit()


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

    config = config_of(args, preset_for)  # mistakes are reported before torch is imported
    if args.dry_run:
        return _dry_run(config, args)
    if args.keep_going:
        return _train_and_keep_going(config, args)
    from dicerl.api import train

    return finish(train(config, quiet=args.quiet), args)


def _dry_run(config: Config, args: argparse.Namespace) -> int:
    """Print what ``train`` would do: the run's lines, and the options that make it another than its
    preset. Return 0.
    """
    from dicerl.api import dry_run

    run, plan, lines = dry_run(config)
    changes = differences(config)
    del changes["env.id"]
    if args.json:
        machine = asdict(plan) | {"device": str(plan.device)}
        given = {name: its for name, (its, _) in changes.items()}
        shown = {"run": str(run.directory), "config": run.config.to_dict(), "changes": given}
        print(json.dumps(shown | {"plan": machine}))
        return 0
    for line in lines[:-1]:
        print(line)
    print(f"  would write to {run.directory}")
    name = f"preset {config.preset} with variant {config.variant}"
    print(f"  as {name}, but:" if changes else f"  as {name}")
    for name, (its, usual) in changes.items():
        option = f"--{name.replace('_', '-')} {shlex.quote(as_text(its))}"
        print(f"    {option}  (instead of {as_text(usual) or 'none'})")
    return 0


def _train_and_keep_going(config: Config, args: argparse.Namespace) -> int:
    """Train in a process that is started again, as a resume, if it dies; return its exit code."""
    from dicerl.envs.trust import module_of, named_in
    from dicerl.records.run import fresh_directory

    made = [] if config.run_dir else [fresh_directory(config)]
    directory = Path(config.run_dir or made[0])
    consent = ["--trust"] if any(map(module_of, named_in(config))) else []  # they were named here
    shown = ["--json"] * args.json + ["--quiet"] * args.quiet

    def again() -> list[str] | None:
        if not (directory / "config.json").exists():
            return None  # it died before there was a run
        return ["resume", str(directory), *consent, *shown]

    try:
        more = [f"--run-dir={path}" for path in made]
        return keep_going(args, config.runtime, directory, again, more)
    finally:
        for path in made:
            with contextlib.suppress(OSError):  # unless nothing was written there
                path.rmdir()


def keep_going(
    args: argparse.Namespace,
    limits: RuntimeConfig,
    directory: Path,
    again: Callable[[], list[str] | None],
    more: list[str],
) -> int:
    """Run this command, whose run is in ``directory``, with ``more`` arguments, in a process that
    is started ``again`` if it dies; return its exit code.
    """
    from dicerl.records.checkpoint import checkpoints_of
    from dicerl.runtime.keeper import Keeper

    def say(line: str) -> None:
        if not args.quiet:
            print(printable(line), file=sys.stderr, flush=True)

    first = [word for word in args.argv if word != KEEP_GOING] + more

    def saved() -> list[str]:
        return [path.name for path in checkpoints_of(directory)]

    return Keeper(limits, say).run(first, again, saved)


def finish(run: Run, args: argparse.Namespace) -> int:
    """Print the summary of the training that just ended, if ``--json`` asks for it; return the exit
    code: 0, or 128 and the number of the signal that stopped it (Ctrl-C 130, SIGTERM 143).
    """
    if args.json:
        print(json.dumps({"run": str(run.directory), **run.summary}))
    return 128 + run.signal if run.signal else 0
