"""The Parameter Server: the newest parameters and their version, in memory that processes can
share, without a lock.

Two buffers alternate: push number n writes buffer n mod 2, and the counter moves only after the
buffer is complete. If the counter did not move during a reader's copy, the copy is consistent.
Nobody holds a lock, so a process that dies here blocks nobody.
"""

from __future__ import annotations

import torch
from torch import Tensor


class ParameterServer:
    """Holds the newest vector of ``size`` parameters and buffers; ``shared`` between processes."""

    def __init__(self, size: int, shared: bool = False) -> None:
        self._buffers = torch.zeros(2, size)
        self._counter = torch.zeros(1, dtype=torch.int64)  # pushes so far
        self._versions = torch.zeros(2, dtype=torch.int64)  # learner updates behind each buffer
        if shared:
            for tensor in (self._buffers, self._counter, self._versions):
                tensor.share_memory_()

    @torch.no_grad()
    def push(self, flat: Tensor, version: int) -> None:
        """Publish the vector ``flat``; ``version`` is the number of learner updates behind it."""
        turn = int(self._counter) + 1
        self._buffers[turn % 2].copy_(flat)
        self._versions[turn % 2] = version
        self._counter.fill_(turn)

    @torch.no_grad()
    def pull(self, into: Tensor, known: int = -1) -> int | None:
        """Copy the newest parameters into ``into`` and return their version; return None if that is
        ``known`` or nothing was pushed yet.
        """
        while True:
            turn = int(self._counter)
            if turn == 0:
                return None
            version = int(self._versions[turn % 2])
            if version == known:
                return None
            into.copy_(self._buffers[turn % 2])
            if int(self._counter) == turn and int(self._versions[turn % 2]) == version:
                return version
