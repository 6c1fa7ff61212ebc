"""The command line: a subcommand each. Every config field is an option; bad input is one line and
exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, NoReturn

from dicerl import __version__
from dicerl.commands import bench, scores, suite
from dicerl.config.options import add_config, config_of
from dicerl.config.presets import VARIANTS, characteristics
from dicerl.errors import DicerlError, nearest
from dicerl.evaluate import evaluate
from dicerl.report import dashboard, report


class Parser(argparse.ArgumentParser):
    commands: dict[str, Parser]

    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str) -> NoReturn:
    print(f"dicerl: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def build_parser() -> Parser:
    parser = Parser(
        prog="dicerl",
        description=(
            "DiCE: deep reinforcement learning that explores without an entropy coefficient."
        ),
        epilog="example: dicerl train pong --preset laptop",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dicerl {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    train = commands.add_parser(
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
    add_config(train)
    train.add_argument(
        "--json", action="store_true", help="print a summary of the run as JSON at its end"
    )
    train.add_argument("--quiet", action="store_true", help="show nothing while it trains")

    again = commands.add_parser(
        "resume",
        help="go on with a run",
        allow_abbrev=False,
        description="Go on from a run's newest whole checkpoint.",
        epilog="example: dicerl resume runs/pong-dice-0",
    )
    again.add_argument("run", metavar="RUN", help="the run's directory")
    again.add_argument(
        "--json", action="store_true", help="print a summary of the run as JSON at its end"
    )
    again.add_argument("--quiet", action="store_true", help="show nothing while it trains")

    variants = commands.add_parser(
        "variants",
        help="list the variants",
        allow_abbrev=False,
        description=(
            "Every variant with what it changes, and the paper's three characteristics: is there a"
            " closed-form family of behaviours, is the objective free of it, is the choice adapted?"
        ),
        epilog="example: dicerl variants --json",
    )
    variants.add_argument("--json", action="store_true", help="one JSON object on standard output")

    bench.add_parser(commands)
    evaluate.add_parser(commands)
    scores.add_parser(commands)
    suite.add_parser(commands)
    report.add_parser(commands)
    dashboard.add_parser(commands)
    parser.commands = commands.choices
    return parser


def main(argv: list[str] | None = None) -> int:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that module:MyEnv-v0 finds a module of this folder
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if unknown:
        known = [
            option
            for action in parser.commands[args.command]._actions
            for option in action.option_strings
        ]
        fail(
            f"unknown argument {unknown[0]}{nearest(unknown[0].split('=')[0], known)} (see dicerl"
            f" {args.command} --help)"
        )
    try:
        return COMMANDS[args.command](args)
    except DicerlError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt:
        print("dicerl: stopped at once", file=sys.stderr)
        return 130


def _train(args: argparse.Namespace) -> int:
    from dicerl.envs import preset_for

    config = config_of(args, preset_for)
    from dicerl.api import train

    return _report(train(config, quiet=args.quiet), args)


def _resume(args: argparse.Namespace) -> int:
    from dicerl.api import resume

    return _report(resume(args.run, quiet=args.quiet), args)


def _report(run: Any, args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({"run": str(run.directory), **run.summary}))
    return 0


def _variants(args: argparse.Namespace) -> int:
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
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in (
        "variant",
        "closed-form\ndiversity",
        "objective-\ninvariant",
        "adaptive\ntrade-off",
        "what it is",
    ):
        table.add_column(
            title,
            justify="center" if "\n" in title else "left",
            no_wrap=title == "variant",
            vertical="middle",
        )
    for name, (text, _) in VARIANTS.items():
        table.add_row(name, *["✓" if yes else "×" for yes in characteristics(name).values()], text)
    Console().print(table)
    return 0


COMMANDS = {
    "train": _train,
    "resume": _resume,
    "evaluate": evaluate.run,
    "variants": _variants,
    "bench": bench.run,
    "scores": scores.run,
    "suite": suite.run,
    "report": report.run,
    "dashboard": dashboard.run,
}
