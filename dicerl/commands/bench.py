"""``dicerl bench``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dicerl.config.options import add_config, config_of
from dicerl.errors import ConfigError, DicerlError, printable

STAGES = {
    "environment alone": "env_steps_per_s",
    "inference alone": "inference_steps_per_s",
    "burn-in forward alone": "burn_in_steps_per_s",
    "training alone": "train_steps_per_s",
    "limit": "limit_steps_per_s",
}


def add_parser(commands: Any) -> None:
    """Add ``bench`` to argparse's subparsers; ENV may be left out with ``--compare``."""
    parser = commands.add_parser(
        "bench",
        help="measure throughput",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Agent steps per second of environment, inference, burn-in and training alone (one"
            " thread each, at the run's batch\nsizes), the limit they set, cores / (1/env + 1/infer"
            " + uses (1/train + burn_in/T 1/burn_in_forward)), uses = reuse and\nwhat is replayed,"
            " and the whole under both runtimes (or the one given): its share of the limit, who"
            " waited for whom, and\nwhat would be faster."
        ),
        epilog=(
            "examples:\n  dicerl bench pong --seconds 30 --repeat 5 --json > before.json\n  dicerl"
            " bench --compare before.json after.json"
        ),
    )
    add_config(parser, env_required=False)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="length of the whole run's measurement (default 20)",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=1,
        help="measure all of it this many times and give medians (default 1)",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A.json", "B.json"),
        help="two results of --json beside each other; measures nothing",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Measure and print, or compare two results; return 0."""
    if args.compare:
        return _compare(*args.compare)
    if args.env is None:
        raise DicerlError("bench needs an environment, for example: dicerl bench pong")
    from dicerl.envs import preset_for

    config = config_of(args, preset_for)
    if not 0 < args.seconds <= 86_400:
        raise ConfigError("seconds", args.seconds, "it must lie between 0 and 86400")
    if not 1 <= args.repeat <= 1000:
        raise ConfigError("repeat", args.repeat, "it must lie between 1 and 1000")
    from dicerl.bench.bench import bench

    runtimes = ("serial", "process") if getattr(args, "runtime.kind", "auto") == "auto" else ()
    result = bench(
        config,
        args.seconds,
        lambda line: print(printable(line), file=sys.stderr),
        args.repeat,
        runtimes,
    )
    lines = [json.dumps(result)] if args.json else describe(result)
    print("\n".join(map(printable, lines)))
    return 0


def describe(result: dict[str, Any]) -> list[str]:
    """Human-readable output."""
    # imported here: the command line starts without numpy
    from dicerl.records.vocabulary import STAGES_OF, stage_field

    median = f", medians of {result['repeat']}" if result["repeat"] > 1 else ""
    lines = [
        f"{result['env']}, preset {result['preset']}, {result['cores']} cores, learner on"
        f" {result['device']}; agent steps/s{median}"
    ]
    lines += [
        f"  {title:<24}{f'{result[key]:,.0f}' if result[key] else '–':>12}"
        for title, key in STAGES.items()
    ]
    for kind, whole in result["whole"].items():
        mark = " (what it would use)" if kind == result["default_runtime"] else ""
        lines.append(
            f"  {'the whole, ' + kind:<24}{whole['steps_per_s']:>12,.0f}  "
            f" {whole['efficiency']:.0%} of the limit{mark}"
        )
        for who, names in STAGES_OF.items():
            parts = [
                f"{name} {whole[field]:.0%}"
                for name in names
                if (field := stage_field(who, name)) in whole
            ]
            if parts:
                lines.append(f"    {who + ':':<10}{', '.join(parts)}")
        if "policy_lag" in whole:
            lines.append(
                f"    policy lag {whole['policy_lag']:.1f} updates,"
                f" {whole.get('queued_sequences', 0):.0f} sequences waiting,"
                f" {whole['memory_bytes'] / 2**20:,.0f} MiB"
            )
    return lines + [f"  try {line}" for line in result["advice"]]


def _compare(before: str, after: str) -> int:
    from dicerl.bench.bench import compare
    from dicerl.records.files import read_json

    results = []
    for path in (before, after):
        try:
            results.append(read_json(Path(path)))
        except (OSError, ValueError) as error:
            raise DicerlError(
                f"{path} cannot be read: {error}; it must be what dicerl bench --json printed"
            ) from None
        if not isinstance(results[-1], dict) or "limit_steps_per_s" not in results[-1]:
            raise DicerlError(f"{path} is not a result of dicerl bench --json")
    titles = (printable(Path(path).name) for path in (before, after))
    print("".join(["".ljust(36), *(f"{title:>16}" for title in titles), f"{'ratio':>8}"]))
    for name, old, new, ratio in compare(*results):
        print(f"{printable(name):<36}{old:>16,.4g}{new:>16,.4g}{ratio:>8.2f}")
    return 0
