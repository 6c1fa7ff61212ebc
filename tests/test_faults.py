"""What goes wrong in practice, with real processes: killed and stuck children, a killed parent,
Ctrl-C, a broken environment, a full disk.

Starting processes is slow, so each scenario below is played once, three of them at a time; the
tests then look at what happened.
"""

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dicerl import cli
from dicerl.errors import DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]

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
    def start(cls, directory, *args, run=None, script=None):
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
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "FAULTS": str(directory), "PYTHONPATH": path},
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
        """Children of the supervisor, without Python's bookkeeper."""
        family = processes(self.process.pid)
        return {
            pid
            for pid, (parent, line) in family.items()
            if parent == self.process.pid and "resource_tracker" not in line
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
        f"faulty:{env}",
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


# --- scenarios

SCENARIOS = {}


def scenario(play):
    """A fixture that gives what ``play(directory)`` returned."""
    SCENARIOS[play.__name__] = play

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
            for name, play in SCENARIOS.items()
            if name in wanted
        }
        pool.shutdown(cancel_futures=True)
    for process in STARTED:
        kill(process)


@scenario
def story(directory):
    """One run in five lives: the parent is killed, the learner is killed, Ctrl-C, SIGTERM to all of
    them, then to its end.
    """
    run = directory / "run"
    shared = set(os.listdir("/dev/shm"))
    lives = {}

    killed = lives["killed"] = Life.start(directory / "1", *arguments("process", run=run), run=run)
    killed.actor()

    def beyond_a_checkpoint():
        found = checkpoint.checkpoints_of(run)
        lines = read_lines(run / "metrics.jsonl") if found else []
        return lines and lines[-1]["updates"] > int(found[-1].name)

    def stopped_beyond_a_checkpoint():
        """Only the supervisor finishes checkpoints: what is seen while it is stopped stays so until
        it is killed.
        """
        if not beyond_a_checkpoint():
            return False
        os.kill(killed.process.pid, signal.SIGSTOP)
        if not beyond_a_checkpoint():
            os.kill(killed.process.pid, signal.SIGCONT)
            return False
        return True

    killed.find(stopped_beyond_a_checkpoint, "metrics from after a checkpoint are on disk")
    killed.saw["children"] = killed.children()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.end()
    with contextlib.suppress(AssertionError):
        until(lambda: not set(os.listdir("/dev/shm")) - shared, "nothing new in /dev/shm", 10)
    killed.saw |= {
        "shared": set(os.listdir("/dev/shm")) - shared,
        "metrics": read_lines(run / "metrics.jsonl"),
        "saved": checkpoint.newest(run)[1],
    }
    shutil.copytree(run, directory / "moved")

    headless = lives["headless"] = Life.start(directory / "2", "resume", run, run=run)
    os.kill(headless.learner(), signal.SIGKILL)
    headless.end()

    for name, number in (("interrupted", signal.SIGINT), ("terminated", signal.SIGTERM)):
        life = lives[name] = Life.start(directory / name, "resume", run, run=run)
        life.actor()
        stop(life, number)
    lives["last"] = Life.start(directory / "5", "resume", run, "--json", run=run).end()
    return lives


def stop(life, number):
    """A signal to everything in its process group, as a terminal or `timeout` sends it."""
    os.killpg(life.process.pid, number)
    life.end()
    life.saw |= {
        "saved": checkpoint.newest(life.run)[1],
        "last line": read_lines(life.run / "metrics.jsonl")[-1],
        "folders": [p.name for p in (life.run / "checkpoints").iterdir()],
    }


@scenario
def supervision(directory):
    """Kill the actor, stop its successor, kill the evaluator; then let the run finish."""
    life = Life.start(
        directory,
        *arguments(
            "process", runtime__stuck_seconds=8, evaluation__every=400, evaluation__episodes=2
        ),
    )
    first = life.actor()
    os.kill(first, signal.SIGKILL)
    second = life.actor(but=[first])
    os.kill(second, signal.SIGSTOP)
    stopped = time.time()
    replaced = life.find(
        lambda: events(life.run, "actor_replaced")[1:], "the stuck actor is replaced"
    )
    third = life.actor(but=[first, second])
    evaluator = life.evaluator([first, second, third])
    os.kill(evaluator, signal.SIGKILL)
    life.end()
    life.saw |= {"wait": replaced[0]["time"] - stopped}
    return life


