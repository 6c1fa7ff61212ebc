"""report/seeds.py: the mean over seeds is over the seeds that are there, and over each once."""

import numpy as np
import pytest

from dicerl.report import figures
from dicerl.report.compare import groups
from dicerl.report.seeds import meeting_points, over_seeds, smooth
from runs import append, figures_of, line, make_run, opened


def evaluated(directory, seed, *points, **settings):
    """A run with evaluations of (frames, score)."""
    run = make_run(directory, seed=seed, **settings)
    append(run, *(line("evaluation", f, mean_return=s, greedy_mean_return=s) for f, s in points))
    return opened(run)


def scores(runs):
    """(name, frames, scores) of the evaluation figure's line, and its shade or its error bar."""
    *shade, best, _greedy = figures.evaluation(groups(runs))["data"]
    return best["name"], best["x"], best["y"], shade or best.get("error_y")


def test_one_evaluation_of_each_seed_at_slightly_different_frames(tmp_path):
    """The last evaluations of a suite's runs: the report says what the suite's table says."""
    runs = [
        evaluated(tmp_path / "a", 0, (30163, 78.7)),
        evaluated(tmp_path / "b", 1, (30289, 186.6)),
    ]
    name, x, y, bar = scores(runs)
    assert name == "dice (2 seeds)"
    assert (x, y) == ([30226.0], [132.65])
    assert bar["array"] == bar["arrayminus"] == [53.95]  # from the lowest to the highest seed


def test_a_run_that_is_behind_counts_as_far_as_it_got(tmp_path):
    """The other's last evaluation comes soon after: still it is no value of the first's."""
    runs = [
        evaluated(tmp_path / "a", 0, (50_010, 10.0), (100_020, 20.0)),
        evaluated(tmp_path / "b", 1, (50_030, 30.0), (100_050, 40.0), (120_004, 50.0)),
    ]
    _, x, y, _ = scores(runs)
    assert x == [50_020.0, 100_035.0, 120_004.0]
    assert y == [20.0, 30.0, 50.0]
    best = figures.evaluation(groups(runs))["data"][-2]
    assert best["customdata"] == ["", "", ", 1 of 2 seeds"]
    assert "%{customdata}" in best["hovertemplate"]


def test_the_same_seed_twice_is_one_seed(tmp_path):
    twice = [evaluated(tmp_path / "a", 0, (1000, 10.0)), evaluated(tmp_path / "b", 0, (1000, 30.0))]
    name, _, y, bar = scores(twice)
    assert (name, y, bar) == ("dice (1 seed, 2 runs)", [20.0], None)
    name, _, y, bar = scores([*twice, evaluated(tmp_path / "c", 1, (1000, 50.0))])
    assert (name, y) == ("dice (2 seeds, 3 runs)", [35.0])  # not 30: of the three runs
    assert bar["array"] == bar["arrayminus"] == [15.0]


def test_bars_of_scores_count_seeds_once(tmp_path):
    pong = {"env.id": "pong"}
    runs = [
        evaluated(tmp_path / name, seed, (1000, score), **pong)
        for name, seed, score in (("a", 0, -20.0), ("b", 0, 20.0), ("c", 1, 4.0))
    ]
    (bars,) = figures_of(runs)["hns/pong"]["data"]
    ((name, value),) = [
        (n, x) for n, x in zip(bars["y"], bars["x"], strict=True) if "dice</b>" in n
    ]
    (alone,) = figures_of([evaluated(tmp_path / "d", 0, (1000, 2.0), **pong)])["hns/pong"]["data"]
    assert "(2 seeds, 3 runs)" in name
    assert value in alone["x"]


def test_many_evaluations_are_not_averaged(tmp_path):
    """The last point is the last evaluation, as in the suite's table."""
    points = [(1000 * i, float(i)) for i in range(1, 151)]
    _, x, y, _ = scores([evaluated(tmp_path / "a", 0, *points)])
    assert (len(x), y[-1]) == (150, 150.0)


@pytest.mark.parametrize(
    ("xs", "expected"),
    [
        ([[100, 200], [103, 206]], [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]),
        ([[100], [180]], [[(0, 0), (1, 0)]]),  # alone: nearer to each other than to the start
        ([[100], [201]], [[(0, 0)], [(1, 0)]]),
        ([[100, 110], [104]], [[(0, 0), (1, 0)], [(0, 1)]]),
        ([[100, 110], [106]], [[(0, 0)], [(1, 0), (0, 1)]]),
        ([[0, 10], [0, 10]], [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]),
        ([[5, 5]], [[(0, 0)], [(0, 1)]]),
    ],
)
def test_which_points_meet(xs, expected):
    assert meeting_points([np.array(x, float) for x in xs]) == expected


def test_dense_curves_have_no_tail_of_one_seed():
    """Two seeds whose last lines are a few frames apart."""
    last, rng = 30_289, np.random.default_rng(0)
    curves = []
    for seed, end in enumerate((30_163, last)):
        x = np.sort(rng.uniform(0, end, 500))
        x[-1] = end
        curves.append((seed, smooth((x, np.full(500, 10.0 + seed)), last, 120)))
    found = over_seeds(curves, last / 120)
    assert (found.seeds == 2).all()
    assert np.allclose(found.mean, 10.5)
    assert (np.diff(found.x) >= 0).all()
