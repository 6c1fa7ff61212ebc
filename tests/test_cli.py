"""The command line: every mistake is one line and exit code 2; what a run leaves on disk; --help
and --json. Directories and damaged files: test_run.py, test_checkpoint.py.
"""

import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import dicerl
from dicerl import cli
from dicerl.agent.networks import Network
from dicerl.config import Config, fields_of, get
from dicerl.config.options import HIDDEN
from dicerl.config.presets import VARIANTS
from dicerl.envs import EnvSpec
from dicerl.parts import optimizer
from dicerl.records import checkpoint
from dicerl.records.run import Run
from runs import TINY, one_line

DICERL = str(Path(sys.executable).with_name("dicerl"))


class DictObservation(gymnasium.Env):
    action_space, observation_space = Discrete(2), Dict(a=Box(0, 1, (2,)))


class ContinuousAction(gymnasium.Env):
    action_space, observation_space = Box(-1, 1, (2,)), Box(0, 1, (2,))


gymnasium.register("CliDict-v0", DictObservation)
gymnasium.register("CliContinuous-v0", ContinuousAction)


# --- mistakes

SUPPORTED = "supported are Discrete actions and Box observations"
MISTAKES = {
    "unknown command": (["trian", "pong"], "'trian'", "train"),
    "no environment": (["train"], "ENV"),
    "unknown game": (["train", "pnog"], "env.id is 'pnog'", "did you mean pong?"),
    "unknown game with prefix": (
        ["train", "ALE/Brekout-v5"],
        "'ALE/Brekout-v5'",
        "did you mean breakout?",
    ),
    "unknown gymnasium id": (["train", "CartPol-v1"], "'CartPol-v1'", "did you mean CartPole-v1?"),
    "unknown module": (["train", "no_such_module:X-v0"], "no_such_module", "cannot be imported"),
    "unknown preset": (
        ["train", "CartPole-v1", "--preset", "labtop"],
        "preset is 'labtop'",
        "paper, laptop",
        "did you mean laptop?",
    ),
    "unknown variant": (
        ["train", "CartPole-v1", "--variant", "dyce"],
        "variant is 'dyce'",
        "baseline",
        "did you mean dice?",
    ),
    "unknown field": (
        ["train", "CartPole-v1", "--sequence.bach", "3"],
        "--sequence.bach",
        "did you mean --sequence.batch?",
    ),
    "unknown field with =": (
        ["train", "CartPole-v1", "--optimiser.learning-rate=1"],
        "did you mean --optimizer.learning-rate?",
    ),
    "renamed field": (
        ["train", "CartPole-v1", "--sequence.capacity", "64"],
        "unknown argument --sequence.capacity; it is now --collector.capacity",
    ),
    "renamed field with =": (
        ["bench", "CartPole-v1", "--sequence.capacity=64"],
        "--sequence.capacity=64; it is now --collector.capacity",
    ),
    "renamed field of a command without fields": (
        ["resume", "nowhere", "--sequence.capacity", "64"],
        "unknown argument --sequence.capacity",
    ),
    "shortened field": (
        ["train", "CartPole-v1", "--frame", "3"],
        "--frame",
        "did you mean --frames?",
    ),
    "stray argument": (["train", "CartPole-v1", "pong"], "pong"),
    "missing value": (["train", "CartPole-v1", "--frames"], "--frames"),
    "unknown runtime": (
        ["train", "CartPole-v1", "--runtime", "threads"],
        "runtime.kind is 'threads'",
        "auto, serial, process",
    ),
    "unknown torso": (
        ["train", "CartPole-v1", "--network.torso", "impala"],
        "network.torso is 'impala'",
        "impala_deep",
    ),
    "not true or false": (
        ["train", "CartPole-v1", "--tensorboard", "maybe"],
        "tensorboard is 'maybe'",
        "true or false",
    ),
    "negative batch": (
        ["train", "CartPole-v1", "--sequence.batch", "-3"],
        "sequence.batch is -3",
        "between 1",
    ),
    "no frames": (["train", "CartPole-v1", "--frames", "0"], "frames is 0", "between 1"),
    "half a frame": (
        ["train", "CartPole-v1", "--frames", "1.5"],
        "frames is '1.5'",
        "whole number",
    ),
    "NaN": (["train", "CartPole-v1", "--loss.discount", "nan"], "loss.discount is 'nan'", "finite"),
    "infinite": (["train", "CartPole-v1", "--loss.q", "inf"], "loss.q is 'inf'", "finite"),
    "no number": (
        ["train", "CartPole-v1", "--optimizer.learning-rate", "abc"],
        "optimizer.learning_rate is 'abc'",
        "a finite number",
    ),
    "negative seed": (["train", "CartPole-v1", "--seed", "-1"], "seed is -1", "between 0"),
    "a million environments": (
        ["train", "CartPole-v1", "--runtime.num-envs", "1000000"],
        "runtime.num_envs is 1000000",
        "100000",
    ),
    "too many games for the memory": (
        [
            "train",
            "pong",
            "--preset",
            "paper",
            "--runtime.num-envs",
            "100000",
            "--runtime",
            "serial",
        ],
        "runtime.num_envs is 100000",
        "GiB free",
    ),
    "too much capacity for the memory": (
        ["train", "pong", "--collector.capacity", "100000000", "--runtime", "serial"],
        "collector.capacity is 100000000",
        "GiB free",
    ),
    "too large a batch for the memory": (
        ["train", "pong", "--sequence.batch", "1000000", "--runtime", "serial"],
        "sequence.batch is 1000000",
        "GiB free",
    ),
    "too much to replay for the memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "100000000",
            "--runtime",
            "serial",
        ],
        "collector.replay_capacity is 100000000",
        "GiB free",
    ),
    "too long sequences for the memory": (
        ["train", "pong", "--sequence.length", "100000", "--runtime", "serial"],
        "sequence.length is 100000",
        "GiB free",
    ),
    "too many recurrent states for the memory": (
        [
            "train",
            "CartPole-v1",
            "--runtime.num-envs",
            "100000",
            "--sequence.length",
            "1000",
            "--network.lstm",
            "1024",
        ],
        "runtime.num_envs is 100000",
        "GiB free",
    ),
    "too large a network for the memory": (
        ["train", "CartPole-v1", "--network.hidden", "65536", "--network.lstm", "65536"],
        "network.hidden is 65536",
        "network.lstm 65536",
        "38,655,819,779 parameters",
        "1152.03 GiB",
        "GiB free",
    ),
    "too large an LSTM for the memory": (
        ["train", "pong", "--network.lstm", "65536", "--runtime", "process"],
        "network.lstm is 65536",
        "network.hidden 256",
        "GiB free",
    ),
    "too much capacity for shared memory": (
        ["train", "pong", "--collector.capacity", "100000000", "--runtime", "process"],
        "collector.capacity is 100000000",
        "/dev/shm",
    ),
    "too many games for shared memory": (
        [
            "train",
            "pong",
            "--preset",
            "paper",
            "--runtime.num-envs",
            "100000",
            "--runtime",
            "process",
        ],
        "runtime.num_envs is 100000",
        "/dev/shm",
    ),
    "capacity below a batch": (
        ["train", "CartPole-v1", "--collector.capacity", "3"],
        "collector.capacity is 3",
        "at least",
    ),
    "more actors than environments": (
        ["train", "CartPole-v1", "--runtime.num-actors", "99"],
        "runtime.num_actors is 99",
        "only",
    ),
    "no such device": (
        ["train", "CartPole-v1", "--runtime.device", "tpu:9"],
        "runtime.device is 'tpu:9'",
    ),
    "a torso that does not fit": (
        ["train", "CartPole-v1", "--network.torso", "minatar"],
        "network.torso is 'minatar'",
        "images",
    ),
    "continuous actions": (
        ["train", "CliContinuous-v0"],
        "CliContinuous-v0 acts in Box",
        SUPPORTED,
    ),
    "dict observations": (["train", "CliDict-v0"], "CliDict-v0 observes Dict", SUPPORTED),
    "discrete observations": (
        ["train", "FrozenLake-v1"],
        "FrozenLake-v1 observes Discrete(16)",
        SUPPORTED,
    ),
    "DR-Trace without casa": (
        ["train", "CartPole-v1", "--loss.estimator", "drtrace"],
        "loss.estimator is 'drtrace'",
        "learns nothing",
        "casa",
    ),
    "a trainable tau of another family": (
        [
            "train",
            "CartPole-v1",
            "--variant",
            "casa/trainable_tau",
            "--behaviour.family",
            "mixture",
        ],
        "behaviour.source is 'trainable'",
        "boltzmann",
    ),
    "a mixture of one": (
        ["train", "CartPole-v1", "--behaviour.mixture", "3"],
        "behaviour.mixture is (3.0,)",
        "1/tau1,1/tau2,w",
    ),
    "a mixture in the wrong order": (
        ["train", "CartPole-v1", "--behaviour.mixture", "9,3,0.5"],
        "behaviour.mixture",
        "1/tau1 <= 1/tau2",
    ),
    "all replayed": (
        ["train", "CartPole-v1", "--collector.replay", "1"],
        "collector.replay is 1",
        "between 0 and 0.99",
    ),
    "replay of less than one": (
        ["train", "CartPole-v1", "--collector.replay", "0.01"],
        "collector.replay is 0.01",
        "at least one",
    ),
    "replay from too few": (
        ["train", "CartPole-v1", "--collector.replay", "0.5", "--collector.replay-capacity", "2"],
        "collector.replay_capacity is 2",
        "takes 4",
    ),
    "too much replay for the memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "50000000",
            "--runtime",
            "serial",
        ],
        "collector.replay_capacity is 50000000",
        "GiB free",
    ),
    "too much replay for shared memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "50000000",
            "--runtime",
            "process",
        ],
        "collector.replay_capacity is 50000000",
        "GiB free in /dev/shm",
    ),
    "unknown ablation": (
        ["train", "CartPole-v1", "--variant", "casa/no_stop_p"],
        "variant is 'casa/no_stop_p'",
        "did you mean casa/no_stop_pi?",
    ),
    "unknown family": (
        ["train", "CartPole-v1", "--behaviour.family", "eps"],
        "behaviour.family is 'eps'",
        "boltzmann, epsilon",
    ),
    "resume without a run": (["resume"], "RUN"),
    "resume of nothing": (["resume", "nowhere"], "nowhere holds no run"),
    "unknown option of resume": (["resume", "nowhere", "--frames", "3"], "--frames"),
    "bench of nothing": (["bench", "pnog"], "did you mean pong?"),
    "bench for abc seconds": (["bench", "CartPole-v1", "--seconds", "abc"], "--seconds", "'abc'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(call, tmp_path, mistake):
    args, *fragments = MISTAKES[mistake]
    one_line(call(*args), *fragments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_through_the_installed_command(tmp_path):
    done = subprocess.run(
        [DICERL, "train", "pong", "--preset", "labtop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    one_line((done.returncode, done.stdout, done.stderr), "did you mean laptop?")


def test_the_same_directory_works_once_the_mistake_is_mended(call, tmp_path):
    """A start that failed must not leave a run that can be neither trained nor resumed."""
    one_line(
        call("train", "CartPole-v1", "--network.torso", "minatar", "--run-dir", "run", "--quiet"),
        "network.torso",
    )
    code, _, err = call(
        "train",
        "CartPole-v1",
        *TINY,
        "--frames",
        "40",
        "--evaluation.every",
        "0",
        "--run-dir",
        "run",
        "--quiet",
    )
    assert code == 0, err


# --- help


@pytest.mark.parametrize("command", [None, *cli.COMMANDS])
def test_help_shows_an_example(call, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = call(*([command] if command else []), "--help")
    assert code == 0
    assert err == ""
    assert re.search(rf"examples?:\s+dicerl {command or 'train'} [\w-]+", out), out
    for name in cli.COMMANDS if command is None else ():
        assert re.search(rf"^\s+{name}\s", out, re.MULTILINE), name


def test_help_shows_every_field(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call("train", "--help")
    options = set(re.findall(r"--[\w.-]+", out))
    for name, (_, field) in fields_of().items():
        if name == "env.id":
            assert " ENV" in out
            continue
        assert f"--{name.replace('_', '-')}" in options, name
        if name not in ("preset", "variant"):
            assert field.metadata["help"] in " ".join(out.split()), name


def another(name, kind):
    """A value that is not the field's default."""
    value = get(Config(), name)
    if name == "collector.capacity":  # must hold a batch
        return 1000
    if kind is bool:
        return not value
    if kind is int:
        return value + 1
    if kind is float:
        return 0.9 * value or 0.5
    if kind is str:
        return "other"
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if choice != value)
    return value[::-1]


def test_every_field_can_be_given(monkeypatch):
    """Each option reaches the field it names, written with dashes or underscores."""
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    changes = {
        name: another(name, kind) for name, (kind, _) in fields_of().items() if name not in HIDDEN
    }
    for style in (lambda name: name, lambda name: name.replace("_", "-")):
        args = [
            f"--{style(name)}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in changes.items()
        ]
        cli.main(["train", "CartPole-v1", "--preset", "paper", *args])
    assert given == [Config().replace(**{"env.id": "CartPole-v1"}, **changes)] * 2


def test_flags_of_true_and_false(monkeypatch):
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    for args in (
        ["--env.episodic-life"],
        ["--env.episodic-life", "true"],
        ["--env.episodic-life=no"],
    ):
        cli.main(["train", "pong", *args])
    assert [c.env.episodic_life for c in given] == [True, True, False]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ("classic", "dice")),
        (["--preset", "impala"], ("classic", "impala")),
        (["--preset", "laser", "--variant", "dice"], ("classic", "laser")),
        (["--preset", "debug", "--variant", "laser"], ("debug", "laser")),
    ],
)
def test_preset_and_variant(monkeypatch, args, expected):
    """impala and laser as presets: the variant with the environment's own preset."""
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    cli.main(["train", "CartPole-v1", *args])
    assert [(config.preset, config.variant) for config in given] == [expected]


def test_version_and_no_command(call):
    assert call("--version")[:2] == (0, f"dicerl {dicerl.__version__}\n")
    code, out, _ = call()
    assert code == 0
    assert "train" in out


def test_help_is_quick():
    """It imports no torch."""
    code = (
        "import sys; from dicerl.cli import build_parser; build_parser().format_help();"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# --- what a run leaves behind

RUNS = {
    "CartPole-v1": (1, ()),
    "MinAtar/Breakout-v1": (
        1,
        ("--frames", "1200", "--checkpoint.every", "500", "--evaluation.every", "500"),
    ),
    # An eighth of the preset's frames, with episodes cut short so that some end.
    "pong": (
        4,
        (
            "--frames",
            "512",
            "--checkpoint.every",
            "250",
            "--evaluation.every",
            "250",
            "--evaluation.max-steps",
            "12",
            "--env.max-episode-frames",
            "40",
        ),
    ),
}


@pytest.mark.parametrize("env", RUNS)
def test_the_debug_preset_end_to_end(call, tmp_path, env):
    repeat, args = RUNS[env]
    code, out, err = call("train", env, "--preset", "debug", "--json", *args)
    assert code == 0, err
    assert "Traceback" not in err
    # One JSON object on standard output, nothing else.
    assert len(out.splitlines()) == 1
    summary = json.loads(out)
    directory = tmp_path / summary["run"]
    assert directory.parent == tmp_path / "runs"
    config = json.loads((directory / "config.json").read_text())
    assert config["env"]["id"] == env
    assert config["preset"] == "debug"
    assert summary["frames"] >= config["frames"]
    assert summary["complete"] is True

    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", "episode", "evaluation", "event"}
    for line in lines:
        assert line["frames"] == line["agent_steps"] * repeat
        assert line["time"] > 1.7e9
        assert line["updates"] >= 0
    for name in ("time", "agent_steps", "frames", "updates"):
        values = [line[name] for line in lines]
        assert values == sorted(values), name
    assert lines[0]["event"] == "start"
    trained = [line for line in lines if line["kind"] == "train"]
    assert all(np.isfinite(line["loss"]) for line in trained)
    assert len({line["updates"] for line in trained}) == len(trained)
    assert all(
        line["length"] > 0 and np.isfinite(line["return"])
        for line in lines
        if line["kind"] == "episode"
    )

    evaluations = [
        json.loads(line) for line in (directory / "evaluations.jsonl").read_text().splitlines()
    ]
    assert evaluations == [line for line in lines if line["kind"] == "evaluation"]
    assert len(evaluations) >= 2
    for line in evaluations:
        assert (
            len(line["returns"])
            == len(line["inv_temperatures"])
            == len(line["greedy_returns"])
            == config["evaluation"]["episodes"]
        )
    assert any((directory / "tensorboard").glob("events.out.tfevents.*"))

    saved = checkpoint.checkpoints_of(directory)
    assert int(saved[-1].name) == summary["updates"] == lines[-1]["updates"]
    assert len(saved) >= 2
    for path in saved:
        assert {"model.safetensors", "optimizer.safetensors", "state.json"} <= {
            p.name for p in path.iterdir()
        }
        state = checkpoint.read_state(path)
        assert state.updates == int(path.name)
        assert state.frames == state.agent_steps * repeat
    assert not list((directory / "checkpoints").glob("tmp*"))


def test_variants_lists_all_with_what_they_are(call, monkeypatch):
    """The table and its JSON; characteristics as in the paper's table of ablation settings."""
    code, out, err = call("variants", "--json")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    listed = json.loads(out)
    assert list(listed) == list(VARIANTS)
    printed = {
        "dice": (True, True, True),
        "baseline": (False, False, False),
        "random": (True, True, False),
        "entropy": (True, False, True),
    }
    for name, expected in printed.items():
        assert tuple(listed[name]["characteristics"].values()) == expected
    assert listed["casa/no_stop_v"]["changes"] == {
        "loss.critic": "casa",
        "loss.estimator": "drtrace",
        "loss.auxiliary": 0.1,
        "loss.stop_v": False,
    }

    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = call("variants")
    assert (code, err) == (0, "")
    rows = {
        line.split()[0]: line
        for line in out.splitlines()
        if line.split() and line.split()[0] in VARIANTS
    }
    assert list(rows) == list(VARIANTS)  # one line each
    for name, line in rows.items():
        assert VARIANTS[name][0] in line
        marks = [mark == "✓" for mark in line.replace(VARIANTS[name][0], "").split()[1:]]
        assert marks == list(listed[name]["characteristics"].values()), name
    for title in ("closed-form", "objective-", "adaptive"):
        assert title in out


@pytest.mark.parametrize("command", ["variants", "scores"])
def test_a_command_that_needs_no_torch_imports_none(command):
    code = (
        f"import sys; from dicerl.cli import main; main(['{command}', '--json']);"
        " sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], timeout=60, check=False, capture_output=True
        ).returncode
        == 0
    )


# --- the paper's table (dice.tex, "Hyperparameters for Atari Experiments")

PAPER = {
    "env.image_size": 84,
    "env.action_repeat": 4,
    "env.frame_stack": 4,
    "env.full_action_space": True,
    "env.episodic_life": False,
    "frames": 200_000_000,
    "sequence.reuse": 2,
    "runtime.num_envs": 160,
    "env.reward_shape": "log",
    "env.noop_max": 30,
    "sequence.burn_in": 40,
    "sequence.length": 80,
    "sequence.batch": 64,
    "loss.discount": 0.997,
    "loss.value": 1.0,
    "loss.q": 10.0,
    "loss.policy": 10.0,
    "loss.entropy": 0.0,
    "loss.c_bar": 1.05,
    "loss.rho_bar": 1.05,
    "network.lstm": 256,
    "optimizer.weight_decay": 0.01,
    "optimizer.learning_rate": 5e-4,
    "optimizer.warmup": 4000.0,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.98,
    "optimizer.eps": 1e-6,
    "optimizer.clip_norm": 50.0,
    "runtime.push_every": 25,
    "runtime.pull_every": 64,
    "bandit.num_bandits": 7,
    "bandit.learning_rates": (0.05, 0.1, 0.2),
    "bandit.widths": (1, 2, 3),
    "bandit.num_candidates": 7,
    "bandit.ucb_scale": 1.0,
    "bandit.max_inv_temperature": 50.0,
    # Not in the table but in its spirit: no sticky actions, one vote, temperatures in the paper's
    # own units.
    "env.sticky_actions": 0.0,
    "behaviour.source": "bandit",
    "behaviour.scale": "raw",
    "network.last_action_reward": False,
}


def test_the_paper_preset_is_the_papers_table():
    config = dicerl.preset("paper")
    assert {name: get(config, name) for name in PAPER} == PAPER
    rows = {name for name, (_, field) in fields_of().items() if field.metadata["paper"]}
    # every field that names a row of the table is checked here
    assert rows - {"network.torso"} <= set(PAPER)


def test_the_paper_preset_has_the_deep_torso_and_anneals_to_zero():
    config = dicerl.preset("paper")
    atari = EnvSpec(
        name="pong",
        observation_shape=(4, 84, 84),
        observation_dtype=np.dtype(np.uint8),
        num_actions=18,
        action_repeat=4,
    )
    assert Network(config, atari).torso_name == "impala_deep"
    total = optimizer.total_updates(config, 4)
    assert total == 19532  # 200M frames / 4 * 2 / (64 * 80), rounded up
    assert optimizer.schedule(config, 4000, total)[0] == pytest.approx(5e-4)
    assert optimizer.schedule(config, 1999, total)[0] == pytest.approx(2.5e-4)
    assert optimizer.schedule(config, 0, total)[1] == pytest.approx(0.01)
    assert optimizer.schedule(config, total, total) == (0.0, 0.0)
