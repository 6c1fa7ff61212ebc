"""Memory of a process and all its descendants, each shared page counted once. Linux only; unknown
elsewhere.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType


def descendants(pid: int) -> list[int]:
    """``pid`` and the processes below it."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    except OSError:
        pass  # it has ended, or there is no /proc
    return found


def resident_bytes(pid: int | None = None) -> int:
    """Proportional set size: a page that n processes share counts 1/n in each, so the sum counts it
    once. 0 where unknown.
    """
    total = 0
    for each in descendants(os.getpid() if pid is None else pid):
        try:
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            pass
    return total


class Watch:
    """Samples the memory of this process's tree while it is open."""

    def __init__(self, every: float) -> None:
        self._every, self._done = every, threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._done.wait(self._every):
            self.most = max(self.most, resident_bytes())

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        # a short run may have ended between two samples
        self.most = max(self.most, resident_bytes())
