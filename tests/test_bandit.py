"""core/bandit.py: one bandit of the Bandits Vote Algorithm (docs/paper.md 2.4) against its slow
twin and by hand.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference as slow
from bandits import assert_frequencies, bandit, episodes, off_borders, quick, twin, twin_of
from dicerl.core import BanditVote, inv_temperature_from_x, x_from_inv_temperature
from dicerl.core.bandit import MAX_X

# --- x = log(1 + 1/tau) ---------------------------------------------------------------------------


def test_both_ends_of_x_and_inv_temperature():
    """x = 0 is exactly 1/tau = 0 (uniform); x = log 51 is 1/tau = 50."""
    assert inv_temperature_from_x(0.0) == 0.0
    assert x_from_inv_temperature(0.0) == 0.0
    assert math.log(51.0) == MAX_X
    assert inv_temperature_from_x(MAX_X) == pytest.approx(50.0, rel=1e-14)
    assert x_from_inv_temperature(50.0) == pytest.approx(MAX_X, rel=1e-14)


@quick
@given(st.floats(1e-6, MAX_X))
def test_x_and_inv_temperature_are_inverse(x):
    """tau = 1 / (exp(x) - 1)."""
    inv = float(inv_temperature_from_x(x))
    assert inv == pytest.approx(math.exp(x) - 1, rel=1e-9)
    assert float(x_from_inv_temperature(inv)) == pytest.approx(x, rel=1e-12)


def test_x_and_inv_temperature_take_arrays():
    x = np.linspace(0, MAX_X, 5)
    np.testing.assert_allclose(x_from_inv_temperature(inv_temperature_from_x(x)), x, rtol=1e-12)


# --- tiles ----------------------------------------------------------------------------------------


def test_the_default_range_has_39_tiles():
    """K = floor(log 51 / 0.1)"""
    assert [b.num_tiles for b in BanditVote().bandits] == [39] * 7


@pytest.mark.parametrize(
    ("left", "right", "accuracy", "tiles"),
    [(0, 0.3, 0.1, 3), (0, 1, 0.3, 3), (-1, 1, 0.5, 4), (0, 1, 1.0, 1)],
)
def test_number_of_tiles(left, right, accuracy, tiles):
    """floor((r - l) / acc), and 0.3 / 0.1 is 3."""
    assert bandit(left=left, right=right, accuracy=accuracy).num_tiles == tiles


def test_tiles_at_the_ends_and_outside():
    """x < l and x = l: the first tile; x = r and x > r: the last."""
    b = bandit(left=-1.0, right=3.0, accuracy=0.5)
    assert [b.tile(x) for x in (-math.inf, -5.0, -1.0, -0.75, 3.0, 3.1, math.inf)] == [
        0,
        0,
        0,
        0,
        7,
        7,
        7,
    ]


def test_tile_borders_belong_to_the_tile_above():
    """[low, high): with borders that floating point holds exactly."""
    b = bandit(left=-1.0, right=3.0, accuracy=0.5)
    for i in range(8):
        low, high = b.edges(i)
        assert (low, high) == (-1 + i * 0.5, -0.5 + i * 0.5)
        assert b.tile(low) == i
        assert b.tile(high - 1e-9) == i


@pytest.mark.parametrize(
    ("left", "right", "accuracy"), [(0.0, MAX_X, 0.1), (0.0, 1.0, 0.3), (-2.0, 1.0, 0.07)]
)
def test_tiles_are_equal_and_cover_the_range_exactly(left, right, accuracy):
    b = bandit(left=left, right=right, accuracy=accuracy)
    edges = [b.edges(i) for i in range(b.num_tiles)]
    assert edges[0][0] == left
    assert edges[-1][1] == right
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    np.testing.assert_allclose(
        [high - low for low, high in edges], (right - left) / b.num_tiles, rtol=1e-10
    )


@quick
@given(st.floats(-3, 3), st.floats(0.2, 6), st.floats(0.02, 0.2), st.floats(-0.2, 1.2))
def test_tile_is_the_slow_twins(left, span, accuracy, position):
    b = bandit(left=left, right=left + span, accuracy=accuracy)
    x = left + position * span
    tile = (x - left) / span * b.num_tiles
    if 1e-9 < tile < b.num_tiles - 1e-9 and abs(tile - round(tile)) < 1e-9:
        return  # on a border, rounding decides
    assert b.tile(x) == twin(b).tile(x)
    low, high = b.edges(b.tile(x))
    assert low - 1e-9 <= min(max(x, left), left + span) <= high + 1e-9


# --- eq. bandit_eval, bandit_update, bandit_score -------------------------------------------------


def test_values_are_means_over_the_window_cut_at_the_borders():
    """The denominator is cut too: the first tile's window of width 1 has two tiles."""
    b = bandit(accuracy=0.25, width=1)
    b.weights[:] = [1.0, 3.0, 5.0, 10.0]
    assert b.values().tolist() == pytest.approx([2.0, 3.0, 6.0, 7.5])
    b = bandit(accuracy=0.25, width=9)
    b.weights[:] = [1.0, 3.0, 5.0, 10.0]
    assert b.values().tolist() == pytest.approx([4.75] * 4)


