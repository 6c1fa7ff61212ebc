"""Reads .jsonl files while they are written: only what is new, damaged lines skipped, long
histories in constant memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dicerl.records.files import open_regular

LIMIT = 1000  # rows a table keeps at least, once it had them; at most twice as many
BLOCK = 1 << 23  # bytes read at a time
# bytes parsed of a long history, so that any run opens quickly: every second, third, ... line
BUDGET = 1 << 23
# kinds of lines so frequent that some may be left out
COMMON = ('{"kind": "episode"', '{"kind": "train"')
TAIL = 1 << 16  # bytes that show a run's state
LONGEST = 1 << 24  # bytes of a line


class JsonLines:
    """What was appended to a .jsonl file since the last read."""

    def __init__(self, path: Path, within: Path | None = None) -> None:
        self.path, self.damaged = path, 0
        self._within = within  # see open_regular
        self._offset, self._mark = 0, b""  # bytes read so far, and the last of them

    def rewritten(self) -> bool:
        """Whether what was read is no longer there: a resumed run cuts its file back and continues
        from there.
        """
        try:
            with open_regular(self.path, self._within) as file:
                file.seek(self._offset - len(self._mark))
                return file.read(len(self._mark)) != self._mark
        except OSError:
            return self._offset > 0

    def blocks(self, everything: bool = True) -> Iterator[list[dict[str, Any]]]:
        """The new complete lines, or a sample of them if there are very many; a half-written last
        one waits for its end.
        """
        try:
            file = open_regular(self.path, self._within)
        except OSError:
            return
        with file:
            every = 1 if everything else 1 + (file.seek(0, os.SEEK_END) - self._offset) // BUDGET
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(BLOCK):
                data = rest + chunk
                end = data.rfind(b"\n") + 1
                whole, rest = data[:end], data[end:]
                if len(rest) > LONGEST:  # no line of ours; its end counts as another damaged one
                    self._offset, rest, self.damaged = (
                        self._offset + len(rest),
                        b"",
                        self.damaged + 1,
                    )
                self._offset += end
                self._mark = whole[-64:] or self._mark
                lines, damaged = parse_lines(whole, every)
                self.damaged += damaged
                yield lines


def parse_lines(whole: bytes, every: int = 1) -> tuple[list[dict[str, Any]], int]:
    """(objects, number of damaged lines); episodes and train lines only every ``every``-th."""
    raw = [line for line in whole.decode(errors="replace").split("\n") if line]
    if every > 1:
        common = [[line for line in raw if line.startswith(kind)][::every] for kind in COMMON]
        raw = [line for line in raw if not line.startswith(COMMON)] + common[0] + common[1]
    found: list[Any] = []
    for start in range(0, len(raw), 500):
        some = raw[start : start + 500]
        # One call instead of hundreds; one by one if a line is damaged.
        together = (
            _loads(f"[{','.join(some)}]")
            if all(line[0] == "{" and line[-1] == "}" for line in some)
            else None
        )
        found += (
            together if together is not None and len(together) == len(some) else map(_loads, some)
        )
    lines = [line for line in found if isinstance(line, dict)]
    return lines, len(raw) - len(lines)


def _loads(text: str) -> Any:
    """None for what is damaged; NaN, which is no JSON, is."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def number(value: Any) -> float:
    """NaN for anything but a finite number."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else np.nan


def known(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    return value if np.isfinite(number(value)) else None


def table(lines: list[dict[str, Any]], columns: tuple[str, ...]) -> np.ndarray:
    """One row per line; lines without a frame count are left out.    [N, C]"""
    rows = np.empty((len(lines), len(columns)))
    for i, name in enumerate(columns):
        values = [line.get(name) for line in lines]
        try:
            rows[:, i] = values
        except (TypeError, ValueError, OverflowError):
            rows[:, i] = [number(v) for v in values]
    rows[~(np.abs(rows) < 1e300)] = np.nan
    return rows[np.isfinite(rows[:, 0])]


class Thinned:
    """Rows of numbers in constant memory: at 2 * limit rows, neighbours become one (their mean, or
    the last of them).
    """

    def __init__(self, width: int, limit: int = LIMIT, keep: str = "mean") -> None:
        self._limit, self._keep = limit, keep
        self._stride = 1  # lines behind a row
        # _open: lines that do not fill a row yet
        self._rows, self._open = np.empty((0, width)), np.empty((0, width))

    def add(self, lines: np.ndarray) -> None:
        """Append ``lines``, oldest first; halve the table whenever it is full.    [N, width]"""
        waiting = np.concatenate([self._open, lines])
        while True:
            # No more than fill the table: an odd number of rows would leave a shorter one behind.
            room = 2 * self._limit - len(self._rows)
            taken = min(room, len(waiting) // self._stride) * self._stride
            self._rows = np.concatenate([self._rows, self._merge(waiting[:taken], self._stride)])
            waiting = waiting[taken:]
            if len(self._rows) < 2 * self._limit:
                break
            self._rows = self._merge(self._rows, 2)
            self._stride *= 2
        self._open = waiting

    def rows(self) -> np.ndarray:
        """Oldest first; the newest line always counts.    [N, C]"""
        return np.concatenate([self._rows, self._merge(self._open, self._stride)])

    def _merge(self, rows: np.ndarray, size: int) -> np.ndarray:
        if size == 1 or not len(rows):
            return rows
        starts = np.arange(0, len(rows), size)
        if self._keep == "last":
            return np.asarray(rows[np.minimum(starts + size, len(rows)) - 1])
        known = np.isfinite(rows)
        count = np.add.reduceat(known, starts, axis=0, dtype=float)
        total = np.add.reduceat(np.where(known, rows, 0.0), starts, axis=0)
        return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def stamp(path: Path) -> tuple[int, int]:
    """(time of the last change, size); (0, 0) if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def last_lines(path: Path, within: Path | None = None) -> list[dict[str, Any]]:
    """The complete lines in a file's last bytes."""
    try:
        with open_regular(path, within) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            data = file.read()
    except OSError:
        return []
    start = data.find(b"\n") + 1 if size > TAIL else 0
    return parse_lines(data[start : data.rfind(b"\n") + 1])[0]
