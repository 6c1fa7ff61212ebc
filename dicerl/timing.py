"""Where the time goes: seconds by name, told as fractions of the time that passed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Times:
    """``names`` are told from the beginning, others from when they first take time."""

    def __init__(self, *names: str) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float, dict.fromkeys(names, 0.0))
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """{name: fraction of the time since the last call}."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        fractions = {name: seconds / max(passed, 1e-9) for name, seconds in self._seconds.items()}
        self._seconds.update(dict.fromkeys(self._seconds, 0.0))
        return fractions
