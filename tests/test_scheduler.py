"""suite/scheduler.py: shares of the cores, and a suite that is stopped, killed and finished with
real processes.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dicerl import cli
from dicerl.records import checkpoint
from dicerl.records.lock import in_use
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run
from dicerl.runtime.machine import share_of_cores
from dicerl.suite.scheduler import Job, Scheduler, default_jobs
from runs import finish, plan_of

# seconds for anything that must happen at all: a busy machine starts processes slowly
PATIENCE = 400.0


def test_cores_are_shared():
    cores = os.sched_getaffinity(0)
    assert share_of_cores(0, 1) == cores
    for jobs in (1, 2, 3, 7):
        shares = [share_of_cores(slot, jobs) for slot in range(jobs)]
        assert all(shares)
        assert set.union(*shares) == cores if jobs <= len(cores) else set.union(*shares) <= cores
        if jobs <= len(cores):
            assert sum(map(len, shares)) == len(cores)
    assert default_jobs(plan_of()) == len(cores)
    assert default_jobs(plan_of({"runtime.kind": "process"})) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_for_the_exit_code(number):
    scheduler = Scheduler([], 1, lambda run: None, lambda: None)
    with scheduler._signals():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
    assert (scheduler.stops, scheduler.signal) == (2, number)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 3])
def test_a_run_killed_by_any_signal_is_tried_again_then_failed(number):
    """A real-time signal has no name."""
    (run,) = plan_of(seeds=1).runs
    scheduler = Scheduler([run], 1, lambda run: None, lambda: None)
    for attempts, state in ((1, "queued"), (2, "failed")):
        process = subprocess.Popen(["sleep", "60"])
        job = Job(run, process, 0)
        scheduler._running.append(job)
        scheduler._attempts[run.name] = attempts
        process.send_signal(number)
        process.wait()
        scheduler._ended(job)
        assert run.state == state
        assert run.reason.startswith("was killed by ")


# --- with real processes

ENVIRONMENTS = """
    import time
    import gymnasium
    from dicerl.envs.toy import Catch

    class Slow(Catch):
        '''At most 1,000 steps a second, on any machine.'''
        def step(self, action):
            time.sleep(0.001)
            return super().step(action)

    class Raises(Catch):
        def step(self, action):
            raise RuntimeError("the engine is on fire")

    gymnasium.register("SlowSuite-v0", Slow)
    gymnasium.register("RaisesSuite-v0", Raises)
"""
SMALL_FIELDS = {
    "frames": 3_000,
    "checkpoint.every": 300,
    "evaluation.every": 2_000,
    "evaluation.max_steps": 20,
    "tensorboard": False,
    "log_every": 1,
}
SMALL = (
    "--preset",
    "debug",
    "--jobs",
    "1",
    "--dir",
    "s",
    *(f"--{name}={value}" for name, value in SMALL_FIELDS.items()),
)
SUITE = (
    "suite",
    "--games",
    "slow:SlowSuite-v0",
    "--variants",
    "dice",
    "baseline",
    "--seeds",
    "1",
    *SMALL,
)


class Suite:
    """`dicerl suite` as a process of its own."""

    def __init__(self, directory, *args):
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dicerl", *args],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self):
        try:
            out, err = self.process.communicate(timeout=PATIENCE)
        finally:
            self.process.kill()
        return self.process.returncode, out, err


def children(pid):
    """Pids of the direct children."""
    return [
        int(word)
        for task in Path(f"/proc/{pid}/task").glob("*")
        for word in (task / "children").read_text().split()
    ]


def until(what, happened):
    started = time.monotonic()
    while not (value := happened()):
        assert time.monotonic() - started < PATIENCE, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.05)
    return value


def updates(run):
    """Of the newest checkpoint."""
    found = checkpoint.checkpoints_of(run)
    return int(found[-1].name) if found else 0


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Ctrl-C in the first run; its child killed, then the suite killed; at last undisturbed."""
    directory = tmp_path_factory.mktemp("story")
    (directory / "slow.py").write_text(textwrap.dedent(ENVIRONMENTS))
    first, second = (
        directory / "s" / "runs" / f"slow_SlowSuite_v0-{variant}-0"
        for variant in ("dice", "baseline")
    )
    seen = {"directory": directory, "first": first, "second": second}

    # the last run that is left; the next call adds a variant
    suite = Suite(directory, *SUITE, "--variants", "dice")
    until("a checkpoint", lambda: updates(first))
    os.kill(suite.process.pid, signal.SIGINT)
    seen["stopped"] = suite.end()
    seen["saved"] = updates(first)
    seen["in use after Ctrl-C"] = in_use(first)
    seen["json after Ctrl-C"] = json.loads((directory / "s" / "suite.json").read_text())

    suite = Suite(directory, *SUITE)
    until("a further checkpoint", lambda: updates(first) > seen["saved"])
    (child,) = children(suite.process.pid)
    os.kill(child, signal.SIGKILL)
    (other,) = until(
        "the killed run to be resumed",
        lambda: [p for p in children(suite.process.pid) if p != child],
    )
    seen["after the child's death"] = updates(first)
    until("progress after that", lambda: updates(first) > seen["after the child's death"])
    suite.process.kill()
    seen["killed"] = suite.end()
    seen["before"] = updates(first)
    # At once again: what outlived the kill for a moment, to save its work, is waited for.
    suite = Suite(directory, *SUITE, "--json")
    seen["last"] = suite.end()
    with contextlib.suppress(ProcessLookupError):
        os.kill(other, 0)
        seen["left over"] = other
    return seen


