"""A full or read-only disk, and files that are damaged between a stop and a resume."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dicerl.records import checkpoint
from faults import place
from faults.kinds.base import Strike, kind, try_life
from faults.life import processes
from faults.story import Broken, Skipped, Story

# --- disk


@kind("disk full")
def disk_full(story: Story) -> Strike:
    """To the last byte; without a disk of its own, files cannot grow any more."""
    if story.disk:
        ballast = place.fill(story.run.parent)
        return Strike("no space", ends=True, undo=lambda: ballast.unlink())
    size = story.metrics.stat().st_size
    for pid in processes(story.life.process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
    return Strike("file size", ends=True)


@kind("directory read-only")
def read_only(story: Story) -> Strike:
    if place.obeying_modes() is None:
        raise Skipped("root obeys no modes, and there is no setpriv")
    changed = [story.run, *(p for p in story.run.rglob("*") if p.is_dir())]

    def allow(mode: int) -> None:
        for path in changed:
            if path.exists():
                path.chmod(mode)

    allow(0o555)
    return Strike("no folder may be changed", ends=True, undo=lambda: allow(0o755))


# --- damaged files, between a stop and a resume

CHECKPOINT_FILES = ("state.json", "model.safetensors", "optimizer.safetensors")


def damage(story: Story, path: Path) -> str:
    """Truncate a file or flip a bit of it, at an offset of one of the classes: its first bytes, a
    safetensors header's length and inside, the middle, the last bytes. Return what was done.
    """
    data, rng = bytearray(path.read_bytes()), story.rng
    size = len(data)
    tensors = path.suffix == ".safetensors"
    header = 8 + int.from_bytes(data[:8], "little") if tensors else size
    places = {
        "first bytes": (0, min(8, size)),
        "header" if tensors else "inside": (8, min(header, size)),
        "anywhere": (0, size),
        "last bytes": (max(0, size - 8), size),
    }
    name, (low, high) = rng.choice(sorted(places.items()))
    at = rng.randrange(low, max(low + 1, high))
    if rng.random() < 0.5:
        del data[at:]
        what = f"{path.name} cut at {at} of {size} ({name})"
    else:
        data[at] ^= 1 << rng.randrange(8)
        what = f"{path.name} with a bit flipped at {at} of {size} ({name})"
    path.write_bytes(data)
    return what


@kind("checkpoint damaged", weight=2.5)
def checkpoint_damaged(story: Story) -> Strike:
    """The newest one; the one before is used, and the damaged one named."""
    story.wait(lambda: checkpoint.checkpoints_of(story.run), "a checkpoint")
    story.stop()  # which adds another
    there = checkpoint.checkpoints_of(story.run)
    if len(there) < 2:
        raise Skipped("there is only one checkpoint")
    what = damage(story, there[-1] / story.rng.choice(CHECKPOINT_FILES))
    began, before = time.monotonic(), story.steps()
    story.life = story.resume()
    line = story.wait_trained()
    if "trying the one before" not in story.life.err:
        raise Broken(f"{what}: it was not noticed")
    if line["updates"] > int(there[-1].name) + 100:
        raise Broken(f"{what}: it was used; {before} steps before, {line['agent_steps']} now")
    return Strike(what, outcome=("healed", time.monotonic() - began))


def _copy(story: Story) -> Path:
    """The run again, elsewhere: what is damaged there is not this story's any more."""
    aside = story.directory / "disk" / "aside"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(story.run, aside)
    return aside


def _of_copy(names: tuple[str, ...]) -> Callable[[Story], Strike]:
    def strike(story: Story) -> Strike:
        story.stop()
        aside = _copy(story)
        there = [aside / name for name in names if (aside / name).exists()]
        what = damage(story, story.rng.choice(there))
        result = try_life(story, what, lambda: story.resume(run=aside), aside)
        shutil.rmtree(aside)
        story.life = story.resume()
        story.wait_trained()
        return result

    return strike


kind("config.json damaged")(_of_copy(("config.json",)))
kind("metrics damaged")(_of_copy(("metrics.jsonl", "evaluations.jsonl")))
