"""core/bandit.py: the vote of several bandits (docs/paper.md 2.4), and several votes at once,
against their slow twins and in simulation.
"""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference as slow
from bandits import assert_frequencies, episodes, middle, off_borders, quick, twin, twin_of
from dicerl.core.bandit import MAX_X, Bandit, BanditVote, JointVote


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


def test_a_vote_without_bandits_is_refused():
    with pytest.raises(ValueError, match="num_bandits is 0"):
        BanditVote(num_bandits=0)


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


# --- JointVote ------------------------------------------------------------------------------------


PEAK = np.array([1.0, 3.0, 2.0])


def joint(seed, **arguments):
    return JointVote(
        [
            BanditVote(seed=np.random.SeedSequence(seed, spawn_key=(i,)), **arguments)
            for i in range(3)
        ]
    )


def hidden_peak(x, rng, noise=10.0):
    """100 at the peak, deviation 0.5 in each coordinate: 2 % of the range returns more than 60."""
    return 100 * math.exp(-float(np.sum((np.array(x) - PEAK) ** 2)) / (2 * 0.5**2)) + rng.normal(
        0, noise
    )


def search(seed, episodes, reported=lambda x, g: (x, g)):
    """How far the middle of the best region is from the peak, in the worst coordinate."""
    vote, rng = joint(seed), np.random.default_rng(seed)
    for _ in range(episodes):
        x = vote.sample()
        vote.update(*reported(x, hidden_peak(x, rng)))
    return (
        max(
            abs((low + high) / 2 - p)
            for (low, high), p in zip(vote.best_region(), PEAK, strict=True)
        ),
        vote,
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_joint_vote_finds_a_hidden_noisy_peak_in_three_dimensions(seed):
    """Within one deviation of the peak in every coordinate after 600 episodes. By chance that is
    (1/3.93)^3, 1.6 %; of 20 seeds, all did so after 500 (the worst 0.28 off) and after 1000 and
    1500 (0.34, 0.46); at four times the noise 18 or 19 of 20.
    """
    off, vote = search(seed, 600)
    assert off < 0.5
    assert vote.votes[0].counts().sum() == 600


def test_a_joint_vote_that_is_told_of_other_draws_does_not_find_it():
    """The test above can fail: returns that belong to other x."""
    rng = np.random.default_rng(0)
    found = [
        search(seed, 300, lambda x, g: (tuple(rng.uniform(0, MAX_X, 3)), g))[0] < 0.5
        for seed in range(4)
    ]
    assert sum(found) <= 1


def test_a_joint_vote_draws_and_teaches_each_coordinate_alone():
    vote, alone = joint(3), joint(3)
    assert vote.sample() == tuple(v.sample() for v in alone.votes)
    vote.update((0.3, 2.0, 3.5), 7.0)
    for v, x in zip(alone.votes, (0.3, 2.0, 3.5), strict=True):
        v.update(x, 7.0)
    for one, other in zip(vote.votes, alone.votes, strict=True):
        np.testing.assert_array_equal(one.values(), other.values())
        np.testing.assert_array_equal(one.counts(), other.counts())
    with pytest.raises(ValueError, match="zip"):
        vote.update((0.3, 2.0), 1.0)


def test_a_joint_vote_goes_through_json_and_has_the_same_future():
    vote, rng = search(1, 50)[1], np.random.default_rng(2)
    text = json.dumps(vote.state_dict(), allow_nan=False)
    other = joint(9)
    other.load_state_dict(json.loads(text))
    assert json.dumps(other.state_dict()) == text
    for _ in range(20):
        x, g = vote.sample(), float(rng.normal())
        assert other.sample() == x
        for v in (vote, other):
            v.update(x, g)
    assert vote.best_region() == other.best_region()
    with pytest.raises(ValueError, match="zip"):
        JointVote([BanditVote()]).load_state_dict(json.loads(text))