def lines_of(run):
    return read_lines(run / "metrics.jsonl")


@pytest.mark.timeout(1500)
def test_ctrl_c_is_passed_on_and_keeps_the_work(story):
    code, out, err = story["stopped"]
    assert code == 130, err
    assert "stopped; the same command goes on" in err
    assert "evaluation return" in out
    assert story["saved"] > 0
    assert not story["in use after Ctrl-C"]
    assert [run["state"] for run in story["json after Ctrl-C"]["runs"]] == ["stopped"]
    assert story["json after Ctrl-C"]["complete"] is False
    assert (
        "stopped at"
        in (story["directory"] / "s" / "logs" / "slow_SlowSuite_v0-dice-0.log").read_text()
    )


@pytest.mark.timeout(1500)
def test_a_killed_run_is_resumed_in_the_same_call(story):
    code, _, err = story["killed"]
    assert code == -signal.SIGKILL
    assert "slow_SlowSuite_v0-dice-0 was killed by SIGKILL" in err
    assert err.count("slow_SlowSuite_v0-dice-0 goes on") == 2


@pytest.mark.timeout(1500)
def test_a_killed_suite_finishes_at_the_next_call(story):
    code, out, err = story["last"]
    assert code == 0, err
    assert "left over" not in story
    found = json.loads(out)
    assert found["complete"] is True
    assert found == json.loads((story["directory"] / "s" / "suite.json").read_text())
    assert [(run["variant"], run["state"]) for run in found["runs"]] == [
        ("dice", "finished"),
        ("baseline", "finished"),
    ]
    assert all(run["frames"] >= 3_000 and run["score"] is not None for run in found["runs"])
    assert found["statistics"]["dice"]["runs"] == found["statistics"]["baseline"]["runs"] == 1
    assert set(found["statistics"]["dice"]["probability_of_improvement"]) == {
        "value",
        "low",
        "high",
    }


@pytest.mark.timeout(1500)
def test_no_work_was_done_twice(story):
    lines = lines_of(story["first"])
    assert [line.get("event") for line in lines].count("start") == 1
    assert [line.get("event") for line in lines].count("resume") >= 3
    trained = [line["updates"] for line in lines if line["kind"] == "train"]
    assert trained == list(range(1, trained[-1] + 1))
    assert [line.get("event") for line in lines_of(story["second"])].count("resume") == 0
    config = Run.open(story["first"]).config
    assert (config.frames, config.seed, config.variant, config.preset, config.log_every) == (
        3_000,
        0,
        "dice",
        "debug",
        1,
    )


@pytest.mark.timeout(1500)
def test_a_finished_suite_only_reports(story, monkeypatch, capfd):
    monkeypatch.chdir(story["directory"])
    before = {
        path: path.stat().st_mtime_ns
        for path in (story["directory"] / "s" / "runs").rglob("*.jsonl")
    }
    assert cli.main([*SUITE, "--json", "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert json.loads(out)["runs"] == json.loads(story["last"][1])["runs"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.timeout(1500)
def test_a_run_that_fails_is_named_and_the_rest_goes_on(tmp_path):
    (tmp_path / "slow.py").write_text(textwrap.dedent(ENVIRONMENTS))
    finish(
        plan_of(SMALL_FIELDS, games=["CartPole-v1"], seeds=1, dir=str(tmp_path / "s")).runs[0], 3.0
    )
    suite = Suite(
        tmp_path, "suite", "--games", "slow:RaisesSuite-v0", "CartPole-v1", "--seeds", "1", *SMALL
    )
    code, out, err = suite.end()
    assert code == 1, err
    assert "slow_RaisesSuite_v0-dice-0 failed: slow:RaisesSuite-v0 raised in step" in err
    assert "the engine is on fire" in err
    assert "Traceback" not in err
    assert "1 failed" in out
    runs = json.loads((tmp_path / "s" / "suite.json").read_text())["runs"]
    assert [(run["state"], run["score"]) for run in runs] == [("failed", None), ("finished", 3.0)]
    assert "the engine is on fire" in runs[0]["reason"]
