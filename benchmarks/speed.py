"""How near is the whole to what the machine allows? `dicerl bench` on four works; results go to
benchmarks/results/speed.{json,png}.

    python benchmarks/speed.py                     all, 5 repetitions, about 30 minutes on 2 cores
    python benchmarks/speed.py --only shallow --repeat 1
    python benchmarks/speed.py --figure            only draws and prints what stands in speed.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from learn import RESULTS, commit

from dicerl.runtime.machine import hardware

ATARI = ["pong", "--preset", "paper", "--sequence.batch", "16", "--runtime.num-envs", "32"]
WORKS = {  # burn-in 40, T 80, reuse 2 and LSTM 256 are the paper's own
    "shallow": [*ATARI, "--network.torso", "impala_shallow"],
    # an update takes seconds: serial would add half an hour
    "deep": [*ATARI, "--runtime", "process"],
    "minatar": ["MinAtar/Breakout-v1", "--preset", "minatar"],
    "cartpole": ["CartPole-v1", "--preset", "classic"],
}
RATES = ("env", "inference", "burn_in", "train", "limit", "whole")
TITLES = {
    "shallow": "pong, impala_shallow + LSTM 256",
    "deep": "pong, impala_deep + LSTM 256",
    "minatar": "MinAtar breakout, LSTM 128",
    "cartpole": "CartPole, mlp",
}


def plain_loop(seconds: float) -> float:
    """CartPole steps/s of the simplest loop: one environment, one observation through the network,
    one step. It does not even train.
    """
    import gymnasium
    import numpy as np
    import torch

    from dicerl.agent.actor_critic import sample
    from dicerl.config.presets import preset
    from dicerl.envs import env_spec
    from dicerl.runtime.setup import build_model

    torch.set_num_threads(1)
    config = preset("classic", env__id="CartPole-v1")
    env = gymnasium.make(config.env.id)
    model, rng = build_model(config, env_spec(config)), np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    behaviour, none = np.full((1, 1), 10.0, np.float32), np.zeros(1, np.float32)
    state, count, start = model.initial_state(1), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        seen = observation[None].astype(np.float32)
        step = model.step(seen, state, none.astype(np.int64), none, behaviour)
        state = step.state
        observation, _, terminated, truncated, _ = env.step(int(sample(step.log_pi, rng)[0]))
        count += 1
        if terminated or truncated:
            observation, _ = env.reset()
    return count / (time.perf_counter() - start)


def measure(name: str, seconds: float, repeat: int) -> dict[str, Any]:
    command = [
        "dicerl",
        "bench",
        *WORKS[name],
        "--seconds",
        f"{seconds:g}",
        "--repeat",
        str(repeat),
    ]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "dicerl"), *command[1:], "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    if name == "cartpole":
        result["plain_steps_per_s"] = round(
            statistics.median(plain_loop(seconds / 4) for _ in range(repeat)), 1
        )
        result["times_plain"] = round(result["whole_steps_per_s"] / result["plain_steps_per_s"], 2)
    return {
        "command": " ".join(command),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        **result,
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        (
            "| work | environment | inference | burn-in | training | limit | whole | whole / limit"
            " | runtime |"
        ),
        "| " + "--- | " * 9,
    ]
    for name in (n for n in WORKS if n in results):
        r = results[name]
        rates = [
            f"{r[f'{key}_steps_per_s']:,.0f}" if r[f"{key}_steps_per_s"] else "–" for key in RATES
        ]
        share = f"**{r['efficiency']:.2f}**" + (
            f" ({r['times_plain']:.1f} × plain loop)" if "times_plain" in r else ""
        )
        lines.append("| " + " | ".join([TITLES[name], *rates, share, r["runtime"]]) + " |")
    return "\n".join(lines)


def figure(results: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [n for n in WORKS if n in results]
    plot, axis = plt.subplots(figsize=(8, 0.8 + 0.7 * len(shown)))
    parts = {
        "environment": "#2a6f97",
        "inference": "#61a5c2",
        "training": "#bc6c25",
        "burn-in": "#dda15e",
        "not used": "#dddddd",
    }
    for row, name in enumerate(shown):
        r, left = results[name], 0.0
        # core seconds per step, of which each stage takes a part
        cost = r["cores"] / r["limit_steps_per_s"]
        parts_of_cost = {
            "environment": 1 / r["env_steps_per_s"],
            "inference": 1 / r["inference_steps_per_s"],
            "training": 2 / r["train_steps_per_s"],
        }
        parts_of_cost["burn-in"] = (
            max(0.0, cost - sum(parts_of_cost.values())) if r["burn_in_steps_per_s"] else 0.0
        )
        shares = {
            name: r["efficiency"] * part / sum(parts_of_cost.values())
            for name, part in parts_of_cost.items()
        }
        shares["not used"] = max(0.0, 1.0 - sum(shares.values()))
        for part, share in shares.items():
            axis.barh(row, share, left=left, color=parts[part], label=part if row == 0 else None)
            left += share
        axis.text(
            r["efficiency"] - 0.01,
            row,
            f"{r['efficiency']:.2f}",
            ha="right",
            va="center",
            color="white",
            fontweight="bold",
        )
    axis.set_yticks(range(len(shown)), [TITLES[n] for n in shown])
    axis.invert_yaxis()
    axis.set(
        xlim=(0, max(1.0, *(results[n]["efficiency"] for n in shown))),
        xlabel="share of what the cores could do (whole / limit)",
    )
    axis.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False, fontsize=9)
    plot.tight_layout()
    plot.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=WORKS, nargs="*", default=list(WORKS))
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each measurement of the whole (default 20)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="medians of so many (default 5)")
    parser.add_argument("--figure", action="store_true", help="measure nothing, draw what is there")
    args = parser.parse_args()
    path = RESULTS / "speed.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not args.figure:
        for name in args.only:
            results[name] = measure(name, args.seconds, args.repeat)
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    figure(results, RESULTS / "speed.png")


if __name__ == "__main__":
    main()
