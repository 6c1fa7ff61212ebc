"""bench/: the stopwatch, the memory of a process tree, the stages, and the command."""

import json
import mmap
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dicerl
from dicerl.bench import bench as bench_module
from dicerl.bench.bench import advice
from dicerl.bench.memory import Watch, descendants, resident_bytes
from dicerl.bench.stages import random_batch, stages
from dicerl.bench.whole import Stopwatch, updates_per_line, whole
from dicerl.envs import env_spec, make_vector_env
from dicerl.runtime import setup
from runs import one_line

MIB = 2**20


GROWING = f"""
import subprocess, sys
block = "x = b'1' * {64 * MIB}; print('ready', flush=True); input()"
print("ready", flush=True)
input()
x = b"1" * {64 * MIB}
print("ready", flush=True)
input()
subprocess.run([sys.executable, "-c", block])
print("ready", flush=True)
input()
"""


def test_memory_counts_a_process_and_its_children():
    """In a process without torch: a library's pages are divided by the number of processes that
    share it, which other processes change.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", GROWING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    found = []

    def go():
        process.stdin.write("\n")
        process.stdin.flush()

    try:
        for _ in range(4):
            assert process.stdout.readline() == "ready\n"
            found.append((resident_bytes(process.pid), len(descendants(process.pid))))
            go()
    finally:
        process.communicate()
    (alone, one), (grown, _), (both, two), (after, _) = found
    assert (one, two) == (1, 2)
    assert alone > 2 * MIB
    assert 60 * MIB < grown - alone < 80 * MIB
    assert 60 * MIB < both - grown < 80 * MIB
    assert abs(after - grown) < 4 * MIB
    assert resident_bytes(process.pid) == 0
    assert resident_bytes() > 20 * MIB  # this process, where none is named


def test_a_watch_keeps_the_most():
    with Watch(every=0.01) as watch:
        time.sleep(0.1)
        block = mmap.mmap(-1, 64 * MIB)
        block.write(b"1" * (64 * MIB))
        time.sleep(0.3)
        block.close()
    assert watch.most > 80 * MIB


def test_the_stopwatch_counts_from_a_warm_update_to_an_update(clock):
    """An update every 2 s."""
    watch = Stopwatch(10.0, 4, held=0)
    for second in range(60):
        clock[0] = float(second)
        watch.update({"updates": second // 2, "frames": 400 * second})
        if watch.done():
            break
    assert second == 16  # updates at 2, 4, 6 (the third: warm), then 10 s
    assert watch.updates_per_s() == pytest.approx(0.5)


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


@pytest.mark.parametrize("preset", ["debug", "classic"])
def test_what_an_update_trains_are_as_many_agent_steps_as_are_taken_for_it(preset):
    """Each step is trained twice in `debug`, four times in `classic`, which replays."""

    class Counting(Stopwatch):
        counted = ()

        def update(self, values, force=False):
            super().update(values, force)
            self.counted += ((values["updates"], values["frames"]),)

    config = dicerl.preset(preset, env__id="CartPole-v1", runtime__kind="serial")
    spec = env_spec(config)
    watch = Counting(1.0, 1, held=0)
    found = whole(config, spec, setup.plan(config, spec), 1.0, watch)
    (first, began), (last, ended) = next(x for x in watch.counted if x[0]), watch.counted[-1]
    taken = (ended - began) / (last - first)
    assert found["steps_per_s"] / watch.updates_per_s() == pytest.approx(taken, rel=0.1)


# --- the command


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", ["-5", "nan", "inf"])
def test_bench_wants_a_length_that_ends(call, monkeypatch, seconds):
    monkeypatch.setattr(
        "dicerl.bench.bench.bench",
        lambda *_: pytest.fail(f"the bench was started for {seconds} seconds"),
    )
    one_line(call("bench", "CartPole-v1", "--seconds", seconds), "seconds")


def test_a_whole_is_compared_with_the_stages_before_and_after_it(monkeypatch):
    """A machine that changes its speed while it is measured: limits of 200, 400 and 100."""
    limits = iter([200.0, 400.0, 100.0])
    monkeypatch.setattr(bench_module, "whole", lambda *args: {"steps_per_s": 100.0})
    monkeypatch.setattr(bench_module, "stages", lambda *args: {"limit_steps_per_s": next(limits)})
    monkeypatch.setattr(bench_module, "costs_here", lambda *args: {})
    config = dicerl.preset("debug", env__id="CartPole-v1", runtime__kind="serial")
    result = bench_module.bench(config, repeat=3, runtimes=())
    assert result["whole"]["serial"]["efficiencies"] == [0.5, 0.333, 0.4]
    assert (result["efficiency"], result["limit_steps_per_s"]) == (0.4, 200.0)


def test_bench_json(call, tmp_path):
    code, out, _ = call(
        "bench",
        "CartPole-v1",
        "--preset",
        "debug",
        "--runtime",
        "serial",
        "--seconds",
        "0.3",
        "--repeat",
        "2",
        "--json",
    )
    assert code == 0
    assert len(out.splitlines()) == 1
    result = json.loads(out)
    assert set(result) >= {
        "env",
        "preset",
        "runtime",
        "cores",
        "env_steps_per_s",
        "inference_steps_per_s",
        "burn_in_steps_per_s",
        "train_steps_per_s",
        "limit_steps_per_s",
        "whole_steps_per_s",
        "efficiency",
    }
    assert result["env"] == "CartPole-v1"
    # for dicerl plan --costs: what the parts cost, on which machine, with which config
    assert set(result["costs"]) == {"serial"}
    assert 0 < result["costs"]["serial"]["step_seconds"] < 1
    assert result["machine"]["cores"] == result["cores"]
    assert result["config"]["env"]["id"] == "CartPole-v1"
    assert min(v for k, v in result.items() if k.endswith("_per_s")) > 0
    assert list(tmp_path.iterdir()) == []
    (serial,) = result["whole"].values()
    assert len(serial["runs"]) == result["repeat"] == 2
    assert serial["steps_per_s"] == result["whole_steps_per_s"]
    # the median of two; runs are rounded
    assert serial["steps_per_s"] == pytest.approx(sum(serial["runs"]) / 2, abs=0.05)
    spent = [
        serial[f"{who}_{what}"]
        for who, what in (("actor", "environment"), ("actor", "inference"), ("learner", "training"))
    ]
    assert all(0 < part < 1 for part in spent)
    assert 0.5 < sum(spent) < 1.05  # one process: the parts share its time


def test_bench_of_both_runtimes_says_who_waits(call):
    code, out, err = call("bench", "CartPole-v1", "--preset", "debug", "--seconds", "0.5")
    assert code == 0
    assert "the whole, serial" in out
    assert "the whole, process" in out
    assert "(what it would use)" in out
    assert re.search(r"learner:\s+training \d+%.*starved \d+%", out)
    assert re.search(r"actor:\s+environment \d+%, inference \d+%, copying \d+%, waiting \d+%", out)
    assert "runtime process" in err  # progress


def test_bench_compares_two_results(call, tmp_path):
    for name, factor in (("a", 1.0), ("b", 3.0)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps(
                {
                    "env": "pong",
                    "limit_steps_per_s": 100.0,
                    "whole_steps_per_s": 50.0 * factor,
                    "whole": {"serial": {"steps_per_s": 20.0 * factor}},
                    "machine": {"cores": 2},
                    "config": {"frames": 1000},
                }
            )
        )
    code, out, _ = call("bench", "--compare", "a.json", "b.json")
    assert code == 0
    ratios = {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()[1:]}
    assert ratios == {
        "limit_steps_per_s": 1.0,
        "whole_steps_per_s": 3.0,
        "whole.serial.steps_per_s": 3.0,
    }
    (tmp_path / "c.json").write_text("{}")
    one_line(call("bench", "--compare", "a.json", "c.json"), "c.json")
    one_line(call("bench", "--compare", "a.json", "nowhere.json"), "nowhere.json")
    one_line(call("bench"), "dicerl bench pong")
    one_line(call("bench", "CartPole-v1", "--repeat", "0"), "repeat")


def test_a_name_in_a_file_is_no_command_of_the_terminal(call, tmp_path):
    content = {"limit_steps_per_s": 1.0, "\x1b]0;owned\x07\n": 2.0}
    for name in ("a\x1b[31m.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(content))
    code, out, _ = call("bench", "--compare", "a\x1b[31m.json", "b.json")
    assert code == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert len(out.splitlines()) == 3
    assert r"\x1b]0;owned\x07\n" in out


def bench_result(**here):
    process = {
        "steps_per_s": 100.0,
        "learner_starved": 0.0,
        "actor_waiting": 0.0,
        "actor_environment": 0.1,
        "policy_lag": 1.0,
        **here,
    }
    best = "process" if process["steps_per_s"] > 50.0 else "serial"
    return {
        "runtime": best,
        "default_runtime": "process",
        "num_actors": 1,
        "num_learners": 1,
        "learner_threads": 1,
        "cores": 4,
        "num_envs": 8,
        "whole": {"serial": {"steps_per_s": 50.0}, "process": process},
    }


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({}, None),
        ({"steps_per_s": 40.0}, "--runtime serial"),
        ({"learner_starved": 0.4}, "--runtime.num-actors 2"),
        ({"actor_waiting": 0.5}, "--runtime.learner-threads 2"),
        ({"actor_environment": 0.7}, "faster environment"),
        ({"policy_lag": 50.0}, "push_every"),
    ],
)
def test_bench_says_what_it_would_change(here, said):
    lines = advice(bench_result(**here))
    assert len(lines) == (said is not None)
    assert said is None or said in lines[0]


def test_stages_are_measured_on_sequences_with_as_many_resets_as_the_run_had():
    config = dicerl.preset(
        "debug", **{"env.id": "CartPole-v1", "sequence.length": 40, "sequence.batch": 32}
    )
    spec, env = env_spec(config), make_vector_env(config, 4, num_threads=1)
    env.reset(0)
    batch, _ = random_batch(config, spec, env, np.random.default_rng(0), 0.75)
    env.close()
    assert batch["valid"].shape == (config.sequence.burn_in + 41, 32)
    assert batch["valid"].mean() == pytest.approx(0.75, abs=0.05)
    assert len(np.unique(batch["observation"][:, 0, 0])) > 20  # it was played
    # 4 environments in 32 columns
    np.testing.assert_array_equal(batch["observation"][:, 0], batch["observation"][:, 4])
    assert (batch["observation"][:, 0] != batch["observation"][:, 1]).any()


@pytest.mark.parametrize(("replay", "uses"), [(0.0, 2), (0.5, 4)])
def test_the_limit_counts_every_training_of_a_step(replay, uses):
    """Each step is trained ``reuse`` times as a new one; with half of each batch replayed, as often
    again beside another new one.
    """
    config = dicerl.preset(
        "debug", **{"env.id": "CartPole-v1", "collector.replay": replay, "network.lstm": 0}
    )
    spec = env_spec(config)
    machine = setup.plan(config, spec)
    measured = stages(config, spec, machine, 0.05, lambda line: None)
    cost = (
        1 / measured["env_steps_per_s"]
        + 1 / measured["inference_steps_per_s"]
        + uses / measured["train_steps_per_s"]
    )
    assert measured["limit_steps_per_s"] == pytest.approx(machine.cores / cost)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", ["serial", "process"])
def test_ctrl_c_ends_a_bench_at_once(tmp_path, runtime):
    """Even in the middle of the whole, where a run would stop with a checkpoint."""
    command = [
        str(Path(sys.executable).with_name("dicerl")),
        "bench",
        "CartPole-v1",
        "--preset",
        "debug",
        "--runtime",
        runtime,
        "--seconds",
        "3",
        "--repeat",
        "50",
    ]
    # As from a terminal: a background shell's children ignore Ctrl-C.
    bench = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        while "the whole" not in bench.stderr.readline():
            assert bench.poll() is None
        time.sleep(1.0)
        bench.send_signal(signal.SIGINT)
        out, err = bench.communicate(timeout=60)
    finally:
        bench.kill()
    assert bench.returncode == 130, err
    assert out == ""
    assert "alone" not in err  # the next repetition
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("paper", {}, 1),
        ("paper", {"sequence.batch": 16}, 2),
        ("minatar", {}, 10),
        ("minatar", {"log_every": 5}, 5),
    ],
)
def test_slow_updates_are_told_of_more_often(name, changes, expected):
    """An update of the paper's size takes seconds here: at the preset's own 50 updates a line, a
    measurement would end before the first.
    """
    assert updates_per_line(dicerl.preset(name, **changes)) == expected
