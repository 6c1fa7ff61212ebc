"""envs/patience.py: an environment that never returns, in the run's own process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import dicerl
from dicerl.envs import env_spec, patience
from dicerl.envs.patience import Patience
from dicerl.envs.toy import Catch
from dicerl.errors import EnvironmentFailed
from dicerl.evaluate.evaluate import evaluate
from dicerl.runtime import setup
from runs import debug

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such clock here"),
    pytest.mark.timeout(120, method="thread"),  # the other one takes the same clock
]


@pytest.fixture
def clock():
    """``clock(shortest)`` ticks until the test ends."""
    started = []

    def start(shortest):
        started.append(Patience("slow", shortest))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_what_takes_too_long_is_interrupted(clock):
    patient = clock(0.5)
    began = time.monotonic()
    with (
        pytest.raises(EnvironmentFailed, match=r"slow did not return from step for 0\.5 s"),
        patient.within(0.5, "step"),
    ):
        time.sleep(60)
    assert time.monotonic() - began < 30


def test_an_environment_that_goes_on_after_any_exception_is_interrupted_too(clock):
    patient = clock(0.5)

    def step():
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)

    with pytest.raises(EnvironmentFailed, match="slow did not return"), patient.within(0.5, "step"):
        step()


def test_one_that_cannot_be_interrupted_ends_the_process():
    code = """
import contextlib, time
from dicerl.envs.patience import Patience
patient = Patience("deaf", 0.5)
patient.start()
with patient.within(0.5, "step"):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "dicerl: deaf did not return from step for 0.5 s, nor when it was interrupted; the run ends"
        " here\n",
    )


def test_random_play_before_a_run_is_bounded(tmp_path, monkeypatch):
    class Hangs(Catch):
        def step(self, action):
            time.sleep(60)

    monkeypatch.setattr(setup, "STARTING", 1.0)
    config = debug(tmp_path, "", runtime__stuck_seconds=1.0)
    with pytest.raises(EnvironmentFailed, match=r"did not return from random play for 1 s"):
        setup.random_play(config, env_spec(config, Catch), Hangs, 64)


def test_time_counts_only_while_an_environment_is_waited_for(clock):
    patient = clock(0.5)
    with patient.within(0.5, "step"):
        pass
    time.sleep(0.8)  # the learner trains
    with patient.within(0.5, "step"):
        for _ in range(8):
            time.sleep(0.1)
            patient.again()


def test_an_environment_that_changes_the_folder_changes_only_its_own(tmp_path, monkeypatch):
    """The run's directory may be relative."""
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    seen = set()

    class Moves(Catch):
        def __init__(self):
            super().__init__()
            os.chdir(elsewhere)

        def step(self, action):
            seen.add(os.getcwd())
            return super().step(action)

    config = debug("run", "", runtime__kind="serial", behaviour__scale="normalised")
    run = dicerl.train(config, Moves, quiet=True)
    assert run.summary["complete"]
    assert seen == {str(elsewhere)}
    assert not list(elsewhere.iterdir())
    assert (tmp_path / "run" / "config.json").is_file()
    assert os.getcwd() == str(tmp_path)


class Exits(Catch):
    """Ends the process, after copies of it that end as they like."""

    calls = 0

    def step(self, action):
        type(self).calls += 1
        if self.calls > 40:
            child = os.fork()
            if child == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            os._exit(0)
        return super().step(action)


def test_an_environment_that_ends_the_process_is_named_like_one_that_raises(tmp_path):
    config = debug(tmp_path / "run", "", evaluation__every=0, runtime__kind="serial", frames=5000)
    said = r"Exits raised in step \(environment \d\): SystemExit: os\._exit\(0\) \(actor 0, step"
    with pytest.raises(EnvironmentFailed, match=said):
        dicerl.train(config, Exits, quiet=True)
    assert os._exit is patience.END


