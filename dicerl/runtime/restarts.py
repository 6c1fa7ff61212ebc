"""How often a part of a run may die: so many times in a window of time, after growing pauses.

Time in which a part did nothing of use does not count: else one that is taken for dead after a
third of the window each time, and never begins, would be replaced for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from dicerl.config import RuntimeConfig
from dicerl.errors import DicerlError

# A part that lived for this many seconds is in order again: no pause before it is replaced.
CALM = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds


class Death(NamedTuple):
    """When a part ended, and how long it is not started again."""

    time: float
    pause: float


class Restarts:
    """The deaths of every part of a run: an actor, a learner, the evaluator, the supervisor."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: dict[str, list[Death]] = {}

    def of(self, part: str, limits: RuntimeConfig) -> int:
        """How often a part died within the window that ends now."""
        since = self._clock() - limits.restart_window
        return sum(death.time > since for death in self._deaths.get(part, []))

    def count(self, part: str, limits: RuntimeConfig, useful: bool = True) -> int:
        """Count a death of a part, which since the one before had done something ``useful`` or had
        not; return how many there were within the window.
        """
        pause, now = 0.0, self._clock()
        deaths = self._deaths.setdefault(part, [])
        if deaths:
            last = deaths[-1]
            lived = now - (last.time + last.pause)
            if not useful:
                deaths[:] = [death._replace(time=death.time + now - last.time) for death in deaths]
            if lived < CALM and self.of(part, limits):
                pause = min(max(FIRST_PAUSE, 2 * last.pause), LONGEST_PAUSE)
        since = now - limits.restart_window
        deaths[:] = [death for death in deaths if death.time > since]
        deaths.append(Death(now, pause))
        return len(deaths)

    def pause(self, part: str, reason: str, limits: RuntimeConfig) -> float:
        """The seconds to wait before a part that died because it ``reason`` is started again: none
        at first, then twice as many each time that it lived for less than CALM. DicerlError if it
        died too often.
        """
        deaths, most = self.of(part, limits), limits.max_restarts
        if deaths > most:
            raise DicerlError(
                f"{part} had to be replaced {deaths} times (runtime.max_restarts is {most} within"
                f" {limits.restart_window:g} s), last because it {reason}"
            )
        return self._deaths[part][-1].pause if deaths else 0.0
