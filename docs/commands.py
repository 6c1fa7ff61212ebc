"""The site's tables of commands and config fields (docs/reference/commands.md), made from the code
when the site is built. Torch is not imported for it.
"""

from __future__ import annotations

import argparse

from dicerl.cli import build_parser
from dicerl.config import Config
from dicerl.config.fields import get
from dicerl.config.options import HIDDEN, describe_type, fields_of


def cell(text: object) -> str:
    """``text`` inside a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; none without rows."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n" if rows else ""


def commands() -> str:
    """Every command: what it does, its own options, examples."""
    parts = []
    for name, parser in build_parser().commands.items():
        rows = [
            [f"`{option(action)}`{{.option}}", cell(what_it_does(action))]
            for action in parser._actions
            if action.dest != "help"
            and action.help is not argparse.SUPPRESS
            and not is_field(action)
        ]
        takes = any(map(is_field, parser._actions))
        parts += [
            f"### dicerl {name}\n",
            f"{parser.description or ''}\n",
            table(["option", "what it does"], rows),
            "Fields of the configuration are options, too: see below.\n" if takes else "",
            f"```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else "",
        ]
    return "\n".join(part for part in parts if part)


def is_field(action: argparse.Action) -> bool:
    """Whether an option is a config field by its own name; ``--stop-at`` is a short one."""
    names = {option.lstrip("-").replace("-", "_") for option in action.option_strings}
    return action.dest in names and action.dest in fields_of().keys() - HIDDEN


def option(action: argparse.Action) -> str:
    """An option or argument as one types it."""
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if value.startswith("{"):
        value = "NAME"
    if not action.option_strings:
        return value
    return f"{action.option_strings[-1]} {value}".strip()


def what_it_does(action: argparse.Action) -> str:
    """An option's help, with its choices."""
    text = (action.help or "") % {"default": action.default}
    named = str(action.metavar or "").startswith("{")
    choices = [
        str(choice)
        for choice in action.choices or (action.metavar[1:-1].split(",") if named else ())
    ]
    return f"{text}; {', '.join(choices)}" if choices else text


def fields() -> str:
    """Every field of the configuration, by section."""
    sections: dict[str, list[list[str]]] = {}
    default = Config()
    for name, (kind, field) in fields_of().items():
        span = field.metadata["range"]
        allowed = f"{describe_type(kind)}{f', {span[0]:g} to {span[1]:g}' if span else ''}"
        sections.setdefault(name.split(".")[0] if "." in name else "run", []).append(
            [
                f"`{name}`{{.option}}",
                f"`{get(default, name)!r}`",
                cell(allowed),
                cell(field.metadata["help"]),
            ]
        )
    return "\n".join(
        f"### {section}\n\n{table(['field', 'default', 'values', 'what it is'], rows)}"
        for section, rows in sections.items()
    )


tables = {"commands": commands, "fields": fields}
