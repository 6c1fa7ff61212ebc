"""An older commit against this one, in turns: agent steps/s and policy lag of `dicerl bench` in
both, and the ratio of every pair; results go to benchmarks/results/commits.json.

    python benchmarks/commits.py 86ee4bc                      `make train`'s work, six pairs of 10 s
    python benchmarks/commits.py 86ee4bc --work minatar --pairs 7

Both run with the packages installed here, each with its own preset. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from learn import RESULTS, ROOT, commit
from speed import WORKS

from dicerl.runtime.machine import hardware

WORKS = {"laptop": ["pong"], **WORKS}


def measured(checkout: Path, work: str, runtime: str, seconds: float) -> dict[str, float]:
    """The whole's steps/s, and the limit of its stages, of the package in ``checkout``."""
    command = [sys.executable, "-m", "dicerl", "bench", *WORKS[work], "--runtime", runtime]
    command += ["--seconds", f"{seconds:g}", "--repeat", "1", "--json"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{checkout}: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return {
        "steps_per_s": round(found["whole_steps_per_s"], 1),
        "limit_steps_per_s": found["limit_steps_per_s"],
        "policy_lag": found["whole"][runtime]["policy_lag"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="the older commit")
    parser.add_argument("--work", choices=WORKS, default="laptop", help="(default laptop)")
    parser.add_argument("--runtime", default="process", help="(default process)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default 10)")
    parser.add_argument("--pairs", type=int, default=6, help="how many (default 6)")
    args = parser.parse_args()
    path = RESULTS / "commits.json"
    results = json.loads(path.read_text()) if path.exists() else []
    pairs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, old], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--detach", args.old], cwd=old, check=True)
        for number in range(args.pairs):
            order = {"old": old, "new": ROOT}
            names = list(order) if number % 2 == 0 else list(reversed(order))
            pair: dict[str, Any] = {
                name: measured(order[name], args.work, args.runtime, args.seconds) for name in names
            }
            pair["ratio"] = round(pair["new"]["steps_per_s"] / pair["old"]["steps_per_s"], 3)
            pairs.append(pair)
            print(pair, file=sys.stderr, flush=True)
    rates = {
        name: statistics.median(pair[name]["steps_per_s"] for pair in pairs)
        for name in ("old", "new")
    }
    result = {
        "work": args.work,
        "runtime": args.runtime,
        "old": args.old,
        "new": commit(),
        "ratio_of_medians": round(rates["new"] / rates["old"], 3),
        "median_ratio": round(statistics.median(pair["ratio"] for pair in pairs), 3),
        "pairs": pairs,
        "seconds": args.seconds,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }
    same = ("work", "runtime", "old", "new")
    results = [r for r in results if any(r[k] != result[k] for k in same)] + [result]
    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
    print({k: v for k, v in result.items() if k != "pairs"})


if __name__ == "__main__":
    main()
