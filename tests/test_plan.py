"""plan/plan.py, plan/costs.py and plan/gpu.py, and the command."""

import json
import os

import pytest

import dicerl
from dicerl.envs import env_spec
from dicerl.plan.costs import COMPRESSED
from dicerl.plan.gpu import PEAK, update_flops, update_seconds
from dicerl.plan.machines import Machines
from dicerl.plan.plan import Planner
from runs import one_line

TINY = ("plan", "CartPole-v1", "--preset", "debug")


def bench_result(config, **changes):
    """What `dicerl bench --json` prints of costs."""
    cost = {
        "step_seconds": 1e-3,
        "update_seconds": 0.1,
        "read_seconds": 1e-3,
        "valid_fraction": 1.0,
        "episode_steps": 500.0,
        "actor_bytes": 3e8,
        "learner_bytes": 4e8,
        "num_envs": 8,
        "threads": 1,
        "sequences": 16,
        **changes,
    }
    return {
        "machine": {"cpu": "Abacus", "cores": 3, "python": "3.11"},
        "config": config.to_dict(),
        "costs": {"process": cost, "serial": cost},
    }


@pytest.fixture
def costs(tmp_path):
    """A file of costs for CartPole with the preset debug, and one for pong with paper."""
    for name, env in (("debug", "CartPole-v1"), ("paper", "pong")):
        config = dicerl.preset(name, **{"env.id": env})
        (tmp_path / f"{name}.json").write_text(json.dumps(bench_result(config)))
    return tmp_path


def test_the_paper_s_machine(call, costs):
    """1 ms a step: 20 actors take 20,000 steps/s, of which a V100 is assumed to train 4,141."""
    code, out, _ = call(
        *("plan", "pong", "--preset", "paper", "--cpus", 92, "--gpus", 1),
        *("--costs", "paper.json", "--json"),
    )
    assert code == 0
    assert len(out.splitlines()) == 1
    found = json.loads(out)
    assert (found["runtime"], found["num_actors"], found["envs_per_actor"]) == ("process", 20, 8)
    assert found["limit"] == "learner"
    assert found["steps_per_s"] == pytest.approx(4141, rel=0.02)
    assert found["frames_per_s"] == pytest.approx(4 * found["steps_per_s"], rel=1e-3)
    assert found["hours"] == pytest.approx(200e6 / found["frames_per_s"] / 3600, rel=1e-2)
    assert found["suite_days"] == pytest.approx(found["hours"] * 57 * 3 / 24, rel=1e-2)
    assert found["saturating_actors"] == 5
    assert found["network_mb_per_s"] == {"in": 0.0, "out": 0.0}
    assert 10e9 < found["memory_bytes"]["gpu"] < 16e9
    assert found["measured_on"]["cpu"] == "Abacus"
    text = " ".join(found["assumptions"])
    for said in (
        "Abacus",
        "ASSUMED, NOT MEASURED",
        "15.7 TFLOP/s",
        "--update-ms",
        "500 agent steps",
    ):
        assert said in text


def test_a_measured_gpu_is_no_assumption(call, costs):
    code, out, _ = call(
        *("plan", "pong", "--preset", "paper", "--cpus", 92, "--gpus", 1),
        *("--costs", "paper.json", "--update-ms", 300),
    )
    assert code == 0
    assert "ASSUMED" not in out
    assert "300 ms on one GPU (given)" in out
    rate = 64 * 80 / 2 / 0.3
    assert f"agent steps/s         {rate:,.0f}" in out


def test_several_machines_have_a_network(call, costs):
    code, out, _ = call(
        *("plan", "pong", "--preset", "paper", "--cpus", 32, "--gpus", 1, "--nodes", 3),
        *("--costs", "paper.json", "--json"),
    )
    assert code == 0
    found = json.loads(out)
    assert (found["runtime"], found["num_actors"]) == ("ray", 95)
    # two thirds of the actors are elsewhere; a step is a compressed frame and 70 bytes
    steps = found["steps_per_s"] * 64 / 95
    step = COMPRESSED * 84 * 84 + 70
    assert found["network_mb_per_s"]["in"] == pytest.approx(steps * step / 1e6, rel=0.05)
    assert found["network_mb_per_s"]["out"] > 0
    assert set(found["memory_bytes"]) == {"learner_machine", "other_machine", "head", "gpu"}
    text = " ".join(found["assumptions"])
    assert "10 Gbit/s" in text
    assert "call of Ray" in text
    # the file is of other actors
    assert "8 environments in an actor, where 2 are planned" in text


