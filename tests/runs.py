"""Run directories for the tests, real ones and made-up ones with known numbers; and what an error
must look like.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dicerl
from dicerl.config import Config, override, validate
from dicerl.config.presets import preset
from dicerl.errors import ConfigError
from dicerl.records import checkpoint
from dicerl.records.run import Run
from dicerl.records.state import RunState
from dicerl.report.data import RunData
from dicerl.report.sections import sections
from dicerl.suite.plan import Plan, SuiteRun, make_plan

# a run of seconds, with several checkpoints and evaluations, as arguments of a command
TINY = (
    "--preset",
    "debug",
    "--frames",
    "600",
    "--checkpoint.exact",
    "true",
    "--checkpoint.every",
    "200",
    "--evaluation.every",
    "300",
    "--evaluation.max-steps",
    "20",
    "--tensorboard",
    "false",
)

# of the JSON of an evaluation, in order
EVALUATION_KEYS = [
    "env",
    "episodes",
    "mean_return",
    "median_return",
    "stderr",
    "interval",
    "returns",
    "inv_temperatures",
    "hns",
    "saber",
]


def make_run(directory: Path, variant: str = "dice", **settings: Any) -> Path:
    """A directory with a config and no metrics yet."""
    directory.mkdir(parents=True)
    config = preset("classic", "dice", **{"env.id": "CartPole-v1", **settings}).to_dict() | {
        "variant": variant
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "metrics.jsonl").touch()
    return directory


def line(kind: str, frames: int, **values: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "time": 1.0e9 + frames,
        "agent_steps": frames,
        "frames": frames,
        "updates": frames // 10,
        **({"return": 1.0, "length": 10, "inv_temperature": 2.0} if kind == "episode" else {}),
        **values,
    }


def append(directory: Path, *lines: dict[str, Any] | str) -> None:
    """Add lines to metrics.jsonl; text as it is, without an end of line."""
    with (directory / "metrics.jsonl").open("a") as file:
        for one in lines:
            file.write(one if isinstance(one, str) else json.dumps(one) + "\n")


def opened(directory: Path, **more: Any) -> RunData:
    """A run as reports read it."""
    run = RunData(Path(directory), **more)
    run.refresh()
    return run


def figures_of(runs: Sequence[RunData]) -> dict[str, Any]:
    """The figures of a page, by the ids of their cards."""
    return {c["id"]: c["figure"] for s in sections(runs) for c in s["cards"]}


def trained_runs(root: Path) -> Path:
    """Short real runs: dice and baseline, two seeds each."""
    for variant in ("dice", "baseline"):
        for seed in (0, 1):
            dicerl.train(
                preset(
                    "debug",
                    variant,
                    **{
                        "env.id": "dicerl.envs.toy:Catch-v0",
                        "seed": seed,
                        "frames": 900,
                        "run_dir": str(root / f"{variant}-{seed}"),
                        "tensorboard": False,
                        "evaluation.every": 300,
                        "checkpoint.every": 300,
                        "checkpoint.exact": True,
                    },
                ),
                quiet=True,
            )
    return root


def debug(directory: Path, env: str, **changes: Any) -> Config:
    """The config of a run of a second with three checkpoints and evaluations."""
    return dicerl.preset(
        "debug",
        **{
            "env__id": env,
            "frames": 300,
            "run_dir": str(directory),
            "tensorboard": False,
            "checkpoint__every": 100,
            "evaluation__every": 100,
            "evaluation__max_steps": 20,
            **changes,
        },
    )


def plan_of(changes: dict[str, Any] | None = None, **given: Any) -> Plan:
    """A suite of CartPole, unless ``given`` says otherwise."""
    return make_plan({"games": ["CartPole-v1"], "preset": "debug", **given}, changes or {})


def finish(run: SuiteRun, score: float, frames: int | None = None) -> None:
    """Leave the run on disk as training does at its end (or at ``frames``)."""
    Run.create(run.config).unlock()
    frames = run.config.frames if frames is None else frames
    state_then = RunState(frames=frames, updates=frames // 10, evaluated_at=frames)
    checkpoint.save(run.directory, {}, state_then)
    (run.directory / "evaluations.jsonl").write_text(
        json.dumps({"kind": "evaluation", "frames": frames, "mean_return": score}) + "\n"
    )


def one_line(result: tuple[int, str, str], *fragments: str) -> str:
    """Bad input: exit code 2, nothing on stdout, one line on stderr that holds the fragments."""
    code, out, err = result
    assert code == 2, (code, err)
    assert out == ""
    assert err.startswith("dicerl: "), err
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    for fragment in fragments:
        assert fragment in err, err
    return err


def refused(name: str, value: Any) -> str:
    """The error of setting a field to a value, which must name both."""
    with pytest.raises(ConfigError) as caught:
        validate(override(Config(), {name: value}))
    message = str(caught.value)
    assert caught.value.field == name
    assert message.startswith(f"{name} is {value!r}; ") or repr(value) in message
    assert len(message.splitlines()) == 1
    return message


def flip(path: Path, where: float = 0.5) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 0x10
    path.write_bytes(bytes(data))


def truncate(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rewrite(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Damage a JSON file by changing its content."""

    def damage(path: Path) -> None:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage
