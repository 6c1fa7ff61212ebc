"""Config fields as command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from dicerl.config import Config, describe_type, fields_of, get

HIDDEN = ("env.id", "preset", "variant")  # options with a place of their own


def add_fields(parser: argparse.ArgumentParser, hidden: Collection[str] = HIDDEN) -> None:
    """``--<field>`` for every config field, grouped by section; only those given appear in the
    parsed arguments.
    """
    parser.add_argument(
        "--runtime",
        dest="runtime.kind",
        default=argparse.SUPPRESS,
        metavar="{auto,serial,process}",
        help="auto picks by cores",
    )
    groups: dict[str, Any] = {}
    default = Config()
    for name, (kind, field) in fields_of().items():
        if name in hidden:
            continue
        section = name.split(".")[0] if "." in name else "run"
        group = groups.setdefault(
            section,
            parser.add_argument_group(f"{section} (defaults: the paper's; a preset changes some)"),
        )
        text = (
            f"{field.metadata['help']} ({'paper' if field.metadata['paper'] else 'default'}:"
            f" {get(default, name)})".replace("%", "%%")
        )
        options = {f"--{name}", f"--{name.replace('_', '-')}"}
        group.add_argument(
            *sorted(options, key=lambda o: "_" in o),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=describe_type(kind),
            help=text,
            **({"nargs": "?", "const": "true"} if kind is bool else {}),
        )


def given_fields(args: argparse.Namespace, hidden: Collection[str] = HIDDEN) -> dict[str, Any]:
    """The fields that were given, by dotted name, as strings."""
    return {
        name: value
        for name, value in vars(args).items()
        if name in fields_of() and name not in hidden
    }
