"""runtime/launch.py: which runtime a plan gets, signals, and a run to its end. The lines that
describe a run are in test_documents.py and test_setup.py.
"""

import dataclasses
import os
import signal
import threading
from pathlib import Path

import pytest

import probe
from dicerl.envs.toy import Catch
from dicerl.errors import DicerlError
from dicerl.records.metrics import read_lines
from dicerl.records.run import in_use
from dicerl.runtime import launch
from dicerl.runtime.serial import SerialRuntime
from dicerl.runtime.supervisor import Supervisor

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


def run_to_end(context, **more):
    """(run, what was said) of a run from its beginning."""
    said = Said()
    context.coordinator.close()
    launch.run_to_end(
        context.coordinator.run,
        context.spec,
        context.plan,
        context.model,
        Catch,
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
    with launch._stop_on_signals(said) as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
        assert stop()
        assert said.lines == ["stopping after a checkpoint (again to stop at once)"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_signals_are_left_alone_outside_of_the_main_thread():
    before = [signal.getsignal(number) for number in SIGNALS]
    found = []

    def enter():
        with launch._stop_on_signals(Said()) as stop:
            found.append(stop())
            found.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False, before]


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


def test_a_complete_run_is_not_trained_again(context):
    run, _ = run_to_end(context)
    run.lock()
    start, said = run.newest_checkpoint(), Said()
    launch.run_to_end(run, context.spec, context.plan, context.model, Catch, start, progress=said)
    assert run.summary["complete"]
    assert run.summary["updates"] == start.state.updates
    assert said.lines[-1].endswith("nothing to do")
    assert not in_use(run.directory)


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
