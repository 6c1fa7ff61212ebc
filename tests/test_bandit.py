"""core/bandit.py: the Bandits Vote Algorithm (SPEC 4) against its slow twin, by hand, and in
simulation.
"""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import Bandit, BanditVote, inv_temperature_from_x, x_from_inv_temperature
from dicerl.core.bandit import MAX_X

quick = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def bandit(
    mode="argmax",
    left=0.0,
    right=1.0,
    accuracy=0.1,
    width=1,
    learning_rate=0.1,
    num_candidates=3,
    **rest,
):
    return Bandit(mode, left, right, accuracy, width, learning_rate, num_candidates, **rest)


def twin(b):
    return slow.SlowBandit(b.left, b.right, b.num_tiles, b.width, b.learning_rate, b.ucb_scale)


def middle(b, tile):
    return b.left + (tile + 0.5) * (b.right - b.left) / b.num_tiles


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


episodes = st.lists(st.tuples(st.floats(-0.2, 1.2), st.floats(-1e4, 1e4)), min_size=1, max_size=25)


def off_borders(x, num_tiles):
    """Whether rounding cannot decide x's tile (x in units of the range)."""
    return not 0 < x < 1 or abs(x * num_tiles - round(x * num_tiles)) > 1e-9


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


def assert_frequencies(drawn, expected, n):
    """Each frequency within 5 standard errors of its probability."""
    expected = np.asarray(expected)
    np.testing.assert_array_less(
        abs(np.asarray(drawn) / n - expected), 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12
    )


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


def twin_of(b):
    """The slow twin in the bandit's present state."""
    t = twin(b)
    t.weights, t.counts = b.weights.tolist(), b.counts.tolist()
    return t


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


# --- the vote -------------------------------------------------------------------------------------


