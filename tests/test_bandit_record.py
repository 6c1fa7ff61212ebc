"""core/record.py: which region is best, where returns are noisy and many tiles alike."""

import numpy as np
import pytest

from dicerl.core import BanditVote
from dicerl.core.bandit import MAX_X
from dicerl.core.record import MEMORY, WIDTH, Baseline, Record

SEEDS = 12


def logistic(x):
    return 1 / (1 + np.exp(-x))


def plateau(x):
    """Returns that rise to 30 with 1/tau, and stay there."""
    return 30 * logistic(2 * (x - 2.5))


def caught(x):
    """Catch's mean return: nearly all is caught from 1/tau = 10 on."""
    return 2 * logistic(3.5 * (x - 1)) - 1


def found(mean, noisy, episodes, **arguments):
    """The mean over SEEDS of what the best region has of the best mean return."""
    shares = []
    for seed in range(SEEDS):
        vote, rng = BanditVote(seed=seed, **arguments), np.random.default_rng(seed)
        for _ in range(episodes):
            x = vote.sample()
            vote.update(x, noisy(rng, mean(x)))
        shares.append(mean(np.linspace(*vote.best_region(), 20)).mean() / mean(MAX_X))
    return np.mean(shares)


def normal(rng, value):
    return value + 15 * rng.normal()


def one_or_minus_one(rng, value):
    return 1.0 if rng.random() < (1 + value) / 2 else -1.0


@pytest.mark.parametrize(
    ("memory", "record", "least"), [(0, 300, 0.97), (50, 50, 0.95), (50, 300, 0.97)]
)
def test_a_record_is_not_deceived_by_luck_on_a_plateau(memory, record, least):
    assert found(plateau, normal, 1000, memory=memory, record=record) >= least


def test_without_a_record_it_is():
    """What the record is for."""
    assert found(plateau, normal, 1000) < 0.95
    assert found(plateau, normal, 1000, memory=50, min_visits=3) < 0.95


def test_catch_is_played_from_where_nothing_is_missed():
    assert found(caught, one_or_minus_one, 2000, memory=50, min_visits=3, record=50) >= 0.997


@pytest.mark.parametrize("memory", [30, 4])  # 4: less than an eighth of all, from 32 on
def test_the_merits_are_those_of_the_equation(memory):
    rng = np.random.default_rng(0)
    tiles, returns = rng.integers(0, 12, 80), rng.normal(5.0, 2.0, 80)
    record, baseline, left = Record(12, memory), Baseline(min(memory, MEMORY)), []
    for tile, g in zip(tiles, returns, strict=True):
        record.update(int(tile), float(g))
        left.append(baseline.remove(float(g)))
    weight = [np.prod([1 - 1 / max(memory, n / 8) for n in range(k + 1, 81)]) for k in range(1, 81)]
    mean = sum(w * g for w, g in zip(weight, left, strict=True)) / sum(weight)
    square = sum(w * g * g for w, g in zip(weight, left, strict=True)) / sum(weight)
    for i, merit in enumerate(record.merits()):
        near = weight * np.exp(-(((i - tiles) / WIDTH) ** 2) / 2)
        average = sum(k * g for k, g in zip(near, left, strict=True)) / sum(near)
        error = np.sqrt(square - mean**2) / np.sqrt(sum(near))
        assert merit == pytest.approx(average - error)


def test_merits_before_the_first_episode_and_far_from_all_others():
    record = Record(200, memory=10)
    assert np.isneginf(record.merits()).all()
    for _ in range(5):
        record.update(0, 1.0)
        record.update(2, 3.0)
    merits = record.merits()
    assert np.isfinite(merits).all()
    assert merits[2] > merits[0] > merits[20] > merits[199]


def test_a_record_says_the_same_of_shifted_and_scaled_returns():
    def region(judge):
        vote, rng = BanditVote(seed=2, memory=50, record=100), np.random.default_rng(2)
        for _ in range(150):
            x = vote.sample()
            vote.update(x, judge(normal(rng, plateau(x))))
        return vote.best_region()

    assert region(lambda g: g) == region(lambda g: 1000 + g) == region(lambda g: 0.01 * g)


def test_the_search_does_not_depend_on_the_record():
    plain, other = BanditVote(seed=4), BanditVote(seed=4, record=50)
    for _ in range(60):
        x = plain.sample()
        assert other.sample() == x
        plain.update(x, x)
        other.update(x, x)


def test_a_record_cannot_be_negative():
    with pytest.raises(ValueError, match="record >= 0"):
        BanditVote(record=-1)
