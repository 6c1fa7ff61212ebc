"""The table of a campaign: by kind of fault how many, what became of them, and how fast."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from dicerl.records.run import software
from dicerl.runtime.machine import hardware
from faults.campaign import Outcome

HEAD = (
    "| fault | n | healed | ended with a reason, resumed | s to recover: p50 | p95 | max"
    " | steps redone: p50 | max |"
)


def make(
    outcomes: Sequence[Outcome], seed: int, seconds: float, cut_off: int = 0
) -> dict[str, Any]:
    """The table as a value, with what it takes to make it again; one that was ``cut_off`` names the
    number of faults that were asked for.
    """
    real = [o for o in outcomes if o.result in ("healed", "ended")]
    return {
        "faults": len(real),
        **({"cut_off": cut_off} if cut_off else {}),
        "seed": seed,
        "seconds": round(seconds),
        "hardware": hardware(),
        **software(),
        "date": date.today().isoformat(),
        "runtimes": dict(Counter(o.runtime for o in real)),
        "kinds": {
            name: _row([o for o in real if o.kind == name])
            for name in sorted({o.kind for o in real})
        },
        "all": _row(real),
        "skipped": dict(
            Counter(f"{o.kind}: {o.detail}" for o in outcomes if o.result == "skipped")
        ),
        "broken": [vars(o) for o in outcomes if o.result == "broken"],
    }


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    results = Counter(o.result for o in outcomes)
    seconds = [o.seconds for o in outcomes if o.seconds is not None] or [0.0]
    redone = [o.redone for o in outcomes if o.redone is not None] or [0]
    p50, p95 = np.percentile(seconds, [50, 95])
    return {
        "n": len(outcomes),
        "healed": results["healed"],
        "ended": results["ended"],
        "seconds": {
            "p50": round(float(p50), 1),
            "p95": round(float(p95), 1),
            "max": round(max(seconds), 1),
        },
        "steps_redone": {"p50": int(np.median(redone)), "max": max(redone)},
    }


def markdown(result: dict[str, Any]) -> str:
    """The table for a page."""
    lines = [HEAD, "| --- " * HEAD.count(" | ") + "| --- |"]
    for name, row in {**result["kinds"], "**all**": result["all"]}.items():
        seconds, redone = row["seconds"], row["steps_redone"]
        cells = [name, row["n"], row["healed"], row["ended"]]
        cells += [seconds["p50"], seconds["p95"], seconds["max"], redone["p50"], redone["max"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    cpu, cores = result["hardware"]["cpu"], result["hardware"]["cores"]
    lines += [
        "",
        f"{result['faults']} faults, seed {result['seed']},"
        f" {', '.join(f'{n} {name}' for name, n in sorted(result['runtimes'].items()))};"
        f" {result['seconds']} s on {cores} cores ({cpu}), commit"
        f" {result.get('commit', 'unknown')}, {result['date']}.",
    ]
    if "cut_off" in result:
        lines.append(f"Cut off by its user: {result['cut_off']} were asked for.")
    lines += [f"Not made here: {what} ({n})." for what, n in result["skipped"].items()]
    for broken in result["broken"]:
        problem = " ".join(broken["problem"].split())
        where = f"story {broken['story']}, {broken['runtime']}"
        lines.append(f"**Broken** ({where}): {broken['kind']}: {problem}")
    return "\n".join(lines)


def write(result: dict[str, Any], path: Path) -> None:
    """As JSON, and as Markdown beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(result) + "\n")
