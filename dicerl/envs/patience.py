"""A bound on how long an environment may take that shares our own process: to look at it before a
run, in the runtime serial, and in ``evaluate``. Actors in processes of their own are replaced
instead. Such an environment also gets a current folder of its own, and cannot end the process
without a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from dicerl.errors import EnvironmentFailed, printable

STARTING = 120.0  # seconds, at least, to be made and reset for the first time
# and more for each environment: one of Atari takes 0.2 to 0.5 s of a core, which may be shared
EACH = 2.0
CLOSING = 30.0  # seconds to close
TICKS = 10  # in the shortest time that is bounded, at least
DEAF = 20  # ticks after the time was up for the first time
END = os._exit  # itself: another is in its place while an environment is at work


def starting(stuck_seconds: float, num_envs: int) -> float:
    """Seconds in which so many environments are made, or reset for the first time."""
    return max(STARTING, stuck_seconds) + EACH * num_envs


class TimeIsUp(BaseException):
    """Raised in the middle of the environment's code, whose ``except Exception`` lets it pass."""


class Patience:
    """Between ``start`` and ``stop``, what is done ``within`` some seconds and takes longer is an
    EnvironmentFailed. An environment that catches even that is asked some more times; then the
    process ends, since nothing else can.

    A thread counts; when the time is up it sends SIGALRM, which interrupts what Python does, but no
    call of a library that never returns. Only in the main thread, and not where somebody else uses
    that signal; if the environment takes it, its code is interrupted between two steps of Python
    instead. A suspended process (Ctrl-Z) counts one tick when it goes on, however long it slept,
    and one that a debugger traces is never interrupted: somebody is looking at it.

    A folder that the environment changes to is the current one only ``within``: paths of the run
    may be relative. There os._exit is sys.exit, of which the run can tell; in a copy of the process
    that the environment made by a fork it is itself.
    """

    def __init__(self, name: str, shortest: float) -> None:
        self._name, self._tick = name, min(1.0, shortest / TICKS)
        self._what, self._seconds = "", 0.0
        self._ticks = 0  # written by the thread alone
        self._until: float | None = None  # ticks; None: nothing is waited for
        self._handler = self._ring  # one object, to be recognised
        self._over: threading.Event | None = None  # of the thread that counts
        self._folder = _current()  # the environment's
        self._process = os.getpid()

    def start(self) -> None:
        """Begin to count."""
        if (
            hasattr(signal, "pthread_kill")
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGALRM, self._handler)
            self._over = threading.Event()
            threading.Thread(
                target=self._count,
                args=(self._over, threading.get_ident()),
                name="dicerl patience",
                daemon=True,
            ).start()

    def stop(self) -> None:
        """Count no more, and give the signal back unless the environment uses it now."""
        if self._over is None or threading.current_thread() is not threading.main_thread():
            return
        self._over.set()
        self._over = None
        if signal.getsignal(signal.SIGALRM) is self._handler:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def __enter__(self) -> Patience:
        self.start()
        return self

    def __exit__(self, *of: object) -> None:
        self.stop()

    def _count(self, over: threading.Event, thread: int) -> None:
        while not over.wait(self._tick):
            self._ticks += 1
            left = self._left()
            if left <= -DEAF:
                line = f"dicerl: {self._reason()}, nor when it was interrupted; the run ends here"
                with contextlib.suppress(OSError):
                    os.write(2, f"{printable(line)}\n".encode(errors="replace"))
                END(2)
            if left <= 0:
                self._interrupt(thread)

    def _interrupt(self, thread: int) -> None:
        if signal.getsignal(signal.SIGALRM) is self._handler:
            signal.pthread_kill(thread, signal.SIGALRM)
            return
        reason = self._reason()
        kind = type("TimeIsUp", (TimeIsUp,), {"__str__": lambda error: reason})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))

    def _ring(self, number: int, frame: object) -> None:
        if self._left() > 0:  # it has returned meanwhile
            return
        if sys.gettrace() is not None:
            self.again()
            return
        raise TimeIsUp(self._reason())

    def _left(self) -> float:
        until = self._until
        return math.inf if until is None else until - self._ticks

    def _reason(self) -> str:
        return f"{self._name} did not return from {self._what} for {self._seconds:g} s"

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Bound what is done inside; ``again`` begins the time anew."""
        ours = _current()
        _change(ours, self._folder)
        self._what, self._seconds = what, seconds
        self.again()
        os._exit = self._exit
        try:
            yield
        except TimeIsUp as error:
            raise EnvironmentFailed(str(error)) from None
        finally:
            os._exit = END
            self._until = None
            self._folder = _current()
            _change(self._folder, ours)

    def _exit(self, status: int) -> NoReturn:
        if os.getpid() != self._process:
            END(status)
        raise SystemExit(f"os._exit({status})")

    def again(self) -> None:
        """The environment has returned."""
        self._until = self._ticks + self._seconds / self._tick


def _current() -> str | None:
    """The current folder; None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _change(now: str | None, to: str | None) -> None:
    if to is not None and to != now:
        with contextlib.suppress(OSError):
            os.chdir(to)