@scenario
def serial_story(directory):
    """One process: Ctrl-C, then SIGTERM, then to its end."""
    run = directory / "run"
    lives = {}
    for name, number, args in (
        ("interrupted", signal.SIGINT, arguments("serial", run=run, frames=3_000)),
        ("terminated", signal.SIGTERM, ["resume", run]),
    ):
        life = lives[name] = Life.start(directory / name, *args, run=run)
        life.actor()
        with contextlib.suppress(DicerlError):
            Run.open(run).lock()
            life.saw["not locked"] = True
        stop(life, number)
    lives["last"] = Life.start(directory / "3", "resume", run, "--json", run=run).end()
    return lives


@scenario
def restarts(directory):
    return Life.start(directory, *arguments("process", "Dies-v0", runtime__max_restarts=1)).end()


@scenario
def raises(directory):
    return Life.start(directory, *arguments("process", "Raises-v0"), "--quiet").end()


@scenario
def not_finite(directory):
    return Life.start(directory, *arguments("process", "Nan-v0"), "--quiet").end()


@scenario
def blind(directory):
    return Life.start(directory, *arguments("process", "Blind-v0"), "--quiet").end()


@scenario
def slow_learner(directory):
    """The collector stays full for longer than stuck_seconds."""
    return Life.start(
        directory,
        script="""
        import time
        import dicerl
        import faulty
        config = dicerl.preset(
            "debug", frames=160, runtime__kind="process", runtime__stuck_seconds=5, run_dir="run",
            tensorboard=False, evaluation__every=0, checkpoint__every=0)
        def slow(learner, batch):
            time.sleep(3.0 if learner.updates < 3 else 0.0)
        dicerl.train(config, faulty.Slow, quiet=True, on_batch=slow)
    """,
    ).end()


@contextlib.contextmanager
def small_disk(directory):
    """(a disk of 3 MB, True), or a directory and False without the right to mount one."""
    disk = directory / "disk"
    disk.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk],
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )
    try:
        yield disk, mounted
    finally:
        if mounted:
            gc.collect()  # tensors may hold their file
            subprocess.run(["umount", "--lazy", disk], capture_output=True, check=True)


def limit_files(life, size):
    for pid in processes(life.process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))


def end_with_a_checkpoint(life, mounted):
    """What is left of a run that met a full disk."""
    life.end()
    path, state = checkpoint.newest(life.run)
    tensors = {name: len(checkpoint.read_tensors(path, name)) for name in ("model", "optimizer")}
    life.saw |= {
        "reason": "No space left on device" if mounted else "File too large",
        "newest": path,
        "state": state,
        "tensors": tensors,
        "folders": [p.name for p in (life.run / "checkpoints").iterdir()],
    }
    return life


def fill_a_disk(directory, runtime):
    """A disk with room for one checkpoint (1.9 MB) but not for two; without the right to mount one,
    a limit on the size of files.
    """
    with small_disk(directory) as (disk, mounted):
        run = disk / "run"
        life = Life.start(
            directory,
            *arguments(
                runtime, run=run, network__hidden=128, network__lstm=128, checkpoint__every=1_000
            ),
            run=run,
        )
        if not mounted:
            life.find(lambda: checkpoint.checkpoints_of(run), "a checkpoint")
            limit_files(life, 400_000)
        return end_with_a_checkpoint(life, mounted)


@scenario
def full_disk_between_checkpoints(directory):
    """Something else fills the disk after a checkpoint: the next to write are the metrics, within a
    second; the next checkpoint is 3 s away.
    """
    with small_disk(directory) as (disk, mounted):
        run = disk / "run"
        life = Life.start(
            directory,
            *arguments("process", run=run, frames=100_000, checkpoint__every=3_000),
            run=run,
        )
        life.find(lambda: checkpoint.checkpoints_of(run), "a checkpoint")
        if mounted:
            with (
                contextlib.suppress(OSError),
                (disk / "ballast").open("wb", buffering=0) as ballast,
            ):
                while True:
                    ballast.write(bytes(4096))
        else:
            limit_files(life, (run / "metrics.jsonl").stat().st_size)
        return end_with_a_checkpoint(life, mounted)


@scenario
def full_disk(directory):
    return fill_a_disk(directory, "process")


@scenario
def full_disk_serial(directory):
    return fill_a_disk(directory, "serial")


# --- actors and the evaluator


def test_a_killed_actor_is_replaced_and_the_run_finishes(supervision):
    assert supervision.code == 0, supervision.saw["err"]
    replaced = events(supervision.run, "actor_replaced")[0]
    assert (replaced["actor"], replaced["restarts"], replaced["reason"]) == (
        0,
        1,
        "was killed by SIGKILL",
    )
    assert "actor 0 was killed by SIGKILL; replaced" in supervision.saw["err"]
    assert read_lines(supervision.run / "metrics.jsonl")[-1]["frames"] >= FRAMES
    assert checkpoint.newest(supervision.run).state.frames >= FRAMES
    assert supervision.leftover == {}