@quick
@given(episodes, st.integers(0, 1000))
def test_vote_update_is_m_single_updates_and_the_slow_twins(history, seed):
    """The vectorised update, number by number: weights, counts and values of every bandit."""
    vote = BanditVote(seed=seed)
    singles = [
        Bandit(b.mode, b.left, b.right, b.accuracy, b.width, b.learning_rate, b.num_candidates)
        for b in vote.bandits
    ]
    twins = [twin(b) for b in vote.bandits]
    for x, g in history:
        if off_borders(x, 39):
            for each in (vote, *singles, *twins):
                each.update(x * MAX_X, g)
    for row, single, t in zip(vote.bandits, singles, twins, strict=True):
        np.testing.assert_allclose(row.weights, single.weights, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(row.weights, t.weights, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(row.values(), t.values(), rtol=1e-9, atol=1e-9)
        assert row.counts.tolist() == single.counts.tolist() == t.counts
    np.testing.assert_allclose(
        vote.values(), np.mean([t.values() for t in twins], axis=0), rtol=1e-9, atol=1e-9
    )
    assert vote.counts().tolist() == twins[0].counts


def test_the_bandits_hold_the_rows_the_vote_updates():
    vote = BanditVote()
    vote.update(1.0, 3.0)
    assert all(b.weights.any() and b.counts.sum() == 1 for b in vote.bandits)
    vote.bandits[3].update(1.0, 3.0)
    assert vote.state_dict()["bandits"][3]["weights"] == vote.bandits[3].weights.tolist()
    assert vote.bandits[3].counts.sum() == 2
    assert vote.counts().sum() == 1  # of the first bandit; a copy
    vote.counts()[:] = 99
    assert vote.counts().sum() == 1


def test_modes_rates_and_widths_are_drawn_uniformly_from_their_choices():
    drawn = [d for seed in range(300) for d in BanditVote(seed=seed).describe()]
    for field, choices in {
        "mode": ("argmax", "random"),
        "width": (1, 2, 3),
        "learning_rate": (0.05, 0.1, 0.2),
    }.items():
        counts = [sum(d[field] == choice for d in drawn) for choice in choices]
        assert sum(counts) == len(drawn)
        assert_frequencies(counts, [1 / len(choices)] * len(choices), len(drawn))


def test_sample_is_uniform_over_all_m_times_d_candidates():
    """Drawing a bandit, then one of its d, gives tile i the probability mean_m P(i among the
    candidates of m) / d.
    """
    vote = BanditVote(
        num_bandits=5, left=0.0, right=6.0, accuracy=1.0, widths=(0, 1), num_candidates=2, seed=3
    )
    for x, g in [(0.5, 1.0), (1.5, -2.0), (2.5, 2.5), (3.5, 0.2), (4.5, 5.0), (5.5, 3.0)]:
        vote.update(x, g)
    assert {b.mode for b in vote.bandits} == {"argmax", "random"}
    expected = np.zeros(6)
    for b in vote.bandits:
        scores = twin_of(b).scores()
        if b.mode == "random":
            expected += slow.inclusion_probabilities(scores, 2)
        else:
            expected[np.argsort(scores)[-2:]] += 1
    expected /= 5 * 2
    drawn = np.bincount([vote.bandits[0].tile(vote.sample()) for _ in range(8000)], minlength=6)
    assert_frequencies(drawn, expected, 8000)


def test_samples_stay_in_the_range():
    vote = BanditVote(seed=1)
    x = [vote.sample() for _ in range(500)]
    assert 0.0 <= min(x) < 0.3
    assert MAX_X - 0.3 < max(x) <= MAX_X
    assert all(isinstance(v, float) for v in x)


def test_what_was_scored_before_an_update_is_scored_anew():
    """Samples in a row share scores; a vote that was read from a checkpoint has scored nothing yet,
    and must draw the same.
    """
    vote = BanditVote(seed=3)
    for turn in range(30):
        again = BanditVote(seed=4)
        again.load_state_dict(json.loads(json.dumps(vote.state_dict())))
        assert [vote.sample() for _ in range(20)] == [again.sample() for _ in range(20)]
        vote.update(turn % 7 / 2, float(turn % 5))


def test_equal_seeds_give_equal_votes_and_other_seeds_others():
    def run(seed):
        vote = BanditVote(seed=seed)
        return [vote.sample() for _ in range(10)]

    assert run(5) == run(5) != run(6)
    assert run(np.random.SeedSequence(5)) == run(5)


# --- best region ----------------------------------------------------------------------------------


def test_best_region_is_the_whole_range_before_any_episode():
    assert BanditVote().best_region() == (0.0, MAX_X)


def test_best_region_is_the_best_valued_tile_among_those_visited():
    """With returns below zero, every tile nobody visited keeps the value 0: higher, and not
    meant.
    """
    vote = BanditVote(widths=(1,))
    first = vote.bandits[0]
    for tile, g in [(5, -10.0), (20, -3.0), (35, -10.0)]:
        vote.update(middle(first, tile), g)
    assert np.argmax(vote.values()) not in (5, 20, 35)
    assert vote.best_region() == first.edges(20)


def noisy_return(x, peak, rng):
    return 100 * math.exp(-((x - peak) ** 2) / (2 * 0.5**2)) + rng.normal(0, 10)


def play(vote, peak, num_episodes, rng):
    for _ in range(num_episodes):
        x = vote.sample()
        vote.update(x, noisy_return(x, peak, rng))
    low, high = vote.best_region()
    return (low + high) / 2


@pytest.mark.parametrize("seed", range(4))
def test_vote_finds_a_noisy_peak_and_follows_it_when_it_moves(seed):
    """The paper's adaptive trade-off: the best region stands within half a standard deviation of
    the peak, before and after.
    """
    rng = np.random.default_rng(seed)
    vote = BanditVote(seed=seed)
    assert play(vote, 3.0, 1500, rng) == pytest.approx(3.0, abs=0.25)
    recent = [vote.sample() for _ in range(500)]
    assert np.mean([2.0 < x < 4.0 for x in recent]) > 0.6  # uniform draws: 0.51
    assert play(vote, 1.0, 1500, rng) == pytest.approx(1.0, abs=0.25)


# --- state ----------------------------------------------------------------------------------------


def trained_vote(**arguments):
    vote = BanditVote(**arguments)
    rng = np.random.default_rng(0)
    play(vote, 2.0, 50, rng)
    return vote


def future(vote):
    rng = np.random.default_rng(1)
    result = []
    for _ in range(30):
        result.append(vote.sample())
        vote.update(result[-1], float(rng.normal()))
    return (
        result,
        vote.values().tolist(),
        vote.counts().tolist(),
        vote.describe(),
        vote.best_region(),
    )


def test_state_dict_is_json_and_gives_the_same_future():
    """Through JSON into a vote of another seed, size, range and number of candidates: all of it
    comes from the state.
    """
    vote = trained_vote(seed=4)
    text = json.dumps(vote.state_dict(), allow_nan=False)
    other = BanditVote(
        num_bandits=2, right=1.0, accuracy=0.5, num_candidates=1, ucb_scale=3.0, seed=9
    )
    other.load_state_dict(json.loads(text))
    assert json.dumps(other.state_dict()) == text
    assert future(other) == future(vote)


def test_state_dict_is_a_snapshot():
    """What happens afterwards does not change it, and what is loaded from it does not either."""
    vote = trained_vote()
    state = vote.state_dict()
    text = json.dumps(state)
    future(vote)
    assert json.dumps(state) == text
    vote.load_state_dict(state)
    future(vote)
    assert json.dumps(state) == text


@pytest.mark.parametrize("field", ["weights", "counts"])
def test_a_state_of_another_number_of_tiles_is_refused(field):
    state = trained_vote().state_dict()
    state["bandits"][2][field].append(0)
    with pytest.raises(ValueError, match="39"):
        BanditVote().load_state_dict(state)


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


def test_a_vote_without_bandits_is_refused():
    with pytest.raises(ValueError, match="num_bandits is 0"):
        BanditVote(num_bandits=0)
