"""dicerl beside Sample Factory, RLlib and Stable-Baselines3: agent steps/s of the same work on two
cores.

    python benchmarks/peers/run.py                     makes the virtual environments, measures,
                                                       writes results/peers.json
    python benchmarks/peers/run.py --only dicerl sb3 --seconds 30 --repeat 1
    python benchmarks/peers/run.py --tune              tries each contender's settings once; later
                                                       runs measure its best beside its defaults
    python benchmarks/peers/run.py --deep              the paper's deep torso instead of the
                                                       shallow one: results/peers_deep.json
    python benchmarks/peers/run.py --table --figure    prints and draws results/peers.json

The contenders take turns (A B C D A B C D ...), so that a machine that becomes slower hits all
alike. Run it with dicerl's own Python.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # learn.py, beside it

from learn import RESULTS, ROOT, commit  # noqa: E402

from dicerl.runtime.machine import hardware  # noqa: E402

RESULT, DEEP = RESULTS / "peers.json", RESULTS / "peers_deep.json"
TUNED = RESULTS / "peers_tuned.json"
# name: (as the table names it, script, arguments, settings to try: the first is the default)
CONTENDERS: dict[str, tuple[str, str, list[str], list[str]]] = {
    "dicerl": (
        "dicerl, burn-in 40",
        "dicerl",
        ["--burn-in", "40"],
        ["", "--actors 2", "--threads 2"],
    ),
    "dicerl_no_burn_in": (
        "dicerl, burn-in 0",
        "dicerl",
        ["--burn-in", "0"],
        ["", "--actors 2", "--threads 2"],
    ),
    "dicerl_auto": (
        "dicerl, burn-in 0, precision auto",
        "dicerl",
        ["--burn-in", "0", "--auto", "1"],
        [""],
    ),
    "sample_factory": (
        "Sample Factory, APPO",
        "sample_factory",
        [],
        ["", "--workers 1", "--splits 1", "--workers 4", "--serial 1"],
    ),
    "rllib": (
        "RLlib, IMPALA",
        "rllib",
        [],
        ["", "--learners 0", "--wait-ms 50", "--runners 4", "--threads 2"],
    ),
    "sb3": ("Stable-Baselines3, RecurrentPPO", "sb3", [], ["", "--threads 1", "--processes 1"]),
}
MAIN_PACKAGES = (
    "dicerl",
    "sample-factory",
    "ray",
    "stable_baselines3",
    "sb3_contrib",
    "torch",
    "numpy",
    "ale-py",
    "gymnasium",
)
WORK = {
    "game": "pong, frame skip 4, 84 x 84 gray, 4 stacked, 18 actions",
    "lstm": 256,
    "sequence length": 80,
    "sequences in a batch": 16,
    "each step is trained": 2,
    "environments": 32,
}
TORSOS = {
    False: "impala_shallow: conv 16 8x8/4, conv 32 4x4/2, dense 256, ReLU",
    True: "impala_deep: sections of 16, 32, 32 with two residual blocks each, dense 256, ReLU",
}


def python_of(peer: str, venvs: Path) -> str:
    """The peer's own Python; its virtual environment is made if missing, with exactly the pinned
    packages.
    """
    if peer == "dicerl":
        return sys.executable
    folder = venvs / peer
    python, done = str(folder / "bin" / "python"), folder / "installed"
    if not done.exists():
        wanted = HERE / f"requirements-{peer}.txt"
        print(f"installing {peer} into {folder} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--constraint",
            str(wanted),
        ]
        # first and alone, so that pip takes its plain build
        subprocess.run([*install, "torch"], check=True)
        subprocess.run([*install, "--requirement", str(wanted)], check=True)
        done.touch()
    return python


def versions(python: str) -> dict[str, str]:
    command = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {p["name"].lower().replace("_", "-"): p["version"] for p in json.loads(listed.stdout)}
    return {
        name: found[key]
        for name in MAIN_PACKAGES
        if (key := name.lower().replace("_", "-")) in found
    }


def measure(
    name: str, python: str, seconds: float, settings: str, deep: bool = False
) -> dict[str, Any]:
    """One run in a process of its own; its last line is the result. Processes it leaves behind
    are ended.
    """
    _, script, arguments, _ = CONTENDERS[name]
    command = [
        python,
        str(HERE / f"{script}_peer.py"),
        "--seconds",
        str(seconds),
        *arguments,
        *settings.split(),
        *(["--deep"] if deep else []),
    ]
    environment = (
        os.environ | {"PYTHONPATH": str(ROOT)}
        if script == "dicerl"
        else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    )
    patience = 5 * seconds + 300
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = started.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        return {"failed": f"no result after {patience:.0f} s"}
    finally:
        try:
            os.killpg(started.pid, signal.SIGKILL)
        except ProcessLookupError:
            started.wait()
    last = (output.strip().splitlines() or [""])[-1]
    if started.returncode != 0 or not last.startswith("{"):
        return {"failed": (errors or output).strip()[-500:]}
    return json.loads(last)


def tune(names: list[str], pythons: dict[str, str], seconds: float) -> None:
    """Each contender's settings once, in turns; later runs measure the best, too."""
    tuned = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for turn in range(max(len(CONTENDERS[name][3]) for name in names)):
        for name in names:
            if turn < len(CONTENDERS[name][3]):
                settings = CONTENDERS[name][3][turn]
                result = measure(name, pythons[name], seconds, settings)
                found[name][settings] = result.get("steps_per_s", 0.0)
                print(
                    f"{name} {settings or '(default)'}: {result.get('steps_per_s', result)}",
                    file=sys.stderr,
                    flush=True,
                )
    for name in names:
        tuned[name] = {
            "best": max(found[name], key=lambda s: found[name][s]),
            "steps_per_s": found[name],
        }
    TUNED.write_text(json.dumps(tuned, indent=1) + "\n")


