"""metrics.jsonl (one object a line), evaluations.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError
from dicerl.records import files
from dicerl.records.vocabulary import COMMON, KINDS

EPISODES = 100_000  # of these, and of each following doubling of their number, as many have a line
IN_TENSORBOARD = tuple(kind.name for kind in KINDS if kind.tensorboard)


class Metrics:
    """Append-only writers of a run's metrics. ``offset`` (bytes) and ``frames`` are those of the
    checkpoint a run continues from; what was written after them is cut here.
    """

    def __init__(
        self, directory: Path, tensorboard: bool = True, offset: int = 0, frames: int = 0
    ) -> None:
        self._path = directory / "metrics.jsonl"
        self._evaluations = directory / "evaluations.jsonl"
        self._tensorboard_directory = directory / "tensorboard"
        with _writing(self._path):
            cut(self._path, offset)
            self._file = self._path.open("a", buffering=1 << 16)
        with _writing(self._evaluations):
            copy_evaluations(self._path, self._evaluations)
        self._last_flush = time.monotonic()
        self._tensorboard = None
        self._excepthook = threading.excepthook
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            threading.excepthook = self._not_twice
            with _writing(self._tensorboard_directory):
                self._tensorboard = SummaryWriter(self._tensorboard_directory, purge_step=frames)

    def write(
        self, kind: str, counters: dict[str, int], values: dict[str, Any], append: bool = True
    ) -> dict[str, Any]:
        """Append a line of a ``kind`` of vocabulary.py: its ``counters`` (the common fields
        besides kind and time) and its other ``values``; return it. Only that without ``append``.

        Names are not checked here, since it is called for every episode; tests/test_vocabulary.py
        compares them with their declarations.
        """
        line = {
            "kind": kind,
            "time": round(time.time(), 3),
            **counters,
            **{k: _plain(v) for k, v in values.items()},
        }
        if not append:
            return line
        with _writing(self._path):
            self._file.write(json.dumps(line) + "\n")
        if kind == "evaluation":
            with _writing(self._evaluations), self._evaluations.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self._tensorboard is not None and kind in IN_TENSORBOARD:
            with _writing(self._tensorboard_directory):
                for name, value in values.items():
                    if isinstance(value, int | float) and not isinstance(value, bool):
                        self._tensorboard.add_scalar(f"{kind}/{name}", value, counters["frames"])
        if time.monotonic() - self._last_flush > 1.0 or kind in ("event", "evaluation"):
            self.flush()
        return line

    def last_evaluation(self) -> dict[str, Any]:
        """What the newest evaluation of the run found; empty if there was none."""
        lines = read_lines(self._evaluations) if self._evaluations.exists() else []
        beside = {"version", *(field.name for field in COMMON)}
        return {k: v for line in lines[-1:] for k, v in line.items() if k not in beside}

    def flush(self) -> None:
        """Write out what is buffered of metrics.jsonl."""
        with _writing(self._path):
            self._file.flush()
        self._last_flush = time.monotonic()

    def sync(self) -> int:
        """Sync metrics.jsonl to disk; return its size in bytes."""
        self.flush()
        with _writing(self._path):
            os.fsync(self._file.fileno())
        return self._path.stat().st_size

    def close(self) -> None:
        """Close all writers."""
        # each of them, even if another fails
        with _writing(self._path), contextlib.ExitStack() as closing:
            closing.callback(setattr, threading, "excepthook", self._excepthook)
            if self._tensorboard is not None:
                closing.callback(self._tensorboard.close)
            closing.callback(self._file.close)

    def _not_twice(self, failed: threading.ExceptHookArgs) -> None:
        """An excepthook without a traceback for errors in TensorBoard's writing thread: the next
        ``add_scalar`` raises them.
        """
        if not (
            isinstance(failed.exc_value, OSError)
            and type(failed.thread).__module__.startswith("tensorboard.")
        ):
            self._excepthook(failed)


def has_line(episode: int) -> bool:
    """Whether the run's episode of this number gets a line: each of the first 2 * EPISODES, every
    second up to 4 * EPISODES, every fourth up to 8 * EPISODES, and so on. So a log grows with the
    logarithm of the number of episodes; where they are short, they are most of it.
    """
    stride: int = 1 << max(0, (episode // EPISODES).bit_length() - 1)
    return episode % stride == 0


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the file: a full disk's does not."""
    try:
        yield
    except OSError as error:
        raise DicerlError(
            f"{path} could not be written: {error.strerror or error}; once that is mended: dicerl"
            f" resume {path.parent}"
        ) from error


def cut(path: Path, offset: int) -> None:
    """Truncate metrics.jsonl to ``offset`` bytes. What a killed run wrote after its last checkpoint
    moves to metrics.discarded.jsonl: those steps are repeated. A file that is shorter, and so was
    damaged, gets an end of line: the next would be lost with the half of one.
    """
    size = path.stat().st_size if path.exists() else 0
    if 0 < size <= offset:
        with path.open("r+b") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.write(b"\n")
    if size <= offset:
        return
    with path.open("r+b") as file:
        file.seek(offset)
        tail = file.read()
        with path.with_name("metrics.discarded.jsonl").open("ab") as discarded:
            discarded.write(tail if tail.endswith(b"\n") else tail + b"\n")
        file.truncate(offset)


def copy_evaluations(metrics: Path, evaluations: Path) -> None:
    """Write the evaluation lines of metrics.jsonl, after its cut, to evaluations.jsonl again."""
    if not evaluations.exists():
        return
    kept: list[bytes] = []
    if metrics.exists():
        with metrics.open("rb") as file:
            kept = [line for line in file if line.startswith(b'{"kind": "evaluation"')]
    temporary = evaluations.with_suffix(".tmp")
    temporary.write_bytes(b"".join(kept))
    temporary.replace(evaluations)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a .jsonl file; half-written or damaged lines are skipped."""
    lines = []
    with files.open_regular(path) as file:
        for raw in file:
            try:
                lines.append(files.parse_json(raw))
            except ValueError:
                continue
    return [line for line in lines if isinstance(line, dict)]


def _plain(value: Any) -> Any:
    """``value`` for JSON: None for NaN and infinities, floats with six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
