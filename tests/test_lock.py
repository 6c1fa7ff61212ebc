"""records/lock.py without ``fcntl``: Windows' own lock, and none; and forks. Else: test_run.py."""

import fcntl
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dicerl.records import lock
from dicerl.records.lock import hold, in_use

HOLDER = """
import sys
import time
from pathlib import Path
from dicerl.records import lock
held = lock.hold(Path("run.lock"))
print(held is not None, flush=True)
input()
"""


class Msvcrt:
    """What Windows' module does: an exclusive lock of bytes, a PermissionError if it is taken."""

    LK_NBLCK = 2

    @staticmethod
    def locking(descriptor, mode, count):
        assert (mode, count) == (Msvcrt.LK_NBLCK, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", Msvcrt)
    real = os.open

    def no_folders(path, *args):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args)

    monkeypatch.setattr(lock, "os", SimpleNamespace(**vars(os) | {"open": no_folders}))


@pytest.mark.usefixtures("windows")
def test_windows_own_lock(tmp_path):
    assert not in_use(tmp_path)
    held = hold(tmp_path / "run.lock")
    assert held is not None
    assert in_use(tmp_path)
    assert hold(tmp_path / "run.lock") is None
    held.close()
    assert not in_use(tmp_path)
    assert hold(tmp_path / "run.lock") is not None


@pytest.mark.usefixtures("windows")
def test_another_process_holds_it(tmp_path):
    """By flock, which our Windows' lock is made of."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "True\n"
        assert in_use(tmp_path)
        assert hold(tmp_path / "run.lock") is None
    finally:
        holder.communicate("\n", timeout=60)
    assert not in_use(tmp_path)


def test_without_any_lock_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", None)
    with hold(tmp_path / "run.lock") as held:
        assert held is not None
        assert not in_use(tmp_path)


def test_a_copy_of_the_process_neither_keeps_nor_releases_it(tmp_path):
    """As the workers of an environment's pool, which live on."""
    lock = hold(tmp_path / "run.lock")
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    copy = os.fork()
    if not copy:
        os.close(ask)  # so that it ends with us, whatever becomes of the test
        lock.close()
        os.write(answered, b"x")
        os.read(asked, 1)
        os._exit(0)
    other = os.fork()  # it keeps the lock's files open
    if not other:
        os.close(ask)
        os.read(asked, 1)
        os._exit(0)
    assert os.read(answer, 1) == b"x"
    assert in_use(tmp_path)
    lock.close()
    assert not in_use(tmp_path)
    os.close(ask)
    assert [os.waitpid(pid, 0)[1] for pid in (copy, other)] == [0, 0]


def test_a_copy_does_not_keep_the_lock_of_a_process_that_was_killed(tmp_path):
    """As an environment's own worker, which outlives a run that gets SIGKILL."""
    (asked, ask), (answer, answered) = os.pipe(), os.pipe()
    run = os.fork()
    if not run:
        os.close(ask)
        lock = hold(tmp_path / "run.lock")
        if not os.fork():
            os.write(answered, b"x")
            os.read(asked, 1)
            os._exit(0)
        os.read(asked, 1)
        os._exit(0 if lock else 1)
    assert os.read(answer, 1) == b"x"
    assert in_use(tmp_path)
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)
    assert not in_use(tmp_path)
    os.close(ask)


def test_a_lock_whose_files_were_closed_by_others(tmp_path):
    lock = hold(tmp_path / "run.lock")
    for descriptor in lock._open:
        os.close(descriptor)
    lock.close()
    assert not in_use(tmp_path)
