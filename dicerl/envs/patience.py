"""A bound on how long an environment may take that shares a run's own process: to look at it before
the run, and in the runtime serial. Actors in processes of their own are replaced instead.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

from dicerl.errors import EnvironmentFailed

STARTING = 120.0  # seconds, at least, to be made and reset for the first time
CLOSING = 30.0  # seconds to close
TICKS = 10  # in the shortest time that is bounded, at least


class Patience:
    """Between ``start`` and ``stop``, what is done ``within`` some seconds and takes longer is an
    EnvironmentFailed, raised in the middle of the environment's code.

    By the signal of a clock, which interrupts what Python does, but no call of a library that never
    returns. Only in the main thread, and not where somebody else uses that signal. A suspended
    process (Ctrl-Z) hears one tick when it goes on, however long it slept.
    """

    def __init__(self, name: str, shortest: float) -> None:
        self._name, self._tick = name, min(1.0, shortest / TICKS)
        self._what, self._seconds = "", 0.0
        self._left: float | None = None  # ticks; None: nothing is waited for
        self._handler = self._ring  # one object, to be recognised

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

    def _ring(self, number: int, frame: object) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left <= 0:
            raise EnvironmentFailed(
                f"{self._name} did not return from {self._what} for {self._seconds:g} s"
            )

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Bound what is done inside; ``again`` begins the time anew."""
        self._what, self._seconds = what, seconds
        self.again()
        try:
            yield
        finally:
            self._left = None

    def again(self) -> None:
        """The environment has returned."""
        self._left = self._seconds / self._tick
