"""Runs with real processes, for test_faults.py, test_faulty_environments.py and test_full_disk.py:
start one, find its children, end it, and keep what it left.

Starting processes is slow, so each scenario of a file is played once, three of them at a time; the
tests then look at what happened.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dicerl.records.metrics import read_lines

# Under nohup this process ignores SIGHUP, and what it starts would, too. With a handler it still
# does, and its children begin with the usual one.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

DICERL = str(Path(sys.executable).with_name("dicerl"))
# seconds for anything that must happen at all: a busy machine starts processes slowly
PATIENCE = 180.0
FRAMES = 5_000

# Environments that log who made them and who steps, so that the tests know which process is the
# actor.
ENVIRONMENTS = """
    import os, signal, time
    from pathlib import Path
    import gymnasium
    from dicerl.envs.toy import Catch

    def log(name):
        with open(Path(os.environ["FAULTS"]) / name, "a") as file:
            file.write(f"{os.getpid()}\\n")

    class Slow(Catch):
        '''About 1,000 steps a second in all, on any machine: 8 environments of 1 ms.'''
        def __init__(self):
            super().__init__()
            self.taken = 0
            log("made")

        def step(self, action):
            time.sleep(0.001)
            self.taken += 1
            if self.taken == 40:
                log("stepped")
                self.fail()
            return super().step(action)

        def fail(self):
            pass

    class Raises(Slow):
        def fail(self):
            raise RuntimeError("the\\nengine is on fire")

    class Nan(Slow):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, float("nan") if self.taken >= 40 else reward, *rest

    class Blind(Slow):
        def step(self, action):
            observation, *rest = super().step(action)
            return observation * (float("nan") if self.taken >= 40 else 1.0), *rest

    class Dies(Slow):
        def fail(self):
            os.kill(os.getpid(), signal.SIGKILL)

    for kind in (Slow, Raises, Nan, Blind, Dies):
        gymnasium.register(f"{kind.__name__}-v0", kind)