def test_a_stuck_actor_is_replaced_within_stuck_seconds(supervision):
    assert [e["reason"] for e in events(supervision.run, "actor_replaced")][1:] == [
        "did nothing for 8 s"
    ]
    # its last word may be a little older than the signal
    assert 5 < supervision.saw["wait"] < 8 + 4
    assert len(set(supervision.pids("stepped"))) >= 3


def test_a_killed_evaluator_costs_one_evaluation_and_not_the_run(supervision):
    assert "was killed by SIGKILL" in [
        e["reason"] for e in events(supervision.run, "evaluator_died")
    ]
    assert "the evaluator was killed by SIGKILL" in supervision.saw["err"]
    assert supervision.code == 0


def test_too_many_replacements_end_the_run_with_the_reason(restarts):
    failed_with_one_line(
        restarts,
        "actor 0",
        "replaced 2 times",
        "runtime.max_restarts is 1",
        "was killed by SIGKILL",
    )
    assert [e["restarts"] for e in events(restarts.run, "actor_replaced")] == [1, 2]
    assert "replaced 2 times" in events(restarts.run, "failed")[0]["reason"]
    assert len(set(restarts.pids("stepped"))) == 2


def test_an_actor_that_waits_for_a_slow_learner_is_not_stuck(slow_learner):
    assert slow_learner.code == 0, slow_learner.saw["err"]
    assert events(slow_learner.run, "actor_replaced") == []


# --- the parent and the learner


def test_a_killed_parent_takes_its_children_along(story):
    killed = story["killed"]
    assert killed.code == -signal.SIGKILL
    assert len(killed.saw["children"]) == 2
    assert killed.leftover == {}
    assert killed.saw["shared"] == set()


def test_a_killed_learner_ends_the_run_quickly_with_its_name_and_the_signal(story):
    failed_with_one_line(
        story["headless"],
        "the learner was killed by SIGKILL",
        f"dicerl resume {story['headless'].run}",
    )
    assert story["headless"].seconds < 20


def test_ctrl_c_stops_with_a_checkpoint(story):
    check_clean_stop(story["interrupted"])


def test_sigterm_to_everybody_stops_with_a_checkpoint(story):
    check_clean_stop(story["terminated"])


@pytest.mark.parametrize("name", ["interrupted", "terminated"])
def test_the_serial_runtime_stops_with_a_checkpoint(serial_story, name):
    check_clean_stop(serial_story[name])


def check_clean_stop(life):
    err = life.saw["err"]
    assert life.code == 0, err
    assert life.leftover == {}
    assert "Traceback" not in err
    assert err.count("stopping after a checkpoint") == 1
    assert err.splitlines()[-1] == f"to continue: dicerl resume {life.run}"
    # The checkpoint is the last thing the run did, and nothing half-written lies beside it.
    assert life.saw["saved"].updates == life.saw["last line"]["updates"]
    assert (
        f"stopped at {life.saw['saved'].frames:,} frames, {life.saw['saved'].updates:,}"
        " updates" in err
    )
    assert all(name.isdigit() for name in life.saw["folders"])


def test_a_run_that_trains_is_locked(serial_story):
    assert "not locked" not in serial_story["interrupted"].saw
    assert "not locked" not in serial_story["terminated"].saw


def test_the_run_finishes_after_all_of_that(story):
    check_finished(story, FRAMES)


def test_the_serial_run_finishes_too(serial_story):
    check_finished(serial_story, 3_000)


def check_finished(lives, frames):
    last = lives["last"]
    assert last.code == 0, last.saw["err"]
    assert last.leftover == {}
    summary = json.loads(last.saw["out"])
    assert summary["complete"] is True
    assert frames <= summary["frames"] < frames + 1_000
    # every line is whole
    lines = [json.loads(line) for line in (last.run / "metrics.jsonl").read_text().splitlines()]
    for name in ("agent_steps", "frames", "updates"):
        values = [line[name] for line in lines]
        assert values == sorted(values), f"{name} jumps back"
    trained = [line["updates"] for line in lines if line["kind"] == "train"]
    # log_every is 1: none twice, none missing
    assert trained == list(range(1, summary["updates"] + 1))
    assert [line.get("event") for line in lines].count("start") == 1
    assert "resume" in [line.get("event") for line in lines]
    assert checkpoint.newest(last.run).state.frames == summary["frames"]


