"""What must hold of a run's directory after any number of faults, read without the package's own
readers: every line of the metrics is whole, no update is missing or doubled, no counter jumps back,
the evaluations are those of the metrics, nothing half-written is left, the books balance.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COUNTERS = ("agent_steps", "frames", "updates")


def problems_of(run: Path) -> list[str]:
    """What is wrong with a finished run that logs every update; [] if nothing is."""
    metrics, found = _parsed(run / "metrics.jsonl")
    if not metrics:
        return [*found, "metrics.jsonl is empty"]
    found += ranges(metrics)
    evaluations, damaged = _parsed(run / "evaluations.jsonl")
    found += damaged
    if evaluations != [line for line in metrics if line["kind"] == "evaluation"]:
        found.append("evaluations.jsonl and metrics.jsonl differ")
    found += books(metrics)
    kept = [path.name for path in (run / "checkpoints").iterdir()]
    strange = [name for name in kept if not name.isdigit() and not name.startswith("aside-")]
    if strange:
        found.append(f"left in checkpoints/: {strange}")
    newest = max((int(name) for name in kept if name.isdigit()), default=None)
    if newest != metrics[-1]["updates"]:
        found.append(f"the newest checkpoint is {newest} of {metrics[-1]['updates']} updates")
    return found


def ranges(metrics: Sequence[dict[str, Any]]) -> list[str]:
    """Gaps, doubled ranges and counters that jump back."""
    found = []
    trained = [line["updates"] for line in metrics if line["kind"] == "train"]
    expected = list(range(1, metrics[-1]["updates"] + 1))
    if trained != expected:
        missing, doubled = set(expected) - set(trained), len(trained) - len(set(trained))
        found.append(f"{len(missing)} updates are missing {sorted(missing)[:5]}, {doubled} doubled")
    # an evaluation's line is of the moment it began
    lines = [line for line in metrics if line["kind"] != "evaluation"]
    for name in COUNTERS:
        values = [line[name] for line in lines]
        if values != sorted(values):
            found.append(f"{name} jumps back")
    starts = sum(line.get("event") == "start" for line in metrics)
    if starts != 1:
        found.append(f"{starts} lines say that it starts")
    return found


def books(metrics: Sequence[dict[str, Any]]) -> list[str]:
    """Where lines account for every sequence, the sum holds: each use that is due to a sequence was
    trained, dropped or waits.
    """
    found = []
    for line in metrics:
        if isinstance(kept := line.get("books"), dict):
            parts = {name: kept[name] for name in ("trained", "dropped", "waiting")}
            if kept["due"] != sum(parts.values()):
                found.append(f"{kept['due']} uses were due at {line['updates']} updates: {parts}")
    return found[:1]


def _parsed(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    lines, damaged = [], []
    for number, raw in enumerate(path.read_bytes().splitlines() if path.exists() else []):
        try:
            lines.append(json.loads(raw))
        except ValueError:
            damaged.append(f"line {number + 1} of {path.name} is damaged: {raw[:80]!r}")
    return lines, damaged