def test_update_by_hand():
    """w_j += lr (g - V_i) in the window, with V_i from before the update; N_i += 1 at the tile
    alone.
    """
    b = bandit(accuracy=0.25, width=1, learning_rate=0.5)
    b.weights[:] = [1.0, 3.0, 5.0, 10.0]
    b.update(0.3, 7.0)  # tile 1, V_1 = 3: + 0.5 * 4
    assert b.weights.tolist() == [3.0, 5.0, 7.0, 10.0]
    assert b.counts.tolist() == [0, 1, 0, 0]
    b.update(1.0, 4.5)  # x = r: tile 3, V_3 = 8.5: - 0.5 * 4
    assert b.weights.tolist() == [3.0, 5.0, 5.0, 8.0]
    assert b.counts.tolist() == [0, 1, 0, 1]


def test_scores_by_hand():
    """(V_i - mean) / std + c sqrt(log(1 + sum N) / (1 + N_i)); mean 2, std sqrt(2/3)."""
    b = bandit(right=3.0, accuracy=1.0, width=0, ucb_scale=2.0)
    b.weights[:] = [1.0, 2.0, 3.0]
    b.counts[:] = [0, 3, 8]
    ucb = [2 * math.sqrt(math.log(12) / n) for n in (1, 4, 9)]
    z = 1 / math.sqrt(2 / 3)
    assert b.scores().tolist() == pytest.approx([-z + ucb[0], ucb[1], z + ucb[2]])


@pytest.mark.parametrize("level", [0.0, 0.1, 1e6 / 3])
def test_scores_where_all_values_are_equal_are_the_visits_alone(level):
    """std = 0, up to rounding: the first term is 0, not NaN and not noise."""
    b = bandit(width=2)
    b.weights[:] = level
    b.counts[:] = np.arange(10)
    assert b.scores().tolist() == pytest.approx(
        [math.sqrt(math.log(46) / (1 + n)) for n in range(10)]
    )


def test_scores_do_not_depend_on_the_scale_of_returns():
    one, other = bandit(), bandit()
    one.weights[:] = np.random.default_rng(0).normal(size=10)
    other.weights[:] = 1e4 * one.weights + 5e4
    np.testing.assert_allclose(other.scores(), one.scores(), rtol=1e-9)


