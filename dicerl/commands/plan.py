"""``dicerl plan ENV``: what a run would cost on machines that need not be here."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from dicerl.config.options import add_config, config_of
from dicerl.errors import ConfigError, printable

if TYPE_CHECKING:
    from dicerl.plan.machines import Machines

# (CPUs of each machine, GPUs, machines) of the table of sizes
SIZES = (
    (2, 0, 1),
    (8, 0, 1),
    (32, 0, 1),
    (92, 0, 1),
    (8, 1, 1),
    (16, 1, 1),
    (92, 1, 1),
    (92, 1, 4),
)
FLEETS = (2, 10, 100, 1_000, 10_000)  # actors
MOST_ACTORS = 10_000


def add_parser(commands: Any) -> None:
    """Add ``plan`` to argparse's subparsers."""
    parser = commands.add_parser(
        "plan",
        help="what a run would cost on other machines",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Agent steps/s, who waits, network, memory and hours of a run on machines that need not"
            " be here, from what its parts\ncost on this one (measured in seconds, or a file of"
            " dicerl bench --json) and from assumptions, all of which are\nprinted."
        ),
        epilog=(
            "examples:\n  dicerl plan pong --preset paper --cpus 92 --gpus 1\n  dicerl plan pong"
            " --preset paper --cpus 32 --gpus 1 --nodes 4 --update-ms 350 --simulate\n  dicerl"
            " bench pong --json > costs.json; dicerl plan pong --costs costs.json --sizes"
        ),
    )
    add_config(parser)
    group = parser.add_argument_group("machines")
    group.add_argument(
        "--cpus", type=int, metavar="N", help="of each machine (default: this one's)"
    )
    group.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="of the machine that trains (default 0)"
    )
    group.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="machines that work, joined by a network (default 1)",
    )
    group.add_argument(
        "--gbits",
        type=float,
        default=10.0,
        metavar="G",
        help="Gbit/s of each machine's link (default 10)",
    )
    group.add_argument(
        "--gpu", default="V100", metavar="NAME", help="V100 (default), T4 or A100: its stated peak"
    )
    group.add_argument(
        "--update-ms",
        type=float,
        metavar="MS",
        help="what an update takes on one GPU, if you have measured it",
    )
    group = parser.add_argument_group("costs and output")
    group.add_argument(
        "--costs", metavar="FILE", help="of dicerl bench --json, instead of measuring here"
    )
    group.add_argument(
        "--seconds", type=float, default=3.0, help="length of a measurement (default 3)"
    )
    group.add_argument(
        "--simulate",
        type=int,
        nargs="*",
        metavar="N",
        help="also simulate the supervisor with fleets of N actors (default 2 10 100 1000 10000)",
    )
    group.add_argument("--sizes", action="store_true", help="also a table of other machines")
    group.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Plan and print; return 0."""
    from dicerl.envs import preset_for

    config = config_of(args, preset_for)
    from dicerl.runtime.machine import cores

    cpus = cores() if args.cpus is None else args.cpus
    _within("cpus", cpus, 1, 100_000)
    _within("gpus", args.gpus, 0, 1000)
    _within("nodes", args.nodes, 1, 100_000)
    _within("gbits", args.gbits, 1e-6, 1e6)
    _within("seconds", args.seconds, 0.01, 3600)
    if args.update_ms is not None:
        _within("update_ms", args.update_ms, 1e-3, 1e9)
    for count in args.simulate or ():
        _within("simulate", count, 1, MOST_ACTORS)
    from dicerl.plan.machines import Machines
    from dicerl.plan.plan import Planner

    planner = Planner(
        config,
        args.seconds,
        lambda line: print(printable(line), file=sys.stderr),
        args.costs,
        args.gpu,
        args.update_ms,
    )
    machines = Machines(cpus, args.gpus, args.nodes, args.gbits)
    result = planner.plan(machines)
    if args.sizes:
        result["sizes"] = [
            planner.plan(Machines(*size, gbits=args.gbits)) for size in _sizes(machines)
        ]
    if args.simulate is not None:
        result["simulation"] = planner.fleet(machines, args.simulate or FLEETS)
    lines = [json.dumps(result)] if args.json else describe(result)
    print("\n".join(map(printable, lines)))
    return 0


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(name, value, f"it must lie between {low:g} and {high:g}")


def _sizes(machines: Machines) -> list[tuple[int, int, int]]:
    """The table's sizes, those with a GPU only if the plan has one."""
    return [size for size in SIZES if not size[1] or machines.gpus]


