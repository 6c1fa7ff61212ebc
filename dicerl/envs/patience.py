"""A bound on how long an environment may take that shares our own process: to look at it before a
run, in the runtime serial, and in ``evaluate``. Actors in processes of their own are replaced
instead. Such an environment also gets a current folder of its own, and cannot end the process
without a word.
"""

from __future__ import annotations

import contextlib
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

    By the signal of a clock, which interrupts what Python does, but no call of a library that never
    returns. Only in the main thread, and not where somebody else uses that signal. A suspended
    process (Ctrl-Z) hears one tick when it goes on, however long it slept, and one that a debugger
    traces hears none: somebody is looking at it.

    A folder that the environment changes to is the current one only ``within``: paths of the run
    may be relative. There os._exit is sys.exit, of which the run can tell; in a copy of the process
    that the environment made by a fork it is itself.
    """

    def __init__(self, name: str, shortest: float) -> None:
        self._name, self._tick = name, min(1.0, shortest / TICKS)
        self._what, self._seconds = "", 0.0
        self._left: float | None = None  # ticks; None: nothing is waited for
        self._handler = self._ring  # one object, to be recognised
        self._folder = _current()  # the environment's
        self._process = os.getpid()

    def start(self) -> None:
        """Let the clock tick."""
        if (
            hasattr(signal, "setitimer")
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGALRM, self._handler)
            signal.setitimer(signal.ITIMER_REAL, self._tick, self._tick)

    def stop(self) -> None:
        """Stop the clock, unless the environment uses it now."""
        if (
            threading.current_thread() is threading.main_thread()
            and hasattr(signal, "setitimer")
            and signal.getsignal(signal.SIGALRM) is self._handler
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def __enter__(self) -> Patience:
        self.start()
        return self

    def __exit__(self, *of: object) -> None:
        self.stop()

    def _ring(self, number: int, frame: object) -> None:
        if self._left is None or sys.gettrace() is not None:
            return
        self._left -= 1
        if self._left <= -DEAF:
            line = f"dicerl: {self._reason()}, nor when it was interrupted; the run ends here"
            with contextlib.suppress(OSError):
                os.write(2, f"{printable(line)}\n".encode(errors="replace"))
            END(2)
        if self._left <= 0:
            raise TimeIsUp(self._reason())

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
            self._left = None
            self._folder = _current()
            _change(self._folder, ours)

    def _exit(self, status: int) -> NoReturn:
        if os.getpid() != self._process:
            END(status)
        raise SystemExit(f"os._exit({status})")

    def again(self) -> None:
        """The environment has returned."""
        self._left = self._seconds / self._tick


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
