"""runtime/launch.py: which runtime a plan gets, signals, and a run to its end. The lines that
describe a run are in test_documents.py and test_setup.py.
"""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest

import dicerl
import probe
from dicerl import Callback
from dicerl.envs.toy import Catch
from dicerl.errors import DicerlError, EnvironmentFailed, LearnerLost
from dicerl.records.checkpoint import checkpoints_of
from dicerl.records.lock import in_use
from dicerl.records.metrics import read_lines
from dicerl.runtime import launch
from dicerl.runtime.coordinator import BAD_IN_A_ROW
from dicerl.runtime.serial import SerialRuntime
from dicerl.runtime.supervisor import Supervisor
from faults import until
from runs import debug

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Said:
    """A progress that only remembers what was said."""

    def __init__(self):
        self.lines, self.closed = [], False
        self.say = self.lines.append

    def update(self, values, force=False):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def context(tmp_path):
    changes = {"frames": 400, "evaluation.every": 0, "runtime.kind": "serial"}
    found = probe.context_of(tmp_path / "run", Catch, **changes)
    yield found
    found.coordinator.close()
    found.coordinator.run.unlock()


def run_to_end(context, make_env=Catch, **more):
    """(run, what was said) of a run from its beginning."""
    said = Said()
    context.coordinator.close()
    launch.run_to_end(
        context.coordinator.run,
        context.spec,
        context.plan,
        context.model,
        make_env,
        progress=said,
        **more,
    )
    return context.coordinator.run, said


@pytest.mark.parametrize(("name", "kind"), [("serial", SerialRuntime), ("process", Supervisor)])
def test_the_plan_names_the_runtime(context, name, kind):
    plan = dataclasses.replace(context.plan, runtime=name)
    runtime = launch.make_runtime(dataclasses.replace(context, plan=plan))
    assert type(runtime) is kind
    runtime.close()


def test_the_first_signal_asks_for_a_stop_and_the_second_stops_at_once():
    before = [signal.getsignal(number) for number in SIGNALS]
    said = Said()
    received = []
    with launch._stop_on_signals(said, received) as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert stop()
        assert said.lines == ["stopping after a checkpoint (again to stop at once)"]
        with pytest.raises(KeyboardInterrupt) as stopped:
            os.kill(os.getpid(), signal.SIGINT)
    assert stopped.value.args == (signal.SIGINT,)
    assert received == [signal.SIGTERM, signal.SIGINT]
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def not_under_nohup():
    """Whoever runs the tests may be."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_closes_asks_for_a_stop_however_often_it_says_so(not_under_nohup):
    with launch._stop_on_signals(Said(), []) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop()
        os.kill(os.getpid(), signal.SIGHUP)  # from the shell, and from the terminal
        os.kill(os.getpid(), signal.SIGTERM)  # systemd sends both, SIGTERM first or not
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("taken", [signal.SIG_DFL, signal.SIG_IGN])
def test_an_environment_does_not_take_the_stop_away(tmp_path, taken):
    """Libraries of windows set SIGINT to its default."""

    class Takes(Catch):
        def __init__(self):
            super().__init__()
            signal.signal(signal.SIGTERM, taken)

    class Stops(Callback):
        def on_train(self, line):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    settings = debug(tmp_path / "run", "", runtime__kind="serial", frames=100_000, log_every=5)
    try:
        run = dicerl.train(settings, Takes, quiet=True, callbacks=[Stops()])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run.signal == signal.SIGTERM
    assert checkpoints_of(run.directory)


def test_nohup_is_left_in_force(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with launch._stop_on_signals(Said(), []) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_left_alone_outside_of_the_main_thread():
    before = [signal.getsignal(number) for number in SIGNALS]
    found, said = [], Said()

    def enter():
        with launch._stop_on_signals(said, []) as stop:
            found.append(stop())
            found.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False, before]
    assert said.lines[0].startswith("note: not in the main thread")


IN_A_THREAD = """
import signal, threading, dicerl
signal.signal(signal.SIGINT, signal.default_int_handler)  # if ignored
config = dicerl.preset(
    "debug", env__id="CartPole-v1", frames=10**8, run_dir="run", tensorboard=False,
    evaluation__every=0, checkpoint__every=0)
