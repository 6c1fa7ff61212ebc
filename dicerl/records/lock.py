"""The lock that keeps a second process out of a run's directory: held until it is released or its
process ends, however it ends.

By ``flock`` where there is ``fcntl`` (Linux, macOS). Windows locks the first byte of the file
instead, and no folders. Without either nothing is locked.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError

HOLD_SECONDS = 0.5  # to wait for a lock
# a link is not followed, nor waited for the other end of a FIFO; Windows has neither
CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt = _module("fcntl"), _module("msvcrt")


def _lock(descriptor: int, exclusive: bool) -> None:
    """Lock an open file, or a BlockingIOError if another process has locked it."""
    if fcntl is not None:
        how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    elif msvcrt is not None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # it knows exclusive locks only
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None


class Lock:
    """Locked files, until ``close`` or the end of this process.

    A fork shares them: a copy that lives on (an environment's pool) would hold the lock after this
    process has closed its file, so it is released explicitly, and never by a copy. The copy closes
    its files at once, or it would hold the lock of a process that was killed.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self._process = os.getpid()
        _locks.add(self)

    def take(self, path: Path, flags: int, exclusive: bool) -> bool:
        """Lock what is at ``path``; False if another process holds it."""
        descriptor = os.open(path, flags | CAREFULLY, 0o666)
        try:
            _lock(descriptor, exclusive)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._open.append(descriptor)
        return True

    def close(self) -> None:
        """Release all of it."""
        while self._open:
            descriptor = self._open.pop()
            with contextlib.suppress(OSError):  # an environment may have closed it
                if fcntl is not None and os.getpid() == self._process:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    __del__ = close


def _close_in_copy() -> None:
    for lock in list(_locks):
        lock.close()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_copy)


def hold(path: Path) -> Lock | None:
    """Lock the file ``path`` and the folder it is in; None if another process holds one of them.
    The file alone would not do: once it is deleted, another can be made and locked.
    """
    if not path.is_file() and os.path.lexists(path):
        raise DicerlError(f"{path} is not a file; remove it")
    lock = Lock()
    # in_use looks at the folder only where the file is free: with that it is quickly ours
    if _patiently(lambda: lock.take(path, os.O_RDWR | os.O_CREAT, exclusive=True)) and _patiently(
        lambda: _take_folder(lock, path.parent, exclusive=True)
    ):
        return lock
    lock.close()
    return None


def _patiently(take: Callable[[], bool]) -> bool:
    """Try for a while: in_use takes a lock for a moment. At random times, so as not to coincide
    with a process that looks regularly.
    """
    end = time.monotonic() + HOLD_SECONDS
    while not take():
        if time.monotonic() > end:
            return False
        time.sleep(random.uniform(0.001, 0.02))
    return True


def _take_folder(lock: Lock, folder: Path, exclusive: bool) -> bool:
    try:
        return lock.take(folder.resolve(), os.O_RDONLY, exclusive)
    except OSError:  # not every system locks folders; the file is locked
        return True


def in_use(directory: Path) -> bool:
    """Whether a process holds the run's lock now."""
    try:
        with Lock() as lock:
            if not lock.take(directory / "run.lock", os.O_RDONLY, exclusive=False):
                return True
    except OSError:  # no lock file: nobody wrote here, or it was deleted since
        pass
    with Lock() as lock:  # the file's is released: both at once would be in a run's way
        return not _take_folder(lock, directory, exclusive=False)
