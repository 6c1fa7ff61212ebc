"""What grows while a run trains: bytes of its files, open files, threads, shared and other memory,
per million frames; results go to benchmarks/results/rates.json.

    python benchmarks/rates.py                            pong, CartPole, MinAtar; 2 minutes each
    python benchmarks/rates.py --seconds 600 breakout     one of one's own, with any options

The first third of the time is left out: children start, the first evaluation does, buffers fill.
Linux only.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from learn import RESULTS, commit

from dicerl.bench.memory import descendants, resident_bytes
from dicerl.report.jsonl import last_lines
from dicerl.runtime.machine import hardware

RUNS = (
    ["pong", "--preset", "laptop", "--runtime", "process"],
    ["CartPole-v1", "--preset", "classic"],
    ["MinAtar/Breakout-v1", "--preset", "minatar"],
)


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    found = path.rglob("*") if path.is_dir() else [path]
    return sum(p.stat().st_size for p in found if p.is_file())


def sample(pid: int, run: Path) -> dict[str, float]:
    """What the run holds and has written by now; it goes on meanwhile."""
    lines = last_lines(run / "metrics.jsonl")
    now = {"frames": max((line["frames"] for line in lines), default=0)}
    for name in ("metrics.jsonl", "evaluations.jsonl", "tensorboard"):
        now[f"{name}, bytes"] = size(run / name)
    pids = descendants(pid)
    now["processes"] = len(pids)
    now["open files"] = sum(len(list(Path(f"/proc/{p}/fd").iterdir())) for p in pids)
    now["threads"] = sum(len(list(Path(f"/proc/{p}/task").iterdir())) for p in pids)
    now["shared memory, bytes"] = sum(shared(p) for p in pids)
    now["memory, bytes"] = resident_bytes(pid)
    return now


def shared(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(x.split()[1]) * 1024 for x in text.splitlines() if x.startswith("Pss_Shmem:"))


def watch(arguments: list[str], seconds: float) -> list[dict[str, float]]:
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "dicerl", "train", *arguments]
        command += ["--frames", "1000000000", "--run-dir", str(run), "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and process.poll() is None:
                time.sleep(1.0)
                try:
                    samples.append(sample(process.pid, run))
                except OSError:  # a process ended, or a file was replaced, just now
                    continue
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    return samples


def rates(samples: list[dict[str, float]]) -> dict[str, Any]:
    """By name: first and last value, and the slope in a million frames."""
    late = [s for s in samples if s["frames"]]
    late = late[len(late) // 3 :]
    if len(late) < 2 or late[0]["frames"] == late[-1]["frames"]:
        sys.exit("the run did not come far enough; give it more --seconds")
    frames = np.array([s["frames"] for s in late]) / 1e6
    return {
        name: {
            "first": late[0][name],
            "last": late[-1][name],
            "per_million_frames": round(float(np.polyfit(frames, [s[name] for s in late], 1)[0])),
        }
        for name in late[0]
        if name != "frames"
    } | {"frames": [late[0]["frames"], late[-1]["frames"]]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each run (default 120)")
    args, own = parser.parse_known_args()
    results: dict[str, Any] = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "seconds": args.seconds,
        "runs": {},
    }
    for arguments in [own] if own else RUNS:
        found = rates(watch(arguments, args.seconds))
        results["runs"][" ".join(arguments)] = found
        first, last = found["frames"]
        print(f"{' '.join(arguments)}: from {first:,} to {last:,} frames")
        for name, row in found.items():
            if name != "frames":
                print(
                    f"  {name:24}{row['first']:>14,.0f} →{row['last']:>14,.0f}"
                    f"{row['per_million_frames']:>+16,} per million frames",
                    flush=True,
                )
    if not own:
        (RESULTS / "rates.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
