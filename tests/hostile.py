"""Run directories as a stranger could make them: what each of their files may hold."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dicerl.records import checkpoint
from runs import rewrite

Damage = Callable[[Path], None]  # of a run's directory

BYTES = {
    "empty": b"",
    "one byte": b"{",
    "not UTF-8": b'{"kind": "evaluation", "frames": 1, "mean_return": 1, "x": "\xff\xfe"}\n',
    "zeros": b"\0" * 4096,
    "BOM": b"\xef\xbb\xbf{}",
    "deep list": b"[" * 100_000,
    "deep list, closed": b"[" * 900 + b"]" * 900,
    "deep object": b'{"a":' * 900 + b"1" + b"}" * 900,
    "list": b"[1, 2]\n",
    "null": b"null\n",
    "text": b'"x"\n',
    "number": b"1e999\n",
    "NaN": b"NaN\n",
    "long integer": b"1" * 10_000 + b"\n",
    "long line": b"x" * 2_000_000,
    "lone surrogate": b'{"kind": "event", "event": "\\ud800", "frames": 1, "variant": "\\udfff"}\n',
}

# paths that are no files, or lead to what is none
KINDS = ("FIFO", "directory", "loop", "device", "gone")


def content(name: str, data: bytes) -> Damage:
    """A file that holds something else."""
    return lambda run: _apply(run, name, lambda path: _write(path, data))


def unreadable(name: str, kind: str) -> Damage:
    """A path that is no file: a FIFO, a directory, a link to itself or to what blocks."""

    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        if kind == "FIFO":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to({"loop": path.name, "device": "/dev/zero", "gone": "nowhere"}[kind])

    return lambda run: _apply(run, name, damage)


def edited(name: str, where: str, value: Any) -> Damage:
    """A JSON file with one value replaced (dotted name), its checksums made to fit."""

    def change(data: Any) -> Any:
        at = data
        *path, last = where.split(".")
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if value is ...:
            del at[last]
        else:
            at[int(last) if isinstance(at, list) else last] = value
        return data

    return lambda run: _apply(run, name, rewrite(change))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _apply(run: Path, name: str, damage: Callable[[Path], None]) -> None:
    """Damage a file of every checkpoint, so that none is left to fall back on."""
    if not name.startswith("every/"):
        return damage(run / name)
    for folder in (run / "checkpoints").iterdir():
        damage(folder / name.removeprefix("every/"))
        fit(folder)


def fit(folder: Path) -> None:
    """Make the checksums of a checkpoint fit what it holds, as a stranger would."""
    if not (folder / "state.json").is_file():
        return
    try:
        data = json.loads((folder / "state.json").read_text())
        files = [p for p in folder.iterdir() if p.suffix == ".safetensors" and p.is_file()]
        data["checksums"] = {
            "state": checkpoint._state_checksum(data),
            **{p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files},
        }
        (folder / "state.json").write_text(json.dumps(data))
    except (ValueError, TypeError, OSError, RecursionError, AttributeError):
        pass  # then no checksum can fit
