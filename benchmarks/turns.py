"""process and ray on the same work, in turns: agent steps/s, policy lag and memory of each, and the
ratio of every pair; results go to benchmarks/results/turns.json.

    python benchmarks/turns.py                 pong, preset laptop, six pairs of 10 s
    python benchmarks/turns.py --pairs 2

Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from learn import RESULTS, commit

from dicerl.bench.whole import updates_per_line, whole
from dicerl.config import validate
from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.runtime import precision
from dicerl.runtime.machine import hardware
from dicerl.runtime.setup import plan

SHOWN = ("steps_per_s", "policy_lag", "memory_bytes", "started_in")


def measured(runtime: str, seconds: float) -> dict[str, float]:
    """What ``bench`` finds of a run, and how long it took to start and to end."""
    config = preset("laptop", **{"env.id": "pong", "runtime.kind": runtime})
    config = validate(config.replace(log_every=updates_per_line(config)))
    start, spec = time.perf_counter(), env_spec(config)
    machine = plan(config, spec)  # ray starts here
    planned = time.perf_counter() - start
    config = precision.resolved(config, spec, machine.runtime, machine.device)
    found = whole(config, spec, machine, seconds) | {"started_in": planned}
    return {name: round(found[name], 3) for name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default 10)")
    parser.add_argument("--pairs", type=int, default=6, help="how many (default 6)")
    args = parser.parse_args()
    pairs: list[dict[str, Any]] = []
    for number in range(args.pairs):
        order = ("process", "ray") if number % 2 == 0 else ("ray", "process")
        pair: dict[str, Any] = {runtime: measured(runtime, args.seconds) for runtime in order}
        pair["ratio"] = round(pair["ray"]["steps_per_s"] / pair["process"]["steps_per_s"], 3)
        pairs.append(pair)
        print(pair, file=sys.stderr, flush=True)
    result = {
        "ratio": round(statistics.median(pair["ratio"] for pair in pairs), 3),
        "pairs": pairs,
        "seconds": args.seconds,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }
    (RESULTS / "turns.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"ray / process: {result['ratio']} (median of {len(pairs)})")


if __name__ == "__main__":  # the measured processes import this file again
    main()
