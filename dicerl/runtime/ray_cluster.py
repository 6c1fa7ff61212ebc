"""The Ray cluster of a run: connecting to it, its nodes, and where children are placed.

Actors go where CPUs are free, evenly over the nodes; the learner to a node with a GPU, or the one
with most CPUs. The head node gets neither while there is another.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dicerl.config import Config
from dicerl.errors import ConfigError, NoRoom

_connected_here = False  # by connect, so that disconnect leaves a caller's own connection alone
ANSWER_SECONDS = 10.0  # for an address to answer
HEAD = "node:__internal_head__"  # a resource that Ray gives its head node


@dataclass(frozen=True)
class Node:
    """A living node: its resources in all, and what nobody uses at present."""

    id: str
    address: str
    cpus: float
    free: float
    gpus: float
    head: bool


def connect(config: Config) -> None:
    """Connect to the cluster that ``ray.address`` names, or start Ray on this machine; a second
    call changes nothing.
    """
    address = config.ray.address
    if address.startswith("ray://"):
        raise ConfigError(
            "ray.address",
            address,
            "Ray's client mode sends every object through one proxy, too slow for sequences: start"
            " dicerl on a node of the cluster with auto, or submit it with `ray job submit`",
        )
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "runtime.kind", "ray", "it needs Ray: pip install 'dicerl[cluster]'"
        ) from None
    global _connected_here
    if ray.is_initialized():
        return
    _require_answer(address)
    try:
        ray.init(
            address=address or None,  # None: a job's own cluster (RAY_ADDRESS), or a new one here
            include_dashboard=False if not address and "RAY_ADDRESS" not in os.environ else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (RuntimeError, ValueError, OSError, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            "ray.address", address, f"no cluster of the same Ray and Python is there: {reason}"
        ) from None
    _connected_here = True


def _require_answer(address: str) -> None:
    """Refuse a HOST:PORT where nobody listens: Ray would try for minutes, then exit."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            "ray.address", address, f"nobody answers there: {error}; it must be auto or HOST:PORT"
        ) from None


def disconnect() -> None:
    """Undo ``connect``; a Ray that was started by it ends."""
    global _connected_here
    import ray

    if _connected_here:
        ray.shutdown()
        _connected_here = False


def warnings(config: Config) -> list[str]:
    """Lines about what is unsafe in how the cluster was started."""
    if not (config.ray.address or "RAY_ADDRESS" in os.environ):
        return []  # Ray started here asks for a token by itself
    token = os.environ.get("RAY_AUTH_MODE") == "token" or (Path.home() / ".ray/auth_token").exists()
    if token:
        return []
    return [
        "warning: this Ray cluster asks nobody for a token: whoever reaches its ports can run code"
        " on every node (docs/cluster.md says how to set one)"
    ]


def nodes() -> list[Node]:
    """The cluster's living nodes."""
    import ray
    from ray._private.state import available_resources_per_node

    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            found.append(
                Node(
                    node["NodeID"],
                    node["NodeManagerAddress"],
                    has.get("CPU", 0.0),
                    free.get(node["NodeID"], {}).get("CPU", 0.0),
                    has.get("GPU", 0.0),
                    HEAD in has,
                )
            )
    return found


def workers(found: Sequence[Node]) -> list[Node]:
    """The nodes that get children: all but the head, or the head if it is alone."""
    return [n for n in found if not n.head] or list(found)


def learner_node(found: Sequence[Node]) -> Node:
    """Where the learner goes."""
    return max(workers(found), key=lambda n: (n.gpus, n.cpus, n.id))


def reserved_cpus(
    found: Sequence[Node], on_cpu: bool, threads: int, small: bool, cpus: float
) -> float:
    """CPUs of the learner's node that actors of ``cpus`` CPUs leave to it. Where that is the only
    node and steps are large, none: as in the runtime process, whichever waits leaves its cores to
    the other. One actor always finds a place.
    """
    learner, every = learner_node(found), workers(found)
    if len(every) == 1:
        wanted = 1.0 if small or not on_cpu else 0.0
    else:
        wanted = float(threads) if on_cpu else 1.0
    if any(room_on(node, learner, 0.0, cpus) for node in every if node.id != learner.id):
        return wanted
    return max(0.0, min(wanted, learner.free - cpus))


def room_on(node: Node, learner: Node, reserved: float, cpus: float) -> int:
    """How many more actors of ``cpus`` CPUs fit on a node; ``reserved`` CPUs of the learner's node
    are left to the learner.
    """
    free = node.free - (reserved if node.id == learner.id else 0.0)
    return max(0, int(free / cpus + 1e-6))


def actor_node(
    found: Sequence[Node], learner: Node, reserved: float, cpus: float, taken: Mapping[str, int]
) -> Node:
    """Where the next actor goes: of the nodes with room, the one with the fewest of ``taken``, the
    run's own actors by node.
    """
    fitting = [n for n in workers(found) if room_on(n, learner, reserved, cpus)]
    if not fitting:
        raise NoRoom(
            f"no node of the cluster has {cpus:g} CPUs free for another actor (ray.cpus_per_actor)"
        )
    return min(fitting, key=lambda n: (taken.get(n.id, 0), -n.free, n.id))


def affinity(node: Node) -> Any:
    """Ray's strategy to place a child on ``node`` and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)
