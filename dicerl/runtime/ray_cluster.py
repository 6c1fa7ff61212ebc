"""The Ray cluster of a run: connecting to it, its nodes, and where children are placed.

Actors go where CPUs are free, evenly over the nodes; learners to nodes with GPUs, or those with
most CPUs. The head node gets neither while there is another.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dicerl.config import Config
from dicerl.errors import ConfigError, NoRoom
from dicerl.runtime import machine
from dicerl.runtime.machine import SIGKILL, STOPPING

# what connect did, so that disconnect leaves a caller's own connection alone
_connected_here = _started_here = False
ANSWER_SECONDS = 10.0  # for an address to answer
LINGER_SECONDS = 2.0  # for Ray's own processes to end
LOCAL = "local"  # Ray's word for a cluster of its own on this machine
# There the head need not watch over nodes: it would end this process 15 s after its raylet is gone,
# which may be too soon for a last checkpoint (ray_services.py). And Ray's workers are at nice 15:
# beside other work on the machine they would get a few hundredths of a core and take a minute to
# start.
ALONE = {"health_check_failure_threshold": 20, "worker_niceness": 0}
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
    try:
        import lz4.block  # noqa: F401  what crosses the network is compressed (ray_wire.py)
        import ray
    except ImportError:
        raise ConfigError(
            "runtime.kind", "ray", "it needs Ray: pip install 'dicerl[cluster]'"
        ) from None
    global _connected_here, _started_here
    if ray.is_initialized():
        return
    address = _address(config.ray.address)
    _require_answer(address)
    try:
        with _keeping_signals():
            ray.init(
                address=address,
                include_dashboard=False if address == LOCAL else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _system_config=ALONE if address == LOCAL else None,
            )
    except (Exception, SystemExit) as error:  # where it starts too slowly, a bare Exception
        reason = " ".join(str(error).split())
        if address == LOCAL:
            raise ConfigError("runtime.kind", "ray", f"Ray did not start here: {reason}") from None
        if os.environ.get("RAY_AUTH_MODE") != "token":
            reason += "; one that asks for a token needs RAY_AUTH_MODE=token here, too"
        raise ConfigError(
            "ray.address", address, f"no cluster of the same Ray and Python is there: {reason}"
        ) from None
    _connected_here, _started_here = True, address == LOCAL


@contextlib.contextmanager
def _keeping_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, each time that it starts, and ends the process with it: a run
    that goes back to a checkpoint, and to another Ray, keeps its own ways to stop.
    """
    ours = {}
    if threading.current_thread() is threading.main_thread():
        ours = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in ours.items():
            if handler not in (None, signal.SIG_DFL):
                signal.signal(number, handler)


def started_here() -> bool:
    """Whether ``connect`` has started the Ray that it connected to."""
    return _started_here


def _address(asked: str) -> str:
    """What to tell Ray for a ``ray.address``. Left to choose, it joins any cluster that it finds on
    this machine, also one that another run has started for itself and will end.
    """
    address = asked
    if asked in ("", "auto"):
        address = os.environ.get("RAY_ADDRESS") or asked or LOCAL  # a job is given its cluster's
    if address == "auto":
        from ray._private.services import find_bootstrap_address

        address = find_bootstrap_address(None) or ""
        if not address:
            raise ConfigError(
                "ray.address", asked, "no cluster was started here with `ray start`; try HOST:PORT"
            )
    if address.startswith("ray://"):
        raise ConfigError(
            "ray.address",
            address,
            "Ray's client mode sends every object through one proxy, too slow for sequences: start"
            " dicerl on a node of the cluster with auto, or submit it with `ray job submit`",
        )
    return address


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
    global _connected_here, _started_here
    import ray

    if not _connected_here:
        return
    session = _session() if _started_here else ""
    try:
        ray.shutdown()
    finally:
        _connected_here = _started_here = False
        if session:
            end_leftovers(session)


def abandon() -> None:
    """Leave a Ray that is lost, at the end of a run: ``disconnect`` would wait for its head until
    Ray ends this process, with an exit code of its own. Ray cannot be started here again, and the
    command must not wait for what it does at the end.
    """
    global _connected_here, _started_here
    session = _session() if _started_here else ""
    _connected_here = _started_here = False
    machine.leave_at_once = True
    if session:
        end_leftovers(session)


def _session() -> str:
    """The folder of the Ray that this process has started."""
    from ray._private import worker

    node = worker._global_node
    return "" if node is None else str(node.get_session_dir_path())


def end_leftovers(session: str, grace: float = LINGER_SECONDS) -> None:
    """End Ray's own helpers that outlive it: two of them notice only after most of a minute that
    their parent was killed. They are known by the folder of their ``session``. Linux only.
    """
    end = time.monotonic() + grace
    while (left := _processes_of(session)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(process, SIGKILL)


def _processes_of(session: str) -> list[int]:
    """Those whose arguments name the session's folder; agents and workers, which have given
    themselves a name without it, write their logs there.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ends now
            words = (folder / "cmdline").read_bytes()
            named = os.fsencode(session) in words
            if words.startswith(b"ray::"):
                named = any(
                    str(f.readlink()).startswith(session) for f in (folder / "fd").iterdir()
                )
            if named and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


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


def learner_nodes(found: Sequence[Node], count: int = 1, on_gpus: bool = False) -> list[Node]:
    """Where ``count`` learners go: as near to each other as there are GPUs for them, or each to a
    node of its own while there is one, those with most CPUs first.
    """
    best = sorted(workers(found), key=lambda n: (n.gpus, n.cpus, n.id), reverse=True)
    if on_gpus:
        return [node for node in best for _ in range(int(node.gpus))][:count]
    return [best[i % len(best)] for i in range(count)]


def reserved_cpus(
    found: Sequence[Node],
    places: Sequence[Node],
    on_cpu: bool,
    threads: int,
    small: bool,
    cpus: float,
) -> dict[str, float]:
    """CPUs of the learners' nodes (``places``) that actors of ``cpus`` CPUs leave to them. Where
    there is one node only, one for each but no more than half of all, and none if steps are large:
    as in the runtime process, whichever waits leaves its cores to the other. One actor always finds
    a place.
    """
    every, each = workers(found), float(threads) if on_cpu else 1.0
    wanted = {node: each * count for node, count in Counter(n.id for n in places).items()}
    if len(every) == 1:
        most = every[0].cpus / 2
        wanted = {every[0].id: min(len(places), most) if small or not on_cpu else 0.0}
    if not any(room_on(node, wanted, cpus) for node in every):
        home = max(places, key=lambda n: n.free)
        wanted[home.id] = max(0.0, home.free - cpus)
    return wanted


def room_on(node: Node, reserved: Mapping[str, float], cpus: float) -> int:
    """How many more actors of ``cpus`` CPUs fit on a node; ``reserved`` CPUs are the learners'."""
    free = node.free - reserved.get(node.id, 0.0)
    return max(0, int(free / cpus + 1e-6))


def actor_node(
    found: Sequence[Node], reserved: Mapping[str, float], cpus: float, taken: Mapping[str, int]
) -> Node:
    """Where the next actor goes: of the nodes with room, the one with the fewest of ``taken``, the
    run's own actors by node.
    """
    fitting = [n for n in workers(found) if room_on(n, reserved, cpus)]
    if not fitting:
        raise NoRoom(
            f"no node of the cluster has {cpus:g} CPUs free for another actor (ray.cpus_per_actor)"
        )
    return min(fitting, key=lambda n: (taken.get(n.id, 0), -n.free, n.id))


def affinity(node: Node) -> Any:
    """Ray's strategy to place a child on ``node`` and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)
