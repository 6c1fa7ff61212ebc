"""The command line: parser, dispatch to the commands, errors as one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn, Protocol

from dicerl import __version__
from dicerl.commands import (
    bench,
    dashboard,
    evaluate,
    report,
    resume,
    scores,
    suite,
    train,
    variants,
)
from dicerl.config import RENAMED
from dicerl.errors import DicerlError, nearest


class Command(Protocol):
    """The interface of a module in commands/. Slow imports belong in its ``run``."""

    def add_parser(self, commands: Any) -> None:
        """Add the command and its options to argparse's subparsers."""

    def run(self, args: argparse.Namespace) -> int:
        """Execute the command; return the exit code."""


# in the order of --help
COMMANDS: dict[str, Command] = {
    "train": train,
    "resume": resume,
    "variants": variants,
    "bench": bench,
    "evaluate": evaluate,
    "scores": scores,
    "suite": suite,
    "report": report,
    "dashboard": dashboard,
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; ``commands`` holds those of the commands by name."""

    commands: dict[str, Parser]

    def error(self, message: str) -> NoReturn:
        """End with ``message`` as one line, instead of argparse's usage text."""
        fail(message)


def fail(message: str) -> NoReturn:
    """Print one line to stderr and exit with code 2."""
    print(f"dicerl: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)


def build_parser() -> Parser:
    """Build the parser of the command line, with a subparser for each command."""
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
    for command in COMMANDS.values():
        command.add_parser(commands)
    parser.commands = commands.choices
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command named in ``argv`` (default: the process's arguments); return the exit
    code.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that module:MyEnv-v0 finds a module in this folder
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
        word = unknown[0].split("=")[0]
        present = f"--{RENAMED.get(word.removeprefix('--').replace('-', '_'))}"
        hint = f"; it is now {present}" if present in known else nearest(word, known)
        fail(f"unknown argument {unknown[0]}{hint} (see dicerl {args.command} --help)")
    try:
        return COMMANDS[args.command].run(args)
    except DicerlError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt:
        print("dicerl: stopped at once", file=sys.stderr)
        return 130
