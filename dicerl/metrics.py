"""metrics.jsonl (one object a line), evaluations.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any


class Metrics:
    """Append-only writers. ``offset`` goes into a checkpoint; resuming cuts what was written after it."""

    def __init__(self, directory: Path, tensorboard: bool = True, offset: int | None = None, purge_step: int | None = None) -> None:
        self._path = directory / "metrics.jsonl"
        self._evaluations = directory / "evaluations.jsonl"
        if offset is not None:
            cut(self._path, offset)
            cut_evaluations(self._evaluations, purge_step or 0)
        self._file = self._path.open("a", buffering=1 << 16)
        self._last_flush = time.monotonic()
        self._tensorboard = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._tensorboard = SummaryWriter(directory / "tensorboard", purge_step=purge_step)

    def write(self, kind: str, counters: dict[str, int], values: dict[str, Any]) -> None:
        line = {"kind": kind, "time": round(time.time(), 3), **counters, **{k: _plain(v) for k, v in values.items()}}
        self._file.write(json.dumps(line) + "\n")
        if kind == "evaluation":
            with self._evaluations.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if self._tensorboard is not None and kind in ("train", "evaluation"):
            for name, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._tensorboard.add_scalar(f"{kind}/{name}", value, counters["frames"])
        if time.monotonic() - self._last_flush > 1.0 or kind in ("event", "evaluation"):
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._last_flush = time.monotonic()

    def offset(self) -> int:
        """Bytes of metrics.jsonl that are on disk now."""
        self.flush()
        os.fsync(self._file.fileno())
        return self._path.stat().st_size

    def close(self) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()


def cut(path: Path, offset: int) -> None:
    """Move what a killed run wrote after its last checkpoint to metrics.discarded.jsonl: those steps are done again."""
    if not path.exists() or path.stat().st_size <= offset:
        return
    with path.open("r+b") as file:
        file.seek(offset)
        tail = file.read()
        with path.with_name("metrics.discarded.jsonl").open("ab") as discarded:
            discarded.write(tail if tail.endswith(b"\n") else tail + b"\n")
        file.truncate(offset)


def cut_evaluations(path: Path, frames: int) -> None:
    """Drop evaluations from after the checkpoint (they stand in metrics.discarded.jsonl too)."""
    if not path.exists():
        return
    kept = [line for line in read_lines(path) if line["frames"] <= frames]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
    temporary.replace(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a .jsonl file; a half-written or damaged line is passed over."""
    lines = []
    for raw in path.read_text().splitlines():
        try:
            lines.append(json.loads(raw))
        except ValueError:
            continue
    return lines


def _plain(value: Any) -> Any:
    """JSON has no NaN; floats keep six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
