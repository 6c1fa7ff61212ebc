"""Checkpoints: ``checkpoints/<updates>/{model,optimizer}.safetensors`` and ``state.json``. The
parameters with the best evaluation are ``best/<updates>/``, without an optimizer.

Written to a temporary folder, synced, then renamed: a checkpoint is either complete or absent.
``state.json`` holds the files' checksums. Nothing in a checkpoint is code, and loading one runs
none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dicerl.errors import LONGEST, CheckpointError
from dicerl.records import files
from dicerl.records.state import FORMAT, RunState

# torch is imported only to read or write tensors: reports and the dashboard never need it
if TYPE_CHECKING:
    from torch import Tensor


# what values of the wrong kind, size or number lead to
UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Checkpoint(NamedTuple):
    """An intact checkpoint: its folder, and the contents of its state.json."""

    path: Path
    state: RunState


def checkpoints_of(run_dir: Path) -> list[Path]:
    """The folders of a run's complete checkpoints, oldest first."""
    return _numbered(run_dir / "checkpoints")


def _numbered(root: Path) -> list[Path]:
    found = [p for p in root.iterdir() if is_count(p.name)] if root.is_dir() else []
    return sorted(found, key=lambda p: int(p.name))


def is_count(name: str) -> bool:
    """Whether a folder has a name that ``finish`` gives: isdigit alone would take a ², too."""
    return name.isascii() and name.isdigit() and len(name) < 20


def best_of(run_dir: Path) -> Path | None:
    """The folder of the parameters with the best evaluation, if there is one yet."""
    # the later is the better; the one before it stays until a checkpoint knows the new one
    return max(_numbered(run_dir / "best"), key=lambda path: int(path.name), default=None)


def begin(run_dir: Path, place: str = "checkpoints") -> Path:
    """Make an empty temporary folder for tensors in ``place``; remove leftovers of earlier
    attempts.
    """
    root = run_dir / place
    folder = root / f"tmp-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob("tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise failed(run_dir, None, error) from error
    return folder


BEFORE = "before-"  # begins the name of a checkpoint while another of its update takes its place
FINITE = ("model", "optimizer")  # files whose numbers must all be finite


def write_tensors(folder: Path, name: str, tensors: dict[str, Tensor]) -> None:
    """Write ``<name>.safetensors`` into a checkpoint's folder. Weights that are not finite are
    refused: a run that went on from them could never recover.
    """
    import safetensors.torch

    for key, x in tensors.items():
        if name in FINITE and not x.isfinite().all():
            raise CheckpointError(_not_finite(f"{name}.safetensors", key))
    contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    (folder / f"{name}.safetensors").write_bytes(safetensors.torch.save(contiguous))


def finish(folder: Path, state: RunState) -> Path:
    """Add state.json with the checksums, sync everything, rename the folder to its final name and
    return that.
    """
    written = sorted(p for p in folder.iterdir() if p.suffix == ".safetensors")
    data = state.to_dict()
    data["checksums"] = {"state": _state_checksum(data), **{p.name: _checksum(p) for p in written}}
    (folder / "state.json").write_text(json.dumps(data))
    for path in [*written, folder / "state.json", folder]:
        _sync(path)
    final = folder.parent / str(state.updates)
    before = final.with_name(f"{BEFORE}{final.name}")
    if final.exists():  # the same update again: at a stop right after a checkpoint
        # moved, not removed: after a kill here ``put_back`` finds it
        final.rename(before)
    folder.rename(final)
    _sync(final.parent)
    discard(before)
    return final


def has_unnamed(run_dir: Path) -> bool:
    """Whether there is a checkpoint that ``put_back`` would give its name back."""
    return any((run_dir / "checkpoints").glob(f"{BEFORE}*"))


def put_back(run_dir: Path) -> None:
    """Give a checkpoint its name back that a kill in ``finish`` has left without; the run must be
    locked.
    """
    for place in ("checkpoints", "best"):
        for before in (run_dir / place).glob(f"{BEFORE}*"):
            final = before.with_name(before.name.removeprefix(BEFORE))
            if final.exists() or not is_count(final.name):
                discard(before)
            else:
                before.rename(final)


Tensors = dict[str, dict[str, "Tensor"]]  # {file: {name: tensor}}


def save(run_dir: Path, tensors: Tensors, state: RunState) -> Path:
    """Write a checkpoint; return its folder. On failure earlier checkpoints are kept and nothing of
    this one is left.
    """
    return _save(run_dir, begin(run_dir), tensors, state)


def save_best(run_dir: Path, tensors: Tensors, state: RunState) -> None:
    """Write the parameters with the best evaluation."""
    _save(run_dir, begin(run_dir, "best"), tensors, state)


def _save(run_dir: Path, folder: Path, tensors: Tensors, state: RunState) -> Path:
    try:
        for name, group in tensors.items():
            write_tensors(folder, name, group)
        return finish(folder, state)
    except (OSError, CheckpointError) as error:
        raise failed(run_dir, folder, error) from error


