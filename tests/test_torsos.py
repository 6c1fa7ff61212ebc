"""agent/torsos.py: the pooling without a gradient. What torsos take is in test_networks.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dicerl.agent.torsos import CONVOLUTIONS, MaxPool


@given(
    height=st.integers(1, 13),
    width=st.integers(1, 13),
    channels_last=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_maxima_are_torchs_own(height, width, channels_last, dtype, seed):
    x = torch.randn(3, 2, height, width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    before = x.clone()
    with torch.no_grad():
        found = MaxPool()(x)
    expected = torch.nn.functional.max_pool2d(x, 3, 2, padding=1)
    assert torch.equal(found, expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("size", [5, 6])
def test_a_nan_is_handed_on(size):
    x = torch.zeros(1, 1, size, size)
    x[..., 2, 3] = torch.nan
    with torch.no_grad():
        found = MaxPool()(x)
    expected = torch.nn.functional.max_pool2d(x, 3, 2, padding=1)
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("torso", CONVOLUTIONS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_what_acts_is_what_is_trained(torso, channels_last):
    """A torso's features are flat, with channels first, with a gradient or without one."""
    convolutions = CONVOLUTIONS[torso](3)
    x = torch.rand(4, 3, 21, 23)
    if channels_last:
        convolutions = convolutions.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    trained = convolutions(x)
    with torch.no_grad():
        acted = convolutions(x)
        one = convolutions(x[:1])
    assert trained.dim() == 2
    assert torch.equal(acted, trained)
    torch.testing.assert_close(one[0], trained[0], rtol=1e-5, atol=1e-6)
