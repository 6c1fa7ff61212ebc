"""core/bandit.py with a memory: a simulated search, wherever the returns lie and however large they
are. 100 episodes, a peak of height 5 and deviation 0.6 in x, noise of deviation 1.
"""

import json

import numpy as np
import pytest

from dicerl.core import BanditVote
from dicerl.core.bandit import MAX_X
from dicerl.core.record import Baseline

MEMORY, MIN_VISITS, RECORD = 50, 3, 50  # as in `classic`
EPISODES, SEEDS = 100, 20
STILL = 2.0


def height(x, peak):
    return np.exp(-(((x - peak) / 0.6) ** 2) / 2)


def search(seed, judge=lambda t, g: g, peak=lambda t: STILL, noise=None, **arguments):
    """(height of the peak in the best region, every x drawn) after EPISODES."""
    arguments = {"memory": MEMORY, "min_visits": MIN_VISITS, "record": RECORD, **arguments}
    vote, rng, drawn = BanditVote(seed=seed, **arguments), np.random.default_rng(seed), []
    for t in range(EPISODES):
        drawn.append(vote.sample())
        error = rng.normal() if noise is None else noise(rng)
        vote.update(drawn[-1], judge(t, 5 * height(drawn[-1], peak(t)) + error))
    inside = np.linspace(*vote.best_region(), 20)
    return float(height(inside, peak(EPISODES)).mean()), drawn


def found(**arguments):
    """The mean over SEEDS of what the best region has of the peak's height."""
    return np.mean([search(seed, **arguments)[0] for seed in range(SEEDS)])


@pytest.mark.parametrize("offset", [-1000, -20, 0, 20, 1000])
def test_the_peak_is_found_wherever_returns_lie(offset):
    assert found(judge=lambda t, g: g + offset) >= 0.95


@pytest.mark.parametrize("scale", [0.01, 1, 100])
def test_the_peak_is_found_however_large_returns_are(scale):
    assert found(judge=lambda t, g: scale * (g - 20)) >= 0.95


def test_printed_the_vote_depends_on_where_returns_lie():
    """What the memory is for: without it the tests above fail."""
    assert found(judge=lambda t, g: g - 20, memory=0, min_visits=1, record=0) < 0.85
    assert found(judge=lambda t, g: g + 20, memory=0, min_visits=1, record=0) < 0.85


@pytest.mark.parametrize(("offset", "scale"), [(-1000, 1), (1000, 1), (0, 0.01), (-50, 100)])
def test_offset_and_scale_change_no_draw(offset, scale):
    plain, other = search(3)[1], search(3, judge=lambda t, g: scale * g + offset)[1]
    np.testing.assert_allclose(other, plain, rtol=0, atol=0)


def test_a_moving_peak_is_followed():
    """By most of its deviation in all, an eighth of the range."""
    assert found(peak=lambda t: 1.5 + 0.5 * t / EPISODES) >= 0.95
    assert found(peak=lambda t: 2.5 - 0.5 * t / EPISODES) >= 0.95


def test_a_peak_is_found_while_all_returns_grow():
    """As pong's, from -21 to 21, where an episode late in the search is better at any x."""
    assert found(judge=lambda t, g: g - 21 + 42 * t / EPISODES) >= 0.95
    assert found(judge=lambda t, g: g + 21 - 42 * t / EPISODES) >= 0.85  # harder: the best fall


def test_a_peak_is_found_under_heavy_tails():
    """Student's t with 2 degrees of freedom has no variance."""
    assert found(noise=lambda rng: rng.standard_t(2)) >= 0.9


# --- the baseline -------------------------------------------------------------------------------


def test_a_baseline_is_mean_and_drift_of_the_returns():
    returns = np.random.default_rng(0).normal(3.0, 2.0, 30)
    baseline, m, c = Baseline(memory=8), 0.0, 0.0
    for n, g in enumerate(returns, 1):
        left, a = baseline.remove(float(g)), 1 / min(n, 8)
        m = (1 - a) * m + a * g
        c = (1 - a) * c + a * (g - m)
        assert left == pytest.approx(g - m - c)
    assert (baseline.mean, baseline.drift, baseline.seen) == (
        pytest.approx(m),
        pytest.approx(c),
        30,
    )


def test_nothing_is_left_of_returns_that_only_grow():
    baseline = Baseline(memory=20)
    left = [baseline.remove(2.0 * t) for t in range(400)]
    assert abs(left[-1]) < 0.01
    assert abs(398 * 2.0 - baseline.mean) > 20  # which the mean alone is late by


def test_weights_decay_and_values_are_returns():
    vote = BanditVote(seed=0, memory=50)
    for g in (10.0, 12.0, 14.0):
        vote.update(1.0, g)
    before = vote.bandits[0].weights.copy()
    vote.update(3.9, 10.0)  # far from every window of x = 1
    np.testing.assert_allclose(vote.bandits[0].weights[:15], before[:15] * (1 - 1 / 50))
    assert vote.values().mean() == pytest.approx(11.5, abs=0.5)


def test_the_best_region_wants_visits():
    vote = BanditVote(seed=0, memory=1000, min_visits=3, widths=(1,))
    for _ in range(3):
        vote.update(0.55, 1.0)
        vote.update(2.55, 0.0)
    vote.update(3.55, 100.0)  # once: luck
    low, high = vote.best_region()
    assert low <= 0.55 < high
    alone = BanditVote(seed=0, min_visits=3)
    assert alone.best_region() == (0.0, MAX_X)
    alone.update(3.55, 1.0)
    assert alone.best_region()[0] <= 3.55 < alone.best_region()[1]


def test_a_vote_with_a_memory_goes_through_json_and_has_the_same_future():
    vote, rng = BanditVote(seed=1, memory=30, min_visits=2, record=60), np.random.default_rng(0)
    for _ in range(40):
        vote.update(vote.sample(), float(rng.normal()))
    text = json.dumps(vote.state_dict(), allow_nan=False)
    other = BanditVote(seed=9)
    other.load_state_dict(json.loads(text))
    assert json.dumps(other.state_dict()) == text
    for _ in range(20):
        x, g = vote.sample(), float(rng.normal())
        assert other.sample() == x
        vote.update(x, g)
        other.update(x, g)
    assert vote.best_region() == other.best_region()


def test_a_state_from_before_there_was_a_baseline_is_the_printed_vote():
    vote = BanditVote(seed=1)
    vote.update(1.0, 5.0)
    state = vote.state_dict()
    old = {k: v for k, v in state.items() if k not in ("baseline", "min_visits", "record")}
    other = BanditVote(seed=2, memory=10, min_visits=4)
    other.load_state_dict(old)
    assert other.state_dict() == state
