"""records/checkpoint.py: which checkpoints are kept, and how damaged ones are skipped."""

import hashlib
import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import dicerl
from dicerl.errors import CheckpointError
from dicerl.parts.evaluator import Evaluator
from dicerl.records import checkpoint
from dicerl.records.lock import in_use
from dicerl.records.metrics import read_lines
from dicerl.records.state import RunState
from dicerl.runtime import roles
from dicerl.runtime.messages import NotSaved
from runs import TINY, flip, one_line, rewrite, truncate


def forget(name):
    """Weights without a checksum would not be looked at."""

    def without(state):
        return state | {"checksums": {k: v for k, v in state["checksums"].items() if k != name}}

    return rewrite(without)


DAMAGES = {
    "model truncated": ("model.safetensors", truncate),
    "model with a flipped bit": ("model.safetensors", flip),
    "model gone": ("model.safetensors", Path.unlink),
    "model empty": ("model.safetensors", lambda p: p.write_bytes(b"")),
    "optimizer truncated": ("optimizer.safetensors", truncate),
    "optimizer with a flipped bit": ("optimizer.safetensors", lambda p: flip(p, 0.99)),
    "sequences with a flipped bit": ("sequences.safetensors", flip),
    "state truncated": ("state.json", truncate),
    "state gone": ("state.json", Path.unlink),
    "state empty": ("state.json", lambda p: p.write_bytes(b"")),
    "state of bytes": ("state.json", lambda p: p.write_bytes(bytes(range(256)))),
    "state a list": ("state.json", lambda p: p.write_text("[]")),
    "state without a counter": (
        "state.json",
        rewrite(lambda s: {k: v for k, v in s.items() if k != "agent_steps"}),
    ),
    "state with another counter": (
        "state.json",
        rewrite(lambda s: s | {"agent_steps": s["agent_steps"] + 64}),
    ),
    "state with odd checksums": ("state.json", rewrite(lambda s: s | {"checksums": []})),
    "state without the weights' checksum": ("state.json", forget("model.safetensors")),
    "state without the optimizer's checksum": ("state.json", forget("optimizer.safetensors")),
    "state of a later format": ("state.json", rewrite(lambda s: s | {"format": 999})),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(call, finished, copy, damage):
    name, harm = DAMAGES[damage]
    *_, before, newest = checkpoint.checkpoints_of(copy)
    harm(newest / name)
    code, _, err = call("resume", copy)
    assert code == 0, err
    assert "Traceback" not in err
    named = [line for line in err.splitlines() if "trying the one before" in line]
    assert len(named) == 1
    assert str(newest) in named[0]
    lines = read_lines(copy / "metrics.jsonl")
    resumed = [line for line in lines if line.get("event") == "resume"]
    assert [line["updates"] for line in resumed] == [int(before.name)]
    assert [line["reason"] for line in lines if line.get("event") == "checkpoint_damaged"] == named
    # It finished again, over the same ground, and wrote a whole checkpoint in the damaged one's
    # place.
    assert lines[-1]["frames"] == read_lines(finished / "metrics.jsonl")[-1]["frames"]
    assert checkpoint.newest(copy)[0] == newest


def poison(path):
    """Make one number of a safetensors file not finite, with a checksum that fits."""
    tensors = safetensors.torch.load_file(path)
    name = next(name for name in tensors if tensors[name].dim())
    tensors[name].view(-1)[-1] = math.nan
    path.write_bytes(safetensors.torch.save(tensors))
    state = json.loads((path.parent / "state.json").read_text())
    state["checksums"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "state.json").write_text(json.dumps(state))
    return name


@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_a_checkpoint_with_numbers_that_are_not_finite_is_passed_over(call, copy, file):
    *_, before, newest = checkpoint.checkpoints_of(copy)
    name = poison(newest / f"{file}.safetensors")
    code, _, err = call("resume", copy)
    assert code == 0, err
    assert (
        f"{newest}/{file}.safetensors holds numbers that are not finite, in {name};"
        " trying the one before" in err
    )
    resumed = [line for line in read_lines(copy / "metrics.jsonl") if line.get("event") == "resume"]
    assert [line["updates"] for line in resumed] == [int(before.name)]


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    good, bad = {"w": torch.ones(3)}, {"w": torch.tensor([1.0, math.inf])}
    kept = checkpoint.save(tmp_path, {"model": good}, RunState(updates=1))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors holds numbers that .* in w; "
    ) as e:
        checkpoint.save(tmp_path, {"model": bad}, RunState(updates=2))
    assert f"{kept} is complete and kept" in str(e.value)
    assert checkpoint.checkpoints_of(tmp_path) == [kept]
    assert [p.name for p in kept.parent.iterdir()] == ["1"]
    # in a child, whose supervisor raises that
    folder = checkpoint.begin(tmp_path)
    answer = roles.save(folder, {"optimizer": {"w/exp_avg": bad["w"]}})
    assert answer == NotSaved(
        "optimizer.safetensors holds numbers that are not finite, in w/exp_avg"
    )
    # a sequence may hold a log-probability of minus infinity
    checkpoint.save(tmp_path, {"sequences": bad}, RunState(updates=3))