def failed(run_dir: Path, folder: Path | None, reason: object) -> CheckpointError:
    """Clean up after a checkpoint that could not be written; return the error to raise, which names
    the checkpoint that is kept.
    """
    if folder is not None:
        discard(folder)
    place = run_dir / "checkpoints" if folder is None else folder.parent
    whole = checkpoints_of(run_dir)
    kept = f"{whole[-1]} is complete and kept" if whole else "no earlier checkpoint exists"
    return CheckpointError(f"the checkpoint could not be written to {place}: {reason}; {kept}")


def forget_best(run_dir: Path, *but: int | None) -> None:
    """Remove what was the best evaluated, but at the updates ``but``."""
    for path in _numbered(run_dir / "best"):
        if int(path.name) not in but:
            discard(path)


def discard(folder: Path) -> None:
    """Remove a folder of tensors, finished or not."""
    shutil.rmtree(folder, ignore_errors=True)


def prune(run_dir: Path, keep: int, best: int | None) -> None:
    """Remove all checkpoints but the newest ``keep`` and, in a run from before there was ``best/``,
    the best evaluated one, at update ``best``.
    """
    for path in checkpoints_of(run_dir)[:-keep]:
        if int(path.name) != best:
            shutil.rmtree(path, ignore_errors=True)


def set_aside_after(start: Path) -> None:
    """Rename the checkpoints after ``start`` to ``aside-<updates>``: a run that continues from
    ``start``, since they are damaged or led nowhere, must not count them among the newest.
    """
    for path in _numbered(start.parent):
        if int(path.name) > int(start.name):
            aside = path.with_name(f"aside-{path.name}")
            discard(aside)
            path.rename(aside)


def read_state(path: Path) -> RunState:
    """Read a checkpoint's state.json, and check that every file is intact and the weights are
    finite.
    """
    try:
        data: dict[str, Any] = files.read_json(path / "state.json")
        checksums = dict(data["checksums"])
        if data.get("format") == FORMAT and checksums.pop("state") != _state_checksum(data):
            raise ValueError("its checksum does not fit")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} has no state.json; it is not a complete checkpoint"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path / 'state.json'} is damaged: {type(error).__name__}: {error}"
        ) from None
    try:
        state = RunState.from_dict(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path} has {error}") from None
    unknown = {p.name for p in path.glob("*.safetensors")} - set(checksums)
    if unknown:
        raise CheckpointError(f"{path / 'state.json'} has no checksum of {min(unknown)}")
    for name, expected in checksums.items():
        file = path / Path(str(name)).name  # of this folder, whatever it says
        if not file.is_file() or _checksum(file) != expected:
            raise CheckpointError(f"{file} is {'damaged' if file.is_file() else 'missing'}")
        if file.stem in FINITE:
            _require_finite(file)
    return state


def _require_finite(file: Path) -> None:
    import safetensors.numpy  # without torch: a suite looks here, too

    try:
        tensors = safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError, *UNFIT) as error:  # or of a type NumPy lacks
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    for key, x in tensors.items():
        if not np.isfinite(x).all():
            raise CheckpointError(_not_finite(file, key))


def _not_finite(file: object, key: str) -> str:
    return f"{file} holds numbers that are not finite, in {key}"


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read ``<name>.safetensors`` of the checkpoint in the folder ``path``."""
    import safetensors.torch

    try:
        files.open_regular(
            path / f"{name}.safetensors"
        ).close()  # the library would wait for a FIFO
        return safetensors.torch.load_file(path / f"{name}.safetensors")
    except (OSError, safetensors.SafetensorError, *UNFIT) as error:
        raise CheckpointError(f"{path / name}.safetensors cannot be read: {error}") from None


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Restore a run from the checkpoint in the folder ``path``: one that was made for another run,
    or by hand, is an error that names it.
    """
    try:
        yield
    except UNFIT as error:
        what = str(error).strip().splitlines() or [""]
        raise CheckpointError(
            f"{path} does not fit its run: {type(error).__name__}: {what[-1].strip()}"
        ) from error


def newest(run_dir: Path, say: Any = lambda line: None, until: float = math.inf) -> Checkpoint:
    """The newest intact checkpoint, of at most ``until`` updates; damaged ones are reported through
    ``say(line)`` and skipped.
    """
    found = [path for path in checkpoints_of(run_dir) if int(path.name) <= until]
    if not found:
        raise CheckpointError(f"{run_dir} has no checkpoint")
    for path in reversed(found):
        try:
            return Checkpoint(path, read_state(path))
        except CheckpointError as error:
            say(f"{str(error)[:LONGEST]}; trying the one before")
    raise CheckpointError(
        f"{run_dir}: every checkpoint is damaged ({', '.join(p.name for p in found)})"
    )


def _state_checksum(state: dict[str, Any]) -> str:
    rest = {k: v for k, v in state.items() if k != "checksums"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the system write a file or a folder to the disk; Windows does so for neither that is
    opened to be read.
    """
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
