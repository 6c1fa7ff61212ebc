"""records/callbacks.py: the user's code at the moments of a run, under every runtime."""

import json
import os
import sys
from collections import Counter

import numpy as np
import pytest

import dicerl
from dicerl.errors import DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from runs import debug


class Notes(dicerl.Callback):
    """Writes down what it is called with."""

    def __init__(self):
        self.moments, self.lines, self.pids = Counter(), [], set()

    def _note(self, moment, line=None):
        self.moments[moment] += 1
        self.pids.add(os.getpid())
        if line is not None:
            self.lines.append(line)

    def on_start(self, run, frames):
        self._note("start")
        self.began = run.directory, frames

    def on_train(self, line):
        self._note("train", line)

    def on_episode(self, line):
        self._note("episode", line)

    def on_evaluation(self, line):
        self._note("evaluation", line)

    def on_checkpoint(self, path):
        self._note("checkpoint")
        assert checkpoint.read_state(path).updates == int(path.name)

    def on_end(self, run):
        self._note("end")
        self.summary = run.summary


def config(folder, kind="serial", **changes):
    return debug(
        folder / "run",
        "CartPole-v1",
        **{"runtime.kind": kind, "frames": 600, "checkpoint.every": 250, "evaluation.every": 300}
        | changes,
    )


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_every_moment_is_told_where_train_was_called(tmp_path, kind):
    notes = Notes()
    run = dicerl.train(config(tmp_path, kind), quiet=True, callbacks=[notes])
    assert notes.pids == {os.getpid()}
    assert notes.began == (run.directory, 0)
    written = [x for x in read_lines(run.directory / "metrics.jsonl") if x["kind"] != "event"]
    assert notes.lines == written
    assert notes.moments["evaluation"] >= 2
    assert notes.moments["checkpoint"] >= 3
    assert (notes.moments["start"], notes.moments["end"]) == (1, 1)
    assert notes.summary["complete"]


@pytest.mark.parametrize("kind", ["serial", "process"])
def test_one_that_returns_true_stops_the_run_with_a_checkpoint(tmp_path, kind, capfd):
    class Enough(dicerl.Callback):
        def on_episode(self, line):
            return line["frames"] > 200

    run = dicerl.train(config(tmp_path, kind, frames=100_000), callbacks=[Enough()])
    assert not run.summary["complete"]
    assert run.summary["frames"] < 20_000
    assert checkpoint.newest(run.directory)[1].updates == run.summary["updates"]
    assert "Enough stops the run" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda: np.array([1, 2]), "raised in on_train: ValueError("),
        (lambda: sys.exit("enough"), "raised in on_train: SystemExit('enough')"),
    ],
    ids=["several truths", "sys.exit"],
)
def test_an_odd_end_of_a_callback_is_one_line_and_a_checkpoint(tmp_path, does, reason):
    class Odd(dicerl.Callback):
        def on_train(self, line):
            return does()

    with pytest.raises(DicerlError, match="the callback Odd ") as caught:
        dicerl.train(config(tmp_path, log_every=1), quiet=True, callbacks=[Odd()])
    assert reason in str(caught.value)
    assert checkpoint.checkpoints_of(tmp_path / "run")


def test_a_stop_that_raises_ends_the_run_with_the_reason_and_a_checkpoint(tmp_path):
    asked = []

    def stop():
        asked.append(None)
        return np.array([False, False]) if len(asked) > 3 else False

    with pytest.raises(DicerlError, match="stop raised ValueError"):
        dicerl.train(config(tmp_path, frames=100_000), quiet=True, stop=stop)
    assert checkpoint.checkpoints_of(tmp_path / "run")


@pytest.mark.parametrize("moment", ["start", "episode", "evaluation", "checkpoint", "end"])
def test_one_that_raises_ends_the_run_with_the_reason_and_a_checkpoint(tmp_path, moment):
    class Bad(dicerl.Callback):
        pass

    def raising(self, *args):
        raise KeyError("no such thing")

    setattr(Bad, f"on_{moment}", raising)
    notes = Notes()
    with pytest.raises(DicerlError) as caught:
        dicerl.train(config(tmp_path), quiet=True, callbacks=[notes, Bad()])
    assert str(caught.value) == (
        f"the callback Bad raised in on_{moment}: KeyError('no such thing')"
    )
    assert checkpoint.checkpoints_of(tmp_path / "run")
    assert dicerl.resume(tmp_path / "run", quiet=True).summary["complete"]


def test_a_run_stops_at_a_score(tmp_path, call):
    arguments = ("--preset", "debug", "--frames", "100000", "--evaluation.every", "300")
    code, out, err = call(
        "train", "CartPole-v1", *arguments, "--stop-at", "1", "--json", "--tensorboard", "false"
    )
    assert code == 0
    assert "StopAt stops the run" in err
    summary = json.loads(out)
    assert not summary["complete"]
    assert summary["frames"] < 5000
    assert summary["evaluation"]["mean_return"] >= 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--stop-at", "much"], "evaluation.stop_at is 'much'; it must be a finite number"),
        (["--stop-at", "5", "--evaluation.every", "0"], "evaluation.every is 0"),
        (["--log", "paper"], "log is 'paper'; it can be none, csv, wandb, mlflow"),
    ],
)
def test_mistakes(call, options, reason):
    code, _, err = call("train", "CartPole-v1", *options)
    assert code == 2
    assert reason in err
    assert len(err.strip().splitlines()) == 1
