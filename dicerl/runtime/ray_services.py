"""Ray's own processes that a command cannot do without, and whether they still answer.

They are the head's GCS and the raylet of the command's own node. When one of them is gone, Ray ends
the command by itself (60 s after its GCS, about 15 s after its raylet) and says nothing of a
checkpoint. Until then children still answer: whoever notices in time can save.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import ray

LOOK_EVERY = 1.0  # seconds between two looks
ANSWER_SECONDS = 0.5  # for a connection to be accepted
# Ray's own limit for a head that is gone, in seconds; where heads come back it may be longer
RECONNECT, RECONNECT_SECONDS = "RAY_gcs_rpc_server_reconnect_timeout_s", 60.0


@dataclass
class Service:
    """A process of Ray's that listens at an address."""

    name: str
    host: str
    port: int
    returns: bool  # whether one that refuses connections may be there again later
    answered: float  # when it did last

    def answers(self) -> bool:
        """Whether it accepts a connection now; ConnectionRefusedError where nobody listens."""
        try:
            socket.create_connection((self.host, self.port), ANSWER_SECONDS).close()
        except ConnectionRefusedError:
            if not self.returns:
                raise
            return False
        except OSError:
            return False
        self.answered = time.monotonic()
        return True


class Services:
    """The head's GCS, then what else a process depends on. One that does not answer for
    ``patience`` seconds is lost.
    """

    def __init__(self, services: Sequence[Service], patience: float) -> None:
        self._services, self._patience = services, patience
        self._looked = time.monotonic()

    def head_answers(self) -> bool:
        """Whether the head can be asked now: without it, a question to it waits until Ray ends this
        process.
        """
        try:
            return self._services[0].answers()
        except ConnectionRefusedError:
            return False

    def lost(self, now: bool = False) -> str:
        """What is lost, as a sentence; empty if nothing is. It looks once a second, or ``now``."""
        gap = time.monotonic() - self._looked
        if gap < LOOK_EVERY and not now:
            return ""
        self._looked += gap
        for service in self._services:
            where = f"Ray's {service.name} at {service.host}:{service.port}"
            service.answered += max(0.0, gap - 2 * LOOK_EVERY)  # this process was suspended
            try:
                service.answers()
            except ConnectionRefusedError:
                return f"{where} is gone"
            silent = time.monotonic() - service.answered
            if silent > self._patience:
                return f"{where} has not answered for {silent:.0f} s"
        return ""


def services(started_here: bool) -> Services:
    """Those of this process, which is connected to Ray; ``started_here``: by itself, so that nobody
    starts a head again.
    """
    context, now = ray.get_runtime_context(), time.monotonic()
    host, _, port = context.gcs_address.rpartition(":")
    head = Service("head (GCS)", host, int(port), not started_here, now)
    raylets = [
        Service("raylet", node["NodeManagerAddress"], node["NodeManagerPort"], False, now)
        for node in ray.nodes()
        if node["NodeID"] == context.get_node_id()
    ]
    # the rest of Ray's limit is for a checkpoint
    patience = float(os.environ.get(RECONNECT) or RECONNECT_SECONDS) * 2 / 3
    return Services([head, *raylets], patience)
