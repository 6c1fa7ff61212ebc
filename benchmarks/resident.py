"""Is memory flat? Trains for half an hour and samples the memory of the whole process tree; results
go to benchmarks/results/resident.{json,png}.

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

from learn import RESULTS, commit

from dicerl.bench.memory import resident_bytes
from dicerl.runtime.machine import hardware

# The evaluator is its own process and starts with the first evaluation: early enough here to count
# at minute 5 even on a slow machine.
DEFAULT = ["pong", "--preset", "laptop", "--runtime", "process", "--evaluation.every", "250000"]


def watch(arguments: list[str], minutes: float) -> list[tuple[float, int]]:
    """(minutes, bytes) of a run with far more frames than time, until it is stopped."""
    points: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).parent / "dicerl"),
            "train",
            *arguments,
            "--frames",
            "1000000000",
            "--run-dir",
            f"{folder}/run",
        ]
        run = subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL)
        start = time.time()
        while time.time() - start < 60 * minutes and run.poll() is None:
            time.sleep(5)
            points.append((round((time.time() - start) / 60, 3), resident_bytes(run.pid)))
        if run.poll() is not None:
            raise SystemExit(f"the run ended by itself with exit code {run.returncode}")
        run.send_signal(signal.SIGINT)
        run.wait(120)
    return points


def mean_around(points: list[tuple[float, int]], minute: float) -> float:
    near = [size for at, size in points if abs(at - minute) <= 0.5]
    return sum(near) / len(near)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    args, rest = parser.parse_known_args()
    arguments = rest or DEFAULT
    points = watch(arguments, args.minutes)
    early, late = mean_around(points, args.minutes / 6), mean_around(points, args.minutes)
    result = {
        "command": " ".join(["dicerl", "train", *arguments]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "minutes": args.minutes,
        "early_minute": args.minutes / 6,
        "early_bytes": round(early),
        "late_bytes": round(late),
        "ratio": round(late / early, 4),
        "points": points,
    }
    (RESULTS / "resident.json").write_text(json.dumps(result) + "\n")
    print({k: v for k, v in result.items() if k != "points"})
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plot, axis = plt.subplots(figsize=(7, 3.2))
    axis.plot([at for at, _ in points], [size / 2**20 for _, size in points], color="#bc6c25")
    axis.set(
        xlabel="minutes",
        ylabel="memory of all processes, MiB",
        ylim=(0, None),
        title=f"{result['command']}: {late / early:.3f} × minute {args.minutes / 6:.0f}",
    )
    axis.grid(alpha=0.3)
    plot.tight_layout()
    plot.savefig(RESULTS / "resident.png", dpi=130)


if __name__ == "__main__":
    main()
