"""``dicerl evaluate RUN``: plays episodes of a trained agent, prints their returns, films one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dicerl.commands.train import add_trust
from dicerl.errors import ConfigError, printable
from dicerl.evaluate.evaluate import PROTOCOLS, Evaluation, evaluate


def add_parser(commands: Any) -> None:
    """Add ``evaluate`` to argparse's subparsers, with the protocols by name."""
    parser = commands.add_parser(
        "evaluate",
        help="play episodes with a trained agent",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Play episodes with a trained agent: mean, median, standard error and each return; with"
            " --video also a film of the first one.\nTemperatures come from the bandits' best"
            " region unless --inv-temperature or --greedy is given."
        ),
        epilog=(
            "examples:\n  dicerl evaluate runs/pong-dice-0\n  dicerl evaluate runs/pong-dice-0"
            " --episodes 100 --protocol sticky --json\n  dicerl evaluate runs/pong-dice-0"
            " --checkpoint best --greedy --video pong.mp4\n  dicerl evaluate"
            " runs/pong-dice-0/checkpoints/9375 --episodes 1 --video"
        ),
    )
    parser.add_argument(
        "run",
        metavar="RUN|CHECKPOINT",
        help="a run's directory, or one of its checkpoints (RUN/checkpoints/1000)",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=32,
        metavar="N",
        help="episodes, one in each of as many environments (default 32)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="{newest,best,N}",
        help="of a run: the newest (default), the best evaluated, or after N updates",
    )
    parser.add_argument(
        "--inv-temperature", type=float, metavar="X", help="1/tau of every episode; 0 is uniform"
    )
    parser.add_argument("--greedy", action="store_true", help="always take A's best action")
    parser.add_argument(
        "--protocol",
        default="paper",
        metavar="{" + ",".join(PROTOCOLS) + "}",
        help="; ".join(f"{name}: {text}" for name, text in PROTOCOLS.items()),
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help=(
            "cut an episode after N agent steps (default: Atari the protocol's frames, else the"
            " run's evaluation.max_steps)"
        ),
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of environments, temperatures and actions (default 0)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help=(
            "threads of the network (default 1; more help a deep network on idle cores, and harm on"
            " busy ones)"
        ),
    )
    parser.add_argument(
        "--video",
        nargs="?",
        const="",
        metavar="FILE",
        help="film the first episode (default FILE: RUN/videos/<updates>.mp4)",
    )
    add_trust(parser, "the run's config.json")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Play the episodes and print their scores, as text or JSON; return 0."""
    if not 1 <= args.threads <= 1024:
        raise ConfigError("threads", args.threads, "it must lie between 1 and 1024")
    import torch

    torch.set_num_threads(args.threads)
    evaluation = evaluate(
        args.run,
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        inv_temperature=args.inv_temperature,
        greedy=args.greedy,
        protocol=args.protocol,
        max_steps=args.max_steps,
        seed=args.seed,
        video=args.video,
        quiet=args.quiet,
        trust=args.trust,
    )
    lines = [json.dumps(evaluation.result)] if args.json else describe(evaluation)
    print("\n".join(map(printable, lines)))
    return 0


def describe(evaluation: Evaluation) -> list[str]:
    """Human-readable output."""
    r = evaluation.result
    rows = [
        ("mean return", f"{r['mean_return']:,.2f} ± {r['stderr']:,.2f} (standard error)"),
        ("median", f"{r['median_return']:,.2f}"),
    ]
    if r["interval"] is not None:
        rows.insert(1, ("95 %", "{:,.2f} to {:,.2f}".format(*r["interval"])))
    if r["hns"] is not None:
        rows += [("HNS", f"{r['hns']:,.2f} %"), ("SABER", f"{r['saber']:,.2f} %")]
    rows += [
        *evaluation.temperatures.items(),
        ("returns", " ".join(f"{x:g}" for x in r["returns"])),
    ]
    if evaluation.cut:
        rows.append(
            (
                "cut",
                (
                    f"{evaluation.cut} of {r['episodes']} episodes, after {evaluation.max_steps:,}"
                    " steps; they count with what they had"
                ),
            )
        )
    if evaluation.video:
        rows.append(
            ("video", f"{evaluation.video} (the first episode, return {r['returns'][0]:g})")
        )
    protocol = f"{evaluation.protocol} protocol, " if evaluation.protocol else ""
    return [
        f"{r['env']}, {r['episodes']} episodes, {protocol}{evaluation.checkpoint}",
        *(f"  {name:<13}{text}" for name, text in rows),
    ]
