"""Is memory flat? Trains for half an hour and samples what the whole process tree holds: memory,
open files, threads, shared memory; results go to benchmarks/results/resident.{json,png}.

    python benchmarks/resident.py                                   pong, preset laptop, 30 minutes
    python benchmarks/resident.py --minutes 5 CartPole-v1 --preset classic --runtime process
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

from learn import RESULTS, commit
from rates import sample

from dicerl.runtime.machine import hardware

# The evaluator is its own process and starts with the first evaluation: early enough here to count
# at minute 5 even on a slow machine.
DEFAULT = ["pong", "--preset", "laptop", "--runtime", "process", "--evaluation.every", "250000"]


COUNTED = ("processes", "open files", "threads", "shared memory, bytes")


def watch(arguments: list[str], minutes: float) -> list[dict[str, float]]:
    """What a run with far more frames than time holds, every five seconds until it is stopped."""
    points: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [str(Path(sys.executable).parent / "dicerl"), "train", *arguments]
        command += ["--frames", "1000000000", "--run-dir", str(run), "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        while time.monotonic() - start < 60 * minutes and process.poll() is None:
            time.sleep(5)
            try:
                held = sample(process.pid, run)
            except OSError:  # nothing is written yet, or a process ended just now
                continue
            points.append({"minute": round((time.monotonic() - start) / 60, 3), **held})
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself with exit code {process.returncode}")
        process.send_signal(signal.SIGINT)
        process.wait(120)
    return points


def mean_around(points: list[dict[str, float]], minute: float, name: str) -> float:
    near = [point[name] for point in points if abs(point["minute"] - minute) <= 0.5]
    return sum(near) / len(near)


def draw(result: dict[str, Any]) -> None:
    """The curve of memory, to results/resident.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plot, axis = plt.subplots(figsize=(7, 3.2))
    minutes, sizes = zip(*result["points"], strict=True)
    axis.plot(minutes, [size / 2**20 for size in sizes], color="#bc6c25")
    axis.set(xlabel="minutes", ylabel="memory of all processes, MiB", ylim=(0, None))
    ratio = f"{result['ratio']:.3f} × minute {result['early_minute']:.0f}"
    axis.set_title(f"{result['command']}: {ratio}", fontsize=8)
    axis.grid(alpha=0.3)
    plot.tight_layout()
    plot.savefig(RESULTS / "resident.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    args, rest = parser.parse_known_args()
    arguments = rest or DEFAULT
    points = watch(arguments, args.minutes)
    at = args.minutes / 6, args.minutes
    early, late = (mean_around(points, minute, "memory, bytes") for minute in at)
    result = {
        "command": " ".join(["dicerl", "train", *arguments]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "minutes": args.minutes,
        "early_minute": at[0],
        "early_bytes": round(early),
        "late_bytes": round(late),
        "ratio": round(late / early, 4),
        "counted": {
            name: [round(mean_around(points, minute, name), 1) for minute in at] for name in COUNTED
        },
        "frames": points[-1]["frames"],
        "points": [(point["minute"], point["memory, bytes"]) for point in points],
    }
    (RESULTS / "resident.json").write_text(json.dumps(result) + "\n")
    print({k: v for k, v in result.items() if k != "points"})
    draw(result)


if __name__ == "__main__":
    main()
