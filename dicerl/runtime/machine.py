"""The machine, for processes: the number of cores, and how to end together with their parent.

It imports no torch, so that the suite's processes can use it too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# Looked up here and not in `die_with`: between fork and exec a child must not load libraries.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal ``number`` when its ``parent`` ends, however
    it ends (Linux only); if the parent has ended already, exit now.
    """
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)
