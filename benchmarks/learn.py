"""Does it learn? Each benchmark is a list of `dicerl train` commands; results go to
benchmarks/results/<name>.json.

    python benchmarks/learn.py cartpole
    python benchmarks/learn.py minatar --jobs 2
    python benchmarks/learn.py --list

Runs that already stand in the results file with the same command are not run again (--again runs
them).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from dicerl.runtime.machine import hardware

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MINATAR = ("Breakout", "Asterix", "SpaceInvaders", "Freeway", "Seaquest")


def minatar(
    variants: tuple[str, ...], games: tuple[str, ...], *more: str, seeds: int = 3
) -> list[list[str]]:
    return [
        [
            f"MinAtar/{game}-v1",
            "--preset",
            "minatar",
            "--variant",
            variant,
            *more,
            "--seed",
            str(seed),
        ]
        for seed in range(seeds)
        for variant in variants
        for game in games
    ]


MEMORY = [
    "dicerl.envs.toy:TMaze-v0",
    "--preset",
    "classic",
    "--frames",
    "100000",
    "--env.reward-scale",
    "1",
]
BENCHMARKS: dict[str, list[list[str]]] = {
    "cartpole": [["CartPole-v1", "--preset", "classic", "--seed", str(s)] for s in range(3)],
    # Is what was solved kept? 20 evaluations on the way.
    "cartpole_long": [
        ["CartPole-v1", "--preset", "classic", "--frames", "1000000", "--seed", str(s)]
        for s in range(3)
    ],
    "memory": [
        [*MEMORY, "--network.lstm", lstm, "--sequence.burn-in", "10", "--seed", str(s)]
        for lstm in ("64", "0")
        for s in range(3)
    ],
    "catch": [
        ["dicerl.envs.toy:Catch-v0", "--preset", "classic", "--frames", "60000", "--seed", str(s)]
        for s in range(3)
    ],
    # One preset, rewards of any scale (scaled.py); CartPole's returns are 500 times the factor.
    "scales": [
        ["scaled:CartPole_x" + factor + "-v0", "--seed", str(s)]
        for s in range(5)
        for factor in ("0.001", "0.01", "0.1", "1", "10", "100", "1000")
    ]
    + [
        ["scaled:Catch_x" + factor + "-v0", "--frames", "45000", "--seed", str(s)]
        for s in range(5)
        for factor in ("0.01", "1", "100")
    ],
    "minatar": minatar(("dice",), MINATAR, seeds=5),
    # The torso in bfloat16; in float32 those of "minatar". Four times as long where the processor
    # has no bfloat16 products and torch computes them in software.
    "minatar_bfloat16": minatar(
        ("dice",), ("Breakout",), "--runtime.precision", "bfloat16", seeds=5
    ),
    # To compare with those of "minatar".
    "minatar_ablation": minatar(("baseline", "random", "entropy"), MINATAR[:3]),
    "minatar_scales": [
        ["scaled:Breakout_x" + factor + "-v0", "--preset", "minatar", "--seed", str(s)]
        for s in range(5)
        for factor in ("0.01", "100")
    ],
    # To compare with dice of "minatar".
    "minatar_families": minatar(
        ("casa", "mixture", "epsilon", "conditioned"), ("Breakout", "Asterix")
    ),
    # Two learners, so gradients one update late; in serial none is.
    "minatar_process": minatar(
        ("dice",), ("Breakout", "Asterix"), "--runtime", "process", "--runtime.num-learners", "2"
    ),
    # The same config under every runtime.
    "runtimes": [
        ["CartPole-v1", "--preset", "classic", "--runtime", runtime, "--seed", str(s)]
        for runtime in ("serial", "process", "ray")
        for s in range(3)
    ],
    # What `make train` does: the default runtime, which takes the whole machine (--jobs 1).
    "atari": [
        *(["pong", "--seed", str(s)] for s in range(3)),
        *(["freeway", "--frames", "4000000", "--seed", str(s)] for s in range(3)),
        *([game, "--seed", "0"] for game in ("breakout", "space_invaders")),
    ],
    # To compare with those of "atari"; 40 to 50 minutes each where bfloat16 is emulated.
    "atari_bfloat16": [
        ["pong", "--runtime.precision", "bfloat16", "--seed", str(s)] for s in range(3)
    ],
    # To compare with those of "atari": the freshest data, one core a run.
    "atari_serial": [
        ["pong", "--runtime", "serial", "--runtime.learner-threads", "1", "--seed", str(s)]
        for s in range(3)
    ],
}
# More episodes of the finished agents, played by `dicerl evaluate`: to tell the best region from
# greedy play MinAtar needs many.
EVALUATED = {
    "atari": 32,
    "atari_bfloat16": 32,
    "atari_serial": 32,
    "minatar": 256,
    "minatar_ablation": 256,
    "minatar_bfloat16": 256,
    "minatar_families": 256,
}


def commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (
        "+changes" if git("status", "--porcelain", "--", "dicerl") else ""
    )


def dicerl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "dicerl"), *arguments, "--json", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "benchmarks",  # where scaled.py is
    )


def evaluated(run_dir: str, episodes: int) -> dict[str, object]:
    """What `dicerl evaluate` finds of a finished run, at the best region and greedy: episodes that
    training has not seen.
    """
    found: dict[str, object] = {}
    for name, more in (("best_region", []), ("greedy", ["--greedy"])):
        done = dicerl("evaluate", run_dir, "--episodes", str(episodes), "--seed", "1000", *more)
        returns = json.loads(done.stdout)["returns"] if done.returncode == 0 else []
        found[f"evaluate_{episodes}_{name}"] = returns
    return found


def run(arguments: list[str], evaluate: int = 0) -> dict[str, object]:
    """One training run in a temporary directory; its summary and its learning curve, and the
    returns of ``evaluate`` more episodes.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = ["dicerl", "train", *arguments]
        start, revision = time.time(), commit()
        done = dicerl(*command[1:], "--run-dir", f"{folder}/run", "--tensorboard", "false")
        if done.returncode != 0:
            return {"command": " ".join(command), "failed": done.stderr.strip()[-500:]}
        seconds = round(time.time() - start)
        summary = json.loads(done.stdout)
        more = evaluated(f"{folder}/run", evaluate) if evaluate else {}
        lines = [
            json.loads(line)
            for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        ]
    curve = [
        (x["frames"], x["recent_return"])
        for x in lines
        if x["kind"] == "train" and x.get("recent_return") is not None
    ]
    step = max(1, len(curve) // 40)
    return {
        "command": " ".join(command),
        "commit": revision,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "seconds": seconds,
        "agent_steps": summary["agent_steps"],
        "frames": summary["frames"],
        "updates": summary["updates"],
        "training_return_last_100": summary["recent_return"],
        "evaluation_best_region": summary["evaluation"].get("mean_return"),
        "evaluation_greedy": summary["evaluation"].get("greedy_mean_return"),
        "evaluation_episodes": summary["evaluation"].get("episodes"),
        **more,
        **{k: v for k, v in summary.items() if k.startswith("favoured_")},
        "training_curve": [[f, round(r, 3)] for f, r in [*curve[::step], *curve[-1:]]],
        "evaluation_curve": [
            [x["frames"], x["mean_return"], x["greedy_mean_return"]]
            for x in lines
            if x["kind"] == "evaluation"
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmark", nargs="*", choices=[*BENCHMARKS, []], help="which (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--again", action="store_true", help="run what has a result already")
    parser.add_argument("--only", default="", help="only commands that contain this text")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    args = parser.parse_args()
    lock = Lock()
    RESULTS.mkdir(exist_ok=True)
    for name in args.benchmark or BENCHMARKS:
        path = RESULTS / f"{name}.json"
        results = json.loads(path.read_text()) if path.exists() else []
        known = {r["command"] for r in results if "failed" not in r}
        chosen = [a for a in BENCHMARKS[name] if args.only in " ".join(a)]
        todo = [a for a in chosen if args.again or " ".join(["dicerl", "train", *a]) not in known]
        if args.list:
            print("\n".join(" ".join(["dicerl", "train", *a]) for a in chosen))
            continue

        def work(
            arguments: list[str],
            results: list[dict[str, object]] = results,
            path: Path = path,
            evaluate: int = EVALUATED.get(name, 0),
        ) -> None:
            result = run(arguments, evaluate)
            with lock:
                results[:] = [r for r in results if r["command"] != result["command"]] + [result]
                path.write_text(
                    "[\n"
                    + ",\n".join(
                        json.dumps(r) for r in sorted(results, key=lambda r: str(r["command"]))
                    )
                    + "\n]\n"
                )
            print({k: v for k, v in result.items() if not k.endswith("curve")}, flush=True)

        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(work, todo))


if __name__ == "__main__":
    main()
