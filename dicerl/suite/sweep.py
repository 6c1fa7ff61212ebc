"""Settings that a suite compares: lists of values give a grid, distributions a random search.

A setting is {field: value}. Its label names the fields that are swept, ``learning_rate 0.001 · q
3``; without a sweep there is one setting, which is empty, and so is its label.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import typing
from collections.abc import Collection
from typing import Any

import numpy as np

from dicerl.config import as_text, fields_of, object_fields, parse, renamed
from dicerl.config.elsewhere import suggestion
from dicerl.config.options import BOOK_KEEPING, SET_BY_SUITE
from dicerl.config.seeding import stream
from dicerl.errors import ConfigError

Setting = dict[str, Any]
MOST = 1_000  # settings of a suite
LOOK = "it must be a list of values, or {min = 1e-4, max = 1e-2, log = true}"


def check_name(where: str, name: str) -> None:
    """Refuse a name that is no config field, or one that the suite sets itself."""
    if name in SET_BY_SUITE:
        raise ConfigError(
            where,
            name,
            "the suite sets this field itself; use games, variants, seeds, preset or dir",
        )
    if name not in fields_of():
        raise ConfigError(
            where,
            name,
            f"no such field{suggestion(name, fields_of()) or '; see dicerl train --help'}",
        )


def split(changes: dict[str, Any]) -> tuple[Setting, dict[str, list[Any]]]:
    """The fields given one value, as they were given, and those given several, as lists of parsed
    values.
    """
    fixed, lists = {}, {}
    for name, value in changes.items():
        if not _is_list(name, value):
            fixed[name] = value
        else:
            values = _values(name, value.split(",") if isinstance(value, str) else value)
            if len(values) == 1:
                fixed[name] = values[0]
            else:
                lists[name] = values
    return fixed, lists


def _is_list(name: str, value: Any) -> bool:
    """Whether ``value`` is several of the field's. A field that may itself be a list has several if
    some of them are lists; on the command line, where commas separate, a text, a list or a JSON
    object is one value.
    """
    kind: Any = fields_of()[name][0]
    of_many = any(typing.get_origin(k) is tuple for k in (kind, *typing.get_args(kind)))
    if isinstance(value, str):
        return "," in value and kind is not str and not of_many and name not in object_fields()
    if of_many:
        return isinstance(value, list) and any(isinstance(item, list) for item in value)
    return isinstance(value, list)


def _values(name: str, values: list[Any]) -> list[Any]:
    """Parsed by the field's type, each once."""
    _may_differ(name)
    if not values:
        raise ConfigError(name, values, "a list of values to compare needs at least one")
    parsed = [parse(name, fields_of()[name][0], value) for value in values]
    return list({repr(value): value for value in parsed}.values())


def _may_differ(name: str) -> None:
    if name.startswith(BOOK_KEEPING):
        raise ConfigError(
            "config",
            name,
            "it does not change what is learned, so a suite compares no values of it; give one",
        )


def grid(lists: dict[str, list[Any]]) -> list[Setting]:
    """Every combination of the values; the last field's change first."""
    if math.prod(map(len, lists.values())) > MOST:
        raise ConfigError(
            "config",
            ", ".join(lists),
            f"these lists have {math.prod(map(len, lists.values())):,} combinations; a suite"
            f" compares at most {MOST:,} settings",
        )
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def search(table: Any, samples: Any = None, fixed: Collection[str] = ()) -> list[Setting]:
    """The settings drawn from a file's ``[search]``: distributions by field, ``samples`` and
    ``seed``. ``samples`` given here wins; a field that is ``fixed`` elsewhere is not drawn.

    They are the same for every game, variant and seed. Sample i depends on ``seed``, i and the
    distributions only, so more samples begin with the same ones.
    """
    if not isinstance(table, dict):
        raise ConfigError("search", table, "it must be a table: [search]")
    table = dict(table)
    in_file = table.pop("samples", None)
    seed = _whole("search.seed", table.pop("seed", 0), 0, 2**63 - 1)
    distributions = _distributions(table)
    if not distributions and (samples, in_file) != (None, None):
        raise ConfigError(
            "search.samples" if samples is None else "samples",
            in_file if samples is None else samples,
            "there is no field to draw: name some below [search] in the suite's file",
        )
    drawn = {name: of for name, of in sorted(distributions.items()) if name not in fixed}
    if not drawn:
        return [{}]
    count = _whole("search.samples", in_file if samples is None else samples, 1, MOST)
    found: dict[str, Setting] = {}
    for i in range(100 * count):
        rng = np.random.default_rng(stream(seed, "search", i))
        setting = {name: _draw(of, rng) for name, of in drawn.items()}
        found.setdefault(repr(setting), setting)
        if len(found) == count:
            return list(found.values())
    raise ConfigError(
        "search.samples",
        count,
        f"only {len(found)} different settings were found to draw; lists in [config] try them all",
    )