@pytest.mark.slow
def test_a_suspended_process_blames_nobody():
    """It hears the clock once when it goes on."""
    code = """
import time
from dicerl.envs.patience import Patience
patient = Patience("slow", 20.0)
patient.start()
with patient.within(20.0, "step"):  # a tick is a second
    print("ready", flush=True)
    time.sleep(6)
print("done", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(25)
    os.kill(process.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n")


def test_somebody_else_s_alarm_is_left_alone(clock):
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        patient = Patience("slow", 0.1)
        patient.start()
        with patient.within(0.1, "step"):
            time.sleep(0.5)
        patient.stop()
        assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGALRM, before)


def test_another_thread_has_no_clock():
    patient, problems = Patience("slow", 0.1), []

    def act():
        try:
            patient.start()
            with patient.within(0.1, "step"):
                time.sleep(0.5)
            patient.stop()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert problems == []


class Hangs(Catch):
    """In one of its methods, after a while."""

    where, after = "step", 5
    calls = 0

    def _count(self, where):
        if where == self.where:
            type(self).calls += 1
            if self.calls > self.after:
                time.sleep(600)

    def step(self, action):
        self._count("step")
        return super().step(action)

    def reset(self, **kwargs):
        self._count("reset")
        return super().reset(**kwargs)

    def close(self):
        self._count("close")


@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_serial_run_ends_with_the_environment_the_actor_and_the_step(tmp_path, where):
    kind = type("Hangs", (Hangs,), {"where": where, "after": 12})
    config = debug(tmp_path / "run", "", evaluation__every=0, runtime__kind="serial")
    config = config.replace(**{"runtime.stuck_seconds": 1.0, "frames": 5000})
    with pytest.raises(
        EnvironmentFailed, match=r"Hangs did not return from step for 1 s \(actor 0, step \d+\)"
    ):
        dicerl.train(config, kind, quiet=True)


def test_an_environment_that_hangs_at_the_end_costs_only_a_note(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("dicerl.runtime.serial.CLOSING", 1.0)
    kind = type("Hangs", (Hangs,), {"where": "close", "after": 1})
    config = debug(tmp_path / "run", "", evaluation__every=0, runtime__kind="serial")
    assert dicerl.train(config, kind).summary["complete"]
    assert "note: Hangs did not return from close for 1 s" in capfd.readouterr().err


@pytest.mark.parametrize("where", ["reset", "close"])
def test_a_look_at_an_environment_ends(tmp_path, monkeypatch, where):
    for name in ("STARTING", "CLOSING"):
        monkeypatch.setattr(f"dicerl.envs.{name}", 1.0)
    kind = type("Hangs", (Hangs,), {"where": where, "after": 0})
    config = debug(tmp_path / "run", "<Hangs>").replace(**{"runtime.stuck_seconds": 1.0})
    with pytest.raises(EnvironmentFailed, match=f"did not return from {where} for 1 s"):
        env_spec(config, kind)
    assert patience.STARTING == 120.0
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = debug(tmp_path_factory.mktemp("trained") / "run", "", evaluation__every=0)
    run = dicerl.train(config.replace(**{"runtime.kind": "serial"}), Catch, quiet=True)
    path = run.directory / "config.json"
    saved = json.loads(path.read_text())
    saved["runtime"]["stuck_seconds"] = 1.0  # too little for training on a busy machine
    path.write_text(json.dumps(saved))
    return run


@pytest.mark.parametrize("where", ["step", "reset"])
def test_an_evaluation_is_bounded(trained, monkeypatch, where):
    monkeypatch.setattr(patience, "STARTING", 1.0)
    kind = type("Hangs", (Hangs,), {"where": where, "after": 4})
    with pytest.raises(EnvironmentFailed, match="did not return from reset or step for 2 s"):
        evaluate(trained.directory, kind, episodes=8)  # twice as many as were trained with


def test_an_environment_that_hangs_when_it_is_closed_costs_no_evaluation(
    trained, monkeypatch, capfd
):
    monkeypatch.setattr(patience, "CLOSING", 1.0)
    kind = type("Hangs", (Hangs,), {"where": "close", "after": 1})
    assert len(evaluate(trained.directory, kind, episodes=2).result["returns"]) == 2
    assert "note: Hangs did not return from close for 1 s" in capfd.readouterr().err


def test_who_uses_a_debugger_is_not_interrupted(clock):
    patient = clock(0.2)
    sys.settrace(lambda *of: None)
    try:
        with patient.within(0.2, "step"):
            time.sleep(1)
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("taken", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None])
def test_an_environment_that_takes_the_signal_is_interrupted_all_the_same(clock, taken):
    """What resets every signal to its default ended the process at the next tick."""
    patient = clock(0.5)
    try:
        with patient.within(0.5, "being made"):
            signal.signal(signal.SIGALRM, taken)
            time.sleep(0.3)

        def step():
            with patient.within(0.5, "step"):
                while True:
                    time.sleep(0.01)

        with pytest.raises(EnvironmentFailed, match=r"slow did not return from step for 0\.5 s"):
            step()
        patient.stop()
        assert signal.getsignal(signal.SIGALRM) is taken
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_nothing_is_left_of_a_patience():
    before = threading.active_count()
    with Patience("slow", 0.1):
        assert threading.active_count() == before + 1
    until = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before
