"""runtime/serial.py: bit for bit the same from a seed, from a checkpoint, and after a kill at any
moment. Other settings are in test_serial_variants.py.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dicerl
import probe
from dicerl.api import resume, train
from dicerl.cli import main
from dicerl.records.checkpoint import checkpoints_of
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run
from serial_runs import BOOKS, OPTIONS, TIMES, assert_same_run, config, final_model, lines, rewind

# seconds of CPU time, but whole runs: on a crowded machine they take their time
pytestmark = pytest.mark.timeout(900)


def options(directory):
    """The same on the command line."""
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in OPTIONS.items()
        if name != "runtime.kind"
    ]
    return [
        "train",
        "CartPole-v1",
        "--preset",
        "debug",
        "--runtime",
        "serial",
        *given,
        f"--run-dir={directory}",
        "--quiet",
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing stopped, through the command line."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    assert main(options(directory)) == 0
    return directory


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The same run from Python, with what the learner was given."""
    folder = tmp_path_factory.mktemp("twin")
    (folder / "batches").mkdir()
    run = train(
        config(run_dir=str(folder / "run")), quiet=True, on_batch=probe.Recorder(folder / "batches")
    )
    return run.directory, probe.load_batches(folder / "batches")


@pytest.fixture(scope="module")
def resumed(whole, tmp_path_factory):
    """The run taken up again from an early checkpoint: (directory, update of that checkpoint, what
    the learner was given after it).
    """
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "batches").mkdir()
    updates = rewind(whole, folder / "run", 1)
    # Else a resumed run could do without what the checkpoint holds.
    assert json.loads((folder / f"run/checkpoints/{updates}/state.json").read_text())["serial"][
        "uses"
    ]
    assert updates % OPTIONS["runtime.push_every"]
    assert (updates - 1) % OPTIONS["log_every"]
    resume(folder / "run", quiet=True, on_batch=probe.Recorder(folder / "batches"))
    return folder / "run", updates, probe.load_batches(folder / "batches")


# --- from a seed ----------------------------------------------------------------------------------


def test_the_run_is_long_enough_to_tell(whole):
    assert int(checkpoints_of(whole)[-1].name) >= 200
    assert len(checkpoints_of(whole)) >= 6
    assert len(lines(whole, "episode")) > 50
    assert len(lines(whole, "evaluation")) >= 3
    assert len({p.read_bytes() for p in whole.glob("checkpoints/*/model.safetensors")}) == len(
        checkpoints_of(whole)
    )


def test_the_same_seed_gives_the_same_run(whole, twin):
    assert_same_run(whole, twin[0])


def test_another_seed_gives_another_run(whole, tmp_path):
    other = train(
        config(run_dir=str(tmp_path / "other"), seed=4, frames=420, **{"evaluation.every": 0}),
        quiet=True,
    )
    first = checkpoints_of(whole)[0]
    assert (first / "model.safetensors").read_bytes() != (
        checkpoints_of(other.directory)[0] / "model.safetensors"
    ).read_bytes()
    returns = [[e["return"] for e in lines(d, "episode")[:10]] for d in (whole, other.directory)]
    assert returns[0] != returns[1]


# --- from a checkpoint ----------------------------------------------------------------------------


def test_a_resumed_run_is_the_run_that_was_never_stopped(whole, resumed):
    assert_same_run(whole, resumed[0])


def test_a_resumed_run_trains_the_same_batches(twin, resumed):
    _, first, batches = resumed
    expected = twin[1][first:]
    assert [int(b["updates"]) for b in batches] == [int(b["updates"]) for b in expected]
    assert len(batches) > 50
    for here, there in zip(batches, expected, strict=True):
        for name in here.keys() - {"created", "stream"}:
            np.testing.assert_array_equal(
                here[name], there[name], err_msg=f"{name} at update {here['updates']}"
            )


def test_a_resumed_run_names_its_streams_as_the_run_that_was_never_stopped(twin, resumed):
    """Two streams must not have one name: (incarnation, environment, window) tells every window of
    a run apart.
    """
    _, first, batches = resumed
    for here, there in zip(batches, twin[1][first:], strict=True):
        np.testing.assert_array_equal(
            here["stream"], there["stream"], err_msg=f"at update {here['updates']}"
        )


