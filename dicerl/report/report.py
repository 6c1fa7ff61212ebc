"""Runs' figures as one HTML file with everything inside."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

EMBEDDED = 4 << 20  # bytes; a larger video is linked


def write_report(directories: Sequence[Path], output: Path, say: Any = lambda line: None) -> None:
    """Write the figures of the runs in ``directories`` to the file ``output``; damaged lines
    are reported through ``say``.
    """
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
    output.write_text(text, encoding="utf-8", errors="replace")  # a name may hold any bytes


def unique_names(directories: Sequence[Path]) -> list[str]:
    """Folder names, with as many parents as needed to tell them apart."""
    names = [d.resolve().name for d in directories]
    for parents in range(2, 10):
        if len(set(names)) == len(names):
            break
        names = ["/".join(d.resolve().parts[-parents:]) for d in directories]
    return names


def _video(path: Path | None, output: Path) -> dict[str, str] | None:
    if path is None:
        return None
    # quoted, and never the beginning of an address: a folder may be called "javascript:..."
    beside = os.path.relpath(path, output.resolve().parent)
    shown = {"name": path.name, "href": "./" + quote(os.fsencode(beside))}
    if path.stat().st_size <= EMBEDDED:
        shown["src"] = f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return shown