@pytest.mark.timeout(120)
def test_costs_are_measured_where_none_are_given(call):
    code, out, err = call(*TINY, "--runtime", "process", "--seconds", 0.2, "--json")
    assert code == 0
    assert len(out.splitlines()) == 1
    assert "an actor beside a learner" in err
    found = json.loads(out)
    assert found["steps_per_s"] > 10
    assert found["limit"] in ("cores", "actors", "learner", "slots")
    assert found["measured_on"]["cores"] > 0
    assert any("measured here" in line for line in found["assumptions"])


def test_a_serial_run_is_planned_too(call, costs):
    code, out, _ = call(*TINY, "--costs", "debug.json")
    assert code == 0
    assert "serial: 1 actor(s)" in out
    assert "actor and learner take turns" in out
    assert set(out.split("assumptions")[1]) - set("- \n")


def test_fleets_are_simulated(call, costs):
    code, out, err = call(
        *TINY, "--runtime", "process", "--costs", "debug.json", "--cpus", 4, "--simulate", 2, 20
    )
    assert code == 0
    assert "simulating 20 actors" in err
    rows = [line for line in out.splitlines() if line.startswith(("| 2 |", "| 20 |"))]
    assert len(rows) == 4
    assert sum("as planned" in row for row in rows) == 2
    for word in ("supervisor", "vote", "link", "memory", "lag"):
        assert word in out.split("limits of the design")[1]
    code, out, _ = call(
        *TINY, "--runtime", "process", "--costs", "debug.json", "--simulate", 2, "--json"
    )
    found = json.loads(out)["simulation"]
    assert found["fleets"][0]["steps_per_s"] > 0
    assert found["fleets"][0]["free_learner"]["steps_per_s"] > 0
    assert found["plan"]["steps_per_s"] == pytest.approx(
        found["plan"]["model_steps_per_s"], rel=0.3
    )


def test_sizes_are_a_table(call, costs):
    code, out, _ = call(
        *("plan", "pong", "--preset", "paper", "--cpus", 92, "--gpus", 1),
        *("--costs", "paper.json", "--sizes"),
    )
    assert code == 0
    rows = [line for line in out.splitlines() if line.startswith("| ")]
    assert any(row.startswith("| 92 CPUs, 1 V100 | 20 × 8 |") for row in rows)
    assert any(row.startswith("| 4 × 92 CPUs, 1 V100 |") for row in rows)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--cpus", 0), "cpus is 0"),
        (("--gpus", -1), "gpus is -1"),
        (("--nodes", 0), "nodes is 0"),
        (("--gbits", 0), "gbits is 0"),
        (("--seconds", "nan"), "seconds is nan"),
        (("--update-ms", 0), "update_ms is 0"),
        (("--simulate", 0), "simulate is 0"),
        (("--simulate", 20_000), "between 1 and 10000"),
        (("--simulate", "many"), "many"),
        (("--simulate", 2, "--costs", "debug.json"), "runtime.kind is 'serial'"),
        (("--gpu", "V1000", "--gpus", 1), "did you mean V100"),
        (("--nodes", 2), "runtime serial is for one machine"),
        (("--costs", "nowhere.json"), "nowhere.json cannot be read"),
        (("--costs", "empty.json"), "holds no costs"),
        (("--costs", "old.json"), "holds no costs"),
        (("--costs", "damaged.json"), "damaged"),
        (("--costs", "only_serial.json", "--runtime", "process"), "--runtime process"),
        (("--costs", "paper.json"), "env.id is 'CartPole-v1'"),
        (("--costs", "debug.json", "--network.lstm", 8), "network.lstm is 8"),
    ],
)
def test_mistakes_are_one_line(call, costs, args, said):
    config = dicerl.preset("debug", **{"env.id": "CartPole-v1"})
    files = {"empty": {}, "old": {"limit_steps_per_s": 1.0}}
    files["damaged"] = bench_result(config, step_seconds=-1)
    files["only_serial"] = bench_result(config)
    del files["only_serial"]["costs"]["process"]
    for name, content in files.items():
        (costs / f"{name}.json").write_text(json.dumps(content))
    result = call(*TINY, *args)
    lines = result[2].splitlines()
    one_line((*result[:2], lines[-1] + "\n"), said)


