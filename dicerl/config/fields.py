"""Config fields by dotted name, ``loss.q``: list, get and set them, and parse them from text or
JSON.

The fields themselves are declared elsewhere: this works on any nested frozen dataclasses whose
leaves are ``row``s. Only renamed fields are listed here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import field
from types import UnionType
from typing import Any, Literal, NewType, TypeVar, Union

from dicerl.config.elsewhere import meant, suggestion
from dicerl.errors import ConfigError, nearest, shortened

T = TypeVar("T")
DEEPEST = 40  # levels of a JSON object; a config.json, which holds it, may have some more
Reference = NewType("Reference", str)  # something of the user's own, "module:Name"
Leaves = dict[str, tuple[Any, dataclasses.Field[Any]]]  # {"loss.q": (float, Field), ...}

# old name -> present name; config.json of older runs has the old one
RENAMED = {"sequence.capacity": "collector.capacity"}
_PLURAL = {int: "whole numbers", float: "numbers", str: "names"}


def row(
    default: Any, text: str, *, range: tuple[float, float] | None = None, paper: str = ""
) -> Any:
    """Declare a config field: its default, one line of help, the smallest and largest value allowed
    (for a tuple: for each element), and its row in the paper's table.
    """
    metadata = {"help": text, "range": range, "paper": paper}
    if isinstance(default, dict):  # each config gets one of its own
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


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


def flatten(nest: dict[str, Any], prefix: str = "", whole: Collection[str] = ()) -> dict[str, Any]:
    """The values of nested dicts by dotted name: {"loss": {"q": 1}} becomes {"loss.q": 1}. A dict
    whose dotted name is in ``whole`` is a value itself.
    """
    flat: dict[str, Any] = {}
    for name, value in nest.items():
        flat |= (
            flatten(value, f"{prefix}{name}.", whole)
            if isinstance(value, dict) and prefix + name not in whole
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
    if origin in (Union, UnionType):
        return _parse_either(name, typing.get_args(kind), value)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(
                name,
                value,
                f"it can be {', '.join(map(str, choices))}{nearest(str(value), choices)}",
            )
        return value
    if kind is Reference:
        if not isinstance(value, str) or not re.fullmatch(r"[\w.]+:\w+", value):
            raise ConfigError(name, value, "it must be module:Name")
        return value
    if origin is tuple:
        each = typing.get_args(kind)[0]
        wanted = f"it must be a list of {_PLURAL[each]}"
        if not isinstance(value, str | list | tuple):
            example = "a,b" if each is str else "1,2,3"
            raise ConfigError(name, value, f"{wanted}, like {example}")
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        try:
            return tuple(parse(name, each, item) for item in items)
        except ConfigError:
            raise ConfigError(name, value, wanted) from None
    if is_object(kind):
        return _json_object(name, value)
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


def as_text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) + "," * (len(value) == 1)  # a list, even of one
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_object(kind: Any) -> bool:
    """Whether values of the type ``kind`` are JSON objects."""
    return typing.get_origin(kind) is Mapping


def _json_object(name: str, value: Any) -> dict[str, Any]:
    """A JSON object, as text or as a dict that JSON gives back as it is: a run is saved as JSON,
    and must be the same when it goes on.
    """
    wanted = "it must be a JSON object, like " + '{"size": 9}'
    if not isinstance(value, str | dict):
        raise ConfigError(name, value, wanted)
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        found = json.loads(text, parse_constant=_no_constant)
        if _levels(found) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        # 1e999 is infinite, and half of a surrogate pair is no text
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(name, value, f"{wanted}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(name, value, wanted)
    if isinstance(value, dict) and found != value:
        raise ConfigError(name, value, f"{wanted}: JSON would make {shortened(found)} of it")
    return found


def _levels(value: Any) -> int:
    """How deep a value of JSON is nested: 0 for a number."""
    count, level = 0, [value]
    while level := [
        inner
        for item in level
        if isinstance(item, dict | list)
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        count += 1
    return count


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _parse_either(name: str, kinds: tuple[Any, ...], value: Any) -> Any:
    """``value`` as the first of these types that takes it: choices or a name, a number or several
    of it.
    """
    first, other = kinds
    try:
        return parse(name, first, value)
    except ConfigError as error:
        if other is Reference and not (isinstance(value, str) and ":" in value):
            raise ConfigError(
                name,
                value,
                f"it can be {', '.join(map(str, typing.get_args(first)))}, or module:Name of your"
                f" own{nearest(str(value), typing.get_args(first))}",
            ) from None
        if other is not Reference and not isinstance(value, list | tuple) and "," not in str(value):
            raise error
    return parse(name, other, value)


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
    if typing.get_origin(kind) in (Union, UnionType):
        return "|".join(map(describe_type, typing.get_args(kind)))
    if kind is Reference:
        return "MODULE:NAME"
    if typing.get_origin(kind) is Literal:
        return "{" + ",".join(map(str, typing.get_args(kind))) + "}"
    if typing.get_origin(kind) is tuple:
        return f"{typing.get_args(kind)[0].__name__.upper()},..."
    if is_object(kind):
        return "JSON"
    return "BOOL" if kind is bool else str(getattr(kind, "__name__", kind)).upper()
