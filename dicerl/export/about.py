"""What is known of a trained agent: where it comes from, how well it plays, at which temperatures.
It goes into every exported file and onto a package's card.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dicerl.agent.behaviour import Behaviours
from dicerl.core import family
from dicerl.records import checkpoint, files
from dicerl.records.checkpoint import Checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run, software

LONGEST = 1 << 20  # bytes of the first line of metrics.jsonl
LARGEST = 1e300  # of a number in evaluations.jsonl


def about(run: Run, found: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The agent of a checkpoint, whose model has these ``tensors``, as a JSON value; what the run
    does not say is None.
    """
    config, state = run.config, found.state
    return {
        "env": config.env.id,
        "variant": config.variant,
        "preset": config.preset,
        "seed": config.seed,
        "frames": state.frames,
        "updates": state.updates,
        "family": config.behaviour.family,
        "region": region(run, found, tensors),
        "score": score_of(evaluation(run.directory, state.updates)),
        "trained_with": started(run.directory),
        "written_with": software(),
    }


def region(run: Run, found: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """[lowest, highest] of each number of the family that the agent plays with: the best region of
    its vote, the fixed value, or the trained one.
    """
    with checkpoint.fitting(found.path):
        if "log_inv_temperature" in tensors:
            return {"inv_temperature": [float(tensors["log_inv_temperature"].exp())] * 2}
        votes = found.state.temperatures
        behaviours = Behaviours(run.config, len(votes["votes"]))
        behaviours.load_state_dict(votes)
    pairs = zip(behaviours.names, behaviours.evaluation_region(), strict=True)
    return {name: sorted(float(family.from_x(name, x)) for x in ends) for name, ends in pairs}


def started(directory: Path) -> dict[str, str]:
    """Version and commit that a run was started with, from the first line of metrics.jsonl."""
    try:
        with files.open_regular(directory / "metrics.jsonl") as file:
            line = files.parse_json(file.readline(LONGEST))
    except (OSError, ValueError):
        return {}
    if not isinstance(line, dict) or line.get("event") != "start":
        return {}
    return {name: line[name] for name in ("version", "commit") if isinstance(line.get(name), str)}


def evaluation(directory: Path, updates: int) -> dict[str, Any] | None:
    """The line of a run's own evaluation of its parameters after ``updates``; None if there was
    none. ``best_of`` is added where it is the best of several: what was chosen for its score has
    one that flatters.
    """
    path = directory / "evaluations.jsonl"
    lines = [line for line in (read_lines(path) if path.is_file() else []) if score_of(line)]
    own = [line for line in lines if line.get("version", line.get("updates")) == updates]
    if not own:
        return None
    best = len(lines) > 1 and own[-1]["mean_return"] == max(line["mean_return"] for line in lines)
    return {**own[-1], **({"best_of": len(lines)} if best else {})}


def score_of(line: dict[str, Any] | None) -> dict[str, Any] | None:
    """Mean return, interval and number of episodes of an evaluation line; None unless they are what
    a run writes.
    """
    if line is None:
        return None
    mean, interval, episodes = (line.get(k) for k in ("mean_return", "interval", "episodes"))
    ends = interval if isinstance(interval, list) else []
    if interval is not None and len(ends) != 2:
        return None
    if type(episodes) is not int or not 0 <= episodes < LARGEST:
        return None
    if any(type(x) not in (int, float) or not abs(x) < LARGEST for x in (mean, *ends)):
        return None
    best_of = line.get("best_of")
    return {
        "mean_return": mean,
        "interval": interval,
        "episodes": episodes,
        "best_of": best_of if type(best_of) is int and best_of < LARGEST else None,
    }
