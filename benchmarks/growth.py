"""How steps/s and memory grow with environments, actors, batch and sequence length; results go to
benchmarks/results/growth.{json,png}.

    python benchmarks/growth.py                 every sweep, about 12 minutes on 2 cores
    python benchmarks/growth.py --only batch    one of them
    python benchmarks/growth.py --figure        only draws what stands in growth.json

Work: Atari pong, impala_shallow + LSTM 256, burn-in 40, T 80, reuse 2, 16 sequences a batch, 32
environments, process runtime; each sweep changes one of them.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from learn import RESULTS, commit

from dicerl.runtime.machine import hardware

WORK = {
    "runtime.kind": "process",
    "network.torso": "impala_shallow",
    "sequence.batch": 16,
    "runtime.num_envs": 32,
}
SWEEPS = {
    "runtime.num_envs": (8, 16, 32, 64, 128, 256, 512),
    "runtime.num_actors": (1, 2, 3, 4, 8),
    "sequence.batch": (4, 8, 16, 32, 64),
    "sequence.length": (20, 40, 80, 160),
}


def measure(changes: dict[str, Any], seconds: float) -> dict[str, Any]:
    from dicerl.bench.whole import whole
    from dicerl.config import validate
    from dicerl.config.presets import preset
    from dicerl.envs import env_spec
    from dicerl.runtime.setup import plan

    config = validate(
        preset(
            "paper",
            **{
                name.replace(".", "__"): value
                for name, value in ({"env.id": "pong"} | WORK | changes).items()
            },
        )
    )
    spec = env_spec(config)
    machine = plan(config, spec)
    found = whole(config, spec, machine, seconds)
    return {
        **found,
        "slots": machine.capacity,
        "slot_bytes": machine.slot_bytes,
        "num_actors": machine.num_actors,
    }


def sweep(name: str, seconds: float) -> list[dict[str, Any]]:
    points = []
    for value in SWEEPS[name]:
        points.append({"value": value, **measure({name: value}, seconds)})
        print(
            f"{name} {value}: {points[-1]['steps_per_s']:,.0f} steps/s,"
            f" {points[-1]['memory_bytes'] / 2**20:,.0f} MiB",
            flush=True,
        )
    return points


def slope(points: list[dict[str, Any]]) -> float:
    """Bytes for each further environment, not counting its collector slot."""
    first, last = points[0], points[-1]
    slots = last["slots"] * last["slot_bytes"] - first["slots"] * first["slot_bytes"]
    return float(
        (last["memory_bytes"] - first["memory_bytes"] - slots) / (last["value"] - first["value"])
    )


def figure(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [name for name in SWEEPS if name in results["sweeps"]]
    plot, axes = plt.subplots(
        2, len(shown), figsize=(3.4 * len(shown), 5.6), squeeze=False, sharex="col", sharey="row"
    )
    for (top, bottom), name in zip(axes.T, shown, strict=True):
        points = results["sweeps"][name]
        x = [p["value"] for p in points]
        top.plot(x, [p["steps_per_s"] for p in points], "o-", color="#2a6f97")
        bottom.plot(x, [p["memory_bytes"] / 2**30 for p in points], "o-", color="#bc6c25")
        bottom.set_xscale("log", base=2)
        bottom.set_xticks(x, [str(v) for v in x])
        bottom.minorticks_off()
        bottom.set_xlabel(name)
        top.set_ylim(bottom=0)
        bottom.set_ylim(bottom=0)
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("agent steps/s")
    axes[1][0].set_ylabel("memory, GiB")
    plot.suptitle(
        "pong, impala_shallow + LSTM 256, burn-in 40, T 80, reuse 2, process runtime, "
        f"{results['hardware']['cores']} cores ({results['commit']})",
        fontsize=10,
    )
    plot.tight_layout()
    plot.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SWEEPS, nargs="*", default=list(SWEEPS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each point (default 10)")
    parser.add_argument("--figure", action="store_true", help="measure nothing, draw what is there")
    args = parser.parse_args()
    path = RESULTS / "growth.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"sweeps": {}}
    if not args.figure:
        for name in args.only:
            start = time.time()
            results["sweeps"][name] = sweep(name, args.seconds)
            results |= {
                "commit": commit(),
                "date": time.strftime("%Y-%m-%d"),
                "hardware": hardware(),
                "seconds_a_point": args.seconds,
                "seconds": round(time.time() - start),
            }
            if name == "runtime.num_envs":
                results["bytes_an_environment"] = round(slope(results["sweeps"][name]))
            path.write_text(json.dumps(results, indent=1) + "\n")
    figure(results, RESULTS / "growth.png")


if __name__ == "__main__":
    main()
