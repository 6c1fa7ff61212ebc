"""IQM, mean, median, probability of improvement and their intervals, against scipy, plain loops and
full enumeration.
"""

import itertools
import statistics as plain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dicerl.errors import DicerlError
from dicerl.scores.statistics import interval, iqm, mean, median, probability_of_improvement

stats = pytest.importorskip("scipy.stats")

tables = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-1e6, 1e6).map(lambda x: round(x, 1)))
)


@given(tables)
def test_iqm_is_the_trimmed_mean_of_all_runs(scores):
    assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), abs=1e-6)


@given(tables)
def test_mean_and_median_are_of_the_tasks_means(scores):
    means = [plain.fmean(scores[:, k]) for k in range(scores.shape[1])]
    assert mean(scores) == pytest.approx(plain.fmean(means), abs=1e-6)
    assert median(scores) == pytest.approx(plain.median(means), abs=1e-6)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.data())
def test_probability_of_improvement_counts_pairs(runs_x, runs_y, tasks, data):
    """With ties, and with different numbers of runs; also against the U of Mann and Whitney."""
    few = st.integers(0, 3).map(float)
    x = data.draw(arrays(float, (runs_x, tasks), elements=few))
    y = data.draw(arrays(float, (runs_y, tasks), elements=few))
    wins = [
        sum((a > b) + 0.5 * (a == b) for a in x[:, k] for b in y[:, k]) / (runs_x * runs_y)
        for k in range(tasks)
    ]
    assert probability_of_improvement(x, y) == pytest.approx(plain.fmean(wins))
    assert probability_of_improvement(x, y) + probability_of_improvement(y, x) == pytest.approx(1)
    ranks = [
        stats.mannwhitneyu(x[:, k], y[:, k], alternative="greater", method="asymptotic").statistic
        / (runs_x * runs_y)
        for k in range(tasks)
        if len(np.unique(np.concatenate([x[:, k], y[:, k]]))) > 1
    ]
    assert [
        w for k, w in enumerate(wins) if len(np.unique(np.concatenate([x[:, k], y[:, k]]))) > 1
    ] == pytest.approx(ranks)


def test_by_hand():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [6.0, 100.0]])
    assert iqm(scores) == (3 + 6 + 10 + 20) / 4  # without 1, 2 and 30, 100
    assert mean(scores) == (3 + 40) / 2
    assert median(np.array([[1.0, 5.0, 100.0], [3.0, 5.0, 0.0]])) == 5
    assert (
        probability_of_improvement(np.array([[1.0], [2.0]]), np.array([[1.0], [0.0]]))
        == (0.5 + 1 + 1 + 1) / 4
    )


def enumerate_resamples(scores):
    """Every way to draw the runs of every task anew, all equally likely."""
    runs, tasks = scores.shape
    columns = [
        [np.array(c) for c in itertools.product(scores[:, k], repeat=runs)] for k in range(tasks)
    ]
    return [np.stack(choice, 1) for choice in itertools.product(*columns)]


@pytest.mark.parametrize("statistic", [iqm, mean, median])
def test_intervals_against_full_enumeration(statistic):
    scores = np.array([[0.0, 7.0], [1.0, 3.5], [2.5, 4.0]])
    values = [float(statistic(s)) for s in enumerate_resamples(scores)]
    assert len(values) == 27**2
    found = interval(statistic, scores)
    assert found.value == statistic(scores)
    # The percentiles of a discrete distribution: as many resamples as an interval of 95 % must
    # leave outside, give or take chance.
    for bound, share in ((found.low, 0.025), (found.high, 0.975)):
        assert np.mean(np.array(values) < bound - 1e-9) <= share + 0.005
        assert np.mean(np.array(values) <= bound + 1e-9) >= share - 0.005


def test_intervals_against_a_plain_loop():
    """As rliable has it: indices [runs, tasks] drawn anew, percentiles of the statistic."""
    rng = np.random.default_rng(1)
    x, y = rng.lognormal(1, 1, (5, 8)), rng.lognormal(1.3, 1, (4, 8))

    def draw(scores):
        return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), 0)

    slow = {"iqm": [], "poi": []}
    for _ in range(4_000):
        a, b = draw(x), draw(y)
        slow["iqm"].append(stats.trim_mean(a, 0.25, axis=None))
        slow["poi"].append(((a[:, None] > b[None]) + 0.5 * (a[:, None] == b[None])).mean())
    for name, found in (
        ("iqm", interval(iqm, x)),
        ("poi", interval(probability_of_improvement, x, y)),
    ):
        low, high = np.percentile(slow[name], [2.5, 97.5])
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.05 * (high - low))


def test_strata_stay_apart():
    """Tasks differ a lot, runs do not: drawing across tasks would give a wide interval."""
    scores = np.repeat([[0.0, 100.0, 1000.0, 5.0]], 5, axis=0)
    for statistic in (iqm, mean, median):
        found = interval(statistic, scores, resamples=500)
        assert found.low == found.value == found.high == statistic(scores)
    # And tasks are drawn independently of each other: three tasks in step would vary sqrt(3) times
    # as much.
    scores = np.tile(np.array([[0.0], [1.0]] * 10), (1, 30))
    width = interval(mean, scores).high - interval(mean, scores).low
    assert width == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(20 * 30), rel=0.1)


def test_the_two_sides_are_drawn_independently():
    x = np.array([[0.0], [1.0]])
    found = interval(probability_of_improvement, x, x)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=5), min_size=1, max_size=5))
def test_tasks_may_have_different_numbers_of_runs(runs):
    scores = {str(k): r for k, r in enumerate(runs)}
    every = sorted(x for r in runs for x in r)
    cut = len(every) // 4
    assert iqm(scores) == pytest.approx(plain.fmean(every[cut : len(every) - cut]), abs=1e-6)
    assert mean(scores) == pytest.approx(plain.fmean(map(plain.fmean, runs)), abs=1e-6)
    found = interval(median, scores, resamples=200)
    assert found.low <= found.high
    if len({len(r) for r in runs}) == 1:
        assert iqm(np.array(runs).T) == pytest.approx(iqm(scores))


def test_the_same_seed_the_same_interval():
    scores = np.random.default_rng(0).normal(size=(5, 300))  # more than one chunk of resamples
    assert interval(iqm, scores, resamples=2_000) == interval(iqm, scores, resamples=2_000)
    assert interval(iqm, scores, resamples=2_000) != interval(iqm, scores, resamples=2_000, seed=1)
    wide, narrow = (
        interval(iqm, scores, resamples=2_000),
        interval(iqm, scores, resamples=2_000, confidence=0.5),
    )
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(
    "scores", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.array([[np.nan]]), {}, {"a": []}]
)
def test_what_is_no_table(scores):
    with pytest.raises(DicerlError):
        iqm(scores)


def test_different_tasks_cannot_be_compared():
    with pytest.raises(DicerlError, match="same tasks"):
        probability_of_improvement(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(DicerlError, match="same tasks"):
        probability_of_improvement({"a": [1], "b": [1]}, {"b": [1], "a": [1]})
