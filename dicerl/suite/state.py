"""How far a suite's runs have come, read from disk: so a suite that was killed knows what is left
to do.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from dicerl.config import fields_of, get
from dicerl.errors import CheckpointError, DicerlError
from dicerl.records import checkpoint, files, loggers
from dicerl.records.run import Run
from dicerl.scores.own import newest_evaluation
from dicerl.suite.plan import SuiteRun

WRITTEN = (
    "config.json",
    "config.json.new",
    "metrics.jsonl",
    "metrics.discarded.jsonl",
    "evaluations.jsonl",
    "evaluations.tmp",
    "tensorboard",
    "checkpoints",
    "best",
    "run.lock",
    *loggers.WRITTEN,
)
TAIL = 1 << 14  # bytes at the end of metrics.jsonl, enough to hold a whole line


def look(run: SuiteRun) -> None:
    """Set frames, score, and whether the run is finished: its newest whole checkpoint has all the
    frames.
    """
    run.frames, complete = saved(run)
    if complete:
        run.state, run.reason = "finished", ""
        evaluation = newest_evaluation(run.directory)
        run.score = None if evaluation is None else float(evaluation["mean_return"])


def saved(run: SuiteRun) -> tuple[int, bool]:
    """(frames of the newest whole checkpoint or 0, whether the run is complete)."""
    if not (run.directory / "config.json").is_file():
        return 0, False
    try:
        state = Run(run.directory, run.config).newest_checkpoint().state
    except CheckpointError:
        return 0, False
    return state.frames, state.complete(run.config)


def has_checkpoint(run: SuiteRun) -> bool:
    """Whether there is a checkpoint to resume the run from."""
    return bool(checkpoint.checkpoints_of(run.directory)) or checkpoint.has_unnamed(run.directory)


def check(run: SuiteRun) -> None:
    """Refuse a run on disk with other settings than the suite's; how it uses the machine does not
    matter.
    """
    if not has_checkpoint(run):
        return
    config = Run.open(run.directory).config
    for name in fields_of():
        if name == "run_dir" or name.startswith("runtime."):
            continue
        before, now = get(config, name), get(run.config, name)
        if before != now:
            raise DicerlError(
                f"{run.directory} was run with {name} {before!r}, this suite asks for {now!r}; name"
                " another directory with --dir"
            )


def make_room(run: SuiteRun) -> None:
    """Clear away a run that died before its first checkpoint: `train` needs an empty directory,
    and there is nothing to keep.
    """
    if not run.directory.exists() or has_checkpoint(run):
        return
    foreign = sorted(
        p.name
        for p in run.directory.iterdir()
        if p.name not in WRITTEN and not p.match("bad_batch-*.safetensors")
    )
    if foreign:
        raise DicerlError(
            f"{run.directory} holds {foreign[0]}, which no run wrote; move it away or name another"
            " directory with --dir"
        )
    shutil.rmtree(run.directory)


def now(run: SuiteRun) -> dict[str, Any]:
    """The newest metrics line of a running run: frames, recent_return, ..."""
    try:
        with files.open_regular(run.directory / "metrics.jsonl") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for raw in reversed(lines):
        try:
            line = files.parse_json(raw)
        except ValueError:
            continue
        # an evaluation's frames are those at its beginning, some lines before
        if isinstance(line, dict) and line.get("kind") != "evaluation" and _is_count(line):
            return line
    return {}


def _is_count(line: dict[str, Any]) -> bool:
    return type(line.get("frames")) is int and line["frames"] >= 0


def last_words(run: SuiteRun) -> str:
    """The last line of a run's log: why it failed."""
    try:
        with files.open_regular(run.log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "no log"
    return next(
        (line.strip().removeprefix("dicerl: ") for line in reversed(lines) if line.strip()),
        "no word in its log",
    )
