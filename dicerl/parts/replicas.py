"""Several learners that train one batch together (synchronous data parallelism).

Each has a share of the batch's sequences, which may be of any size, and the same weights. They
compute the gradient of their shares; the first adds them up, each weighted by its number of valid
steps, and takes the step of AdamW; the others get the weights that come of it. So the weights are
the same everywhere to the bit, and only the first has moments, publishes and is saved:

    all      valid steps, sizes of returns          summed, in the machines' memory
    first    gradient, losses, A's deviation        summed, on the learners' devices
    others   weights                                from the first
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore


class LostReplica(Exception):
    """Another learner does not answer any more."""


class Meeting(NamedTuple):
    """Where the learners of a run find each other: the first one listens there."""

    host: str
    port: int
    size: int  # the number of learners
    rank: int  # of this one


class Replicas:
    """This process's learner among ``meeting.size``; made when all of them have come. ``listening``
    is the first one's socket at the meeting's address.
    """

    def __init__(
        self, meeting: Meeting, seconds: float, listening: socket.socket | None = None
    ) -> None:
        """Whoever is silent for ``seconds`` is lost."""
        wait = timedelta(seconds=seconds)
        _use_interface_of(listening.getsockname()[0] if listening else _own_address(meeting))
        with _reported():
            store = TCPStore(
                meeting.host,
                meeting.port,
                is_master=listening is not None,
                wait_for_workers=False,
                timeout=wait,
                master_listen_fd=None if listening is None else listening.detach(),
            )
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=store,
                rank=meeting.rank,
                world_size=meeting.size,
                timeout=wait,
            )
        self.first = meeting.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """The sum over all learners of each number."""
        summed = torch.tensor(numbers, dtype=torch.float64)
        with _reported():
            dist.all_reduce(summed)
        found: list[float] = summed.tolist()
        return found

    def add_up(self, x: Tensor) -> None:
        """Make ``x`` the sum over all learners, at the first one."""
        with _reported():
            dist.reduce(x, 0)

    def follow(self, x: Tensor) -> None:
        """Make ``x`` the first one's."""
        with _reported():
            dist.broadcast(x, 0)


@contextmanager
def _reported() -> Iterator[None]:
    """Say what torch.distributed raises when another learner is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LostReplica(" ".join(str(error).split())[:200]) from error


def _own_address(meeting: Meeting) -> str:
    """This machine's address on the way to the meeting."""
    with socket.create_connection((meeting.host, meeting.port)) as way:
        address: str = way.getsockname()[0]
        return address


def _use_interface_of(address: str) -> None:
    """Let gloo and NCCL talk, and listen, on the network of ``address`` only; by default they would
    guess it from the machine's name. What the user has set stays.
    """
    if sys.platform != "linux":
        return
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found[20:24]) == address:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


SIOCGIFADDR = 0x8915  # an interface's address (Linux)
