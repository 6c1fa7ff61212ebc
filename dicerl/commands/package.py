"""``dicerl package RUN``: a trained agent as one folder, to pass on."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dicerl.commands.train import add_trust
from dicerl.errors import printable


def add_parser(commands: Any) -> None:
    """Add ``package`` to argparse's subparsers."""
    parser = commands.add_parser(
        "package",
        help="write a trained agent as one folder, to pass on",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Write a trained agent as one folder: weights (safetensors), config, the state of the"
            " vote, and a card\n(README.md) with its environment, score, seed and commit. It can"
            " be copied anywhere and loaded by path:\ndicerl.load_agent(FOLDER), dicerl evaluate"
            " FOLDER. Nothing in it tells of this machine."
        ),
        epilog=(
            "examples:\n  dicerl package runs/pong-dice-0\n  dicerl package runs/pong-dice-0"
            " --checkpoint best -o pong-agent --episodes 100 --video --licence CC-BY-4.0"
        ),
    )
    parser.add_argument("run", metavar="RUN|CHECKPOINT", help="a run, or one of its checkpoints")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="default packages/<name of the run>; an older package there is replaced",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="{newest,best,N}",
        help="of a run: the newest (default), the best evaluated, or after N updates",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=0,
        metavar="N",
        help="play N episodes for the score on the card (default: the run's own evaluation)",
    )
    parser.add_argument("--video", action="store_true", help="film an episode for the card")
    parser.add_argument(
        "--licence", default="", metavar="NAME", help="of the weights, for the card"
    )
    add_trust(parser, "the run's config.json")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(args: argparse.Namespace) -> int:
    """Write the package and print where it is, as text or JSON; return 0."""
    from dicerl.export.package import package

    result = package(
        args.run,
        args.output,
        checkpoint=args.checkpoint,
        episodes=args.episodes,
        video=args.video,
        licence=args.licence,
        quiet=args.quiet,
        trust=args.trust,
    )
    if args.json:
        print(json.dumps(result))
        return 0
    score = result["score"]
    said = "not evaluated" if score is None else f"mean return {score['mean_return']:,.2f}"
    print(printable(f"{result['package']}: {result['env']}, {result['updates']:,} updates, {said}"))
    print(printable(f"  dicerl evaluate {result['package']}"))
    return 0
