"""core/family.py: coordinates in which the numbers of a family are searched, and its policy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.core import family, log_probs

quick = settings(max_examples=60, deadline=None, derandomize=True)
NAMES = sorted({name for names in family.NUMBERS.values() for name in names})


def tensor(x, grad=False, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype, requires_grad=grad)


# --- coordinates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@quick
@given(st.floats(0, 1))
def test_from_x_and_to_x_are_inverse(name, position):
    x = position * family.largest_x(name, 50.0)
    assert float(family.to_x(name, family.from_x(name, x))) == pytest.approx(
        x, rel=1e-12, abs=1e-12
    )


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("inv_temperature", 0.0, 50.0),
        ("inv_temperature_low", 0.0, 50.0),
        ("inv_temperature_high", 0.0, 50.0),
        ("epsilon", 1.0, 1 / 51),
        ("weight_low", 0.0, 1.0),
    ],
)
def test_the_ends_of_the_search_range(name, low, high):
    """x runs from the uniform end; eps = 1/(1 + 1/tau)."""
    assert float(family.from_x(name, 0.0)) == low
    assert float(family.from_x(name, family.largest_x(name, 50.0))) == pytest.approx(high)


def test_coordinates_are_elementwise():
    for name in NAMES:
        x = np.linspace(0, family.largest_x(name, 50.0), 5)
        values = family.from_x(name, x)
        assert [float(v) for v in values] == [float(family.from_x(name, float(y))) for y in x]
        np.testing.assert_allclose(family.to_x(name, values), x, atol=1e-12)


def test_eps_0_has_a_coordinate():
    """The purely greedy policy may be asked for; its coordinate must be a number, and lead back to
    nearly nothing.
    """
    x = float(family.to_x("epsilon", 0.0))
    assert math.isfinite(x)
    assert float(family.from_x("epsilon", x)) < 1e-30


@quick
@given(st.floats(0, 4), st.floats(0, 4), st.floats(0, 1))
def test_ordered_sorts_the_temperatures_of_a_mixture_alone(a, b, w):
    assert family.ordered("mixture", [a, b, w]) == [min(a, b), max(a, b), w]
    for name in ("boltzmann", "conditioned", "epsilon"):
        assert family.ordered(name, (a,)) == [a]


# --- components -----------------------------------------------------------------------------------


def test_components_of_each_family():
    """[T, B] parameters -> [T, B] and no weight, or [T, B, 2] and [T, B, 2]; temperatures are in
    units of ``scale``.
    """
    shape, rng = (3, 2), np.random.default_rng(0)
    drawn = {name: tensor(rng.uniform(0.1, 1, shape)) for name in NAMES}
    scale = tensor(rng.uniform(0.5, 2, shape))
    for name in ("boltzmann", "conditioned"):
        inv, weight = family.components(name, drawn, scale)
        assert weight is None
        assert torch.equal(inv, drawn["inv_temperature"] / scale)
    inv, weight = family.components("mixture", drawn, scale)
    assert inv.shape == weight.shape == (3, 2, 2)
    assert torch.equal(inv[..., 0], drawn["inv_temperature_low"] / scale)
    assert torch.equal(inv[..., 1], drawn["inv_temperature_high"] / scale)
    assert torch.equal(weight[..., 0], drawn["weight_low"])
    inv, weight = family.components("epsilon", drawn, scale)
    assert inv.shape == weight.shape == (3, 2, 2)
    # uniform and greedy have no scale
    assert torch.equal(inv, tensor([0.0, math.inf]).expand(3, 2, 2))
    assert torch.equal(weight[..., 0], drawn["epsilon"])
    for name in family.NUMBERS:  # no scale is a scale of 1
        for a, b in zip(
            family.components(name, drawn),
            family.components(name, drawn, torch.ones(shape)),
            strict=True,
        ):
            assert (a is None and b is None) or torch.equal(a, b)
    for _, w in (family.components(name, drawn) for name in ("mixture", "epsilon")):
        torch.testing.assert_close(w.sum(-1), torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(
    "a",
    [[0.3, -1.0, 0.8, 0.2], [1.0, 1.0, -2.0], [0.0, 0.0], [1e3, -1e3, 0.0, 1e3, 1e3 - 1e-9]],
    ids=str,
)
def test_the_epsilon_family_is_epsilon_greedy(a, epsilon):
    """docs/paper.md 1, to 1e-12: eps * uniform + (1 - eps) * greedy, equal maxima sharing."""
    pi = log_probs(tensor(a), *family.components("epsilon", {"epsilon": tensor(epsilon)})).exp()
    best = [x == max(a) for x in a]
    expected = [epsilon / len(a) + (1 - epsilon) * b / sum(best) for b in best]
    np.testing.assert_allclose(pi.numpy(), expected, rtol=0, atol=1e-12)