def describe(result: dict[str, Any]) -> list[str]:
    """Human-readable output."""
    from dicerl.runtime.machine import amount

    machines = result["machines"]
    several = f"{machines['nodes']} machines, each with " if machines["nodes"] > 1 else ""
    trains = f" and {machines['gpus']} {result['device']}" if machines["gpus"] else ""
    network = result["network_mb_per_s"]
    rows = [
        (
            "runtime",
            f"{result['runtime']}: {result['num_actors']:,} actor(s) of"
            f" {result['envs_per_actor']} environments, {result['num_learners']} learner(s) on"
            f" {result['device']}",
        ),
        ("agent steps/s", f"{result['steps_per_s']:,.0f}"),
        ("frames/s", f"{result['frames_per_s']:,.0f}"),
        ("limited by", result["limit"]),
        ("who waits", result["who_waits"]),
        (
            "the learner alone",
            f"{result['learner_steps_per_s']:,.0f} agent steps/s:"
            f" {result['saturating_actors']:,} actor(s) of {result['actor_steps_per_s']:,.0f}"
            " saturate it",
        ),
        (
            "memory",
            ", ".join(
                f"{name.replace('_', ' ')} {amount(size)}"
                for name, size in result["memory_bytes"].items()
            ),
        ),
    ]
    if machines["nodes"] > 1:
        rows.append(
            (
                "network",
                f"{network['in']:,.1f} MB/s to the learner's machine,"
                f" {network['out']:,.1f} MB/s from it",
            )
        )
    rows += [
        ("hours for the run", f"{result['hours']:,.1f}"),
        ("57 games × 3 seeds", f"{result['suite_days']:,.1f} days, one after the other"),
    ]
    lines = [
        f"{result['env']}, preset {result['preset']}, on {several}{machines['cpus']} CPUs{trains}"
    ]
    lines += [f"  {title:<22}{text}" for title, text in rows]
    lines += ["assumptions", *(f"  - {line}" for line in result["assumptions"])]
    if "sizes" in result:
        lines += ["", *size_table(result["sizes"])]
    if "simulation" in result:
        lines += ["", *fleet_table(result["simulation"])]
    return lines


def size_table(results: list[dict[str, Any]]) -> list[str]:
    """Machines beside each other, as Markdown."""
    lines = [
        "| machines | actors | agent steps/s | limited by | hours | 57 × 3, days |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        m = r["machines"]
        name = f"{m['nodes']} × " * (m["nodes"] > 1) + f"{m['cpus']} CPUs"
        name += f", {m['gpus']} {r['device']}" * (m["gpus"] > 0)
        lines.append(
            f"| {name} | {r['num_actors']:,} × {r['envs_per_actor']} | {r['steps_per_s']:,.0f} |"
            f" {r['limit']} | {r['hours']:,.1f} | {r['suite_days']:,.0f} |"
        )
    return lines


def fleet_table(simulation: dict[str, Any]) -> list[str]:
    """The simulated fleets, and what limits them."""
    plan = simulation["plan"]
    lines = [
        f"simulated: the plan {plan['steps_per_s']:,.0f} agent steps/s (model"
        f" {plan['model_steps_per_s']:,.0f}), policy lag {plan['policy_lag']:.1f}; fleets of its"
        " actors:",
        "| actors | machines | learner | agent steps/s | model | acting | learner | supervisor |"
        " network | messages/s | votes/s | policy lag | slots, GB |",
        "| " + "--- | " * 13,
    ]
    for row in simulation["fleets"]:
        for title, found in (("as planned", row), ("takes no time", row["free_learner"])):
            lag = f"{found['policy_lag']:,.1f}" if found["settled"] else "growing"
            busy = " | ".join(
                f"{found[name]:.0%}" for name in ("acting", "learner", "supervisor", "network")
            )
            lines.append(
                f"| {row['actors']:,} | {row['machines']:,} | {title} |"
                f" {found['steps_per_s']:,.0f} | {found['model_steps_per_s']:,.0f} | {busy} |"
                f" {found['messages_per_s']:,.0f} | {found['votes_per_s']:,.1f} | {lag} |"
                f" {row['memory_bytes'] / 1e9:,.1f} |"
            )
    if any(not row["settled"] for row in simulation["fleets"]):
        lines.append(
            "growing: the collector is full, and not all of what it held at first has been replaced"
        )
    lines.append("limits of the design on a cluster, the scarcest first")
    return lines + [f"  - {line}" for line in simulation["limits"]]
