"""Simulated time: a heap of events, cores that processes share, a link that carries one thing after
the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Then = Callable[[], None]


class Clock:
    """Time, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def at(self, when: float, then: Then) -> None:
        """Call ``then`` at a time; calls of the same time keep their order."""
        heapq.heappush(self._events, (when, next(self._numbers), then))

    def after(self, seconds: float, then: Then) -> None:
        self.at(self.now + seconds, then)

    def step(self) -> bool:
        """Go on to the next event; return whether there was one."""
        if not self._events:
            return False
        self.now, _, then = heapq.heappop(self._events)
        then()
        return True


class Cores:
    """Cores that tasks of one thread each share evenly (processor sharing).

    Time is kept in what every task has got so far: a task that needs 2 s more is done when that has
    grown by 2, however many others come and go meanwhile.
    """

    def __init__(self, clock: Clock, number: float) -> None:
        self._clock, self._number = clock, number
        self._got, self._since = 0.0, 0.0  # of every task; when that was counted
        self._tasks: list[tuple[float, int, Then]] = []
        self._numbers = count()
        self._turn = 0  # of the event that is expected: earlier ones are void
        self.busy = 0.0  # core seconds so far

    def work(self, seconds: float, then: Then) -> None:
        """Call ``then`` after a task of so many seconds of a core."""
        self._count()
        heapq.heappush(self._tasks, (self._got + seconds, next(self._numbers), then))
        self._expect()

    def _speed(self) -> float:
        return min(1.0, self._number / len(self._tasks)) if self._tasks else 0.0

    def _count(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        self._got += passed * self._speed()
        self.busy += passed * self._speed() * len(self._tasks)

    def _expect(self) -> None:
        self._turn += 1
        if self._tasks:
            turn = self._turn
            wait = max(0.0, self._tasks[0][0] - self._got) / self._speed()
            self._clock.after(wait, lambda: self._finish(turn))

    def _finish(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._count()
        _, _, then = heapq.heappop(self._tasks)
        self._expect()
        then()


class Link:
    """Carries bytes, one parcel after the other."""

    def __init__(self, clock: Clock, bytes_per_s: float) -> None:
        self._clock, self._speed = clock, bytes_per_s
        self._free = 0.0  # when what was sent so far is through
        self._sent = 0.0  # seconds of all that

    @property
    def busy(self) -> float:
        """Seconds so far."""
        return self._sent - max(0.0, self._free - self._clock.now)

    @property
    def carried(self) -> float:
        """Bytes so far."""
        return self.busy * self._speed

    def carry(self, size: float, then: Then) -> None:
        """Call ``then`` when ``size`` bytes are through."""
        seconds = size / self._speed
        self._sent += seconds
        self._free = max(self._free, self._clock.now) + seconds
        self._clock.at(self._free, then)
