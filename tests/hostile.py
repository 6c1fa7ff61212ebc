"""Run directories as a stranger could make them: what each of their files may hold, and what must
become of it. For test_files.py, test_bad_input.py and the fuzzer (faults/fuzz.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dicerl.agent.behaviour import Behaviours
from dicerl.config import Config
from dicerl.errors import CheckpointError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.state import RunState
from dicerl.report.data import RunData
from dicerl.report.sections import payload
from dicerl.scores.own import newest_evaluation
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


def safetensors(dtype: str, shape: list[int], data: bytes = b"") -> bytes:
    """A file with one tensor."""
    header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}})
    return len(header).to_bytes(8, "little") + header.encode() + data


# whole files of types and shapes that NumPy does not have
TENSORS = (
    safetensors("BF16", [1], b"\0\0"),
    safetensors("F8_E4M3", [1], b"\0"),
    safetensors("F32", [0] * 100),
    safetensors("F32", [0, 2**62, 2**62]),
)

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


# --- what must become of it


def is_one_line(error: BaseException, *names: str) -> None:
    """Of an error: it is one line, and holds one of the names."""
    text = str(error)
    assert len(text.splitlines()) == 1, text
    assert not names or any(name in text for name in names), text


def state_goes_on(state: RunState, folder: Path) -> None:
    """What is accepted can be restored, and searches go on with it; or it is refused."""
    behaviours = Behaviours(Config(), 1)
    with checkpoint.fitting(folder):
        behaviours.load_state_dict(state.temperatures)
    assert type(state.agent_steps) is int
    assert state.frames >= 0
    with np.errstate(all="ignore"):
        for _ in range(3):
            behaviours.update(behaviours.next(), 1.0)
        assert all(low <= high for low, high in behaviours.best_region())


def state_is_read(folder: Path) -> bool:
    """A checkpoint's state.json is used, or refused in one line; return whether it is used."""
    try:
        state_goes_on(checkpoint.read_state(folder), folder)
    except CheckpointError as error:
        is_one_line(error)
        return False
    return True


def tensors_are_read(folder: Path) -> bool:
    """The same of its model.safetensors."""
    try:
        tensors = checkpoint.read_tensors(folder, "model")
    except CheckpointError as error:
        is_one_line(error)
        return False
    assert isinstance(tensors, dict)
    return True


def metrics_are_shown(directory: Path) -> None:
    """Whatever metrics.jsonl and evaluations.jsonl hold, a page can be made of the run, and its
    score read.
    """
    run = RunData(directory)
    run.refresh()
    content = payload([run])
    json.dumps(content, allow_nan=False)
    assert "problem" not in content["runs"][0] or content["runs"][0]["problem"] == ""
    newest_evaluation(directory)
    read_lines(directory / "metrics.jsonl")
