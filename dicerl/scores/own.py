"""Own runs beside the paper's systems: the newest evaluation of every run on disk, grouped by
variant and game.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dicerl.config import Config, fields_of, from_dict, get, validate
from dicerl.config.options import BOOK_KEEPING, SET_BY_SUITE
from dicerl.errors import DicerlError
from dicerl.records import files
from dicerl.records.metrics import read_lines
from dicerl.scores.reference import table_name

Own = dict[str, dict[str, list[float]]]  # {column: {game: the scores of its runs}}


def newest_evaluation(run_dir: Path) -> dict[str, Any] | None:
    """The last line of evaluations.jsonl that holds a score; None where there is none yet."""
    path = run_dir / "evaluations.jsonl"
    lines = read_lines(path) if path.is_file() else []
    return next((line for line in reversed(lines) if _is_score(line.get("mean_return"))), None)


def _is_score(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def own_scores(paths: Iterable[str | Path]) -> tuple[Own, list[str]]:
    """({"own dice": {"pong": [20.1, 19.8]}}, notes). A path is a run, or a directory with runs one
    or two levels below.
    """
    own: Own = {}
    notes: list[str] = []
    lengths: dict[str, set[int]] = {}
    configs: dict[tuple[str, str], list[Config]] = {}
    seen: set[Path] = set()
    for directory in (run for path in paths for run in _runs_below(Path(path))):
        if directory.resolve() in seen:
            continue
        seen.add(directory.resolve())
        try:
            config, evaluation = _config(directory), newest_evaluation(directory)
        except DicerlError as error:
            notes.append(f"{directory} is left out: {error}")
            continue
        try:
            game = table_name(config.env.id)
        except DicerlError:
            notes.append(f"{directory} is left out: {config.env.id} is none of the 57 Atari games")
            continue
        if evaluation is None:
            notes.append(f"{directory} is left out: it has no evaluation yet")
            continue
        column = f"own {config.variant}"
        own.setdefault(column, {}).setdefault(game, []).append(float(evaluation["mean_return"]))
        lengths.setdefault(column, set()).add(config.frames)
        configs.setdefault((column, game), []).append(config)
    for column, frames in lengths.items():
        if len(frames) > 1:
            notes.append(
                f"{column} holds runs of different length:"
                f" {', '.join(f'{n:,}' for n in sorted(frames))} frames"
            )
    for (column, game), own_configs in configs.items():
        for name in _differing(own_configs):
            notes.append(
                f"{column} holds runs of {game} that differ in {name}; name the runs of one setting"
            )
    if seen and not own:
        raise DicerlError(f"no run has a score to show; {notes[0]}")
    return own, notes


def _differing(configs: list[Config]) -> list[str]:
    """Settings that are not the same in all of them, apart from book-keeping and the length."""
    aside = (*SET_BY_SUITE, *BOOK_KEEPING, "frames")
    return [
        name
        for name in fields_of()
        if not name.startswith(aside)
        and any(get(config, name) != get(configs[0], name) for config in configs)
    ]


def _runs_below(path: Path) -> list[Path]:
    found = sorted(files.folders_with("config.json", path, 2))
    if not found:
        raise DicerlError(f"{path} holds no run (no config.json in it, nor in a directory below)")
    return found


def _config(directory: Path) -> Config:
    try:
        return validate(from_dict(files.read_json(directory / "config.json")))
    except (OSError, ValueError, DicerlError) as error:
        raise DicerlError(f"{directory / 'config.json'} is damaged: {error}") from None