def test_what_a_killed_run_wrote_after_its_checkpoint_is_set_aside(story):
    killed, run = story["killed"], story["last"].run
    lost = [line for line in killed.saw["metrics"] if line["updates"] > killed.saw["saved"].updates]
    assert lost
    assert lost[0] in read_lines(run / "metrics.discarded.jsonl")
    assert lost[0] not in read_lines(run / "metrics.jsonl")


def test_a_run_goes_on_in_the_other_runtime(story, tmp_path, monkeypatch, capfd):
    """As `auto` has it where a run is copied to a machine with one core."""
    run = story["killed"].run.with_name("moved")
    config = json.loads((run / "config.json").read_text())
    frames = config["frames"] = story["killed"].saw["saved"].frames + 200
    config["runtime"]["kind"] = "serial"
    (run / "config.json").write_text(json.dumps(config))
    use_faulty_environments(tmp_path, monkeypatch)
    assert cli.main(["resume", str(run), "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["frames"] >= frames
    assert "runtime serial" in err


# --- broken environments


def use_faulty_environments(directory, monkeypatch):
    """In this process."""
    (directory / "faulty.py").write_text(textwrap.dedent(ENVIRONMENTS))
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("FAULTS", str(directory))
    monkeypatch.chdir(directory)


def test_an_environment_that_raises_ends_the_run(raises):
    failed_with_one_line(
        raises, "faulty:Raises-v0 raised in step", "RuntimeError: the engine is on fire"
    )
    assert "raised in step" in events(raises.run, "failed")[0]["reason"]


def test_rewards_that_are_not_finite_end_the_run(not_finite):
    failed_with_one_line(not_finite, "faulty:Nan-v0 gave the reward nan", "must be finite")


def test_observations_that_are_not_finite_end_the_run(blind):
    failed_with_one_line(blind, "faulty:Blind-v0 gave the observed value nan", "must be finite")
    assert "observed value nan" in events(blind.run, "failed")[0]["reason"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "Raises",
            "faulty:Raises-v0 raised in step (environment 0): RuntimeError: the engine is on fire",
        ),
        ("Nan", "faulty:Nan-v0 gave the reward nan; rewards must be finite"),
        ("Blind", "faulty:Blind-v0 gave the observed value nan; observed values must be finite"),
    ],
    ids=["raises", "not finite", "blind"],
)
def test_broken_environments_in_the_serial_runtime(tmp_path, monkeypatch, capfd, env, message):
    use_faulty_environments(tmp_path, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments("serial", f"{env}-v0"), "--quiet"])
    assert ended.value.code == 2
    assert capfd.readouterr() == ("", f"dicerl: {message}\n")
    assert events(tmp_path / "run", "failed")
    Run.open(tmp_path / "run").lock()  # nobody holds it any more


# --- a full disk


def test_a_full_disk_ends_the_run_and_spares_the_earlier_checkpoint(full_disk):
    check_full_disk(full_disk)


def test_a_full_disk_in_the_serial_runtime(full_disk_serial):
    check_full_disk(full_disk_serial)


def test_metrics_on_a_full_disk_end_the_run_and_spare_the_checkpoint(full_disk_between_checkpoints):
    life = full_disk_between_checkpoints
    failed_with_one_line(
        life,
        f"{life.run}/metrics.jsonl could not be written",
        life.saw["reason"],
        f"dicerl resume {life.run}",
    )
    check_newest_is_whole(life)


def check_full_disk(life):
    failed_with_one_line(
        life,
        "the checkpoint could not be written",
        life.saw["reason"],
        f"{life.saw['newest']} is complete and kept",
    )
    check_newest_is_whole(life)


def check_newest_is_whole(life):
    newest = life.saw["newest"]
    assert life.saw["folders"] == [newest.name]  # and nothing half-written beside it
    assert life.saw["state"].updates == int(newest.name) > 0
    assert min(life.saw["tensors"].values()) > 0


FIRST_CHILD = """
import os, signal
from dicerl.runtime import processes

if __name__ == "__main__":
    from role import role
    process, pipe = processes.start_process(role, None)
    os.kill(process.pid, signal.SIGTERM)  # long before it has imported anything
    print(pipe.recv() if pipe.poll(120) else "silent")
    process.kill()
"""


def test_even_the_first_child_starts_with_signals_held(tmp_path):
    (tmp_path / "role.py").write_text(
        "def role(channel, shared):\n    channel.send('alive')\n    channel.receive()\n"
    )
    (tmp_path / "first.py").write_text(FIRST_CHILD)
    done = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "alive", done.stderr
