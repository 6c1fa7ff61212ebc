"""report/figures.py: the numbers that curves are drawn with."""

import numpy as np
import pytest

from dicerl.report import figures
from dicerl.report.compare import colour, groups
from runs import append, line, make_run, opened


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


@pytest.mark.parametrize(
    ("losses", "log", "ticks"),
    [
        ((0.4, 0.6), True, None),
        ((1e-4, 1e2), True, None),
        ((0.0, 1.0), False, None),
        ((0.07, 0.7), True, "D2"),
        ((5.5, 32.0), True, "D2"),
    ],
)
def test_a_log_axis_says_so_and_has_numbers_that_can_be_read(tmp_path, losses, log, ticks):
    """Ticks at powers of ten alone left less than a decade without a number; with Plotly's own,
    8, 9 and 10 lay over each other where there is little more than one.
    """
    run = make_run(tmp_path / "run")
    append(run, *(line("train", 100 * i, loss_value=v) for i, v in enumerate(losses)))
    axis = figures.train_curves(groups([opened(run)]), "loss_value", log=True)["layout"]["yaxis"]
    assert (axis.get("type") == "log") == log
    assert axis["title"]["text"].endswith("(log)") == log
    assert axis.get("dtick") == ticks


def test_curves_know_the_time_of_each_point(tmp_path):
    """Two seeds, one twice as fast; the faster one ends early: time goes on at the other's pace."""
    for seed, (pace, length) in enumerate(((0.1, 400), (0.2, 1000))):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        lines = (
            line("train", f, entropy=1.0, elapsed=pace * f) for f in range(100, length + 1, 100)
        )
        append(run, *lines)
    shade, mean = figures.train_curves(
        groups([opened(tmp_path / "s0"), opened(tmp_path / "s1")]), "entropy"
    )["data"]
    seconds = [15.0, 30.0, 45.0, 60.0, 80.0, 100.0, 120.0, 140.0, 160.0, 180.0]
    assert mean["meta"] == {"seconds": pytest.approx(seconds), "smooth": True}
    assert shade["meta"]["seconds"] == mean["meta"]["seconds"] + mean["meta"]["seconds"][::-1]
