"""What goes wrong in practice, with real processes: killed and stuck children, a killed parent,
Ctrl-C. Broken environments are in test_faulty_environments.py, a full disk in test_full_disk.py.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import time

import pytest

from dicerl import cli
from dicerl.errors import DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run
from faults import (
    FRAMES,
    Life,
    arguments,
    events,
    failed_with_one_line,
    scenario,
    until,
    use_faulty_environments,
)
from faults import played as played

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]


# --- scenarios


@scenario
def story(directory):
    """One run in four lives: the parent is killed; the learner is killed, then Ctrl-C; SIGTERM to
    all of them; then to its end.
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

    life = lives["interrupted"] = Life.start(directory / "2", "resume", run, run=run)
    os.kill(life.learner(), signal.SIGKILL)
    # outside its turn or, if that was it, inside
    life.find(
        lambda: events(run, "learner_replaced") + events(run, "rolled_back"), "it is replaced"
    )
    stop(life, signal.SIGINT)
    life = lives["terminated"] = Life.start(directory / "3", "resume", run, run=run)
    life.actor()
    stop(life, signal.SIGTERM)
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


def test_a_killed_learner_is_replaced_and_the_run_goes_on(story):
    """Whether inside or outside of its turn is up to chance here; test_healing.py has both."""
    err = story["interrupted"].saw["err"]
    lines = [line for line in err.splitlines() if line.startswith("the learner was killed by")]
    assert len(lines) == 1
    assert json.loads(story["last"].saw["out"])["healed"] == 1


def test_ctrl_c_stops_with_a_checkpoint(story):
    check_clean_stop(story["interrupted"], 130)


def test_sigterm_to_everybody_stops_with_a_checkpoint(story):
    check_clean_stop(story["terminated"], 143)


@pytest.mark.parametrize(("name", "code"), [("interrupted", 130), ("terminated", 143)])
def test_the_serial_runtime_stops_with_a_checkpoint(serial_story, name, code):
    check_clean_stop(serial_story[name], code)


def check_clean_stop(life, code):
    err = life.saw["err"]
    assert life.code == code, err  # 128 and the signal's number, as shells expect
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