def _whole(name: str, value: Any, least: int, most: int) -> int:
    wrong = ConfigError(name, value, f"it must be a whole number from {least} to {most}")
    try:
        number = int(parse(name, int, value))
    except ConfigError:
        raise wrong from None
    if not least <= number <= most:
        raise wrong
    return number


def _distributions(table: dict[str, Any]) -> dict[str, Any]:
    """{field: list of values, or (min, max, log)}, checked."""
    found: dict[str, Any] = {}
    for name, value in renamed(_fields(table)).items():
        check_name("search", name)
        _may_differ(name)
        if isinstance(value, list):
            found[name] = _values(name, value)
        elif isinstance(value, dict):
            found[name] = _range(name, value)
        else:
            raise ConfigError(f"search.{name}", value, LOOK)
    return found


def _fields(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted name, as ``flatten`` does; a table that names no section is a distribution."""
    flat: dict[str, Any] = {}
    sections = {name.rsplit(".", 1)[0] for name in fields_of() if "." in name}
    for name, value in table.items():
        if isinstance(value, dict) and prefix + name in sections:
            flat |= _fields(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _range(name: str, table: dict[str, Any]) -> tuple[Any, Any, bool]:
    kind, field = fields_of()[name]
    if set(table) - {"min", "max", "log"} or not {"min", "max"} <= set(table):
        raise ConfigError(f"search.{name}", table, LOOK)
    if kind not in (int, float):
        raise ConfigError(f"search.{name}", table, "only numbers have a range; it must be a list")
    low, high = (parse(f"search.{name}", kind, table[end]) for end in ("min", "max"))
    log = parse(f"search.{name}.log", bool, table.get("log", False))
    least, most = field.metadata["range"] or (-math.inf, math.inf)
    if not low < high or low < least or high > most:
        raise ConfigError(
            f"search.{name}", table, f"min must be below max, both from {least:g} to {most:g}"
        )
    if log and low <= 0:
        raise ConfigError(f"search.{name}", table, "with log, min must be above 0")
    return low, high, log


def _draw(of: Any, rng: np.random.Generator) -> Any:
    """A value of a list, or of a range: rounded, so that a table shows what was run."""
    if isinstance(of, list):
        return of[int(rng.integers(len(of)))]
    low, high, log = of
    whole = isinstance(low, int)
    top = high + 1 if whole else high
    u = float(rng.random())
    x = low * (top / low) ** u if log else low + (top - low) * u
    if whole:
        return min(math.floor(x), high)
    # three digits, or at least a thousand different values
    x = float(f"{x:.3g}") if log else round(x, 3 - math.floor(math.log10(high - low)))
    return min(max(x, low), high)


def combined(lists: dict[str, list[Any]], drawn: list[Setting]) -> dict[str, Setting]:
    """{label: setting}: every combination of the grid with every sample."""
    both = [combination | sample for combination in grid(lists) for sample in drawn]
    if len(both) > MOST:
        raise ConfigError(
            "search.samples",
            len(drawn),
            f"with the lists of [config] that makes {len(both):,} settings; a suite compares at"
            f" most {MOST:,}",
        )
    return {label(setting): setting for setting in both}


def short_names(names: Collection[str]) -> dict[str, str]:
    """Each field's last word, or its whole name where two end alike."""
    last = [name.split(".")[-1] for name in names]
    return {
        name: word if last.count(word) == 1 else name
        for name, word in zip(names, last, strict=True)
    }


def label(setting: Setting) -> str:
    """What a table calls the setting."""
    names = short_names(setting)
    return " · ".join(f"{names[name]} {as_text(value)}" for name, value in setting.items())


def directory_name(setting: Setting) -> str:
    """The setting as part of a directory's name; of a long or odd one, a hash."""
    names = short_names(setting)
    words = ",".join(f"{names[name]}={as_text(value)}" for name, value in setting.items())
    if re.fullmatch(r"[A-Za-z0-9.,=_+-]{0,100}", words):
        return words
    return hashlib.sha256(words.encode()).hexdigest()[:12]
