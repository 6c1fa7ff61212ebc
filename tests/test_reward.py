"""The reward the learner sees."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.core.reward import shape_reward


@pytest.mark.parametrize(
    ("reward", "shaped"),
    [
        (0.0, 0.0),
        (1.0, 2 * math.log(2)),
        (-1.0, -math.log(2)),
        (100.0, 2 * math.log(101)),
        (-6.5, -math.log(7.5)),
    ],
)
def test_shape_by_hand(reward, shaped):
    """log(|r| + 1) * (2 if r >= 0 else -1)."""
    assert shape_reward(torch.tensor([reward], dtype=torch.float64)).item() == pytest.approx(
        shaped, abs=1e-12
    )


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_shape_is_the_slow_twins(reward, scale):
    r = reward * scale
    expected = math.log(abs(r) + 1) * (2 if r >= 0 else -1)
    assert shape_reward(
        torch.tensor(reward, dtype=torch.float64), "log", scale
    ).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_none_only_scales():
    assert shape_reward(torch.tensor([3.0, -2.0]), "none", 0.5).tolist() == [1.5, -1.0]
    with pytest.raises(ValueError, match="reward_shape"):
        shape_reward(torch.zeros(1), "square")
