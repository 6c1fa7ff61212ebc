"""suite/state.py: what is on disk decides what is left to do."""

import json
import shutil
from pathlib import Path

import pytest

from dicerl.errors import DicerlError
from dicerl.records import checkpoint, loggers
from dicerl.records.metrics import copy_evaluations
from dicerl.records.run import Run
from dicerl.records.state import RunState
from dicerl.suite import state
from runs import finish, plan_of


def test_what_is_on_disk_decides(tmp_path):
    new, half, done, damaged, dead = plan_of(seeds=5, dir=str(tmp_path)).runs
    finish(half, 5.0, frames=half.config.frames // 2)
    finish(done, 9.0)
    finish(damaged, 8.0)
    newest = checkpoint.checkpoints_of(damaged.directory)[-1]
    (newest / "state.json").write_text("{")
    Run.create(dead.config).unlock()  # died before its first checkpoint
    for run in (new, half, done, damaged, dead):
        state.look(run)
    assert [run.state for run in (new, half, done, damaged, dead)] == [
        "queued",
        "queued",
        "finished",
        "queued",
        "queued",
    ]
    assert [run.score for run in (new, half, done)] == [None, None, 9.0]
    assert half.frames == half.config.frames // 2
    assert [state.has_checkpoint(run) for run in (new, half, dead)] == [False, True, False]
    state.make_room(half)
    assert half.directory.exists()
    state.make_room(dead)
    assert not dead.directory.exists()
    Run.create(dead.config).unlock()
    (dead.directory / "diary.txt").write_text("mine")
    with pytest.raises(DicerlError, match=r"diary\.txt"):
        state.make_room(dead)


@pytest.mark.parametrize("log", loggers.LOGGERS)
def test_what_a_log_wrote_does_not_keep_a_dead_run_from_its_room(tmp_path, monkeypatch, log):
    """Whatever it is killed at: the files are there, and those that were about to replace them."""
    (suite_run,) = plan_of({"log": log}, seeds=1, dir=str(tmp_path)).runs
    run = Run.create(suite_run.config)
    monkeypatch.setattr(loggers, "_imported", lambda package: None)
    monkeypatch.setattr(loggers.WandbLog, "_begin", lambda *_: "name")
    monkeypatch.setattr(loggers.MlflowLog, "_begin", lambda *_: "name")
    moved, replace = [], Path.replace

    def interrupted(path, target):
        moved.append(shutil.copy(path, f"{path}.kept"))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    run.write_config()
    (run.directory / "evaluations.jsonl").touch()
    copy_evaluations(run.directory / "metrics.jsonl", run.directory / "evaluations.jsonl")
    loggers.LOGGERS[log]().on_start(run, 0)
    for kept in moved:
        replace(Path(kept), Path(kept.removesuffix(".kept")))
    run.unlock()
    written = {path.name for path in run.directory.iterdir()}
    assert written >= {"config.json.new", "evaluations.tmp"}
    assert written >= ({"train.csv", "episode.csv.new"} if log == "csv" else {"log.json"})
    if log == "wandb":
        (run.directory / "wandb").mkdir()
    state.make_room(suite_run)
    assert not run.directory.exists()


def test_a_run_without_its_last_evaluation_is_not_finished(tmp_path):
    (run,) = plan_of({"evaluation.every": 100}, seeds=1, dir=str(tmp_path)).runs
    Run.create(run.config).unlock()
    frames = run.config.frames
    checkpoint.save(run.directory, {}, RunState(frames=frames, evaluated_at=frames - 1))
    state.look(run)
    assert (run.state, run.frames) == ("queued", frames)


def test_a_run_with_another_configuration_is_not_taken_for_this_one(call, tmp_path):
    finish(plan_of({"frames": 1_000}, seeds=[0], dir="s").runs[0], 1.0)
    code, _, err = call(
        "suite",
        "--games",
        "CartPole-v1",
        "--preset",
        "debug",
        "--seeds",
        "0,",
        "--dir",
        "s",
        "--frames",
        "2000",
    )
    assert code == 2
    assert "was run with frames 1000, this suite asks for 2000" in err
    code, out, _ = call(
        "suite",
        "--games",
        "CartPole-v1",
        "--preset",
        "debug",
        "--seeds",
        "0,",
        "--dir",
        "s",
        "--frames",
        "1000",
        "--json",
        "--runtime",
        "process",
        "--quiet",
    )
    assert code == 0  # how a run uses the machine does not matter
    assert json.loads(out)["complete"] is True


def test_the_newest_line_of_a_run(tmp_path):
    (run,) = plan_of(seeds=1, dir=str(tmp_path)).runs
    assert state.now(run) == {}
    run.directory.mkdir(parents=True)
    path = run.directory / "metrics.jsonl"
    path.write_text(
        "".join(
            json.dumps({"kind": "train", "frames": i, "tiles": [0] * 100}) + "\n"
            for i in range(200)
        )
        + '{"frames": 99999, "ki'
    )
    assert state.now(run)["frames"] == 199
