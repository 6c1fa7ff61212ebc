"""``dicerl export RUN --onnx``: a trained agent as one file for other runtimes."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dicerl.commands.train import add_trust
from dicerl.errors import DicerlError, printable


def add_parser(commands: Any) -> None:
    """Add ``export`` to argparse's subparsers, with an option for each format."""
    parser = commands.add_parser(
        "export",
        help="write a trained agent as one file, for ONNX or torch.export",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Write a trained agent as one file that needs no dicerl: observation, recurrent state"
            " and 1/tau in,\nlog-probabilities, V, A and the next state out, for any number of"
            " observations. The file is loaded again and\ncompared with the agent before it is"
            " kept. docs/agents.md lists the tensors."
        ),
        epilog=(
            "examples:\n  dicerl export runs/pong-dice-0 --onnx\n  dicerl export runs/pong-dice-0"
            " --checkpoint best --onnx pong.onnx --torch-export pong.pt2 --json"
        ),
    )
    parser.add_argument(
        "run", metavar="RUN|CHECKPOINT", help="a run, a package, or a checkpoint of one"
    )
    parser.add_argument(
        "--onnx",
        nargs="?",
        const="",
        metavar="FILE",
        help=(
            "for onnxruntime and others (default FILE: RUN/exports/<updates>.onnx); needs: pip"
            " install 'dicerl[export]'"
        ),
    )
    parser.add_argument(
        "--torch-export",
        nargs="?",
        const="",
        metavar="FILE",
        help="for torch.export.load (default FILE: RUN/exports/<updates>.pt2)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="{newest,best,N}",
        help="of a run: the newest (default), the best evaluated, or after N updates",
    )
    add_trust(parser, "the run's config.json")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(args: argparse.Namespace) -> int:
    """Write the files and print their names and tensors, as text or JSON; return 0."""
    if args.onnx is None and args.torch_export is None:
        raise DicerlError(
            f"nothing to export to; for example dicerl export {args.run} --onnx, or --torch-export"
        )
    from dicerl.export.graph import export

    result = export(
        args.run,
        onnx=args.onnx,
        torch_export=args.torch_export,
        checkpoint=args.checkpoint,
        quiet=False,
        trust=args.trust,
    )
    lines = [json.dumps(result)] if args.json else describe(result)
    print("\n".join(map(printable, lines)))
    return 0


def describe(result: dict[str, Any]) -> list[str]:
    """Human-readable output."""
    lines = [f"{result['env']}, {result['updates']:,} updates"]
    for kind, file in result["files"].items():
        lines.append(f"  {file} (within {result['difference'][kind]:.1g} of the agent)")
    for way in ("inputs", "outputs"):
        tensors = (
            f"{name} {dtype} [{', '.join(map(str, shape))}]"
            for name, (dtype, shape) in result[way].items()
        )
        lines.append(f"  {way:8}{', '.join(tensors)}")
    for name, (low, high) in result["region"].items():
        lines.append(f"  plays with {name} {low:.4g}{f' to {high:.4g}' if high > low else ''}")
    return lines
