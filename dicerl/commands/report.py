"""``dicerl report RUN...``: runs' figures in one HTML file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError, printable, require_folder


def add_parser(commands: Any) -> None:
    """Add ``report`` to argparse's subparsers; it takes one RUN or several."""
    parser = commands.add_parser(
        "report",
        help="write runs' figures into one HTML file",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "One self-contained HTML file (it opens offline): learning curves, temperature maps,"
            " the bandits' vote, losses, policy lag,\nthroughput, configuration and commit. Runs"
            " that differ only in their seed become one line with a shade."
        ),
        epilog=(
            "examples:\n  dicerl report runs/pong-dice-0\n  dicerl report runs/pong-dice-*"
            " runs/pong-baseline-* -o pong.html\n  dicerl report runs            every run below"
            " runs/"
        ),
    )
    parser.add_argument(
        "run", nargs="+", metavar="RUN", help="a run's directory, or a directory with runs in it"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="default: RUN/report.html for one run, else report.html here",
    )


def run(args: argparse.Namespace) -> int:
    """Write the HTML file, print its path and size; return 0."""
    from dicerl.report.data import find_runs
    from dicerl.report.report import write_report

    directories: list[Path] = []
    for name in args.run:
        found = find_runs(Path(name))
        if not found:
            what = (
                "holds no run (no config.json)" if Path(name).is_dir() else "is not a run directory"
            )
            raise DicerlError(f"{name} {what}")
        directories += [d for d in found if d not in directories]
    output = (
        Path(args.output)
        if args.output
        else directories[0] / "report.html"
        if len(directories) == 1
        else Path("report.html")
    )
    if output.is_dir():
        raise DicerlError(
            f"output {output} is a directory; name a file, for example {output / 'report.html'}"
        )
    require_folder("output", output)
    # whoever made the run chose where a link leads, and nobody may ever read from a FIFO
    if (
        not args.output
        and os.path.lexists(output)
        and (output.is_symlink() or not output.is_file())
    ):
        what = "a link" if output.is_symlink() else "not a regular file"
        raise DicerlError(f"{output} is {what}; name the file to write with -o")
    write_report(directories, output, lambda line: print(printable(line), file=sys.stderr))
    print(printable(f"{output} ({output.stat().st_size / 1e6:.1f} MB)"))
    return 0
