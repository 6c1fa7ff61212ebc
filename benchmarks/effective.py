"""What do deaths cost? Runs in pairs, in turns: one left alone, one whose actor is killed every
minute and whose learner every five; agent steps per second of each, what healed, and the scores.
Results go to benchmarks/results/effective.json.

    python benchmarks/effective.py                   MinAtar breakout, seeds 0-4, an hour and more
    python benchmarks/effective.py --seeds 1 --frames 200000 --actor 10 --learner 25

Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from learn import RESULTS, commit

import dicerl
from dicerl.records.metrics import read_lines
from dicerl.runtime.machine import hardware

HEALED = ("actor_replaced", "learner_replaced", "rolled_back")


def children(role: str) -> list[int]:
    """The processes of a role that this one has, the oldest first."""
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    found = map(int, task.read_text().split())
    return [p for p in found if Path(f"/proc/{p}/comm").read_text() == f"dicerl {role}\n"]


class Killer(threading.Thread):
    """Kills one child of each role whenever its time has come. ``age`` goes on from one run to the
    next: short runs meet as many deaths an hour as a long one.
    """

    def __init__(self, every: dict[str, float], age: float) -> None:
        super().__init__(daemon=True)
        self.age, self.killed = age, Counter[str]()
        self._every, self._done = every, threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.5):
            before, self.age = self.age, self.age + 0.5
            for role, seconds in self._every.items():
                if self.age // seconds > before // seconds:
                    with contextlib.suppress(OSError):  # one that ended just now
                        for child in children(role)[:1]:
                            os.kill(child, signal.SIGKILL)
                            self.killed[role] += 1

    def end(self) -> None:
        self._done.set()
        self.join()


def measured(seed: int, frames: int, killer: Killer | None) -> dict[str, Any]:
    """One run: steps/s from its first line of training to its last, and its evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        config = dicerl.preset(
            "minatar",
            **{
                "env.id": "MinAtar/Breakout-v1",
                "runtime.kind": "process",
                "frames": frames,
                "seed": seed,
                "run_dir": f"{folder}/run",
                "tensorboard": False,
                "evaluation.every": frames,  # only the one at the end
            },
        )
        if killer is not None:
            killer.start()
        summary = dicerl.train(config, quiet=True).summary
        if killer is not None:
            killer.end()
        if not summary["complete"]:
            sys.exit("the run was stopped before its end: nothing is measured")
        lines = read_lines(Path(folder) / "run" / "metrics.jsonl")
    train = [line for line in lines if line["kind"] == "train"]
    seconds = train[-1]["time"] - train[0]["time"]
    steps = train[-1]["agent_steps"] - train[0]["agent_steps"]
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "steps_per_s": round(steps / seconds, 1),
        "killed": dict(killer.killed) if killer is not None else {},
        "healed": dict(Counter(x["event"] for x in lines if x.get("event") in HEALED)),
        "best_region": summary["evaluation"].get("mean_return"),
        "greedy": summary["evaluation"].get("greedy_mean_return"),
        "training_return_last_100": summary["recent_return"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--frames", type=int, default=1_000_000, help="of each (default 1000000)")
    parser.add_argument("--actor", type=float, default=60.0, help="seconds (default 60)")
    parser.add_argument("--learner", type=float, default=300.0, help="seconds (default 300)")
    args = parser.parse_args()
    age, pairs = 0.0, []
    for seed in range(args.seeds):
        pair: dict[str, Any] = {}
        order = ("undisturbed", "disturbed") if seed % 2 == 0 else ("disturbed", "undisturbed")
        for name in order:
            killer = Killer({"actor": args.actor, "learner": args.learner}, age)
            pair[name] = measured(seed, args.frames, killer if name == "disturbed" else None)
            age = killer.age
            print(name, pair[name], file=sys.stderr, flush=True)
        pair["ratio"] = round(
            pair["disturbed"]["steps_per_s"] / pair["undisturbed"]["steps_per_s"], 3
        )
        pairs.append(pair)
    result = {
        "ratio": round(statistics.median(pair["ratio"] for pair in pairs), 3),
        "killed_every_s": {"actor": args.actor, "learner": args.learner},
        "pairs": pairs,
        "frames": args.frames,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }
    (RESULTS / "effective.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"disturbed / undisturbed: {result['ratio']} (median of {len(pairs)} pairs)")


if __name__ == "__main__":  # the measured processes import this file again
    main()