@pytest.mark.parametrize("name", BOOKS)
def test_a_resumed_run_keeps_its_books(whole, resumed, name):
    """Numbers that sum over many updates go on where they were."""
    for here, there in zip(
        lines(resumed[0], "train", TIMES), lines(whole, "train", TIMES), strict=True
    ):
        assert here[name] == pytest.approx(there[name]), f"at update {here['updates']}"


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    rewind(whole, tmp_path / "run", 100)
    before = final_model(tmp_path / "run")
    run = resume(tmp_path / "run", quiet=True)
    assert run.summary["complete"]
    assert lines(run.directory, "train") == lines(whole, "train")
    assert final_model(run.directory) == before
    assert [p.name for p in checkpoints_of(run.directory)] == [
        p.name for p in checkpoints_of(whole)
    ]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again_and_ends_the_same(
    whole, tmp_path, capfd
):
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints" / "tmp-1").mkdir(parents=True)  # the kill met the first one half-written
    dead = (whole / "metrics.jsonl").read_bytes()[:-20]
    (copy / "metrics.jsonl").write_bytes(dead)
    assert main(["resume", str(copy)]) == 0
    assert f"{copy} has no checkpoint yet; starting from the beginning" in capfd.readouterr().err
    assert_same_run(whole, copy)
    assert lines(copy, "event") == lines(whole, "event")
    assert (copy / "metrics.discarded.jsonl").read_bytes() == dead + b"\n"
    without_time = [
        [{k: v for k, v in e.items() if k != "time"} for e in read_lines(d / "evaluations.jsonl")]
        for d in (whole, copy)
    ]
    assert without_time[0] == without_time[1]
    assert not list(copy.glob("checkpoints/tmp-*"))


# --- after a kill ---------------------------------------------------------------------------------


def kill_after_a_checkpoint(arguments, directory, delay):
    """Run ``dicerl ARGUMENTS`` in a process and SIGKILL it ``delay`` seconds after its next
    checkpoint.
    """
    known = len(checkpoints_of(directory))
    environment = {**os.environ, "PYTHONPATH": str(Path(dicerl.__file__).parents[1])}
    command = [
        sys.executable,
        "-c",
        "import sys; from dicerl.cli import main; sys.exit(main())",
        *arguments,
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            end = time.monotonic() + 140
            while (
                len(checkpoints_of(directory)) == known
                and process.poll() is None
                and time.monotonic() < end
            ):
                time.sleep(0.005)
            time.sleep(delay)
        finally:
            process.kill()
        said = process.stderr.read().decode()
    assert process.returncode == -9, (
        f"it should have been killed under way; exit code {process.returncode}: {said}"
    )
    assert len(checkpoints_of(directory)) > known


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Killed twice at random moments, then taken to its end."""
    directory = tmp_path_factory.mktemp("killed") / "run"
    delays = [random.Random().uniform(0.0, 0.2) for _ in range(2)]
    print(f"killed {delays} s after a checkpoint")  # shown with a failure
    kill_after_a_checkpoint(options(directory), directory, delays[0])
    kill_after_a_checkpoint(["resume", str(directory), "--quiet"], directory, delays[1])
    assert main(["resume", str(directory), "--quiet"]) == 0
    return directory


def test_a_killed_run_ends_with_the_same_model(whole, killed):
    assert final_model(killed) == final_model(whole)
    assert_same_run(whole, killed)


def test_metrics_of_a_killed_run_never_jump_back_or_repeat(whole, killed):
    every = read_lines(killed / "metrics.jsonl")
    for counter in ("agent_steps", "frames", "updates"):
        values = [line[counter] for line in every]
        assert values == sorted(values), counter
    trained = [line["updates"] for line in every if line["kind"] == "train"]
    assert len(set(trained)) == len(trained)
    assert [line["event"] for line in every if line["kind"] == "event"] == [
        "start",
        "resume",
        "resume",
    ]
    assert [e["return"] for e in lines(killed, "episode")] == [
        e["return"] for e in lines(whole, "episode")
    ]
    raw = (killed / "metrics.jsonl").read_text().splitlines()
    assert len(raw) == len(every)  # no half-written line was left
    evaluations = [
        {k: v for k, v in e.items() if k != "time"}
        for e in read_lines(killed / "evaluations.jsonl")
    ]
    assert evaluations == lines(whole, "evaluation")


def test_nothing_temporary_is_left(killed):
    assert not list(killed.glob("checkpoints/tmp-*"))
    run = Run.open(killed)
    run.lock()  # nobody holds it any more
    run.unlock()