@quick
@given(
    episodes,
    st.integers(0, 4),
    st.sampled_from([0.05, 0.1, 0.2, 1.0]),
    st.sampled_from([0.0, 1.0, 3.0]),
)
def test_bandit_is_its_slow_twin(history, width, learning_rate, ucb_scale):
    b = bandit(accuracy=1 / 13, width=width, learning_rate=learning_rate, ucb_scale=ucb_scale)
    t = twin(b)
    for x, g in history:
        if off_borders(x, b.num_tiles):
            b.update(x, g)
            t.update(x, g)
    assert b.num_tiles == 13
    assert b.counts.tolist() == t.counts
    np.testing.assert_allclose(b.weights, t.weights, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(b.values(), t.values(), rtol=1e-9, atol=1e-9)
    if np.std(t.values()) > 1e-6 or not any(t.weights):
        np.testing.assert_allclose(b.scores(), t.scores(), rtol=1e-6, atol=1e-6)


# --- candidates -----------------------------------------------------------------------------------


def test_argmax_candidates_lie_in_the_top_d_tiles():
    """One in each of the d best by score, best first."""
    b = bandit(num_candidates=4, width=0, ucb_scale=0.0)
    b.weights[:] = [3, 9, 1, 4, 8, 2, 6, 5, 7, 0]
    for seed in range(20):
        assert [b.tile(x) for x in b.candidates(np.random.default_rng(seed))] == [1, 4, 8, 6]


def test_argmax_candidates_follow_the_scores_not_the_values():
    """The unvisited tile with the lowest value wins by its bonus."""
    b = bandit(num_candidates=1, width=0, ucb_scale=10.0)
    b.weights[:] = np.arange(10)
    b.counts[1:] = 50
    assert b.tile(b.candidates(np.random.default_rng(0))[0]) == 0


def draw_tiles(b, n, seed=0):
    """How often each tile was among the candidates in n draws; a draw has d different tiles."""
    rng = np.random.default_rng(seed)
    drawn = np.zeros(b.num_tiles)
    for _ in range(n):
        tiles = {b.tile(x) for x in b.candidates(rng)}
        assert len(tiles) == min(b.num_candidates, b.num_tiles)
        drawn[list(tiles)] += 1
    return drawn


def test_argmax_ties_are_broken_at_random():
    """All tiles equal at the start: each is chosen d times in K. With two leaders, those always,
    the rest at random.
    """
    b = bandit(num_candidates=3)
    assert_frequencies(draw_tiles(b, 4000), [0.3] * 10, 4000)
    b = bandit(num_candidates=3, width=0, ucb_scale=0.0)
    b.weights[[2, 7]] = 1.0
    drawn = draw_tiles(b, 4000)
    assert drawn[2] == drawn[7] == 4000
    assert_frequencies(np.delete(drawn, [2, 7]), [1 / 8] * 8, 4000)


@pytest.mark.parametrize("d", [1, 3])
def test_random_candidates_are_draws_without_replacement_from_softmax_of_scores(d):
    b = bandit(mode="random", right=6.0, accuracy=1.0, width=1, num_candidates=d)
    for x, g in [(0.5, 1.0), (1.5, -2.0), (1.5, 0.0), (4.5, 5.0), (5.5, 3.0)]:
        b.update(x, g)
    expected = slow.inclusion_probabilities(twin_of(b).scores(), d)
    assert max(expected) > 1.5 * min(expected)  # the scores matter
    assert_frequencies(draw_tiles(b, 8000), expected, 8000)


@pytest.mark.parametrize("mode", ["argmax", "random"])
def test_candidates_lie_uniformly_inside_their_tile(mode):
    b = bandit(mode=mode, left=-1.0, right=2.0, accuracy=0.5, num_candidates=6)
    rng = np.random.default_rng(0)
    x = np.concatenate([b.candidates(rng) for _ in range(1000)])
    assert x.min() >= -1.0
    assert x.max() <= 2.0
    inside = (x + 1.0) / 0.5 % 1.0
    assert_frequencies(np.histogram(inside, 10, (0, 1))[0], [0.1] * 10, len(x))


@pytest.mark.parametrize("mode", ["argmax", "random"])
def test_more_candidates_than_tiles_gives_every_tile_once(mode):
    b = bandit(mode=mode, right=1.0, accuracy=0.25, num_candidates=7)
    assert sorted(b.tile(x) for x in b.candidates(np.random.default_rng(0))) == [0, 1, 2, 3]


# --- at the door ----------------------------------------------------------------------------------


@pytest.mark.parametrize("g", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [BanditVote, bandit])
def test_a_return_that_is_not_finite_is_refused(make, g):
    """And leaves no trace: one NaN would spread over every tile."""
    b = make()
    with pytest.raises(ValueError, match="must be finite"):
        b.update(0.5, g)
    assert not b.values().any()
    assert not (b.counts() if isinstance(b, BanditVote) else b.counts).any()


def test_a_nan_x_is_refused():
    for b in (BanditVote(), bandit()):
        with pytest.raises(ValueError, match="NaN"):
            b.update(math.nan, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "greedy"}, "'greedy'.*'argmax' or 'random'"),
        ({"left": 1.0}, "left < right"),
        ({"accuracy": 0.0}, "accuracy > 0"),
        ({"accuracy": 1.5}, "leaves no tile"),
        ({"width": -1}, "width >= 0"),
        ({"num_candidates": 0}, "num_candidates >= 1"),
    ],
)
def test_an_impossible_bandit_is_refused_with_the_reason(arguments, message):
    with pytest.raises(ValueError, match=message):
        bandit(**arguments)