threading.Thread(target=dicerl.train, args=(config,)).start()
while not threading.Event().wait(0.05):
    pass
"""


def test_ctrl_c_in_the_main_thread_ends_a_run_in_another(tmp_path):
    """With a checkpoint: Python waits for the thread."""
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_A_THREAD], cwd=tmp_path, stderr=err, start_new_session=True
        )
    lines = tmp_path / "run" / "metrics.jsonl"
    try:
        until(lambda: lines.exists() and len(read_lines(lines)) > 3, "it trains")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        process.kill()
    assert checkpoints_of(tmp_path / "run"), (tmp_path / "err").read_text()


def test_a_run_to_its_end_says_so_and_is_unlocked(context):
    run, said = run_to_end(context)
    assert run.summary["complete"]
    assert run.summary["frames"] >= 400
    assert said.lines[0].startswith("dicerl: ")
    assert said.lines[-1].startswith(f"finished at {run.summary['frames']:,} frames")
    assert said.closed
    assert not in_use(run.directory)
    assert run.newest_checkpoint().state.frames == run.summary["frames"]


def test_a_run_that_is_stopped_says_how_to_continue(context):
    run, said = run_to_end(context, stop_when=lambda: True)
    assert not run.summary["complete"]
    assert run.summary["frames"] < 400
    assert said.lines[-2].startswith("stopped at ")
    assert said.lines[-1] == f"to continue: dicerl resume {run.directory}"
    assert not in_use(run.directory)


def test_a_run_that_is_stopped_before_its_first_checkpoint_says_that_there_is_none(
    context, monkeypatch
):
    """It has lost its learner, and waits to go back to its beginning."""
    real, waits = launch.make_runtime, []

    def made(of):
        runtime = real(of)

        def lost():
            waits.append(True)
            raise LearnerLost("the learner vanished", pause=60.0)

        runtime.run = lost
        return runtime

    monkeypatch.setattr(launch, "make_runtime", made)
    run, said = run_to_end(context, stop_when=lambda: bool(waits))
    assert said.lines[-2:] == [
        "stopped at 0 frames, 0 updates; no checkpoint yet",
        f"to continue: dicerl resume {run.directory}",
    ]


def test_a_complete_run_is_not_trained_again(context):
    run, _ = run_to_end(context)
    run.lock()
    start, said = run.newest_checkpoint(), Said()
    launch.run_to_end(run, context.spec, context.plan, context.model, Catch, start, progress=said)
    assert run.summary["complete"]
    assert run.summary["updates"] == start.state.updates
    assert said.lines[-1].endswith("nothing to do")
    assert not in_use(run.directory)


class Opened(Catch):
    """Leaves a file while it is open."""

    def __init__(self, directory):
        super().__init__()
        self._file = directory / uuid.uuid4().hex
        self._file.touch()

    def close(self):
        self._file.unlink(missing_ok=True)
        (self._file.parent / "closed").touch()


@pytest.mark.parametrize("runtime", ["serial", "process"])
def test_the_end_of_training_is_saved_before_it_is_evaluated(tmp_path, runtime):
    """A stop during the last evaluation, or a kill, loses nothing but that evaluation. And every
    environment is closed, in whichever process it was.
    """
    opened = tmp_path / "opened"
    opened.mkdir()
    make_env = functools.partial(Opened, opened)
    changes = {"frames": 300, "checkpoint.every": 0, "evaluation.every": 1000}
    changes |= {"runtime.kind": runtime, "evaluation.max_steps": 10_000, "evaluation.episodes": 8}
    context = probe.context_of(tmp_path / "run", make_env, **changes)
    directory = context.coordinator.run.directory
    run, said = run_to_end(context, make_env, stop_when=lambda: bool(checkpoints_of(directory)))
    assert not run.summary["complete"]
    assert said.lines[-2].startswith(f"stopped at {run.summary['frames']:,} frames")
    start = run.newest_checkpoint()
    assert start.state.frames == run.summary["frames"] >= 300
    assert start.state.updates == run.summary["updates"]
    assert not start.state.complete(run.config)
    assert read_lines(directory / "metrics.jsonl")[-1]["kind"] != "evaluation"

    assert [path.name for path in opened.iterdir()] == ["closed"]

    run.lock()
    launch.run_to_end(
        run, context.spec, context.plan, context.model, make_env, start, progress=said
    )
    assert run.summary["complete"]
    assert run.summary["updates"] == start.state.updates
    (line,) = read_lines(directory / "evaluations.jsonl")
    assert (line["frames"], line["version"]) == (start.state.frames, start.state.updates)
    assert run.newest_checkpoint().state.complete(run.config)
    assert [path.name for path in opened.iterdir()] == ["closed"]


def test_environments_are_closed_where_the_first_reset_raises(tmp_path, context):
    class Broken(Opened):
        def reset(self, **_):
            raise RuntimeError("no")

    with pytest.raises(EnvironmentFailed, match="raised in reset"):
        run_to_end(context, make_env=lambda: Broken(tmp_path))
    assert not [path for path in tmp_path.iterdir() if len(path.name) == 32]


def test_a_close_that_raises_after_the_end_costs_nothing(context):
    class Sticky(Catch):
        def close(self):
            raise OSError("stuck")

    run, said = run_to_end(context, make_env=Sticky)
    assert run.summary["complete"]
    assert "note: Sticky raised in close (environment 0): OSError: stuck" in said.lines


@pytest.mark.parametrize("often", [1, 2])
def test_a_run_that_diverges_goes_back_to_its_last_good_checkpoint_once(tmp_path, often):
    changes = {"frames": 500, "checkpoint.every": 100, "log_every": 1, "runtime.kind": "serial"}
    context = probe.context_of(tmp_path / "run", Catch, **changes, **{"checkpoint.keep": 9})
    directory, spoilt = context.coordinator.run.directory, []

    def spoil(learner, batch):
        """Ten updates from the twentieth on, as if the weights could not be saved any more."""
        if learner.updates >= 20 and len(spoilt) < often * BAD_IN_A_ROW:
            spoilt.append(learner.updates)
            batch["reward"][...] = np.nan

    if often == 2:
        with pytest.raises(DicerlError) as caught:
            run_to_end(context, on_batch=spoil)
        assert len(spoilt) == 2 * BAD_IN_A_ROW
        assert str(caught.value).startswith("10 updates in a row had a loss or a gradient that")
        assert "bad_batch-20.safetensors" in str(caught.value)
        assert "try a smaller optimizer.learning_rate, then: dicerl resume" in str(caught.value)
        assert not in_use(directory)
        return
    run, said = run_to_end(context, on_batch=spoil)
    assert run.summary["complete"]
    before = max(int(path.name) for path in checkpoints_of(directory) if int(path.name) <= 20)
    (line,) = [line for line in said.lines if "going back" in line]
    assert line.endswith(f"going back to update {before:,}")
    lines = read_lines(directory / "metrics.jsonl")
    (event,) = [line for line in lines if line.get("event") == "rolled_back"]
    assert event["updates"] == before
    trained = [line for line in lines if line["kind"] == "train"]
    # none twice, none missing
    assert [line["updates"] for line in trained] == list(range(1, run.summary["updates"] + 1))
    assert trained[-1]["updates_skipped"] == BAD_IN_A_ROW
    state = run.newest_checkpoint().state
    assert (state.skipped, state.incarnation) == (BAD_IN_A_ROW, 1)


def test_a_run_that_diverges_without_a_checkpoint_ends(context):
    def spoil(learner, batch):
        batch["reward"][...] = np.nan

    with pytest.raises(DicerlError, match="there is no checkpoint from before; try a smaller"):
        run_to_end(context, on_batch=spoil)


def test_what_ended_a_run_is_in_its_metrics(context):
    def fail(learner, batch):
        raise DicerlError("the disk is on fire")

    with pytest.raises(DicerlError, match="the disk is on fire"):
        run_to_end(context, on_batch=fail, damaged=["checkpoint 3 is damaged"])
    directory = Path(context.config.run_dir)
    lines = {
        line["event"]: line for line in read_lines(directory / "metrics.jsonl") if "event" in line
    }
    assert lines["failed"]["reason"] == "the disk is on fire"
    assert lines["checkpoint_damaged"]["reason"] == "checkpoint 3 is damaged"
    assert not in_use(directory)
