"""report/maps.py: values and visits of tiles over a run, and each bandit's vote."""

import numpy as np
import pytest

from dicerl.core.bandit import x_from_inv_temperature
from dicerl.report import maps
from runs import append, figures_of, line, make_run, opened


def test_temperature_map(tmp_path):
    """Each column is a train line, each row a tile; tiles nobody visited are blank; chosen
    temperatures stand where their tile is.
    """
    directory = make_run(tmp_path / "run")
    for i in range(1, 4):
        append(
            directory,
            line(
                "train",
                100 * i,
                favoured_inv_temperature=9.0,
                tile_values=[0.0, 1.0 * i, 2.0 * i],
                tile_visits=[0, 60 * i, 20 * i],
            ),
            line("episode", 100 * i, **{"return": 1.0, "inv_temperature": 9.0}),
        )
    run = opened(directory)
    heat, chosen, favoured = maps.value_map(run, "inv_temperature")["data"]
    assert heat["x"] == [100.0, 200.0, 300.0]
    assert heat["z"] == [[None, None, None], [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
    top = float(x_from_inv_temperature(50.0))
    assert np.allclose(heat["y"], [top / 6, top / 2, 5 * top / 6], atol=1e-4)
    assert np.allclose(chosen["y"], np.log(10), atol=1e-4)
    assert np.allclose(favoured["y"], np.log(10), atol=1e-4)
    assert maps.visits_map(run, "inv_temperature")["data"][0]["z"] == [
        [0.0] * 3,
        [75.0] * 3,
        [25.0] * 3,
    ]


def test_visits_look_back_at_the_latest_episodes(tmp_path):
    directory = make_run(tmp_path / "run")
    for i, visits in enumerate(([40, 0], [50, 0], [50, 49], [50, 51], [50, 80])):
        append(directory, line("train", i, tile_values=[1.0, 1.0], tile_visits=visits))
    first, second = maps.visits_map(opened(directory), "inv_temperature")["data"][0]["z"]
    # 59 episodes since the first column, 51 and 80 since the second
    assert first == pytest.approx([100, 100, 100 * 10 / 59, 0, 0], abs=0.01)
    assert second == pytest.approx([0, 0, 100 * 49 / 59, 100, 100], abs=0.01)


def test_families_with_other_parameters(tmp_path):
    """mixture votes over three numbers, epsilon over one whose axis runs the other way."""
    mixture = make_run(tmp_path / "mixture", **{"behaviour.family": "mixture"})
    append(
        mixture,
        line(
            "train",
            5,
            tile_values_inv_temperature_low=[1.0, 2.0],
            tile_visits_inv_temperature_low=[1, 0],
            tile_values_weight_low=[3.0, 4.0],
            tile_visits_weight_low=[1, 1],
            favoured_weight_low=0.25,
        ),
        line("episode", 5, inv_temperature_low=0.0, inv_temperature_high=50.0, weight_low=0.75),
    )
    found = figures_of([opened(mixture)])
    assert found["values/mixture/inv_temperature_low"]["data"][0]["z"] == [[1.0], [None]]
    heat, chosen, favoured = found["values/mixture/weight_low"]["data"]
    assert (heat["y"], chosen["y"], favoured["y"]) == ([0.25, 0.75], [0.75], [0.25])
    assert "values/mixture/inv_temperature_high" not in found  # no data
    epsilon = make_run(tmp_path / "epsilon", **{"behaviour.family": "epsilon"})
    append(
        epsilon,
        line("train", 5, tile_values=[1.0], tile_visits=[1]),
        line("episode", 5, epsilon=0.1),
        line("episode", 6, epsilon=0.0),
    )
    chosen = figures_of([opened(epsilon)])["values/epsilon/epsilon"]["data"][1]
    assert chosen["y"][0] == pytest.approx(-np.log(0.1), abs=1e-4)
    assert chosen["y"][1] > np.log(51.0)  # eps = 0 lies off the axis


def test_each_bandit_of_the_newest_checkpoint(trained):
    run = opened(trained / "dice-0")
    saved = run.checkpoint()["temperatures"]["votes"][0][0]["bandits"]
    vote = run.votes()["inv_temperature"]
    drawn = maps.bandit_votes(run, "inv_temperature", vote)["data"][0]
    assert len(drawn["z"]) == len(saved) == 7
    assert all(
        f"{b['mode']}, ±{b['width']}, {b['learning_rate']:g}" in name
        for b, name in zip(saved, drawn["y"], strict=True)
    )
    lines = maps.bandit_values(run, "inv_temperature", vote)["data"]
    assert np.allclose(lines[-1]["y"], np.mean([t["y"] for t in lines[:-1]], 0), atol=1e-4)
