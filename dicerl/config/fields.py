"""Config fields by dotted name, ``loss.q``: list, get and set them, and parse them from text or
JSON.

The fields themselves are declared elsewhere: this works on any nested frozen dataclasses whose
leaves are ``row``s. Only renamed fields are listed here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from dataclasses import field
from typing import Any, Literal, TypeVar

from dicerl.config.elsewhere import meant, suggestion
from dicerl.errors import ConfigError, nearest

T = TypeVar("T")
Leaves = dict[str, tuple[Any, dataclasses.Field[Any]]]  # {"loss.q": (float, Field), ...}

# old name -> present name; config.json of older runs has the old one
RENAMED = {"sequence.capacity": "collector.capacity"}


def row(
    default: Any, text: str, *, range: tuple[float, float] | None = None, paper: str = ""
) -> Any:
    """Declare a config field: its default, one line of help, the smallest and largest value allowed
    (for a tuple: for each element), and its row in the paper's table.
    """
    return field(default=default, metadata={"help": text, "range": range, "paper": paper})


@functools.cache  # it takes milliseconds, and a suite of many settings asks often
def leaves_of(config_type: Any, prefix: str = "") -> Leaves:
    """Every leaf field of a dataclass and of its nested ones, by dotted name. Not to be changed."""
    hints = typing.get_type_hints(config_type)
    leaves: Leaves = {}
    for f in dataclasses.fields(config_type):
        if dataclasses.is_dataclass(hints[f.name]):
            leaves.update(leaves_of(hints[f.name], f"{prefix}{f.name}."))
        else:
            leaves[prefix + f.name] = (hints[f.name], f)
    return leaves


def flatten(nest: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested dicts by dotted name: {"loss": {"q": 1}} becomes {"loss.q": 1}."""
    flat: dict[str, Any] = {}
    for name, value in nest.items():
        flat |= (
            flatten(value, f"{prefix}{name}.")
            if isinstance(value, dict)
            else {prefix + name: value}
        )
    return flat


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """The same values, with old field names replaced by the present ones."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


def get(config: Any, name: str) -> Any:
    """The value at a dotted name."""
    for part in name.split("."):
        config = getattr(config, part)
    return config


def override(config: T, changes: dict[str, Any]) -> T:
    """A copy of ``config`` with fields changed by dotted name, present or old. Strings are parsed
    by the field's type, and every value's type is checked.
    """
    kind: Any = type(config)
    leaves = leaves_of(kind)
    for name, value in renamed(changes).items():
        if name not in leaves:
            raise ConfigError(
                "field",
                name,
                f"no such field{_suggested(name, leaves) or '; see dicerl train --help'}",
            )
        config = _set(config, name.split("."), parse(name, leaves[name][0], value))
    return config


def _suggested(name: str, leaves: Leaves) -> str:
    first = next(iter(meant(name, leaves)), "")
    keyword = f" (as a keyword: {first.replace('.', '__')})" if "." in first else ""
    return suggestion(name, leaves) + keyword


def _set(node: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = _set(getattr(node, path[0]), path[1:], value)
    return dataclasses.replace(node, **{path[0]: value})


def parse(name: str, kind: Any, value: Any) -> Any:
    """``value``, a command-line string or from JSON, as the type ``kind`` of the field ``name``."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(
                name,
                value,
                f"it can be {', '.join(map(str, choices))}{nearest(str(value), choices)}",
            )
        return value
    if origin is tuple:
        if not isinstance(value, str | list | tuple):
            raise ConfigError(name, value, "it must be a list of numbers, like 1,2,3")
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        try:
            return tuple(parse(name, typing.get_args(kind)[0], item) for item in items)
        except ConfigError:
            raise ConfigError(
                name,
                value,
                f"it must be a list of {'whole ' * (typing.get_args(kind)[0] is int)}numbers",
            ) from None
    if kind is bool:
        if isinstance(value, str) and value.lower() in (
            "true",
            "yes",
            "on",
            "1",
            "false",
            "no",
            "off",
            "0",
        ):
            return value.lower() in ("true", "yes", "on", "1")
        if not isinstance(value, bool):
            raise ConfigError(name, value, "it can be true or false")
        return value
    if kind is str:
        if value is None or isinstance(value, list | tuple | dict):
            raise ConfigError(name, value, "it must be a text")
        return str(value)
    wanted = "it must be a whole number" if kind is int else "it must be a finite number"
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ConfigError(name, value, wanted)
    if kind is int:
        try:
            # exact, also beyond 2**53
            return int(value) if isinstance(value, str | int) else _whole(value)
        except ValueError:
            pass  # perhaps "2e5"
    try:
        number = float(value)
        return _whole(number) if kind is int else _finite(number)
    except (ValueError, OverflowError):
        raise ConfigError(name, value, wanted) from None


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole(number: float) -> int:
    if _finite(number) != int(number):
        raise ValueError
    return int(number)


def describe_type(kind: Any) -> str:
    """How values of the type ``kind`` are written on the command line."""
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(map(str, typing.get_args(kind))) + "}"
    if typing.get_origin(kind) is tuple:
        return f"{typing.get_args(kind)[0].__name__.upper()},..."
    return "BOOL" if kind is bool else str(getattr(kind, "__name__", kind)).upper()
