"""``dicerl suite``: games × variants × settings × seeds, resumable, with statistics at the end."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dicerl.commands.train import add_trust
from dicerl.config.options import SET_BY_SUITE, add_fields, given_fields
from dicerl.config.presets import PRESETS
from dicerl.errors import printable


def add_parser(commands: Any) -> None:
    """Add ``suite`` to argparse's subparsers, with every config field it does not set itself."""
    parser = commands.add_parser(
        "suite",
        help="games × variants × seeds, with statistics",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Train every game with every variant and seed; then IQM, mean and median with 95 %"
            " stratified bootstrap intervals, and the\nprobability of improvement. A number or a"
            " choice given several values (a,b,c) is swept: every combination is\ntrained, and the"
            " best is named. The same command again goes on where it stopped: finished runs are"
            " not run\nagain, others are resumed. Ctrl-C stops every run with a checkpoint."
        ),
        epilog=(
            "examples:\n  dicerl suite minatar.toml --jobs 4\n  dicerl suite --games CartPole-v1"
            " --variants dice baseline --seeds 3 --frames 50000 --dir"
            " suites/cartpole\n  dicerl suite --games CartPole-v1 --optimizer.learning-rate"
            " 3e-4,1e-3,3e-3 --dir suites/rates"
            '\n\nminatar.toml:\n  games = ["MinAtar/Breakout-v1",'
            ' "MinAtar/Asterix-v1"]\n  variants = ["dice", "baseline", "random"]\n  seeds = 5\n '
            ' against = "baseline"\n  [config]\n  frames = 1_000_000\n  optimizer.learning_rate ='
            " [1e-3, 3e-3]          # a list: each of them\n  [search]"
            "                                        # or drawn at random\n  samples = 20\n "
            " loss.q = {min = 0.1, max = 10, log = true}"
        ),
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a TOML file; options win over it")
    parser.add_argument(
        "--games", nargs="+", metavar="ENV", help="Atari games, Gymnasium ids, module:Id-v0"
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        metavar="VARIANT",
        help="`dicerl variants` lists them (default: dice)",
    )
    parser.add_argument(
        "--seeds", nargs="+", metavar="N", help="3 means 0, 1, 2; 0,1,7 means those (default 3)"
    )
    parser.add_argument(
        "--preset",
        metavar="{" + ",".join(PRESETS) + "}",
        help="default: the one that fits each game",
    )
    parser.add_argument(
        "--dir", metavar="DIR", help="the suite's directory (default: suites/ and the file's name)"
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        help=(
            "runs at a time, each with its share of the cores "
            "(default: one a core; 1 with --runtime process, where a run takes all cores)"
        ),
    )
    parser.add_argument(
        "--against",
        metavar="VARIANT",
        help="probability of improvement against this one (default: baseline, if it is there)",
    )
    parser.add_argument(
        "--samples", metavar="N", help="settings to draw from the file's [search], instead of its"
    )
    add_trust(parser, "FILE")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on standard output (the same as suite.json)",
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing while it runs")
    add_fields(parser, hidden=SET_BY_SUITE)


def run(args: argparse.Namespace) -> int:
    """Run what is left and print the results; return 0, 1 if a run failed, 128 and the
    signal's number if one stopped it.
    """
    from dicerl.records.progress import output
    from dicerl.suite import show
    from dicerl.suite.plan import make_plan
    from dicerl.suite.suite import run_suite

    given = {
        key: getattr(args, key)
        for key in ("games", "variants", "seeds", "preset", "dir", "jobs", "against", "samples")
    }
    plan = make_plan(given, given_fields(args, SET_BY_SUITE), args.file, args.trust)
    found, complete = run_suite(plan, args.quiet)
    if args.json:
        print(json.dumps(found))
    else:
        console = output()
        console.print(show.score_table(plan))
        console.print(show.result_table(found))
        for line in (*show.best_lines(found), *show.notes(found)):
            console.print(printable(line), markup=False)
    failed = [r for r in plan.runs if r.state == "failed"]
    if not complete:
        line = f"dicerl: stopped; the same command goes on with {plan.directory}"
        print(printable(line), file=sys.stderr)
        return 128 + plan.signal
    if failed:
        line = (
            f"dicerl: {len(failed)} of {len(plan.runs)} runs failed; the same command tries them"
            f" again. {failed[0].name}: {failed[0].reason}"
        )
        print(printable(line), file=sys.stderr)
    return 1 if failed else 0
