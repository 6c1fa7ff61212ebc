"""What Ray takes for a call and for a megabyte: processor seconds of every process, for the
constants of dicerl/plan/costs.py. Prints, writes nothing.

    python benchmarks/wire.py        about 20 s
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

from dicerl.bench.memory import descendants
from dicerl.runtime.messages import SlotsWanted
from dicerl.runtime.ray_wire import Mailbox, Newest, Parcel

COUNT = 300


class Learner:
    """Answers messages, takes parcels and publishes, as a child does."""

    def __init__(self) -> None:
        self._mailbox, self._newest = Mailbox(), Newest()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            self._mailbox.send(self._mailbox.receive())

    def deliver(self, number: int, message: Any) -> None:
        self._mailbox.deliver(number, message)

    def collect(self, arrived: int, seconds: float) -> Any:
        return self._mailbox.collect(arrived, seconds)

    def receive(self, parcel: Parcel) -> bool:
        return True

    def push(self, count: int, size: int) -> None:
        import torch

        for version in range(count):
            self._newest.push(torch.zeros(size), version)

    def newer_than(self, known: int) -> Any:
        return self._newest.newer_than(known)


class Actor:
    """Sends parcels and pulls."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner

    def send(self, count: int, size: int) -> None:
        arrays = {"observation": np.zeros(size, np.uint8)}
        for i in range(count):
            ray.get(self._learner.receive.remote(Parcel(1, i, [1], [1], False, arrays, {})))

    def pull(self, count: int) -> None:
        for _ in range(count):
            _, [found] = ray.get(self._learner.newer_than.remote(-1))
            ray.get(found).copy()


def seconds() -> dict[str, float]:
    """Processor seconds of every process of ours, by what it is."""
    found: dict[str, float] = {}
    for pid in descendants(os.getpid()):
        try:
            times = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        names = {"ray::Learner": "learner", "ray::Actor": "actor", "raylet/raylet": "raylet"}
        name = next((n for part, n in names.items() if part in words), "other")
        name = "driver" if pid == os.getpid() else name
        ticks = int(times[11]) + int(times[12])
        found[name] = found.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def report(title: str, work: Callable[[], Any]) -> None:
    before, start = seconds(), time.perf_counter()
    work()
    passed, after = time.perf_counter() - start, seconds()
    parts = {name: 1e3 * (after[name] - before.get(name, 0.0)) / COUNT for name in after}
    spent = ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items() if ms > 0.02)
    print(f"{title:<24}{1e3 * passed / COUNT:6.2f} ms each; of a core, in ms: {spent}")


def main() -> None:
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    learner: Any = ray.remote(Learner).options(max_concurrency=8).remote()
    actor: Any = ray.remote(Actor).remote(learner)
    arrived = 0

    def exchange() -> None:
        nonlocal arrived
        for _ in range(COUNT):
            call = learner.collect.remote(arrived, 5.0)
            learner.deliver.remote(arrived, SlotsWanted(100, 8))
            arrived += len(ray.get(call).messages)

    exchange()
    report("a message each way", exchange)
    for size in (10_000, 1_000_000):
        ray.get(actor.send.remote(20, size))
        report(
            f"a parcel of {size // 1000} KB",
            lambda size=size: ray.get(actor.send.remote(COUNT, size)),
        )
    for size in (100_000, 1_000_000):
        report(
            f"push of {4 * size // 1000} KB",
            lambda size=size: ray.get(learner.push.remote(COUNT, size)),
        )
        report(f"pull of {4 * size // 1000} KB", lambda: ray.get(actor.pull.remote(COUNT)))
    ray.shutdown()


if __name__ == "__main__":
    main()
