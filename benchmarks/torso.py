"""How near are the torsos to what a core can compute? GFLOP/s of a large matrix product, and of
each torso forward and both ways, on one thread in float32, in turns.

    python benchmarks/torso.py                  about a minute; results/torso.json

Where a torso is as fast as the product, only fewer operations or a shorter number format help.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from learn import RESULTS, commit
from torch.utils.flop_counter import FlopCounterMode

from dicerl.agent.torsos import CONVOLUTIONS
from dicerl.runtime.machine import hardware, keep_freed_memory

SIZE = 1024  # of the matrices
FRAMES = 320  # in a batch: 16 sequences of 20 steps


def flop(work: Callable[[], object]) -> int:
    """Floating-point operations of ``work``, a multiplication with its addition counted as two."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def works() -> dict[str, Callable[[], object]]:
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    found: dict[str, Callable[[], object]] = {"matrix product": lambda: a @ b}
    seen = torch.rand(FRAMES, 84, 84, 4).permute(0, 3, 1, 2)  # channels last, as in training
    for name in ("impala_deep", "impala_shallow"):
        torso = CONVOLUTIONS[name](4).to(memory_format=torch.channels_last)

        def forward(torso: torch.nn.Module = torso) -> None:
            with torch.no_grad():
                torso(seen)

        def both(torso: torch.nn.Module = torso) -> None:
            torso.zero_grad()
            torso(seen).sum().backward()

        found |= {f"{name}, forward": forward, f"{name}, both ways": both}
    return found


def per_second(work: Callable[[], object], seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default 2)")
    parser.add_argument("--turns", type=int, default=5, help="how many (default 5)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    each = works()
    count = {name: flop(work) for name, work in each.items()}  # and warms up
    speed: dict[str, list[float]] = {name: [] for name in each}
    for _ in range(args.turns):
        for name, work in each.items():
            speed[name].append(round(per_second(work, args.seconds) * count[name] / 1e9, 1))
    peak = statistics.median(speed["matrix product"])
    for name, runs in speed.items():
        median = statistics.median(runs)
        print(f"{name}: {median:.1f} GFLOP/s, {median / peak:.2f} of the product; {runs}")
    result = {
        "command": " ".join(["python", *sys.argv]),
        "gflop_per_s": speed,
        "mflop_a_frame": {
            n: round(c / FRAMES / 1e6, 1) for n, c in count.items() if n != "matrix product"
        },
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }
    (RESULTS / "torso.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
