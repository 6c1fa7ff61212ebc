"""Two hosts on one machine: network namespaces with an address each, joined by a pair of virtual
network devices. Nothing else is reachable from them. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
PORT = 6379
ENDING = 10.0  # seconds for killed processes to be gone
STORE = 400_000_000  # bytes of each node's object store


def ip(*words: str) -> str:
    """Run `ip`; return what it prints."""
    found = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"ip {' '.join(words)}: {found.stderr.strip()}")
    return found.stdout


class Host:
    """A network namespace with its own address, network device and folder of Ray."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.device = name, address, "eth0"
        self._ray = folder / name
        self._ray.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, words: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command on this host. Its /tmp/ray is its own, as on another machine."""
        mounted = f'mount --bind "{self._ray}" /tmp/ray && exec "$@"'
        with log.open("ab") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "sh", "-c", mounted, "sh", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def bytes_sent(self) -> int:
        """What has left this host over the link, as its device counts it."""
        found: Any = json.loads(ip("-n", self.name, "-s", "-j", "link", "show", self.device))
        return int(found[0]["stats64"]["tx"]["bytes"])

    def link(self, up: bool) -> None:
        """Connect the link, or cut it."""
        ip("-n", self.name, "link", "set", self.device, "up" if up else "down")

    def end(self) -> None:
        """End whatever was started here: nothing else can be in this namespace. At once: asked to,
        Ray takes half a minute.
        """
        end = time.monotonic() + ENDING
        while (pids := self._pids()) and time.monotonic() < end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._running:
                process.poll()
            time.sleep(0.1)

    def _pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts joined by a link; removed at the end with all that runs on them."""
    names = [f"dicerl-{which}-{os.getpid()}" for which in ("a", "b")]
    Path("/tmp/ray").mkdir(exist_ok=True)  # to mount each host's own over it
    hosts: list[Host] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in names:
                ip("netns", "add", name)
            # named inside the namespaces at once: nothing is seen of them outside
            ip(*f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}".split())
            for name, address in zip(names, ("10.77.0.1", "10.77.0.2"), strict=True):
                ip("-n", name, "addr", "add", f"{address}/30", "dev", "eth0")
                # one packet, one header, as on a cable: no segments of 64 KB
                ip("-n", name, "link", "set", "eth0", "gso_max_segs", "1", "up")
                ip("-n", name, "link", "set", "lo", "up")
                hosts.append(Host(name, address, Path(folder)))
            yield hosts[0], hosts[1]
        finally:
            for host in hosts:
                host.end()
            for name in names:
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@contextlib.contextmanager
def ray_cluster(
    head: Host, nodes: list[tuple[Host, int]], log: Path, **environment: str
) -> Iterator[dict[str, str]]:
    """A Ray cluster with token authentication: a head without CPUs, and nodes with some each.
    Yields the environment that its driver needs.
    """
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONWARNINGS": "ignore",
        **environment,
    }
    common = ["--object-store-memory", str(STORE), "--block"]
    start = [*RAY, "start", "--head", "--node-ip-address", head.address, "--port", str(PORT)]
    head.start(
        [*start, "--num-cpus", "0", "--include-dashboard", "false", *common], log, **environment
    )
    address = f"{head.address}:{PORT}"
    _until_alive(head, address, 1, log, environment)
    for count, (host, cpus) in enumerate(nodes, start=2):
        words = [*RAY, "start", "--address", address, "--node-ip-address", host.address]
        host.start([*words, "--num-cpus", str(cpus), *common], log, **environment)
        _until_alive(head, address, count, log, environment)
    yield environment


ALIVE = """
import logging, sys, ray
ray.init(sys.argv[1], logging_level=logging.ERROR, log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]))
"""


def _until_alive(
    host: Host, address: str, count: int, log: Path, environment: dict[str, str]
) -> None:
    end = time.monotonic() + 120
    while host.start([sys.executable, "-c", ALIVE, address, str(count)], log, **environment).wait():
        if time.monotonic() > end:
            raise SystemExit(f"the cluster does not start: see {log}")
        time.sleep(1)
