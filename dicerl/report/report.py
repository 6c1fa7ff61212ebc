"""``dicerl report RUN...``: one HTML file with everything inside."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError

EMBEDDED = 4 << 20  # bytes; a larger video is linked


def add_parser(commands: Any) -> None:
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
    from dicerl.report.data import find_runs

    directories: list[Path] = []
    for name in args.run:
        found = find_runs(Path(name))
        if not found:
            what = "holds no run (no config.json)" if Path(name).is_dir() else "is no run directory"
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
    write_report(directories, output, lambda line: print(line, file=sys.stderr))
    print(f"{output} ({output.stat().st_size / 1e6:.1f} MB)")
    return 0


def write_report(directories: Sequence[Path], output: Path, say: Any = lambda line: None) -> None:
    from dicerl.report.data import RunData
    from dicerl.report.page import inlined
    from dicerl.report.sections import payload

    names = unique_names(directories)
    runs = []
    for directory, name in zip(directories, names, strict=True):
        run = RunData(directory, name)
        run.refresh()
        if run.damaged:
            say(
                f"{directory / 'metrics.jsonl'}: {run.damaged} damaged"
                f" line{'s' if run.damaged > 1 else ''} passed over"
            )
        runs.append(run)
    content = payload(runs)
    for described, run in zip(content["runs"], runs, strict=True):
        described["video"] = _video(run.newest_video(), output)
    title = (
        f"{runs[0].name}"
        if len(runs) == 1
        else f"{len(runs)} runs of {', '.join(dict.fromkeys(run.env for run in runs))}"
    )
    text = inlined(
        f"{title} · dicerl",
        f"written {time.strftime('%Y-%m-%d %H:%M')}",
        json.dumps(content, allow_nan=False),
    )
    output.write_text(text, encoding="utf-8")


def unique_names(directories: Sequence[Path]) -> list[str]:
    """Folder names, with as many parents as it takes to tell them apart."""
    names = [d.resolve().name for d in directories]
    for parents in range(2, 10):
        if len(set(names)) == len(names):
            break
        names = ["/".join(d.resolve().parts[-parents:]) for d in directories]
    return names


def _video(path: Path | None, output: Path) -> dict[str, str] | None:
    if path is None:
        return None
    shown = {"name": path.name, "href": os.path.relpath(path, output.resolve().parent)}
    if path.stat().st_size <= EMBEDDED:
        shown["src"] = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return shown
