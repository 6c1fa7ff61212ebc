"""evaluate/evaluate.py and its command: JSON, checkpoints by name, protocols, mistakes."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import dicerl
from dicerl.config import get
from dicerl.errors import ConfigError
from dicerl.evaluate.evaluate import PAPER, evaluate, with_protocol
from dicerl.records import checkpoint
from dicerl.scores import hns, saber
from runs import EVALUATION_KEYS


@pytest.fixture
def call(call):
    return lambda *args: call("evaluate", *args)


@pytest.fixture
def result(call):
    """The JSON of an evaluation."""

    def run(*args):
        code, out, err = call(*args, "--json", "--quiet")
        assert code == 0, err
        assert len(out.splitlines()) == 1
        return json.loads(out)

    return run


def test_json_is_what_the_design_says(cartpole, result):
    found = result(cartpole, "--episodes", 5)
    assert list(found) == EVALUATION_KEYS
    assert found["env"] == "CartPole-v1"
    assert found["episodes"] == len(found["returns"]) == len(found["inv_temperatures"]) == 5
    assert found["mean_return"] == pytest.approx(np.mean(found["returns"]))
    assert found["median_return"] == pytest.approx(np.median(found["returns"]))
    assert found["stderr"] == pytest.approx(np.std(found["returns"], ddof=1) / math.sqrt(5))
    assert found["hns"] is None
    assert found["saber"] is None
    [(low, high)] = dicerl.load_agent(cartpole).region
    assert all(
        low <= math.log1p(x) + 1e-4 and math.log1p(x) - 1e-4 <= high
        for x in found["inv_temperatures"]
    )
    assert len(set(found["inv_temperatures"])) == 5


def test_the_seed_decides_everything(cartpole, result):
    first = result(cartpole, "--episodes", 4, "--seed", 7)
    assert result(cartpole, "--episodes", 4, "--seed", 7) == first
    assert (
        result(cartpole, "--episodes", 4, "--seed", 8)["inv_temperatures"]
        != first["inv_temperatures"]
    )


def test_temperatures_on_demand(cartpole, result):
    assert (
        result(cartpole, "--episodes", 3, "--inv-temperature", 2.5)["inv_temperatures"] == [2.5] * 3
    )
    assert result(cartpole, "--episodes", 3, "--greedy")["inv_temperatures"] == [None] * 3


def test_the_greedy_option_takes_the_best_action(cartpole, result):
    """As 1/tau = 1e6 does, from the same seed, but for ties."""
    greedy, cold, hot = (
        result(cartpole, "--episodes", 8, "--max-steps", 100, *rule)["returns"]
        for rule in (["--greedy"], ["--inv-temperature", 1e6], ["--inv-temperature", 0])
    )
    assert greedy == cold != hot


FAMILIES = {
    "epsilon": ["epsilons"],
    "mixture": ["inv_temperature_lows", "inv_temperature_highs", "weight_lows"],
    "conditioned": ["inv_temperatures"],
    "casa/trainable_tau": ["inv_temperatures"],
}


@pytest.mark.parametrize("variant", FAMILIES)
def test_other_families_say_what_they_drew(tmp_path, result, call, variant):
    config = dicerl.preset(
        "debug",
        variant,
        **{
            "env__id": "CartPole-v1",
            "frames": 40,
            "run_dir": str(tmp_path / "run"),
            "tensorboard": False,
            "evaluation__every": 0,
        },
    )
    run = dicerl.train(config, quiet=True).directory
    found = result(run, "--episodes", 3, "--video", tmp_path / "film.mp4")
    names = FAMILIES[variant]
    assert list(found) == [
        *EVALUATION_KEYS[:-2],
        *[name for name in names if name not in EVALUATION_KEYS],
        *EVALUATION_KEYS[-2:],
    ]
    assert all(len(found[name]) == 3 and None not in found[name] for name in names)
    about = json.loads((tmp_path / "film.json").read_text())
    assert all(about[name[:-1]] == pytest.approx(found[name][0], abs=1e-4) for name in names)
    if "inv_temperatures" not in names:
        assert found["inv_temperatures"] == [None] * 3
        code, _, err = call(run, "--inv-temperature", 3)
        assert code == 2
        assert f"this agent's family is {variant}" in err


def test_checkpoints_by_name(cartpole, tmp_path):
    copy = shutil.copytree(cartpole, tmp_path / "run")
    first, *_, newest = checkpoint.checkpoints_of(copy)
    # The first one always goes left, so that one sees which network played.
    model = checkpoint.read_tensors(first, "model")
    model["advantage_head.weight"].zero_()
    model["advantage_head.bias"].copy_(torch.tensor([1.0, 0.0]))
    checkpoint.save(copy, {"model": model}, checkpoint.read_state(first))
    tensors, state = (
        {name: checkpoint.read_tensors(newest, name) for name in ("model", "optimizer")},
        checkpoint.read_state(newest),
    )
    assert state.best_checkpoint is not None
    checkpoint.save(copy, tensors, replace(state, best_checkpoint=int(first.name)))
    kept = checkpoint.best_of(copy)
    assert kept.name == str(state.best_checkpoint)
    assert evaluate(copy, checkpoint="best", episodes=1, max_steps=1).checkpoint == kept
    shutil.rmtree(kept.parent)  # as in a run from before there was best/

    def played(path, which=None):
        done = evaluate(path, checkpoint=which, episodes=6, inv_temperature=1e6, max_steps=100)
        return done.checkpoint, all(8 <= r <= 10 for r in done.result["returns"])

    assert played(copy, "best") == played(copy, first.name) == played(first) == (first, True)
    assert played(copy) == played(copy, "newest") == played(copy, newest.name) == played(newest)
    assert played(copy)[0] == newest


def test_a_person_is_told(cartpole, call):
    code, out, err = call(cartpole, "--episodes", 3, "--max-steps", 6)
    assert code == 0, err
    assert out.splitlines()[0] == f"CartPole-v1, 3 episodes, {checkpoint.newest(cartpole)[0]}"
    for words in (
        "mean return  6.00 ± 0.00",
        "median       6.00",
        "the bandits' best region",
        "returns      6 6 6",
        "3 of 3 episodes, after 6 steps",
    ):
        assert words in out, out


def test_evaluating_changes_nothing_of_the_run(cartpole, result):
    before = {p: p.read_bytes() for p in cartpole.rglob("*") if p.is_file()}
    result(cartpole, "--episodes", 2)
    assert {p: p.read_bytes() for p in cartpole.rglob("*") if p.is_file()} == before


def test_atari_is_played_to_the_protocol_asked_for():
    trained = dicerl.preset(
        "laptop",
        env__id="pong",
        env__sticky_actions=0.1,
        env__noop_max=3,
        env__episodic_life=True,
        env__max_episode_frames=99,
    )
    paper, sticky = (
        with_protocol(trained, name, None, "pong", "pong") for name in ("paper", "sticky")
    )
    assert {field: get(paper, field) for field in PAPER} == {
        "env.sticky_actions": 0.0,
        "env.noop_max": 30,
        "env.episodic_life": False,
        "env.max_episode_frames": 108_000,
    }
    assert paper.evaluation.max_steps == 27_000
    assert sticky == paper.replace(env__sticky_actions=0.25)
    assert with_protocol(trained, "paper", 5, "pong", "pong").evaluation.max_steps == 5
    assert with_protocol(trained, "paper", None, "", "CartPole-v1") == trained


def test_scores_of_atari(atari, result):
    found = result(atari, "--episodes", 2, "--max-steps", 3)
    assert found["hns"] == hns(atari.name, found["mean_return"])
    assert found["saber"] == saber(atari.name, found["mean_return"])


MISTAKES = {
    "no run": (["nowhere"], "nowhere holds no run"),
    "no checkpoint": (["RUN/checkpoints/77"], "77"),
    "unknown checkpoint": (["RUN", "--checkpoint", "77"], "checkpoint is '77'", "best, newest"),
    "checkpoint twice": (
        ["NEWEST", "--checkpoint", "best"],
        "checkpoint is 'best'",
        "is a checkpoint already",
    ),
    "no episode": (["RUN", "--episodes", "0"], "episodes is 0", "between 1"),
    "a million episodes": (["RUN", "--episodes", "1000000"], "episodes is 1000000", "1000"),
    "no number": (["RUN", "--episodes", "many"], "--episodes", "'many'"),
    "negative temperature": (
        ["RUN", "--inv-temperature", "-1"],
        "inv_temperature is -1.0",
        "between 0",
    ),
    "temperature nan": (["RUN", "--inv-temperature", "nan"], "inv_temperature is nan"),
    "temperature and greedy": (
        ["RUN", "--inv-temperature", "3", "--greedy"],
        "inv_temperature is 3.0",
        "greedy",
    ),
    "unknown protocol": (
        ["RUN", "--protocol", "stikcy"],
        "protocol is 'stikcy'",
        "did you mean sticky?",
    ),
    "sticky cartpole": (
        ["RUN", "--protocol", "sticky"],
        "protocol is 'sticky'",
        "CartPole-v1 is none",
    ),
    "no steps": (["RUN", "--max-steps", "0"], "max_steps is 0"),
    "no threads": (["RUN", "--threads", "0"], "threads is 0"),
    "negative seed": (["RUN", "--seed", "-1"], "seed is -1"),
    "unknown option": (["RUN", "--episode", "3"], "--episode", "did you mean --episodes?"),
    "no mp4": (["RUN", "--video", "film.avi"], "video is 'film.avi'", ".mp4"),
    "video below a file": (
        ["RUN", "--video", "RUN/config.json/film.mp4"],
        "config.json/film.mp4'; there is no folder",
    ),
    "video in no folder": (
        ["RUN", "--video", "no/film.mp4"],
        "video is 'no/film.mp4'; there is no folder no; make it first",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(cartpole, call, tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    args, *fragments = MISTAKES[mistake]
    newest = checkpoint.newest(cartpole)[0]
    code, out, err = call(
        *[a.replace("RUN", str(cartpole)).replace("NEWEST", str(newest)) for a in args], "--quiet"
    )
    assert (code, out) == (2, "")
    assert err.startswith("dicerl: ")
    assert len(err.splitlines()) == 1, err
    for fragment in fragments:
        assert fragment in err, err
    assert list(tmp_path.iterdir()) == []


def test_best_without_an_evaluation(minatar, call):
    code, _, err = call(minatar, "--checkpoint", "best")
    assert code == 2
    assert "had no evaluation" in err


def test_errors_name_the_field():
    with pytest.raises(ConfigError, match="episodes is 0"):
        evaluate("nowhere", episodes=0)
