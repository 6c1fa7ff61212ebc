"""Suites: what they consist of, what is left to do, statistics, and one that is stopped, killed and
finished with real processes.
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

import numpy as np
import pytest

from dicerl import cli
from dicerl.errors import DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run, in_use
from dicerl.records.state import RunState
from dicerl.scores import hns
from dicerl.scores.statistics import interval, iqm, mean, median, probability_of_improvement
from dicerl.suite import state
from dicerl.suite.plan import make_plan
from dicerl.suite.scheduler import default_jobs, share_of_cores
from dicerl.suite.show import short

# seconds for anything that must happen at all: a busy machine starts processes slowly
PATIENCE = 400.0


def plan_of(changes=None, **given):
    return make_plan({"games": ["CartPole-v1"], "preset": "debug", **given}, changes or {})


def finish(run, score, frames=None):
    """Leave the run on disk as training does at its end (or at ``frames``)."""
    Run.create(run.config).unlock()
    frames = run.config.frames if frames is None else frames
    state_then = RunState(frames=frames, updates=frames // 10)
    checkpoint.save(run.directory, {}, state_then)
    (run.directory / "evaluations.jsonl").write_text(
        json.dumps({"kind": "evaluation", "frames": frames, "mean_return": score}) + "\n"
    )


# --- the plan


def test_a_file_and_options(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        textwrap.dedent("""
        games = ["pong", "MinAtar/Breakout-v1"]
        variants = ["dice", "baseline"]
        seeds = 2
        jobs = 3
        [config]
        frames = 1_000
        optimizer.learning_rate = 0.01
        bandit.widths = [1, 2]
        [config.loss]
        q = 3
    """)
    )
    plan = make_plan({}, {}, str(path))
    assert plan.directory == Path("suites/mine")
    assert (plan.jobs, plan.against, plan.seeds) == (3, "baseline", [0, 1])
    assert [(r.seed, r.game, r.variant) for r in plan.runs[:3]] == [
        (0, "pong", "dice"),
        (0, "pong", "baseline"),
        (0, "MinAtar/Breakout-v1", "dice"),
    ]
    assert len(plan.runs) == 8
    config = plan.runs[-1].config
    assert (config.preset, config.variant, config.seed, config.env.id) == (
        "minatar",
        "baseline",
        1,
        "MinAtar/Breakout-v1",
    )
    assert (config.frames, config.optimizer.learning_rate, config.bandit.widths, config.loss.q) == (
        1_000,
        0.01,
        (1, 2),
        3.0,
    )
    assert config.run_dir == "suites/mine/runs/MinAtar_Breakout_v1-baseline-1"
    assert plan.runs[0].config.preset == "laptop"

    wins = make_plan(
        {"games": ["freeway,pong"], "seeds": ["4,5"], "dir": "x", "preset": "debug"},
        {"frames": "2000"},
        str(path),
    )
    assert (wins.games, wins.seeds, wins.directory) == (["freeway", "pong"], [4, 5], Path("x"))
    assert {(r.config.frames, r.config.preset, r.config.loss.q) for r in wins.runs} == {
        (2_000, "debug", 3.0)
    }


def test_a_file_may_name_a_field_as_before_a_renaming(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('games = ["pong"]\n[config]\nsequence.capacity = 99\n')
    plan = make_plan({}, {}, str(path))
    assert plan.changes == {"collector.capacity": 99}  # what the runs are started with
    assert {r.config.collector.capacity for r in plan.runs} == {99}


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(["3"], [0, 1, 2]), (["7,"], [7]), (["0,2", "9"], [0, 2, 9]), ([5, 1], [5, 1]), (2, [0, 1])],
)
def test_seeds(given, seeds):
    assert plan_of(seeds=given).seeds == seeds


def test_no_run_is_compared_with_itself():
    assert plan_of().against is None
    assert plan_of(variants=["baseline"]).against is None
    assert plan_of(variants=["dice", "random"]).against is None
    assert plan_of(variants=["dice", "random"], against="random").against == "random"


FILES = {
    "no TOML": ("games = [", ["is not TOML"]),
    "unknown key": ('game = ["pong"]', ["'game'", "did you mean games?"]),
    "a field at the top": ('games = ["pong"]\nframes = 3', ["'frames'", "[config]"]),
    "unknown field": (
        'games = ["pong"]\n[config]\nloss.qq = 3',
        ["'loss.qq'", "did you mean loss.q?"],
    ),
    "a fixed field": ('games = ["pong"]\n[config]\nseed = 3', ["'seed'", "seeds"]),
    "config is no table": ('games = ["pong"]\nconfig = 3', ["config is 3"]),
    "games are numbers": ("games = [1]", ["games is [1]"]),
    "seeds are words": ('games = ["pong"]\nseeds = ["a"]', ["seeds is ['a']"]),
    "half a seed": ('games = ["pong"]\nseeds = 1.5', ["seeds is 1.5"]),
    "no seeds": ('games = ["pong"]\nseeds = []', ["seeds is []"]),
    "jobs": ('games = ["pong"]\njobs = 0', ["jobs is 0"]),
}
MISTAKES = {
    "no games": (["--seeds", "1"], ["needs games", "--games"]),
    "unknown game": (["--games", "pnog"], ["'pnog'", "did you mean pong?"]),
    "unknown variant": (
        ["--games", "pong", "--variants", "dyce"],
        ["variant is 'dyce'", "did you mean dice?"],
    ),
    "unknown preset": (["--games", "pong", "--preset", "labtop"], ["did you mean laptop?"]),
    "a system as preset": (
        ["--games", "pong", "--preset", "impala"],
        ["preset is 'impala'", "variants"],
    ),
    "unknown file": (["nothing.toml"], ["nothing.toml"]),
    "unknown option": (["--games", "pong", "--seed", "3"], ["--seed", "did you mean --seeds?"]),
    "negative seed": (["--games", "pong", "--seeds=-1,2"], ["seeds is"]),
    "against a stranger": (
        ["--games", "pong", "--against", "baseline"],
        ["against is 'baseline'", "dice"],
    ),
    "bad value": (["--games", "pong", "--frames", "many"], ["frames is 'many'"]),
    "one game twice": (
        ["--games", "MinAtar/Breakout-v1", "MinAtar_Breakout_v1"],
        ["share a directory"],
    ),
    "no evaluation": (["--games", "pong", "--evaluation.every", "0"], ["evaluation.every is 0"]),
}


@pytest.mark.parametrize("mistake", [*FILES, *MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing_behind(call, tmp_path, mistake):
    args, fragments = MISTAKES.get(mistake) or (["suite.toml"], FILES[mistake][1])
    if mistake in FILES:
        (tmp_path / "suite.toml").write_text(FILES[mistake][0])
    code, out, err = call("suite", *args)
    assert (code, out) == (2, "")
    assert err.startswith("dicerl: ")
    assert len(err.splitlines()) == 1
    for fragment in fragments:
        assert fragment in err
    assert [p.name for p in tmp_path.iterdir()] in ([], ["suite.toml"])


def test_help_has_an_example(call):
    code, out, _ = call("suite", "--help")
    assert code == 0
    assert "dicerl suite --games CartPole-v1 --variants dice baseline" in out
    assert "--optimizer.learning-rate" in out


# --- what is left to do


def test_what_is_on_disk_decides(tmp_path):
    new, half, done, damaged, dead = plan_of(seeds=5, dir=str(tmp_path)).runs
    finish(half, 5.0, frames=half.config.frames // 2)
    finish(done, 9.0)
    finish(damaged, 8.0)
    newest = checkpoint.checkpoints_of(damaged.directory)[-1]
    (newest / "state.json").write_text("{")
    Run.create(dead.config).unlock()  # died before its first checkpoint
    for run in (new, half, done, damaged, dead):
        state.look(run)
    assert [run.state for run in (new, half, done, damaged, dead)] == [
        "queued",
        "queued",
        "finished",
        "queued",
        "queued",
    ]
    assert [run.score for run in (new, half, done)] == [None, None, 9.0]
    assert half.frames == half.config.frames // 2
    assert [state.has_checkpoint(run) for run in (new, half, dead)] == [False, True, False]
    state.make_room(half)
    assert half.directory.exists()
    state.make_room(dead)
    assert not dead.directory.exists()
    Run.create(dead.config).unlock()
    (dead.directory / "diary.txt").write_text("mine")
    with pytest.raises(DicerlError, match=r"diary\.txt"):
        state.make_room(dead)


def test_a_run_with_another_configuration_is_not_taken_for_this_one(call, tmp_path):
    finish(plan_of({"frames": 1_000}, seeds=[0], dir="s").runs[0], 1.0)
    code, _, err = call(
        "suite",
        "--games",
        "CartPole-v1",
        "--preset",
        "debug",
        "--seeds",
        "0,",
        "--dir",
        "s",
        "--frames",
        "2000",
    )
    assert code == 2
    assert "was run with frames 1000, this suite asks for 2000" in err
    code, out, _ = call(
        "suite",
        "--games",
        "CartPole-v1",
        "--preset",
        "debug",
        "--seeds",
        "0,",
        "--dir",
        "s",
        "--frames",
        "1000",
        "--json",
        "--runtime",
        "process",
        "--quiet",
    )
    assert code == 0  # how a run uses the machine does not matter
    assert json.loads(out)["complete"] is True


def test_one_suite_at_a_time(call, tmp_path):
    from dicerl.records.run import hold

    (tmp_path / "s").mkdir()
    held = hold(tmp_path / "s" / "suite.lock")
    assert call("suite", "--games", "CartPole-v1", "--dir", "s")[0] == 2
    held.close()


def test_the_newest_line_of_a_run(tmp_path):
    (run,) = plan_of(seeds=1, dir=str(tmp_path)).runs
    assert state.now(run) == {}
    run.directory.mkdir(parents=True)
    path = run.directory / "metrics.jsonl"
    path.write_text(
        "".join(
            json.dumps({"kind": "train", "frames": i, "tiles": [0] * 100}) + "\n"
            for i in range(200)
        )
        + '{"frames": 99999, "ki'
    )
    assert state.now(run)["frames"] == 199


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


def test_a_suite_imports_no_torch():
    """Its runs do, each in a process of its own."""
    code = (
        "import sys, dicerl.suite.suite, dicerl.runtime.machine; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# --- results


def test_statistics_of_an_atari_suite(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {
        "games": ["pong", "breakout"],
        "variants": ["dice", "baseline"],
        "seeds": 3,
        "dir": "s",
        "preset": "debug",
    }
    rng, scores = np.random.default_rng(0), {}
    for run in make_plan(flags, {}).runs:
        score = float(rng.normal(10 if run.variant == "dice" else 5, 4))
        finish(run, score)
        scores.setdefault(run.variant, {}).setdefault(run.game, []).append(hns(run.game, score))
    args = [
        "suite",
        "--games",
        "pong",
        "breakout",
        "--variants",
        "dice",
        "baseline",
        "--seeds",
        "3",
        "--preset",
        "debug",
        "--dir",
        "s",
    ]
    code, out, err = call(*args, "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads(Path("s/suite.json").read_text())
    assert found["complete"] is True
    assert found["unit"] == "hns"
    assert "2106.00707" in found["reference"]
    # [runs, tasks]
    table = {variant: np.array(list(games.values())).T for variant, games in scores.items()}
    for variant, values in found["statistics"].items():
        assert (values["games"], values["runs"]) == (2, 6)
        for name, statistic in (("iqm", iqm), ("mean", mean), ("median", median)):
            assert list(values[name].values()) == pytest.approx(
                list(interval(statistic, table[variant])), abs=1e-5
            )
    better = found["statistics"]["dice"]["probability_of_improvement"]
    assert list(better.values()) == pytest.approx(
        list(interval(probability_of_improvement, table["dice"], table["baseline"])), abs=1e-5
    )
    assert "probability_of_improvement" not in found["statistics"]["baseline"]

    code, out, _ = call(*args)
    assert code == 0
    assert "HNS, %" in out
    assert "P(> baseline)" in out
    assert short(iqm(table["dice"])) in out
    assert "Reference: Xiao" in out
    code, out, _ = call("scores", "s", "--json")  # the same runs as columns of the tables
    assert json.loads(out)["games"]["pong"]["own dice"]["runs"] == 3


def test_other_games_are_not_normalised(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in make_plan(
        {"games": ["CartPole-v1", "pong"], "seeds": 1, "dir": "s", "preset": "debug"}, {}
    ).runs:
        finish(run, 7.0)
    code, out, _ = call(
        "suite", "--games", "CartPole-v1", "pong", "--seeds", "1", "--preset", "debug", "--dir", "s"
    )
    assert code == 0
    assert "raw evaluation returns" in out
    assert "weighed by the size" in out
    assert "too narrow" in out
    found = json.loads(Path("s/suite.json").read_text())
    assert (found["unit"], found["reference"]) == ("return", None)
    assert found["statistics"]["dice"]["mean"]["value"] == 7.0


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
