"""A package: one folder with a trained agent, to pass on.

It is a run reduced to what its agent needs, so that whatever loads a run loads it: config.json, one
checkpoint without optimizer, the start event and the agent's evaluation. Beside these a card for
people, README.md, and the same for programs, dicerl.json. Nothing in it is code, and nothing tells
of the machine it was made on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from dicerl.api import find_checkpoint
from dicerl.config import Config, flatten
from dicerl.envs import MakeEnv
from dicerl.errors import ConfigError, require_folder
from dicerl.evaluate.evaluate import evaluate, find
from dicerl.export.about import about, evaluation, score_of
from dicerl.export.card import card
from dicerl.records import checkpoint as checkpoints
from dicerl.records.run import PACKAGE, Run

FORMAT = 1
VIDEO = "video.mp4"
# all that is ever written into one
CONTENT = (
    "README.md",
    "checkpoints",
    "config.json",
    "evaluations.jsonl",
    "metrics.jsonl",
    PACKAGE,
    VIDEO,
    "video.json",
)
# fields that say where a run was trained, not what
PLACES = ("run_dir", "init.run", "init.vote", "ray.address", "runtime.device")
# an absolute path, inside whatever text
PLACE = re.compile(r'["=,:\s](?:~[\w/]|/\w|[A-Za-z]:\\)')


def package(
    path: str | Path,
    folder: str | Path | None = None,
    make_env: MakeEnv | None = None,
    *,
    checkpoint: str | None = None,
    episodes: int = 0,
    video: bool = False,
    licence: str = "",
    quiet: bool = True,
    trust: bool = False,
) -> dict[str, Any]:
    """Write the agent of ``path``, a run or one of its checkpoints, into ``folder`` (default:
    packages/<name of the run>); return what its dicerl.json says, with the folder.

    An older package there is replaced, anything else is not. ``episodes`` are played for the score
    on the card, instead of the run's own evaluation; ``video`` films one. Only these two need the
    environment, and so ``make_env`` or ``trust``.
    """
    if not 0 <= episodes <= 1000:
        raise ConfigError("episodes", episodes, "it must lie between 0 and 1000")
    run, place = find(path, checkpoint, quiet)
    found, _ = find_checkpoint(place)
    config = anonymous(run.config)
    target = _target(run, folder)
    tensors = checkpoints.read_tensors(found.path, "model")
    told = {"format": FORMAT, **about(run, found, tensors), "licence": licence or None}
    line = evaluation(run.directory, found.state.updates)
    state = dataclasses.replace(
        found.state,
        serial=None,
        metrics_offset=0,
        best_checkpoint=found.state.updates,
        config_hash=config.hash(),
    )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".package-") as beside:
        new = Path(beside) / target.name
        new.mkdir()
        _write(new / "config.json", json.dumps(config.to_dict(), indent=1))
        checkpoints.save(new, {"model": tensors}, state)
        if episodes or video:
            played = evaluate(
                found.path,
                make_env,
                episodes=episodes or 1,
                video=new / VIDEO if video else None,
                quiet=quiet,
                trust=trust,
            )
            if episodes:
                line = {**_counters(told), **played.result}
                told["score"] = score_of(line)
        told |= {"episodes_played": episodes, "video": VIDEO if video else None}
        _write_lines(new, told, line)
        _write(new / PACKAGE, json.dumps(told, indent=1))
        _write(new / "README.md", card(told, target.name))
        _put(new, target, Path(beside) / "before")
    return {"package": str(folder or target.relative_to(Path.cwd())), **told}


def anonymous(config: Config) -> Config:
    """The config without the places of its machine. One that is left in another field is an error:
    what an environment was given may be needed to make it again.
    """
    default = flatten(Config().to_dict())
    config = config.replace(**{name: default[name] for name in PLACES})
    for name, value in flatten(config.to_dict()).items():
        if PLACE.search(json.dumps(value)):
            raise ConfigError(
                name, value, "it names a place on this machine, which a package would tell everyone"
            )
    return config


def _target(run: Run, folder: str | Path | None) -> Path:
    """Where the package goes; refuses what is not one, or holds more than one writes."""
    if folder is None:
        target = Path.cwd() / "packages" / run.directory.resolve().name
        target.parent.mkdir(exist_ok=True)
    else:
        target = Path(os.path.abspath(folder))
        require_folder("output", target)
    if not os.path.lexists(target):
        return target
    if target.is_symlink() or not target.is_dir():
        raise ConfigError("output", str(target), "it is no folder; name another")
    inside = sorted(path.name for path in target.iterdir())
    if inside and PACKAGE not in inside:
        raise ConfigError(
            "output", str(target), f"it is no package ({inside[0]} is in it); name another folder"
        )
    foreign = [name for name in inside if name not in CONTENT]
    if foreign:
        raise ConfigError(
            "output",
            str(target),
            f"it holds {foreign[0]}, which no package has and which would be lost; name another"
            " folder or move it",
        )
    return target


def _put(new: Path, target: Path, before: Path) -> None:
    """Give the finished folder its name; an older package is moved out of the way first."""
    if target.exists():
        target.rename(before)
    try:
        new.rename(target)
    except BaseException:  # Ctrl-C, too
        if before.exists():
            before.rename(target)
        raise


def _counters(told: dict[str, Any]) -> dict[str, Any]:
    """What every evaluation line begins with."""
    return {
        "kind": "evaluation",
        "frames": told["frames"],
        "updates": told["updates"],
        "version": told["updates"],
    }


def _write_lines(new: Path, told: dict[str, Any], line: dict[str, Any] | None) -> None:
    """The start event and the agent's evaluation, from which ``about`` tells the same again."""
    start = {"kind": "event", "frames": 0, "updates": 0, "event": "start", **told["trained_with"]}
    _write(new / "metrics.jsonl", json.dumps(start))
    if line is not None:
        numbers = {name: value for name, value in line.items() if not isinstance(value, str)}
        _write(new / "evaluations.jsonl", json.dumps({"kind": "evaluation", **numbers}))


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
