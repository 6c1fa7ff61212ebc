"""The command line: parser, dispatch to the commands, errors as one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from dicerl import __version__
from dicerl.commands import (
    bench,
    dashboard,
    envs,
    evaluate,
    export,
    package,
    plan,
    report,
    resume,
    scores,
    suite,
    train,
    variants,
)
from dicerl.config import RENAMED
from dicerl.config.elsewhere import ELSEWHERE, suggestion
from dicerl.errors import DicerlError, printable
from dicerl.runtime.machine import hear_children, open_standard_streams

# Below this much address space (ulimit -v) torch's libraries cannot be loaded, or crash.
ADDRESS_SPACE = 1 << 30
LONGEST_LINE = 4000  # characters of an error: names in files may be of any length
NEED_TORCH = ("train", "resume", "bench", "plan", "evaluate", "export", "package")
# what they write is removed where it is not complete
CLEAN_UP = ("evaluate", "export", "package")
# in what is raised where the system has no more to give
NO_MORE = ("allocate memory", "start new thread", "failed to map segment")


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
    "envs": envs,
    "bench": bench,
    "plan": plan,
    "evaluate": evaluate,
    "export": export,
    "package": package,
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

    def _print_message(self, message: str, file: Any = None) -> None:
        """As later argparse does by itself (that of Python 3.11.2, Debian 12's, not yet): help
        whose reader has left is no error.
        """
        with contextlib.suppress(AttributeError, OSError):
            super()._print_message(message, file)


def fail(message: str) -> NoReturn:
    """Print one line to stderr and exit with code 2."""
    line = " ".join(message.split())
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it may be closed: the exit code is left
            print(f"dicerl: {printable(line)}", file=sys.stderr, flush=True)
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


def _option_for(word: str, parser: Parser) -> str:
    """Which of the parser's options an unknown word means, if that can be told."""
    if not word.startswith("-"):
        return ""
    # by name, as fields are written; the first spelling is the one to show
    options = {
        option.lstrip("-").replace("-", "_"): action.option_strings[0]
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    name = word.lstrip("-").replace("-", "_")
    if RENAMED.get(name) in options:
        return f"; it is now {options[RENAMED[name]]}"
    if ELSEWHERE.get(name) == "env.id" and "frames" in options:
        return "; the environment stands alone: CartPole-v1"
    return suggestion(name, options, options.__getitem__)


def main(argv: list[str] | None = None) -> int:
    """Run the command named in ``argv`` (default: the process's arguments); return the exit
    code.
    """
    open_standard_streams()
    _print_anything()
    if threading.current_thread() is threading.main_thread():
        hear_children()
    try:
        try:
            return _main(argv)
        finally:
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # here, not at the interpreter's end, where it would complain
    except BrokenPipeError:
        return _reader_left()


def _print_anything() -> None:
    """A terminal that cannot show a character (LC_ALL=C) shows its number, instead of an error. A
    way that the user chose (PYTHONIOENCODING=ascii:replace) stays.
    """
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or no file
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _reader_left() -> int:
    """End silently where the reader of the output has gone (``dicerl scores | head``), as other
    commands do.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + getattr(signal, "SIGPIPE", 13)  # Windows has no such signal


def _require_address_space() -> None:
    """Refuse a limit under which torch would crash while it is loaded."""
    try:
        import resource
    except ImportError:  # not a Unix: there is no such limit
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE:
        fail(
            f"the limit of address space (ulimit -v) is {limit >> 10} KiB; it must be at least"
            f" {ADDRESS_SPACE >> 10}"
        )


def _stop(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


@contextlib.contextmanager
def _stopped_as_by_ctrl_c() -> Iterator[None]:
    """A service manager, or a terminal that closes, ends the command as Ctrl-C does: with time to
    clean up.
    """
    numbers = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    heard = [n for n in numbers if n is not None and signal.getsignal(n) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        heard = []
    for number in heard:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def _main(argv: list[str] | None) -> int:
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    if unknown:
        hint = _option_for(unknown[0].split("=")[0], parser.commands[args.command])
        fail(f"unknown argument {unknown[0]}{hint} (see dicerl {args.command} --help)")
    args.argv = sys.argv[1:] if argv is None else argv
    if args.command in NEED_TORCH:
        _require_address_space()
    clean_up = args.command in CLEAN_UP
    try:
        with _stopped_as_by_ctrl_c() if clean_up else contextlib.nullcontext():
            return COMMANDS[args.command].run(args)
    except DicerlError as error:
        fail(str(error))
    except (MemoryError, RuntimeError, ImportError) as error:
        if not isinstance(error, MemoryError) and not any(x in str(error) for x in NO_MORE):
            raise
        fail(f"the system has no more memory or threads to give ({error or 'out of memory'})")
    except BrokenPipeError:
        raise  # of the output: those between processes are handled where they are
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt as stop:
        print("dicerl: stopped at once", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
