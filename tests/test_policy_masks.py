"""core/policy.py with a mask: the policy over the allowed actions alone, at every temperature."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import entropy, entropy_surrogate, log_probs, losses, policy_surrogate
from dicerl.core.policy import deviation

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
TEMPERATURES = st.one_of(st.sampled_from([0.0, 1.0, 50.0, math.inf]), st.floats(0, 50))


@st.composite
def states(draw, most=1e3):
    """(A, mask, an allowed action, 1/tau of two components, their weights)"""
    size = draw(st.integers(2, 9))
    advantage = draw(st.lists(st.floats(-most, most), min_size=size, max_size=size))
    mask = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    action = draw(st.sampled_from([i for i, m in enumerate(mask) if m]))
    weight = draw(st.floats(0, 1))
    return (
        advantage,
        mask,
        action,
        [draw(TEMPERATURES), draw(TEMPERATURES)],
        [weight, 1.0 - weight],
    )


def tensor(x, grad=False):
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def policy_of(inv, weight, mixed):
    """(inv_temperature, weight) of a mixture, or of its first component alone."""
    return (tensor(inv), tensor(weight)) if mixed else (tensor(inv[0]), None)


@quick
@given(states(), st.booleans())
def test_probabilities_are_those_of_the_definition_and_exactly_0_elsewhere(state, mixed):
    a, mask, _, inv, weight = state
    pi = log_probs(tensor(a), *policy_of(inv, weight, mixed), torch.tensor(mask)).exp()
    expected = slow.masked_mixture(a, *((inv, weight) if mixed else (inv[:1], [1.0])), mask)
    np.testing.assert_allclose(pi.numpy(), expected, rtol=1e-9, atol=1e-300)
    assert (pi[~torch.tensor(mask)] == 0).all()
    assert pi.sum().item() == pytest.approx(1.0)


@quick
@given(states(), st.booleans())
def test_the_masked_policy_is_that_of_the_allowed_actions_alone(state, mixed):
    """Every function of the policy, and its gradient: the entries of allowed actions are what they
    would be if there were no others, those of the rest are 0.
    """
    a, mask, action, inv, weight = state
    kept = [i for i, m in enumerate(mask) if m]
    chosen = policy_of(inv, weight, mixed)
    whole, part = tensor(a, grad=True), tensor([a[i] for i in kept], grad=True)
    allowed = torch.tensor(mask)
    at, inside = torch.tensor(action), torch.tensor(kept.index(action))
    pairs = [
        (
            log_probs(whole, *chosen, allowed)[allowed].clamp_min(-1e9).sum(),
            log_probs(part, *chosen).clamp_min(-1e9).sum(),
        ),
        (entropy(whole, *chosen, allowed), entropy(part, *chosen)),
        (
            policy_surrogate(whole, chosen[0], at, chosen[1], allowed),
            policy_surrogate(part, chosen[0], inside, chosen[1]),
        ),
        (entropy_surrogate(whole, *chosen, allowed), entropy_surrogate(part, *chosen)),
        (deviation(whole, allowed), deviation(part)),
    ]
    for masked, alone in pairs:
        assert masked.item() == pytest.approx(alone.item(), rel=1e-9, abs=1e-9)
        if alone.grad_fn is None or masked is pairs[-1][0]:
            continue
        (given_, expected) = (
            torch.autograd.grad(x, y)[0] for x, y in ((masked, whole), (alone, part))
        )
        assert (given_[~allowed] == 0).all()
        np.testing.assert_allclose(given_[allowed].numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)


@quick
@given(states(most=5.0))
def test_the_losses_take_the_mask_along(state):
    a, mask, action, (inv, _), _ = state
    kept = [i for i, m in enumerate(mask) if m]
    inv = tensor(min(inv, 50.0))
    whole, part, allowed = tensor(a), tensor([a[i] for i in kept]), torch.tensor(mask)
    at, inside = torch.tensor(action), torch.tensor(kept.index(action))
    rho, target, log_tau = tensor(0.7), tensor(1.3), tensor(0.2)
    for masked, alone in (
        (
            losses.policy_loss(whole, inv, at, rho, target, None, allowed),
            losses.policy_loss(part, inv, inside, rho, target),
        ),
        (
            losses.temperature_loss(log_tau, whole, inv, at, rho, target, allowed),
            losses.temperature_loss(log_tau, part, inv, inside, rho, target),
        ),
        *(
            (
                losses.entropy_bonus(whole, inv, scale, None, allowed),
                losses.entropy_bonus(part, inv, scale),
            )
            for scale in ("tau", "plain")
        ),
    ):
        assert masked.item() == pytest.approx(alone.item(), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("inv", [0.0, 1.0, 50.0, math.inf])
def test_float32_with_a_much_larger_forbidden_a(inv):
    """1/tau = 0 is uniform over the allowed actions, exactly, and infinity their best."""
    a = torch.tensor([[1e30, 2.0, 2.0, -1e30], [0.0, 1.0, 3.0, 3.0]], requires_grad=True)
    mask = torch.tensor([[False, True, True, False], [True, True, False, False]])
    log_pi = log_probs(a, torch.full((2,), inv), mask=mask)
    pi = log_pi.exp()
    assert pi[0].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert pi[1, 2:].tolist() == [0.0, 0.0]
    if inv in (0.0, math.inf):
        assert pi[1, :2].tolist() == ([0.5, 0.5] if inv == 0.0 else [0.0, 1.0])
    h = entropy(a, torch.full((2,), inv), mask=mask)
    assert h[0].item() == pytest.approx(math.log(2))
    (slope,) = torch.autograd.grad(h.sum(), a)
    assert torch.isfinite(slope).all()
    assert (slope[~mask] == 0).all()


def test_all_allowed_is_no_mask():
    a = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    inv = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)) * 50
    every = torch.ones_like(a, dtype=torch.bool)
    assert torch.equal(log_probs(a, inv), log_probs(a, inv, mask=every))
    assert torch.equal(entropy(a, inv), entropy(a, inv, mask=every))
    assert torch.allclose(deviation(a), deviation(a, every), rtol=1e-6)
