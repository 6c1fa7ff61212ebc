"""What goes wrong in practice, with real processes: killed and stuck children, a killed parent, Ctrl-C, a broken environment, a full disk.

Starting processes is slow, so each scenario below is played once, three of them at a time; the tests then look at what happened.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dicerl import checkpoint, cli
from dicerl.errors import DicerlError
from dicerl.metrics import read_lines
from dicerl.run import Run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(280),
]

DICERL = str(Path(sys.executable).with_name("dicerl"))
PATIENCE = 60.0  # seconds for anything that must happen at all; a busy machine starts processes slowly
FRAMES = 6_000

# Environments that log who made them and who steps, so that the tests know which process is the actor.
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

    class Dies(Slow):
        def fail(self):
            os.kill(os.getpid(), signal.SIGKILL)

    for kind in (Slow, Raises, Nan, Dies):
        gymnasium.register(f"{kind.__name__}-v0", kind)
"""


# --- processes


def until(condition, what, seconds=PATIENCE):
    """Wait for a condition and return what it gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def processes(session):
    """{pid: (parent, command line)} of the living processes of a session."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, _, its_session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state not in "ZX":
                    found[int(path.name)] = (int(parent), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@dataclass
class Life:
    """One process from start to end, in a session of its own."""

    process: subprocess.Popen
    directory: Path  # of its logs
    code: int | None = None
    seconds: float = 0.0  # from the signal to the end
    leftover: dict = field(default_factory=dict)  # processes that outlived it
    saw: dict = field(default_factory=dict)

    @classmethod
    def start(cls, directory, *args, script=None):
        directory.mkdir(exist_ok=True, parents=True)
        (directory / "faulty.py").write_text(textwrap.dedent(ENVIRONMENTS))
        for name in ("made", "stepped"):
            (directory / name).write_text("")
        path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-c", textwrap.dedent(script)] if script else [DICERL, *map(str, args)]
        with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
            process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                       env={**os.environ, "FAULTS": str(directory), "PYTHONPATH": path})
        return cls(process, directory)

    @property
    def out(self):
        return (self.directory / "out").read_text()

    @property
    def err(self):
        return (self.directory / "err").read_text()

    def pids(self, name):
        return [int(line) for line in (self.directory / name).read_text().split()]

    def children(self):
        """Children of the supervisor that are its own, not Python's bookkeeping."""
        return {pid for pid, (parent, line) in processes(self.process.pid).items() if parent == self.process.pid and "resource_tracker" not in line}

    def check_alive(self):
        assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
        return True

    def actor(self, but=()):
        """The process that steps the environments, once it has taken some steps and the supervisor heard of them."""
        def find():
            return self.check_alive() and [pid for pid in self.pids("stepped") if pid not in but and pid in self.children() | {self.process.pid}]

        return until(find, "an actor that steps")[0]

    def evaluator(self, but):
        def find():
            return self.check_alive() and [pid for pid in self.pids("made") if pid not in {*but, self.process.pid} and pid in self.children()]

        return until(find, "an evaluator")[0]

    def learner(self):
        """The child that made no environment."""
        self.actor()
        return until(lambda: self.children() - set(self.pids("made")), "a learner").pop()

    def end(self, seconds=PATIENCE):
        """Wait for its end, then for its children's."""
        began = time.monotonic()
        try:
            self.code = self.process.wait(seconds)
            self.seconds = time.monotonic() - began
            with contextlib.suppress(AssertionError):
                until(lambda: not processes(self.process.pid), "no process left", 10)
        finally:
            self.leftover = processes(self.process.pid)
            for pid in self.leftover:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self.saw |= {"out": self.out, "err": self.err}
        return self


def arguments(runtime, env="Slow-v0", run="run", **fields):
    values = {"runtime.kind": runtime, "frames": FRAMES, "runtime.num-envs": 8, "runtime.num-actors": 1 if runtime == "process" else 0,
              "sequence.batch": 8, "sequence.length": 16, "sequence.burn-in": 0, "checkpoint.every": 1_500, "evaluation.every": 0,
              "log-every": 1, "tensorboard": False, **{k.replace("__", ".").replace("_", "-"): v for k, v in fields.items()}}
    return ["train", f"faulty:{env}", "--preset", "debug", "--run-dir", run, *[part for k, v in values.items() for part in (f"--{k}", str(v))]]


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
    assert len(about) == (1 if "--quiet" in life.process.args else 2)  # the first says what is trained
    for fragment in fragments:
        assert fragment in lines[-1], lines[-1]
    return lines[-1]


# --- scenarios