def test_the_newest_up_to_an_update(copy):
    first, second, *_ = checkpoint.checkpoints_of(copy)
    assert checkpoint.newest(copy, until=int(second.name)).path == second
    assert checkpoint.newest(copy, until=int(second.name) - 1).path == first
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        checkpoint.newest(copy, until=int(first.name) - 1)


def test_a_damaged_newest_checkpoint_does_not_cost_the_new_ones(call, copy):
    """With ``checkpoint.keep`` 1 it would be the newest for ever, and each new one removed."""
    config = json.loads((copy / "config.json").read_text())
    config["checkpoint"]["keep"] = 1
    config["frames"] = config["frames"] // 2 + 100  # ends before the damaged one's update
    (copy / "config.json").write_text(json.dumps(config))
    first, *_, newest = checkpoint.checkpoints_of(copy)
    for path in checkpoint.checkpoints_of(copy)[1:-1]:
        shutil.rmtree(path)
    truncate(newest / "model.safetensors")
    code, _, err = call("resume", copy)
    assert code == 0, err
    (last,) = checkpoint.checkpoints_of(copy)
    assert int(first.name) < int(last.name) < int(newest.name)
    assert (copy / "checkpoints" / f"aside-{newest.name}" / "state.json").is_file()
    assert checkpoint.newest(copy).path == last


def test_a_quiet_resume_notes_a_damaged_checkpoint_too(call, copy):
    newest = checkpoint.checkpoints_of(copy)[-1]
    truncate(newest / "model.safetensors")
    assert call("resume", copy, "--quiet") == (0, "", "")
    (event,) = [
        line
        for line in read_lines(copy / "metrics.jsonl")
        if line.get("event") == "checkpoint_damaged"
    ]
    assert event["reason"] == f"{newest}/model.safetensors is damaged; trying the one before"
    assert event["updates"] < int(newest.name)


@pytest.mark.parametrize("quiet", [True, False])
def test_when_every_checkpoint_is_damaged_the_run_is_not_begun_anew(call, copy, quiet):
    found = checkpoint.checkpoints_of(copy)
    for path, harm in zip(found, (truncate, flip, Path.unlink), strict=False):
        harm(path / "model.safetensors")
    code, out, err = call("resume", copy, *(["--quiet"] if quiet else []))
    lines = err.splitlines()
    one_line((code, out, lines[-1]), "every checkpoint is damaged", *[p.name for p in found])
    assert len(lines) == (1 if quiet else 1 + len(found))
    assert "Traceback" not in err
    assert checkpoint.checkpoints_of(copy) == found


def test_a_resume_that_failed_keeps_no_lock(copy):
    """A notebook keeps the last exception, and with it all that was on its way."""
    paths = checkpoint.checkpoints_of(copy)
    for path in paths:
        (path / "state.json").rename(path / "kept")
    with pytest.raises(CheckpointError) as kept:
        dicerl.resume(copy, quiet=True)
    assert kept.value.__traceback__ is not None
    assert not in_use(copy)
    for path in paths:
        (path / "kept").rename(path / "state.json")
    assert dicerl.resume(copy, quiet=True).summary["complete"]


def test_a_run_without_a_checkpoint_starts_from_the_beginning(call, finished, copy):
    shutil.rmtree(copy / "checkpoints")
    code, _, err = call("resume", copy)
    assert code == 0, err
    assert err.splitlines()[0] == f"{copy} has no checkpoint yet; starting from the beginning"
    models = [checkpoint.checkpoints_of(run)[-1] / "model.safetensors" for run in (finished, copy)]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert [
        line["event"] for line in read_lines(copy / "metrics.jsonl") if line["kind"] == "event"
    ] == ["start"]
    assert (copy / "metrics.discarded.jsonl").read_bytes() == (
        finished / "metrics.jsonl"
    ).read_bytes()


