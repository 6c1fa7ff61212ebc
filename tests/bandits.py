"""Helpers for the bandit tests: ready-made bandits, their slow twins, frequency checks."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import Bandit

quick = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
episodes = st.lists(st.tuples(st.floats(-0.2, 1.2), st.floats(-1e4, 1e4)), min_size=1, max_size=25)


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


def twin_of(b):
    """The slow twin in the bandit's present state."""
    t = twin(b)
    t.weights, t.counts = b.weights.tolist(), b.counts.tolist()
    return t


def middle(b, tile):
    return b.left + (tile + 0.5) * (b.right - b.left) / b.num_tiles


def off_borders(x, num_tiles):
    """Whether rounding cannot decide x's tile (x in units of the range)."""
    return not 0 < x < 1 or abs(x * num_tiles - round(x * num_tiles)) > 1e-9


def assert_frequencies(drawn, expected, n):
    """Each frequency within 5 standard errors of its probability."""
    expected = np.asarray(expected)
    np.testing.assert_array_less(
        abs(np.asarray(drawn) / n - expected), 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12
    )