def play_supervision(directory):
    """Kill the actor, stop its successor, kill the evaluator; then let the run finish."""
    life = Life.start(directory, *arguments("process", runtime__stuck_seconds=3, evaluation__every=1_000, evaluation__episodes=2))
    first = life.actor()
    os.kill(first, signal.SIGKILL)
    second = life.actor(but=[first])
    os.kill(second, signal.SIGSTOP)
    stopped = time.time()
    replaced = until(lambda: life.check_alive() and [e for e in events(directory / "run", "actor_replaced") if "did nothing" in e["reason"]],
                     "the stuck actor is replaced")
    third = life.actor(but=[first, second])
    evaluator = life.evaluator(but=[first, second, third])
    os.kill(evaluator, signal.SIGKILL)
    life.end()
    life.saw |= {"wait": replaced[0]["time"] - stopped, "actors": (first, second, third), "evaluator": evaluator}
    return life


def play_restarts(directory):
    return Life.start(directory, *arguments("process", "Dies-v0", runtime__max_restarts=1)).end()


def play_story(directory):
    """One run in five lives: the parent is killed, the learner is killed, Ctrl-C, SIGTERM to all of them, then to its end."""
    run = directory / "run"
    shared_before = set(os.listdir("/dev/shm"))
    lives = {}

    killed = lives["killed"] = Life.start(directory / "1", *arguments("process", run=run))
    killed.actor()

    def beyond_a_checkpoint():
        found = checkpoint.checkpoints_of(run)
        lines = read_lines(run / "metrics.jsonl") if found else []
        return killed.check_alive() and lines and lines[-1]["updates"] > int(found[-1].name)

    until(beyond_a_checkpoint, "metrics from after the first checkpoint")
    killed.saw["children"] = killed.children()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.end()
    killed.saw["metrics"] = read_lines(run / "metrics.jsonl")
    killed.saw["shared"] = until(lambda: [set(os.listdir("/dev/shm")) - shared_before], "a listing")[0]
    killed.saw["checkpoint"] = checkpoint.newest(run)[1]

    headless = lives["headless"] = Life.start(directory / "2", "resume", run)
    os.kill(headless.learner(), signal.SIGKILL)
    headless.end()

    for name, number in (("interrupted", signal.SIGINT), ("terminated", signal.SIGTERM)):
        life = lives[name] = Life.start(directory / name, "resume", run)
        life.actor()
        os.killpg(life.process.pid, number)
        life.end()
        life.saw["updates"] = checkpoint.newest(run)[1]["updates"]
        life.saw["last line"] = read_lines(run / "metrics.jsonl")[-1]
        life.saw["folders"] = sorted(p.name for p in (run / "checkpoints").iterdir())

    lives["last"] = Life.start(directory / "5", "resume", run, "--json").end()
    return lives


def play_serial_story(directory):
    """The same in one process: Ctrl-C, then SIGTERM, then to its end."""
    run = directory / "run"
    lives = {}
    for name, number, args in (("interrupted", signal.SIGINT, arguments("serial", run=run, frames=3_000)), ("terminated", signal.SIGTERM, ["resume", run])):
        life = lives[name] = Life.start(directory / name, *args)
        life.actor()
        with pytest.raises(DicerlError) as caught:  # it is alive: nobody else may write
            Run.open(run).lock()
        life.saw["locked"] = str(caught.value)
        os.killpg(life.process.pid, number)
        life.end()
        life.saw["updates"] = checkpoint.newest(run)[1]["updates"]
        life.saw["last line"] = read_lines(run / "metrics.jsonl")[-1]
        life.saw["folders"] = sorted(p.name for p in (run / "checkpoints").iterdir())
    lives["last"] = Life.start(directory / "3", "resume", run, "--json").end()
    return lives


def play_raises(directory):
    return Life.start(directory, *arguments("process", "Raises-v0"), "--quiet").end()


def play_nan(directory):
    return Life.start(directory, *arguments("process", "Nan-v0"), "--quiet").end()


def play_slow_learner(directory):
    """Actors wait for free slots longer than stuck_seconds: they are idle, not stuck."""
    return Life.start(directory, script="""
        import time
        import dicerl
        import faulty
        config = dicerl.preset("debug", frames=160, runtime__kind="process", runtime__stuck_seconds=2, run_dir="run", tensorboard=False,
                               evaluation__every=0, checkpoint__every=0)
        dicerl.train(config, faulty.Slow, quiet=True, on_batch=lambda learner, batch: time.sleep(1.3 if learner.updates < 6 else 0.0))
    """).end()