def test_leftovers_of_a_killed_run_do_no_harm(call, copy):
    (copy / "checkpoints" / "tmp-12345").mkdir()
    (copy / "checkpoints" / "tmp-12345" / "model.safetensors").write_bytes(b"half")
    (copy / "checkpoints" / "notes.txt").write_text("mine")
    shutil.rmtree(checkpoint.checkpoints_of(copy)[-1])
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "ti')
    code, _, err = call("resume", copy, "--quiet")
    assert code == 0, err
    assert not (copy / "checkpoints" / "tmp-12345").exists()
    assert (copy / "checkpoints" / "notes.txt").exists()
    for line in (copy / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


KILLED = """
import os, sys
from pathlib import Path
real = Path.rename

def rename(self, target):
    real(self, target)
    if Path(target).name.startswith("before-"):
        os.kill(os.getpid(), 9)

Path.rename = rename
from dicerl.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_kill_while_a_checkpoint_of_the_same_update_takes_its_place(call, tmp_path):
    """As at the end of every run: before and after the last evaluation."""
    run, more = tmp_path / "run", ("--frames", "160", "--checkpoint.every", "0", "--quiet")
    command = ("train", "CartPole-v1", *TINY, *more, "--run-dir", str(run))
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert killed.returncode == -signal.SIGKILL
    (before,) = (run / "checkpoints").glob("before-*")
    assert not checkpoint.checkpoints_of(run)
    code, _, err = call("resume", run)
    assert code == 0, err
    assert "starting from the beginning" not in err
    assert [p.name for p in (run / "checkpoints").iterdir()] == [before.name.split("-")[1]]


# --- what is kept ---------------------------------------------------------------------------------


def test_the_newest_checkpoints_and_exactly_the_best_evaluated_are_kept(
    call, tmp_path, monkeypatch
):
    scores = iter([1.0, 9.0, 2.0, 3.0, 4.0, 5.0])
    real = Evaluator.evaluate
    monkeypatch.setattr(
        Evaluator, "evaluate", lambda self, *args: real(self, *args) | {"mean_return": next(scores)}
    )
    made = []
    finish = checkpoint.finish
    monkeypatch.setattr(checkpoint, "finish", lambda *args: made.append(finish(*args)) or made[-1])
    code, _, err = call(
        "train",
        "CartPole-v1",
        *TINY,
        "--frames",
        "960",
        "--checkpoint.every",
        "160",
        "--evaluation.every",
        "160",
        "--checkpoint.keep",
        "2",
        "--run-dir",
        "run",
        "--quiet",
    )
    assert code == 0, err
    evaluations = read_lines(tmp_path / "run" / "evaluations.jsonl")
    assert [line["mean_return"] for line in evaluations] == [1.0, 9.0, 2.0, 3.0, 4.0, 5.0]
    saved = [p.name for p in made if p.parent.name == "checkpoints"]
    assert len(saved) == 7
    assert saved[-1] == saved[-2]  # before and after the last evaluation
    assert [p.name for p in checkpoint.checkpoints_of(tmp_path / "run")] == saved[-3:-1]
    # best: the first and then the second evaluation; the parameters and counters they had
    best = [str(line["version"]) for line in evaluations[:2]]
    assert [p.name for p in made if p.parent.name == "best"] == best
    kept = checkpoint.best_of(tmp_path / "run")
    assert (kept.name, [p.name for p in kept.parent.iterdir()]) == (best[1], [best[1]])
    state = checkpoint.read_state(kept)
    assert (state.frames, state.updates) == (evaluations[1]["frames"], evaluations[1]["version"])
    state = checkpoint.newest(tmp_path / "run").state
    assert state.best_checkpoint == int(best[1])
    assert state.best_evaluation == 9.0


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, None, {30, 40}),
        (2, 10, {10, 30, 40}),
        (2, 40, {30, 40}),
        (1, 20, {20, 40}),
        (9, 10, {10, 20, 30, 40}),
        (1, 77, {40}),
    ],
)
def test_pruning(tmp_path, keep, best, left):
    for name in ("10", "20", "30", "40"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    checkpoint.prune(tmp_path, keep, best)
    assert {int(p.name) for p in checkpoint.checkpoints_of(tmp_path)} == left
