"""An older commit against this one, in turns: agent steps/s and policy lag of `dicerl bench` in
both, and the ratio of every pair; results go to benchmarks/results/commits.json.

    python benchmarks/commits.py 86ee4bc                      `make train`'s work, six pairs of 10 s
    python benchmarks/commits.py 86ee4bc --work minatar --pairs 7
    python benchmarks/commits.py 86ee4bc --work deep --updates --seconds 60

`dicerl bench` times updates since commit 9784f7f; before, it counted agent steps, which actors
take in bursts of a whole window of every environment. Where an update takes seconds the two
differ: count updates in both commits (--updates), those of `dicerl train`, which are of equally
many steps as long as the presets have not changed.

Both run with the packages installed here, each with its own preset. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import signal
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
FIRST_PRECISION = "float32"  # of commits that have no other


def measured(checkout: Path, work: str, runtime: str, seconds: float) -> dict[str, Any]:
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
        "precision": found.get("precision", FIRST_PRECISION),
    }


WARM_UP = 3  # updates

TRAINS = {
    "frames": "1000000000",
    "evaluation.every": "0",
    "checkpoint.every": "0",
    "tensorboard": "false",
    "optimizer.warmup": "1000",
    "log-every": "1",
}


def trained(checkout: Path, work: str, runtime: str, seconds: float) -> dict[str, Any]:
    """Updates/s of `dicerl train` in ``checkout``, between two of them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dicerl", "train", *WORKS[work], "--runtime", runtime]
        for name, value in TRAINS.items():
            command += [f"--{name}", value]
        command += ["--run-dir", f"{folder}/run", "--quiet"]
        metrics = Path(folder) / "run" / "metrics.jsonl"
        run = subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL)
        lines: list[dict[str, Any]] = []
        while not lines or lines[-1]["time"] - lines[0]["time"] < seconds:
            if run.poll() is not None:
                sys.exit(f"{checkout}: it ended with {run.returncode}")
            time.sleep(1.0)
            if metrics.exists():
                whole = [line for line in metrics.read_text().splitlines(True) if "\n" in line]
                read = [json.loads(line) for line in whole]
                lines = [x for x in read if x["kind"] == "train"][WARM_UP:]
        run.send_signal(signal.SIGINT)
        run.wait(120)
        config = json.loads((metrics.parent / "config.json").read_text())
    first, last = lines[0], lines[-1]
    passed = last["time"] - first["time"]
    return {
        "updates_per_s": round((last["updates"] - first["updates"]) / passed, 4),
        "steps_per_s": round((last["agent_steps"] - first["agent_steps"]) / passed, 1),
        "policy_lag": round(statistics.fmean(x["policy_lag"] for x in lines), 2),
        "precision": config["runtime"].get("precision", FIRST_PRECISION),
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
    parser.add_argument("--updates", action="store_true", help="count updates, not agent steps")
    args = parser.parse_args()
    measure, rate = (trained, "updates_per_s") if args.updates else (measured, "steps_per_s")
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
                name: measure(order[name], args.work, args.runtime, args.seconds) for name in names
            }
            pair["ratio"] = round(pair["new"][rate] / pair["old"][rate], 3)
            pairs.append(pair)
            print(pair, file=sys.stderr, flush=True)
    rates = {name: statistics.median(pair[name][rate] for pair in pairs) for name in ("old", "new")}
    result = {
        "work": args.work,
        "runtime": args.runtime,
        "counted": rate,
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