def play_disk(directory, runtime):
    """A disk with room for one checkpoint (1.7 MB) but not for two; without the right to mount one, a limit on the size of files."""
    disk = directory / "disk"
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], capture_output=True, check=False).returncode == 0
    run = disk / "run"
    try:
        life = Life.start(directory, *arguments(runtime, run=run, network__hidden=128, network__lstm=128, checkpoint__every=1_000))
        if not mounted:
            until(lambda: life.check_alive() and checkpoint.checkpoints_of(run), "a checkpoint")
            for pid in processes(life.process.pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (400_000, 400_000))
        life.end()
        life.saw["reason"] = "No space left on device" if mounted else "File too large"
        life.saw["folders"] = sorted(p.name for p in (run / "checkpoints").iterdir())
        life.saw["newest"] = checkpoint.newest(run)
        life.saw["tensors"] = {name: checkpoint.read_tensors(life.saw["newest"][0], name) for name in ("model", "optimizer")}
    finally:
        if mounted:
            subprocess.run(["umount", disk], check=True)
    return life


SCENARIOS = {
    "story": play_story, "supervision": play_supervision, "restarts": play_restarts, "serial_story": play_serial_story, "raises": play_raises,
    "nan": play_nan, "slow_learner": play_slow_learner, "disk_process": lambda d: play_disk(d, "process"),
    "disk_serial": lambda d: play_disk(d, "serial"),
}


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    """Starts the scenarios the collected tests ask for; gives their outcomes."""
    wanted = {item.get_closest_marker("scenario").args[0] for item in request.session.items
              if item.path == request.path and item.get_closest_marker("scenario")}
    with ThreadPoolExecutor(3) as pool:
        yield {name: pool.submit(play, tmp_path_factory.mktemp(name)) for name, play in SCENARIOS.items() if name in wanted}


@pytest.fixture
def outcome(request, played):
    return played[request.node.get_closest_marker("scenario").args[0]].result()


scenario = pytest.mark.scenario


# --- actors and the evaluator


@scenario("supervision")
def test_a_killed_actor_is_replaced_and_the_run_finishes(outcome):
    run = outcome.directory / "run"
    assert outcome.code == 0, outcome.saw["err"]
    replaced = events(run, "actor_replaced")
    assert replaced[0]["reason"] == "was killed by SIGKILL"
    assert replaced[0]["actor"] == 0
    assert replaced[0]["restarts"] == 1
    assert "actor 0 was killed by SIGKILL; replaced" in outcome.saw["err"]
    assert read_lines(run / "metrics.jsonl")[-1]["frames"] >= FRAMES
    assert checkpoint.newest(run)[1]["frames"] >= FRAMES
    assert outcome.leftover == {}


@scenario("supervision")
def test_a_stuck_actor_is_replaced_within_stuck_seconds(outcome):
    replaced = events(outcome.directory / "run", "actor_replaced")
    assert [e["reason"] for e in replaced[1:]] == ["did nothing for 3 s"]
    assert 1.0 < outcome.saw["wait"] < 3.0 + 3.0  # its last word may be a little older than the signal
    assert len(set(outcome.saw["actors"])) == 3


@scenario("supervision")
def test_a_killed_evaluator_costs_one_evaluation_and_not_the_run(outcome):
    run = outcome.directory / "run"
    assert [e["reason"] for e in events(run, "evaluator_died")] == ["was killed by SIGKILL"]
    assert "the evaluator was killed by SIGKILL" in outcome.saw["err"]
    assert outcome.code == 0
    assert outcome.saw["evaluator"] not in outcome.saw["actors"]


@scenario("restarts")
def test_too_many_replacements_end_the_run_with_the_reason(outcome):
    failed_with_one_line(outcome, "actor 0", "replaced 2 times", "runtime.max_restarts is 1", "was killed by SIGKILL")
    run = outcome.directory / "run"
    assert [e["restarts"] for e in events(run, "actor_replaced")] == [1, 2]
    assert "replaced 2 times" in events(run, "failed")[0]["reason"]
    assert len(set(outcome.pids("stepped"))) == 2


@scenario("slow_learner")
def test_an_actor_that_waits_for_a_slow_learner_is_not_stuck(outcome):
    assert outcome.code == 0, outcome.saw["err"]
    assert events(outcome.directory / "run", "actor_replaced") == []


# --- the parent and the learner


@scenario("story")
def test_a_killed_parent_takes_its_children_along(outcome):
    killed = outcome["killed"]
    assert killed.code == -signal.SIGKILL
    assert len(killed.saw["children"]) == 2
    assert killed.leftover == {}
    assert killed.saw["shared"] == set()


@scenario("story")
def test_a_killed_learner_ends_the_run_quickly_with_its_name_and_the_signal(outcome):
    headless = outcome["headless"]
    run = Path(outcome["killed"].process.args[outcome["killed"].process.args.index("--run-dir") + 1])
    failed_with_one_line(headless, "the learner was killed by SIGKILL", f"dicerl resume {run}")
    assert headless.seconds < 10


