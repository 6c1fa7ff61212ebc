"""suite/results.py and suite/show.py: statistics of a finished suite, as JSON and as a table."""

import json
from pathlib import Path

import numpy as np
import pytest

from dicerl.scores import hns
from dicerl.scores.statistics import interval, iqm, mean, median, probability_of_improvement
from dicerl.suite.plan import make_plan
from dicerl.suite.show import short
from runs import finish


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
