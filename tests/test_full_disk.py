"""A full disk, with real processes: the run ends with the reason, and its newest checkpoint is
whole.
"""

import contextlib
import gc
import resource
import subprocess
import sys

import pytest

from dicerl.records import checkpoint
from faults import Life, arguments, failed_with_one_line, processes, scenario
from faults import played as played

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]


@contextlib.contextmanager
def small_disk(directory):
    """(a disk of 3 MB, True), or a directory and False without the right to mount one."""
    disk = directory / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    try:
        yield disk, mounted
    finally:
        if mounted:
            gc.collect()  # tensors may hold their file
            subprocess.run(["umount", "--lazy", disk], capture_output=True, check=True)


def limit_files(life, size):
    for pid in processes(life.process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


def end_with_a_checkpoint(life, mounted):
    """What is left of a run that met a full disk."""
    life.end()
    path, state = checkpoint.newest(life.run)
    tensors = {name: len(checkpoint.read_tensors(path, name)) for name in ("model", "optimizer")}
    life.saw |= {
        "reason": "No space left on device" if mounted else "File too large",
        "newest": path,
        "state": state,
        "tensors": tensors,
        "folders": [p.name for p in (life.run / "checkpoints").iterdir()],
    }
    return life


def fill_a_disk(directory, runtime):
    """A disk with room for one checkpoint (1.9 MB) but not for two; without the right to mount one,
    a limit on the size of files.
    """
    with small_disk(directory) as (disk, mounted):
        run = disk / "run"
        life = Life.start(
            directory,
            *arguments(
                runtime, run=run, network__hidden=128, network__lstm=128, checkpoint__every=1_000
            ),
            run=run,
        )
        if not mounted:
            life.find(lambda: checkpoint.checkpoints_of(run), "a checkpoint")
            limit_files(life, 400_000)
        return end_with_a_checkpoint(life, mounted)


@scenario
def full_disk_between_checkpoints(directory):
    """Something else fills the disk after a checkpoint: the next to write are the metrics, within a
    second; the next checkpoint is 3 s away.
    """
    with small_disk(directory) as (disk, mounted):
        run = disk / "run"
        life = Life.start(
            directory,
            *arguments("process", run=run, frames=100_000, checkpoint__every=3_000),
            run=run,
        )
        life.find(lambda: checkpoint.checkpoints_of(run), "a checkpoint")
        if mounted:
            with (
                contextlib.suppress(OSError),
                (disk / "ballast").open("wb", buffering=0) as ballast,
            ):
                while True:
                    ballast.write(bytes(4096))
        else:
            limit_files(life, (run / "metrics.jsonl").stat().st_size)
        return end_with_a_checkpoint(life, mounted)


@scenario
def full_disk(directory):
    return fill_a_disk(directory, "process")


@scenario
def full_disk_serial(directory):
    return fill_a_disk(directory, "serial")


def test_a_full_disk_ends_the_run_and_spares_the_earlier_checkpoint(full_disk):
    check_full_disk(full_disk)


def test_a_full_disk_in_the_serial_runtime(full_disk_serial):
    check_full_disk(full_disk_serial)


def test_metrics_on_a_full_disk_end_the_run_and_spare_the_checkpoint(full_disk_between_checkpoints):
    life = full_disk_between_checkpoints
    failed_with_one_line(
        life,
        f"{life.run}/metrics.jsonl could not be written",
        life.saw["reason"],
        f"dicerl resume {life.run}",
    )
    check_newest_is_whole(life)


def check_full_disk(life):
    failed_with_one_line(
        life,
        "the checkpoint could not be written",
        life.saw["reason"],
        f"{life.saw['newest']} is complete and kept",
    )
    check_newest_is_whole(life)


def check_newest_is_whole(life):
    newest = life.saw["newest"]
    assert life.saw["folders"] == [newest.name]  # and nothing half-written beside it
    assert life.saw["state"].updates == int(newest.name) > 0
    assert min(life.saw["tensors"].values()) > 0
