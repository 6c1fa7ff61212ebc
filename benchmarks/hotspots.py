"""Which Python lines cost what? py-spy on every process of a real run; results go to
benchmarks/results/hotspots.json.

    python benchmarks/hotspots.py                                    pong, preset laptop, 60 seconds
    python benchmarks/hotspots.py --seconds 30 CartPole-v1 --preset classic --runtime process

A line's share is the time spent in it and in what it calls outside dicerl (torch, numpy, the
environment); idle threads are not counted. Whatever is not environment, inference or training, the
work itself, is overhead: a line of it above 5 % would be one to remove.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from learn import RESULTS, commit

from dicerl.runtime.machine import hardware

DEFAULT = ["pong", "--preset", "laptop", "--runtime", "process"]
# Everything below these functions is the work itself.
WORK = {
    "environment": ("step (dicerl/envs/",),
    "inference": ("step (dicerl/agent/actor_critic.py", "sample (dicerl/agent/actor_critic.py"),
    # the latter in its own threads
    "training": ("update (dicerl/parts/learner.py", "work (dicerl/parts/learner.py"),
}
FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*):(?P<line>\d+)\)$")


def record(arguments: list[str], seconds: float) -> str:
    """Stacks with their counts, in py-spy's raw format, of a warmed-up run."""
    bin_folder = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen(
            [
                str(bin_folder / "dicerl"),
                "train",
                *arguments,
                "--frames",
                "1000000000",
                "--run-dir",
                f"{folder}/run",
                "--quiet",
            ]
        )
        try:
            metrics = Path(folder) / "run" / "metrics.jsonl"
            while not metrics.exists() or '"train"' not in metrics.read_text():
                time.sleep(1)
            subprocess.run(
                [
                    str(bin_folder / "py-spy"),
                    "record",
                    "--subprocesses",
                    "--format",
                    "raw",
                    "--rate",
                    "100",
                    "--duration",
                    f"{seconds:g}",
                    "--pid",
                    str(run.pid),
                    "--output",
                    f"{folder}/stacks",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            return (Path(folder) / "stacks").read_text()
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(120)


def lines_of(stacks: str) -> tuple[Counter[tuple[str, str]], int]:
    """{(what, innermost line of dicerl): samples} and all samples."""
    counts: Counter[tuple[str, str]] = Counter()
    total = 0
    for entry in stacks.splitlines():
        stack, _, count = entry.rpartition(" ")
        total += int(count)
        ours = []
        for frame in stack.split(";"):
            found = FRAME.match(frame)
            if found and "dicerl/" in found["file"] and "site-packages" not in found["file"]:
                ours.append(
                    f"{found['function'].rpartition('.')[2]}"
                    f" (dicerl/{found['file'].rpartition('dicerl/')[2]}:{found['line']})"
                )
        what = next(
            (
                name
                for name, marks in WORK.items()
                if any(frame.startswith(marks) for frame in ours)
            ),
            "overhead",
        )
        counts[what, ours[-1] if ours else "outside dicerl"] += int(count)
    return counts, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    args, rest = parser.parse_known_args()
    arguments = rest or DEFAULT
    counts, total = lines_of(record(arguments, args.seconds))
    shares = {
        what: round(sum(n for (kind, _), n in counts.items() if kind == what) / total, 4)
        for what in (*WORK, "overhead")
    }
    worst = [
        (line, round(n / total, 4))
        for (what, line), n in counts.most_common()
        if what == "overhead"
    ][:10]
    result = {
        "command": " ".join(["dicerl", "train", *arguments]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "samples": total,
        "shares": shares,
        "overhead_lines": worst,
    }
    path = RESULTS / "hotspots.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    results[result["command"]] = result
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(shares)
    print("\n".join(f"{share:7.2%}  {line}" for line, share in worst))


if __name__ == "__main__":
    main()
