"""``dicerl envs [PATTERN]``: the environments there are, and whether dicerl can train them."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from dicerl.errors import DicerlError, printable


def add_parser(commands: Any) -> None:
    """Add ``envs`` to argparse's subparsers."""
    parser = commands.add_parser(
        "envs",
        help="list environments",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "The Atari games, MinAtar and what is registered with Gymnasium: what each observes,"
            " how many\nactions it has, and whether dicerl can train it. To see that, the Gymnasium"
            " environments are made\nonce, if there are not too many; Atari games are not."
        ),
        epilog=(
            "examples:\n  dicerl envs pac\n  dicerl envs 'MinAtar/*' --json\n"
            "  dicerl envs my_module:"
        ),
    )
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        default="",
        help="part of a name, or a whole one with *; my_module: for what that module registers",
    )
    parser.add_argument("--all", action="store_true", help="older versions of an environment, too")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Print the list, or all of it as JSON; return 0."""
    from dicerl.envs import preset_for
    from dicerl.envs.known import LOOKED_AT, known

    found = known(args.pattern, args.all)
    if not found:
        raise DicerlError(
            f"no environment is called {args.pattern!r}; dicerl envs lists all that are installed,"
            " dicerl envs my_module: those of a module"
        )
    if args.json:
        lines = [asdict(env) | {"preset": preset_for(env.id)} for env in found]
        print(json.dumps({"environments": lines}))
        return 0
    from rich.markup import escape
    from rich.table import Table

    from dicerl.records.progress import output

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, wraps in (("environment", 0), ("observes", 1), ("actions", 1), ("trains", 0)):
        table.add_column(title, no_wrap=not wraps)
    notes: dict[str, str] = {}  # by mark
    reasons: dict[str, int] = {}  # many environments share one
    for env in found:
        name, mark = env.id, "✓"
        if env.source == "atari57":
            name += " *"
            notes["*"] = "one of the 57 games of the paper's tables"
        if env.trainable is None:
            mark = "?"
            notes[mark] = f"not looked at, since there are more than {LOOKED_AT}; name fewer"
        elif env.why:
            mark = f"× {reasons.setdefault(env.why, len(reasons) + 1)}"
            notes[mark] = env.why
        table.add_row(*(escape(printable(s)) for s in (name, env.observation, env.actions, mark)))
    console = output()
    console.print(table)
    for mark, note in notes.items():
        console.print(escape(printable(f"{mark}: {note}")), style="dim", highlight=False)
    return 0
