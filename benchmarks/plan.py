"""Is the planner right? Its forecast of this machine beside what is measured on it, in turns;
results go to benchmarks/results/plan.json.

    python benchmarks/plan.py                    all works, 5 rounds, about 25 minutes on 2 cores
    python benchmarks/plan.py --only pong-ray --rounds 1
    python benchmarks/plan.py --table            only prints what stands in plan.json

Each round plans (measuring costs anew), then measures a real run: `predicted` and `simulated` are
compared with the measurements before and after them, since a machine's speed varies. Nothing else
may run meanwhile.
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
from dicerl.config import Config, validate
from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.plan.machines import Machines
from dicerl.plan.plan import Planner
from dicerl.runtime import precision
from dicerl.runtime.machine import cores, hardware
from dicerl.runtime.setup import plan

WORKS = {  # environment, preset, runtime
    "pong-process": ("pong", "laptop", "process"),
    "pong-ray": ("pong", "laptop", "ray"),
    "minatar-serial": ("MinAtar/Breakout-v1", "minatar", "serial"),
    "minatar-process": ("MinAtar/Breakout-v1", "minatar", "process"),
    "minatar-ray": ("MinAtar/Breakout-v1", "minatar", "ray"),
}
WITHIN = 0.2


def config_of(name: str) -> Config:
    env, named, runtime = WORKS[name]
    config = preset(named, **{"env.id": env, "runtime.kind": runtime})
    # a measured whole writes its lines more often
    return validate(config.replace(log_every=updates_per_line(config)))


def measured(config: Config, seconds: float) -> float:
    """Agent steps/s of a real run."""
    spec = env_spec(config)
    machine = plan(config, spec)
    config = precision.resolved(config, spec, machine.runtime, machine.device)
    return whole(config, spec, machine, seconds)["steps_per_s"]


def predicted(config: Config, seconds: float) -> tuple[float, float | None]:
    """(model's, simulation's) agent steps/s."""
    planner, machines = Planner(config, seconds), Machines(cores())
    found = planner.plan(machines)["steps_per_s"]
    if config.runtime.kind == "serial":
        return found, None
    return found, planner.fleet(machines, ())["plan"]["steps_per_s"]


def compare(name: str, seconds: float, rounds: int) -> dict[str, Any]:
    config = config_of(name)
    runs = [measured(config, seconds)]
    forecasts = []
    for turn in range(rounds):
        forecasts.append(predicted(config, seconds / 3))
        runs.append(measured(config, seconds))
        print(f"{name} {turn + 1}: {forecasts[-1]} before {runs[-1]:.1f}", file=sys.stderr)
    around = [statistics.fmean(runs[i : i + 2]) for i in range(rounds)]
    ratios = [found / real for (found, _), real in zip(forecasts, around, strict=True)]
    result = {
        "work": " ".join(WORKS[name]),
        "measured": [round(x, 1) for x in runs],
        "predicted": [x for x, _ in forecasts],
        "ratios": [round(x, 3) for x in ratios],
        "ratio": round(statistics.median(ratios), 3),
    }
    if forecasts[0][1] is not None:
        simulated = [x for _, x in forecasts if x is not None]
        result["simulated"] = simulated
        result["simulated_ratio"] = round(
            statistics.median(x / y for x, y in zip(simulated, around, strict=True)), 3
        )
    return {
        **result,
        "rounds": rounds,
        "seconds": seconds,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        "| work | measured | predicted | predicted / measured | simulated / measured | within 20 %"
        " |",
        "| " + "--- | " * 6,
    ]
    for name in (n for n in WORKS if n in results):
        r = results[name]
        simulated = f"{r['simulated_ratio']:.2f}" if "simulated_ratio" in r else "–"
        cells = [
            r["work"],
            f"{statistics.median(r['measured']):,.0f}",
            f"{statistics.median(r['predicted']):,.0f}",
            f"{r['ratio']:.2f}",
            simulated,
            "yes" if abs(r["ratio"] - 1) <= WITHIN else "no",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=WORKS, nargs="*", default=list(WORKS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run (default 15)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (default 5)")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what is there")
    args = parser.parse_args()
    path = RESULTS / "plan.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not args.table:
        for name in args.only:
            results[name] = compare(name, args.seconds, args.rounds)
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":  # the measured processes import this file again
    main()
