"""bench/: the stopwatch, the memory of a process tree, and what the machine is used for."""

import subprocess
import sys
import time

import numpy as np
import pytest

import dicerl
from dicerl.bench.memory import Watch, descendants, resident_bytes
from dicerl.bench.whole import Stopwatch
from dicerl.checkpoint import checkpoints_of
from dicerl.envs import EnvSpec
from dicerl.runtime import setup

MIB = 2**20


def test_memory_counts_this_process_and_its_children():
    before = resident_bytes()
    assert before > 20 * MIB
    block = np.ones(64 * MIB, np.uint8)
    assert 60 * MIB < resident_bytes() - before < 80 * MIB
    child = subprocess.Popen([sys.executable, "-c", f"x = b'1' * {64 * MIB}; print('ready', flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        assert child.pid in descendants(child.pid)
        assert resident_bytes(child.pid) > 60 * MIB
        assert resident_bytes() - before > 120 * MIB
    finally:
        child.communicate("\n")
    assert resident_bytes(child.pid) == 0
    assert block.all()


def test_a_watch_keeps_the_most():
    with Watch(every=0.01) as watch:
        time.sleep(0.1)
        block = np.ones(64 * MIB, np.uint8)
        time.sleep(0.3)
        del block
    assert watch.most > 80 * MIB


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dicerl.bench.whole.time.perf_counter", lambda: now[0])
    return now


def test_the_stopwatch_counts_from_a_warm_update_to_an_update(clock):
    """100 agent steps a second, an update every 2 s; frames are 4 times the steps."""
    watch = Stopwatch(10.0, 4, held=0)
    for second in range(60):
        clock[0] = float(second)
        watch.update({"updates": second // 2, "frames": 400 * second})
        if watch.done():
            break
    assert second == 16  # updates at 2, 4, 6 (the third: warm), then 10 s
    assert watch.steps_per_s() == pytest.approx(100.0)


def test_the_stopwatch_waits_until_the_collector_hardly_matters(clock):
    watch = Stopwatch(10.0, 1, held=2000)
    for second in range(200):
        clock[0] = float(second)
        watch.update({"updates": second, "frames": 100 * second})
        if watch.done():
            break
    assert 100 * second >= 4000
    slow = Stopwatch(1.0, 1, held=10**9)  # but not for ever
    for second in range(200):
        clock[0] = float(second)
        slow.update({"updates": second, "frames": second})
    assert slow.done()


@pytest.mark.parametrize(("cores", "preset", "spec", "changes", "actors", "threads"), [
    (2, "laptop", "atari", {}, 2, 2), (8, "laptop", "atari", {}, 2, 8), (64, "paper", "atari", {}, 20, 64),
    (4, "laptop", "atari", {"sequence.batch": 3}, 2, 3),
    (2, "classic", "vector", {}, 1, 1), (8, "minatar", "minatar", {}, 4, 1), (1, "laptop", "atari", {}, 1, 1),
    (2, "laptop", "atari", {"runtime.num_actors": 1, "runtime.learner_threads": 1}, 1, 1), (8, "laptop", "atari", {"runtime.num_envs": 4}, 1, 8)])
def test_what_the_machine_is_used_for(monkeypatch, cores, preset, spec, changes, actors, threads):
    specs = {"atari": EnvSpec("pong", (4, 84, 84), np.dtype(np.uint8), 18, action_repeat=4, game="pong"),
             "minatar": EnvSpec("m", (10, 10, 4), np.dtype(np.bool_), 3), "vector": EnvSpec("c", (4,), np.dtype(np.float32), 2)}
    monkeypatch.setattr(setup, "cores", lambda: cores)
    monkeypatch.setattr(setup, "_require_memory", lambda *_: None)
    plan = setup.plan(dicerl.preset(preset, **{"env.id": "x", "runtime.kind": "process", "runtime.device": "cpu", **changes}), specs[spec])
    assert (plan.num_actors, plan.learner_threads) == (actors, threads)


def test_a_learner_with_threads_is_reproducible_too(tmp_path):
    ends = []
    for name in ("a", "b"):
        run = dicerl.train(dicerl.preset("debug", **{
            "env.id": "CartPole-v1", "frames": 1000, "runtime.learner_threads": 2, "run_dir": str(tmp_path / name),
            "evaluation.every": 0}), quiet=True)
        ends.append((checkpoints_of(run.directory)[-1] / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]