"""


def until(condition, what, seconds=PATIENCE):
    """Wait for a condition and return what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def named(pid):
    """What a process calls itself; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def processes(session):
    """{pid: (parent, command line)} of the living processes of a session."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, _, its_session = (
                    (path / "stat").read_text().rpartition(")")[2].split()[:4]
                )
                if int(its_session) == session and state not in "ZX":
                    found[int(path.name)] = (
                        int(parent),
                        (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(),
                    )
    return found


@dataclass
class Life:
    """One process from start to end, in a session of its own."""

    process: subprocess.Popen
    directory: Path  # of its logs
    run: Path
    quiet: bool
    code: int | None = None
    seconds: float = 0.0  # end() waited for it
    leftover: dict = field(default_factory=dict)  # processes that outlived it
    saw: dict = field(default_factory=dict)

    @classmethod
    def start(cls, directory, *args, run=None, script=None, prefix=(), variables=None):
        """``prefix`` are words before the command that set its limits (``prlimit --nofile=24``),
        ``variables`` further ones of its environment.
        """
        directory.mkdir(exist_ok=True, parents=True)
        (directory / "faulty.py").write_text(textwrap.dedent(ENVIRONMENTS))
        for name in ("made", "stepped"):
            (directory / name).write_text("")
        path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = (
            [sys.executable, "-c", textwrap.dedent(script)] if script else [DICERL, *map(str, args)]
        )
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            process = subprocess.Popen(
                [*prefix, *command],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={
                    **os.environ,
                    "FAULTS": str(directory),
                    "PYTHONPATH": path,
                    "DICERL_TRUST": "faulty",
                    **(variables or {}),
                },
            )
        STARTED.append(process)
        return cls(process, directory, run or directory / "run", "--quiet" in args)

    @property
    def out(self):
        return (self.directory / "out").read_text()

    @property
    def err(self):
        return (self.directory / "err").read_text()

    def pids(self, name):
        return [int(line) for line in (self.directory / name).read_text().split()]

    def children(self):
        """Children of the supervisor that do its work: without Python's bookkeeper and the process
        that forks them.
        """
        family = processes(self.process.pid)
        return {
            pid
            for pid, (parent, line) in family.items()
            if parent == self.process.pid
            and "resource_tracker" not in line
            and named(pid) not in ("", "dicerl fork ser")
        }

    def find(self, condition, what):
        """Wait for something to happen while the process lives."""

        def alive_and_found():
            assert self.process.poll() is None, (
                f"it ended with {self.process.returncode} before: {what}; {self.err}"
            )
            return condition()

        return until(alive_and_found, what)

    def actor(self, but=()):
        """The process that steps the environments (the supervisor itself in the serial runtime),
        once it has taken some steps.
        """

        def stepping():
            return [
                pid
                for pid in self.pids("stepped")
                if pid not in but and pid in self.children() | {self.process.pid}
            ]

        return self.find(stepping, "an actor steps")[0]

    def evaluator(self, actors):
        """A child that made environments and is no actor."""
        return self.find(
            lambda: set(self.pids("made")) & self.children() - set(actors), "an evaluator starts"
        ).pop()

    def learner(self):
        """The child that made no environment."""
        self.actor()
        return self.find(lambda: self.children() - set(self.pids("made")), "a learner starts").pop()

    def end(self):
        """Wait for its end, then for its children's."""
        began = time.monotonic()
        try:
            self.code = self.process.wait(PATIENCE)
            self.seconds = time.monotonic() - began
            with contextlib.suppress(AssertionError):
                until(lambda: not processes(self.process.pid), "no process is left", 10)
        finally:
            self.leftover = processes(self.process.pid)
            kill(self.process)
        self.saw |= {"out": self.out, "err": self.err}
        return self


STARTED = []


def kill(process):
    """A process and what it left in its session."""
    for pid in processes(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def arguments(runtime, env="Slow-v0", run="run", **changes):
    fields = {
        "runtime.kind": runtime,
        "frames": FRAMES,
        "runtime.num_envs": 8,
        "runtime.num_actors": 1 if runtime == "process" else 0,
        "sequence.batch": 8,
        "sequence.length": 16,
        "sequence.burn_in": 0,
        "checkpoint.every": 1_600,
        "evaluation.every": 0,
        "log_every": 1,
        "tensorboard": False,
        "run_dir": run,
        **{k.replace("__", "."): v for k, v in changes.items()},
    }
    return [
        "train",
        env if ":" in env else f"faulty:{env}",
        "--preset",
        "debug",
        *[f"--{name}={value}" for name, value in fields.items()],
    ]


def events(run, name):
    return [line for line in read_lines(run / "metrics.jsonl") if line.get("event") == name]


def failed_with_one_line(life, *fragments):
    """Exit code 2 and, after the lines a run prints while it trains, exactly one line of error."""
    err = life.saw["err"]
    assert life.code == 2, (life.code, err)
    assert "Traceback" not in err
    assert life.leftover == {}
    lines = err.splitlines()
    about = [line for line in lines if line.startswith("dicerl: ")]
    assert about[-1] == lines[-1]
    assert len(about) == (1 if life.quiet else 2)  # the first says what is trained
    assert not life.quiet or len(lines) == 1
    for fragment in fragments:
        assert fragment in lines[-1], lines[-1]


SCENARIOS = {}


def scenario(play):
    """A fixture that gives what ``play(directory)`` returned."""
    SCENARIOS[play.__module__, play.__name__] = play  # other files' may have the same name

    @pytest.fixture(scope="module", name=play.__name__)
    def outcome(played):
        return played[play.__name__].result()

    return outcome


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    """Starts the scenarios that the chosen tests ask for, three at a time."""
    wanted = {
        name
        for item in request.session.items
        if item.path == request.path
        for name in item.fixturenames
    }
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(play, tmp_path_factory.mktemp(name))
            for (module, name), play in SCENARIOS.items()
            if module == request.module.__name__ and name in wanted
        }
        pool.shutdown(cancel_futures=True)
    for process in STARTED:
        kill(process)


def use_faulty_environments(directory, monkeypatch):
    """In this process."""
    (directory / "faulty.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("FAULTS", str(directory))
    monkeypatch.setenv("DICERL_TRUST", "faulty")
    monkeypatch.chdir(directory)