def test_a_gpu_s_work_is_counted():
    """IMPALA-deep's torso has 54 million products for a frame, each a product and a sum, forward
    once and backward twice; burn-in only forward. LSTM and heads add a few percent.
    """
    config = dicerl.preset("paper", **{"env.id": "pong"})
    frames = 64 * (3 * 81 + 40)
    counted = update_flops(config, env_spec(config))
    assert counted == pytest.approx(frames * 2 * 54.7e6, rel=0.05)
    half = config.replace(**{"sequence.batch": 32})
    assert update_flops(half, env_spec(half)) == pytest.approx(counted / 2, rel=1e-6)
    assert update_seconds(10**12, "V100", 0.5) == pytest.approx(1 / (0.5 * PEAK["V100"]))


def test_gpus_share_a_batch_on_a_cluster(costs):
    config = dicerl.preset(
        "paper", **{"env.id": "pong", "runtime.kind": "ray", "runtime.num_learners": 2}
    )
    planner = Planner(config, 1.0, costs_file=str(costs / "paper.json"), update_ms=1000.0)
    found = planner.plan(Machines(92, 4))
    assert found["learner_steps_per_s"] == pytest.approx(64 * 80 / 2 / 0.5)
    assert any("2 GPU(s) are not used" in line for line in found["assumptions"])


HOSTILE = {
    "a list": lambda found: [found],
    "no machine": lambda found: found | {"machine": 3},
    "no config": lambda found: found | {"config": [1]},
    "no costs": lambda found: found | {"costs": 3},
    "text": lambda found: _with(found, step_seconds="1e-3"),
    "too large": lambda found: _with(found, step_seconds=10**400),
    "a truth value": lambda found: _with(found, num_envs=True),
    "negative": lambda found: _with(found, actor_bytes=-1),
    "nothing": lambda found: _with(found, update_seconds=0),
    "NaN": lambda found: _with(found, valid_fraction=float("nan")),
    "a list of costs": lambda found: found | {"costs": {"serial": [], "process": []}},
}


def _with(found, **changes):
    return found | {"costs": {name: cost | changes for name, cost in found["costs"].items()}}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_of_costs_is_one_line(call, costs, case):
    found = json.loads((costs / "debug.json").read_text())
    (costs / "bad.json").write_text(json.dumps(HOSTILE[case](found)))
    one_line(call(*TINY, "--costs", "bad.json"), "--costs bad.json")


def test_a_machine_s_name_is_no_command_of_the_terminal(call, costs):
    found = json.loads((costs / "debug.json").read_text())
    found["machine"]["cpu"] = "\x1b]0;owned\x07CPU\nline two"
    (costs / "bad.json").write_text(json.dumps(found))
    code, out, _ = call(*TINY, "--costs", "bad.json")
    assert code == 0
    assert all(line.isprintable() for line in out.split("\n"))
    assert r"one of \x1b]0;owned\x07CPU\nline two (3 cores)" in out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["FIFO", "device", "deep"])
def test_a_file_of_costs_that_never_ends_is_one_line(call, costs, kind):
    path = costs / "bad.json"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("[" * 100_000)
    one_line(call(*TINY, "--costs", "bad.json"), "--costs bad.json")
    one_line(call("bench", "--compare", "bad.json", "debug.json"), "bad.json")
