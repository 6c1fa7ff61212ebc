"""report/figures.py: the numbers that curves and bars are drawn with."""

import numpy as np
import pytest

from dicerl.report import figures
from dicerl.report.compare import colour, groups
from dicerl.scores import SYSTEMS, hns
from runs import append, figures_of, line, make_run, opened


def test_mean_and_shade_over_seeds(tmp_path):
    """Two seeds at 10 and 20: the mean is 15, the shade reaches from 10 to 20; a seed that ended
    early counts while it lasted.
    """
    for seed, (value, length) in enumerate(((10.0, 1000), (20.0, 2000))):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        append(run, *(line("episode", f, **{"return": value}) for f in range(0, length + 1, 2)))
    (group,) = groups([opened(tmp_path / "s0"), opened(tmp_path / "s1")])
    shade, mean = figures.training_return([group])["data"]
    x, y = np.array(mean["x"]), np.array(mean["y"])
    assert "2 seeds" in mean["name"]
    assert np.allclose(y[x < 980], 15.0)
    assert np.allclose(y[x > 1040], 20.0)
    both = np.array(shade["y"])[np.array(shade["x"]) < 980]
    assert set(both.tolist()) == {10.0, 20.0}
    assert mean["line"]["color"] == colour("dice")


def test_evaluations_of_seeds_meet_although_their_frames_differ_a_little(tmp_path):
    for seed, (shift, score) in enumerate(((0, 1.0), (7, 3.0))):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        append(
            run,
            *(
                line("evaluation", 1000 * i + shift, mean_return=score, greedy_mean_return=score)
                for i in range(1, 5)
            ),
        )
    shade, mean, greedy = figures.evaluation(
        groups([opened(tmp_path / "s0"), opened(tmp_path / "s1")])
    )["data"]
    assert mean["y"] == greedy["y"] == [2.0] * 4
    assert shade["y"] == [3.0] * 4 + [1.0] * 4


def test_time_by_stage(tmp_path):
    """Means of the second half; a stage that takes a quarter of the time at 100 frames/s could do
    400.
    """
    directory = make_run(tmp_path / "run")
    append(
        directory,
        line("train", 10, actor_inference=1.0, frames_per_s=1.0),
        *(
            line(
                "train",
                f,
                actor_inference=0.25,
                learner_training=0.5,
                learner_starved=0.0,
                frames_per_s=100.0,
            )
            for f in (60, 100)
        ),
    )
    bars = {trace["name"]: trace for trace in figures.stages(groups([opened(directory)]))["data"]}
    assert set(bars) == {"inference", "training", "starved"}
    assert (bars["inference"]["x"], bars["inference"]["customdata"], bars["inference"]["y"]) == (
        [0.25],
        [400.0],
        ["dice, actor"],
    )
    assert (bars["training"]["x"], bars["training"]["y"]) == ([0.5], ["dice, learner"])


def test_hns_bars_against_the_papers_systems(tmp_path):
    directory = make_run(tmp_path / "run", **{"env.id": "ALE/Pong-v5"})
    append(
        directory,
        line("evaluation", 10, mean_return=-20.0),
        line("evaluation", 20, mean_return=9.0, stderr=1.0),
    )
    bars = figures_of([opened(directory)])["hns/ALE/Pong-v5"]["data"][0]
    assert len(bars["x"]) == len(SYSTEMS) + 1
    assert sorted(bars["x"]) == bars["x"]
    own = next(i for i, name in enumerate(bars["y"]) if "dice</b>" in name)
    assert bars["x"][own] == pytest.approx(hns("pong", 9.0), rel=1e-4)