def compare(
    names: list[str], pythons: dict[str, str], seconds: float, repeat: int, deep: bool
) -> dict[str, Any]:
    tuned = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    # (contender, settings): everyone's defaults, and beside them what --tune found to be better
    entries = [(name, "") for name in names]
    entries += [(name, best) for name in names if (best := tuned.get(name, {}).get("best"))]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {entry: [] for entry in entries}
    for turn in range(repeat):
        for name, settings in entries:
            result = measure(name, pythons[name], seconds, settings, deep)
            runs[name, settings].append(result)
            print(
                f"{turn + 1} of {repeat}, {name} {settings}: {result.get('steps_per_s', result)}",
                file=sys.stderr,
                flush=True,
            )
    contenders: dict[str, Any] = {}
    for name, settings in entries:
        good = [r for r in runs[name, settings] if "failed" not in r]
        facts = {key: good[-1][key] for key in ("settings", "differs")} if good else {}
        contenders[f"{name} {settings}".strip()] = {
            "name": CONTENDERS[name][0] + (", tuned" if settings else ""),
            "versions": versions(pythons[name]),
            **facts,
            "tried": tuned.get(name, {}).get("steps_per_s", {}),
            "runs": [
                {k: v for k, v in r.items() if k not in ("settings", "differs")}
                for r in runs[name, settings]
            ],
            "steps_per_s": statistics.median(r["steps_per_s"] for r in good) if good else None,
        }
    # the same work: the peers have no burn-in
    ours = contenders.get("dicerl_no_burn_in", {}).get("steps_per_s")
    for found in contenders.values():
        found["dicerl_is_faster_by"] = (
            round(ours / found["steps_per_s"], 2) if ours and found["steps_per_s"] else None
        )
    return {
        "command": "python benchmarks/peers/run.py " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "seconds": seconds,
        "work": WORK | {"torso": TORSOS[deep]},
        "contenders": contenders,
    }


def table(result: dict[str, Any]) -> str:
    lines = [
        (
            f"{result['hardware']['cores']} cores, {result['hardware']['cpu']}, commit"
            f" {result['commit']}, {result['date']}"
        ),
        "",
        (
            "| | agent steps/s, median | runs | dicerl, burn-in 0, is faster by | cores busy |"
            " settings | differs |"
        ),
        "| " + "--- | " * 7,
    ]
    for c in result["contenders"].values():
        good = [r for r in c["runs"] if "failed" not in r]
        busy = f"{statistics.median(r['cores_busy'] for r in good):.2f}" if good else "–"
        cells = [
            c["name"],
            f"**{c['steps_per_s']:,.0f}**" if good else "failed",
            ", ".join(f"{r['steps_per_s']:.0f}" for r in good),
            str(c["dicerl_is_faster_by"] or "–"),
            busy,
            "; ".join(f"{k}: {v}" for k, v in c.get("settings", {}).items()),
            c.get("differs", ""),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(result: dict[str, Any], path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from dicerl.report.compare import colour

    rows = [c for c in result["contenders"].values() if c["steps_per_s"]][::-1]
    fig, axis = plt.subplots(figsize=(7.5, 0.6 + 0.55 * len(rows)))
    bars = axis.barh(
        [c["name"] for c in rows],
        [c["steps_per_s"] for c in rows],
        color=[colour("dice") if c["name"].startswith("dicerl") else "#999999" for c in rows],
    )
    axis.bar_label(bars, fmt="%.0f", padding=26)
    for i, c in enumerate(rows):
        speeds = [r["steps_per_s"] for r in c["runs"] if "failed" not in r]
        axis.plot(speeds, [i] * len(speeds), "|", color="black", markersize=9)
    axis.set_xlabel(
        f"agent steps/s on pong, {result['hardware']['cores']} cores, no GPU (median; ticks: runs)"
    )
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(CONTENDERS),
        default=list(CONTENDERS),
        help="contenders (default: all)",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="measured in each run, after the first updates"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each contender")
    parser.add_argument("--cores", type=int, default=2, help="cores all contenders may use")
    parser.add_argument(
        "--venvs", type=Path, default=HERE / ".venvs", help="where the peers are installed"
    )
    parser.add_argument("--deep", action="store_true", help="the paper's deep torso")
    parser.add_argument(
        "--out",
        type=Path,
        help="the results file (default: results/peers.json, or peers_deep.json)",
    )
    parser.add_argument(
        "--tune", action="store_true", help="try the settings of each contender once, and stop"
    )
    parser.add_argument(
        "--table", action="store_true", help="measure nothing; print what the results file holds"
    )
    parser.add_argument(
        "--figure", action="store_true", help="draw it beside the results file (needs matplotlib)"
    )
    args = parser.parse_args()
    args.out = args.out or (DEEP if args.deep else RESULT)
    if not args.table:
        # so that a run in progress is ended too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        os.sched_setaffinity(
            0, sorted(os.sched_getaffinity(0))[: args.cores]
        )  # children inherit it
        pythons = {name: python_of(CONTENDERS[name][1], args.venvs.resolve()) for name in args.only}
        if args.tune:
            return tune(args.only, pythons, args.seconds)
        found = compare(args.only, pythons, args.seconds, args.repeat, args.deep)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    result = json.loads(args.out.read_text())
    print(table(result))
    if args.figure:
        print(figure(result, args.out.with_suffix(".png")))


if __name__ == "__main__":
    main()
