"""Where the time goes: seconds by name, reported as fractions of the elapsed time. Time inside a
nested timer counts only for the inner one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Times:
    """Timers by name: ``with times("copying"): ...``. ``names`` are reported from the start, others
    once they have taken time.
    """

    def __init__(self, *names: str) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float, dict.fromkeys(names, 0.0))
        self._since = time.perf_counter()
        self._inside = 0.0  # seconds of timers nested in the current one

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start, before, self._inside = time.perf_counter(), self._inside, 0.0
        try:
            yield
        finally:
            passed = time.perf_counter() - start
            self._seconds[name] += passed - self._inside
            self._inside = before + passed

    def take(self) -> dict[str, float]:
        """{name: fraction of the time since the last call}; starts anew."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        fractions = {name: seconds / max(passed, 1e-9) for name, seconds in self._seconds.items()}
        self._seconds.update(dict.fromkeys(self._seconds, 0.0))
        return fractions