@scenario("story")
@pytest.mark.parametrize("name", ["interrupted", "terminated"])
def test_ctrl_c_and_sigterm_stop_with_a_checkpoint(outcome, name):
    check_clean_stop(outcome[name])


@scenario("serial_story")
@pytest.mark.parametrize("name", ["interrupted", "terminated"])
def test_ctrl_c_and_sigterm_stop_with_a_checkpoint_in_one_process(outcome, name):
    check_clean_stop(outcome[name])
    assert "in use by another process" in outcome[name].saw["locked"]


def check_clean_stop(life):
    err, run = life.saw["err"], life.process.args[life.process.args.index("resume") + 1] if "resume" in life.process.args else (
        life.process.args[life.process.args.index("--run-dir") + 1])
    assert life.code == 0, err
    assert life.leftover == {}
    assert "Traceback" not in err
    assert life.seconds < 30
    assert err.splitlines()[-1] == f"to continue: dicerl resume {run}"
    assert err.count("stopping after a checkpoint") == 1
    assert "dicerl: the learner" not in err
    # The checkpoint is the newest thing the run did, and nothing half-written lies beside it.
    assert life.saw["updates"] == life.saw["last line"]["updates"]
    assert all(name.isdigit() for name in life.saw["folders"])


@scenario("story")
def test_the_run_finishes_after_all_of_that(outcome):
    check_finished(outcome, FRAMES)


@scenario("serial_story")
def test_the_serial_run_finishes_too(outcome):
    check_finished(outcome, 3_000)


def check_finished(lives, frames):
    last = lives["last"]
    assert last.code == 0, last.saw["err"]
    assert last.leftover == {}
    summary = json.loads(last.saw["out"])
    assert summary["complete"] is True
    assert frames <= summary["frames"] < frames + 1_000
    run = Path(summary["run"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]  # every line is whole
    for name in ("agent_steps", "frames", "updates"):
        values = [line[name] for line in lines]
        assert values == sorted(values), f"{name} jumps back"
    trained = [line["updates"] for line in lines if line["kind"] == "train"]
    assert trained == list(range(1, summary["updates"] + 1))  # log_every is 1: none twice, none missing
    assert [line["event"] for line in lines if line.get("event") in ("start", "resume")] == ["start"] + ["resume"] * (len(lives) - 1)
    assert checkpoint.newest(run)[1]["frames"] == summary["frames"]


@scenario("story")
def test_what_a_killed_run_wrote_after_its_checkpoint_is_set_aside(outcome):
    run = Path(json.loads(outcome["last"].saw["out"])["run"])
    saved = outcome["killed"].saw["checkpoint"]["updates"]
    lost = [line for line in outcome["killed"].saw["metrics"] if line["updates"] > saved]
    assert lost
    assert lost[0] in read_lines(run / "metrics.discarded.jsonl")
    assert lost[0] not in read_lines(run / "metrics.jsonl")


# --- broken environments


@scenario("raises")
def test_an_environment_that_raises_ends_the_run(outcome):
    failed_with_one_line(outcome, "faulty:Raises-v0 raised in step", "RuntimeError: the engine is on fire")
    assert "raised in step" in events(outcome.directory / "run", "failed")[0]["reason"]


@scenario("nan")
def test_rewards_that_are_not_finite_end_the_run(outcome):
    failed_with_one_line(outcome, "faulty:Nan-v0 gave the reward nan", "must be finite")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("env", "message"),
    [("Raises", "faulty:Raises-v0 raised in step (environment 0): RuntimeError: the engine is on fire"),
     ("Nan", "faulty:Nan-v0 gave the reward nan; rewards must be finite")])
def test_broken_environments_in_the_serial_runtime(tmp_path, monkeypatch, capfd, env, message):
    (tmp_path / "faulty.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FAULTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments("serial", f"{env}-v0"), "--quiet"])
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"dicerl: {message}\n")
    assert events(tmp_path / "run", "failed")
    Run.open(tmp_path / "run").lock()  # nobody holds it any more


# --- a full disk


@pytest.mark.parametrize("runtime", [pytest.param("process", marks=scenario("disk_process")), pytest.param("serial", marks=scenario("disk_serial"))])
def test_a_full_disk_ends_the_run_and_spares_the_earlier_checkpoint(outcome, runtime):
    folder, state = outcome.saw["newest"]
    failed_with_one_line(outcome, "the checkpoint could not be written", outcome.saw["reason"], f"{folder} is complete and kept")
    assert outcome.saw["folders"] == [folder.name]
    assert state["updates"] == int(folder.name) > 0
    assert all(outcome.saw["tensors"].values())
