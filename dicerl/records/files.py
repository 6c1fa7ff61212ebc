"""Finds and reads files that a stranger may have written: only regular ones, never without end,
JSON without surprises. What is wrong is an OSError or a ValueError whose text is one line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from pathlib import Path
from typing import IO, Any, NoReturn

LARGEST = 1 << 28  # bytes of a JSON or TOML file
DEEPEST = 50  # levels of a JSON value
# a FIFO is not waited for (Windows has none), and bytes are read as they are (Windows asks for it)
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def open_regular(path: Path, within: Path | None = None) -> IO[bytes]:
    """Open a file to read it. A FIFO or a device, which could block or never end, is an OSError;
    so is, with ``within``, a link that leads out of that folder.
    """
    if within is not None and not is_inside(path, within):
        raise OSError(errno.ELOOP, "it is a link out of its folder", str(path))
    if not stat.S_ISREG(os.stat(path).st_mode):  # before it is opened: that alone could do harm
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    descriptor = os.open(path, READ)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced meanwhile
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path``, links followed, lies below ``folder``."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def folders_with(name: str, root: Path, depth: int, outside: bool = True) -> list[Path]:
    """``root`` if it holds a file ``name``; else the folders below that do, at most ``depth``
    levels down. In those found, nothing more is looked for.

    A folder is found once, under its own name rather than a link's. With ``outside`` false, links
    that lead out of ``root`` are not followed. What cannot be read is left out.
    """
    top = os.path.realpath(root)
    found: dict[str, Path] = {}
    levels: dict[str, int] = {}  # that were looked at below a folder
    folders = [(root, top, depth)]
    links: list[tuple[Path, int]] = []
    while folders or links:
        if folders:
            folder, real, left = folders.pop()
        else:
            folder, left = links.pop()
            real = os.path.realpath(folder)
            if not outside and not Path(real).is_relative_to(top):
                continue
        if levels.get(real, -1) >= left:
            continue
        levels[real] = left
        if os.path.lexists(folder / name):
            found.setdefault(real, folder)
        elif left:
            for inner, is_link in _folders_in(folder):
                if is_link:
                    links.append((inner, left - 1))
                else:
                    folders.append((inner, os.path.join(real, inner.name), left - 1))
    return list(found.values())


def _folders_in(folder: Path) -> list[tuple[Path, bool]]:
    """The folders in a folder, apart from hidden ones, and whether each is a link."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # a link may lead nowhere, in many ways
                if not entry.name.startswith(".") and entry.is_dir():
                    found.append((folder / entry.name, entry.is_symlink()))
    return sorted(found)


def read_bytes(path: Path, within: Path | None = None) -> bytes:
    """All of a file that is not too large (see ``open_regular``)."""
    with open_regular(path, within) as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST >> 20} MiB")
    return data


def read_json(path: Path, within: Path | None = None) -> Any:
    """The value in a JSON file (see ``parse_json`` and ``open_regular``)."""
    return parse_json(read_bytes(path, within))


def parse_json(data: bytes) -> Any:
    """A JSON value. NaN, infinities and numbers that would become one are refused, as are values
    nested too deeply and text that no file can hold.
    """
    try:
        value = _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check(value)
    return value


def check(value: Any, largest: float = math.inf) -> None:
    """Refuse a value of JSON or TOML that is nested too deeply, holds text that no file can hold,
    or a whole number of more than ``largest``.
    """
    level = [value]
    for _ in range(DEEPEST):
        for item in level:
            if isinstance(item, str):
                item.encode()  # half of a surrogate pair is an error
            elif isinstance(item, int) and abs(item) > largest:
                raise ValueError(f"a whole number lies beyond {largest:.3g}")
            elif isinstance(item, dict):
                "".join(item).encode()
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
