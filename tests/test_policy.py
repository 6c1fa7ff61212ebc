"""core/policy.py: the behaviour family pi_tau (docs/paper.md 2.1) and the appendix's lemmas about
it (docs/paper.md 1).
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import entropy, entropy_surrogate, log_probs, policy_surrogate
from dicerl.core.critic import casa
from dicerl.core.policy import gather

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

advantages = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=18)
# no probability underflows at 1/tau <= 5
mild_advantages = st.lists(st.floats(-3, 3), min_size=2, max_size=6)
inv_temperatures = st.one_of(st.sampled_from([0.0, 1.0, 50.0]), st.floats(0, 50))
mild_inv_temperatures = st.floats(0.05, 5)


def tensor(x, dtype=torch.float64, grad=False):
    return torch.tensor(x, dtype=dtype, requires_grad=grad)


def gradient(output, *inputs):
    return torch.autograd.grad(output.sum(), inputs)


# --- the family -----------------------------------------------------------------------------------


@quick
@given(advantages, inv_temperatures)
def test_log_probs_is_softmax_of_a_over_tau(a, inv):
    np.testing.assert_allclose(
        log_probs(tensor(a), inv).exp().numpy(), slow.softmax(a, inv), rtol=1e-9, atol=1e-300
    )


@quick
@given(advantages, inv_temperatures)
def test_entropy_is_minus_sum_pi_log_pi(a, inv):
    h = entropy(tensor(a), inv).item()
    assert h == pytest.approx(slow.entropy(a, inv), rel=1e-9, abs=1e-12)
    assert -1e-12 <= h <= math.log(len(a)) + 1e-12


@quick
@given(mild_advantages, st.floats(0, 5), st.floats(0, 5))
def test_entropy_falls_as_inv_temperature_rises(a, one, other):
    low, high = min(one, other), max(one, other)
    assert entropy(tensor(a), high) <= entropy(tensor(a), low) + 1e-12


def test_batch_shapes_each_step_has_its_own_temperature():
    """[T, B, A] with [T, B]: every entry equals its single-state call; a float means the same
    temperature everywhere.
    """
    a = torch.randn(3, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inv = tensor([[0.0, 1.0], [2.0, 50.0], [7.0, 0.5]])
    action = torch.tensor([[0, 1], [2, 3], [1, 0]])
    for t in range(3):
        for b in range(2):
            one = a[t, b], inv[t, b]
            assert torch.allclose(log_probs(a, inv)[t, b], log_probs(*one), atol=1e-14)
            assert torch.allclose(entropy(a, inv)[t, b], entropy(*one), atol=1e-14)
            assert torch.allclose(
                policy_surrogate(a, inv, action)[t, b],
                policy_surrogate(*one, action[t, b]),
                atol=1e-14,
            )
            assert torch.allclose(
                entropy_surrogate(a, inv)[t, b], entropy_surrogate(*one), atol=1e-14
            )
    assert torch.equal(
        log_probs(a, 3.0), log_probs(a, torch.full((3, 2), 3.0, dtype=torch.float64))
    )
    assert log_probs(a.float(), inv).dtype == torch.float32


def test_log_probs_of_no_steps_at_all():
    assert log_probs(torch.zeros(0, 3), torch.zeros(0)).shape == (0, 3)


def test_gather_by_hand():
    values = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert gather(values, torch.tensor([2, 0])).tolist() == [3.0, 4.0]


# --- docs/paper.md 1: the two ends --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_actions", [2, 3, 18])
def test_inv_temperature_0_is_exactly_uniform(dtype, num_actions):
    """tau = infinity: all entries are the same number, log(1/|A|), however large A is."""
    a = torch.linspace(-1e3, 1e3, num_actions, dtype=dtype)
    log_pi = log_probs(a, 0.0)
    assert torch.equal(log_pi, log_pi[0].expand(num_actions))
    eps = torch.finfo(dtype).eps
    assert log_pi[0].item() == pytest.approx(-math.log(num_actions), rel=4 * eps)
    assert entropy(a, 0.0).item() == pytest.approx(math.log(num_actions), rel=16 * eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_inv_temperature_is_greedy(dtype):
    """tau -> 0+: all mass on the best action; equal best ones share it."""
    a = torch.tensor([[0.1, 0.5, -2.0], [0.5, 0.5, 0.0]], dtype=dtype)
    assert torch.equal(
        log_probs(a, 1e4).exp(), torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], dtype=dtype)
    )
    assert entropy(a, 1e4).tolist() == pytest.approx([0.0, math.log(2)], abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0])
def test_epsilon_greedy_is_a_mixture_of_both_ends(epsilon):
    """docs/paper.md 1: epsilon-greedy = eps * pi_{tau -> inf} + (1 - eps) * pi_{tau -> 0+}."""
    a = tensor([0.3, -1.0, 0.8, 0.2])
    mixture = epsilon * log_probs(a, 0.0).exp() + (1 - epsilon) * log_probs(a, 1e5).exp()
    epsilon_greedy = [epsilon / 4, epsilon / 4, 1 - epsilon + epsilon / 4, epsilon / 4]
    np.testing.assert_allclose(mixture.numpy(), epsilon_greedy, rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inv", [0.0, 1.0, 50.0])
@pytest.mark.parametrize(
    "function",
    [entropy, entropy_surrogate, lambda a, inv: policy_surrogate(a, inv, torch.tensor([0, 2, 1]))],
)
def test_values_and_gradients_are_finite_at_both_ends(function, inv, dtype):
    """Even where pi underflows to 0 (A of a thousand at 1/tau = 50)."""
    a = torch.tensor(
        [[1e3, -1e3, 0.0, 0.0], [-1e3, 1e3, 1e3, 1.0], [0.0, 0.0, 0.0, 0.0]],
        dtype=dtype,
        requires_grad=True,
    )
    value = function(a, inv)
    (grad,) = gradient(value, a)
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()
    # |d H / dA| <= 50 times a number of order 1; no 1e3 or 1/tau hides in it
    assert grad.abs().max() <= 100


# --- docs/paper.md 1: grad log pi = (1 - pi) dA / tau -------------------------------------------


@quick
@given(mild_advantages, mild_inv_temperatures, st.data())
def test_grad_log_pi_is_one_minus_pi_over_tau(a, inv, data):
    """d log pi(a) / dA(b) = (1[a = b] - pi(b)) / tau, by autograd."""
    action = data.draw(st.integers(0, len(a) - 1))
    x = tensor(a, grad=True)
    (grad,) = gradient(log_probs(x, inv)[action], x)
    pi = slow.softmax(a, inv)
    np.testing.assert_allclose(
        grad.numpy(), [((b == action) - pi[b]) * inv for b in range(len(a))], rtol=1e-9, atol=1e-12
    )


@quick
@given(mild_advantages, mild_inv_temperatures, st.data())
def test_policy_surrogate_gradient_is_tau_grad_log_pi(a, inv, data):
    """The printed policy gradient (eq. pg_dice), whose scale is free of tau."""
    action = torch.tensor(data.draw(st.integers(0, len(a) - 1)))
    x = tensor(a, grad=True)
    (surrogate,) = gradient(policy_surrogate(x, inv, action), x)
    (log_pi,) = gradient(log_probs(x, inv)[action], x)
    np.testing.assert_allclose(surrogate.numpy(), log_pi.numpy() / inv, rtol=1e-9, atol=1e-12)


def test_policy_surrogate_takes_log_pi_where_the_caller_has_it():
    a, inv, action = torch.randn(5, 3), torch.rand(5) * 50, torch.tensor([0, 1, 2, 0, 1])
    given_, log_pi = a.clone().requires_grad_(), log_probs(a, inv).requires_grad_()
    surrogate = policy_surrogate(given_, inv, action, log_pi=log_pi)
    alone = a.clone().requires_grad_()
    assert torch.equal(surrogate, policy_surrogate(alone, inv, action))
    of_given, of_log_pi = torch.autograd.grad(surrogate.sum(), (given_, log_pi), allow_unused=True)
    assert torch.equal(of_given, *gradient(policy_surrogate(alone, inv, action), alone))
    assert of_log_pi is None  # pi is stopped


@pytest.mark.parametrize("inv", [0.0, 50.0])
def test_policy_surrogate_gradient_is_one_minus_pi_at_both_ends(inv):
    """Where tau * grad log pi cannot be written down (tau = infinity), 1[a = b] - pi(b)
    still can.
    """
    x = tensor([0.2, -0.4, 1.0], grad=True)
    (grad,) = gradient(policy_surrogate(x, inv, torch.tensor(0)), x)
    pi = slow.softmax([0.2, -0.4, 1.0], inv)
    np.testing.assert_allclose(grad.numpy(), [1 - pi[0], -pi[1], -pi[2]], rtol=1e-12, atol=1e-300)


def casa_critic(a, v, inv):
    """Q = A - sg(pi) . A + sg(V): the critic of the sibling paper."""
    return casa(v, a, log_probs(a, inv).exp())


@quick
@given(mild_advantages, mild_inv_temperatures, st.floats(-3, 3), st.data())
def test_casa_critic_gradient_is_one_minus_pi(a, inv, v, data):
    """grad Q = (1 - pi) dA: the same direction as the policy gradient, and nothing reaches V."""
    action = data.draw(st.integers(0, len(a) - 1))
    x, value = tensor(a, grad=True), tensor(v, grad=True)
    (of_q,) = gradient(casa_critic(x, value, inv)[action], x)
    (of_surrogate,) = gradient(policy_surrogate(x, inv, torch.tensor(action)), x)
    np.testing.assert_allclose(of_q.numpy(), of_surrogate.numpy(), rtol=1e-12, atol=1e-15)
    assert torch.autograd.grad(casa_critic(x, value, inv).sum(), value, allow_unused=True) == (
        None,
    )


# --- docs/paper.md 1 and the entropy bonus ------------------------------------------------------


@quick
@given(mild_advantages, mild_inv_temperatures, st.floats(-3, 3))
def test_policy_gradient_of_the_casa_critic_is_minus_tau_grad_entropy(a, inv, v):
    """E_pi[(Q - V) grad log pi] = -tau grad H[pi]."""
    x, value = tensor(a, grad=True), tensor(v)
    log_pi = log_probs(x, inv)
    weight = (log_pi.exp() * (casa_critic(x, value, inv) - value)).detach()
    (left,) = gradient(weight * log_pi, x)
    (grad_h,) = gradient(entropy(x, inv), x)
    np.testing.assert_allclose(left.numpy(), -grad_h.numpy() / inv, rtol=1e-8, atol=1e-10)


@quick
@given(mild_advantages, mild_inv_temperatures)
def test_entropy_surrogate_gradient_is_that_of_tau_times_entropy(a, inv):
    x = tensor(a, grad=True)
    (surrogate,) = gradient(entropy_surrogate(x, inv), x)
    (tau_h,) = gradient(entropy(x, inv) / inv, x)
    np.testing.assert_allclose(surrogate.numpy(), tau_h.numpy(), rtol=1e-8, atol=1e-10)


def test_entropy_surrogate_gradient_vanishes_at_the_uniform_policy():
    """d(tau H)/dA = -pi (log pi + H), and log pi = -H where pi is uniform."""
    x = tensor([3.0, -1.0, 0.5], grad=True)
    (grad,) = gradient(entropy_surrogate(x, 0.0), x)
    np.testing.assert_allclose(grad.numpy(), 0.0, atol=1e-15)


def test_a_step_along_the_entropy_surrogate_raises_the_entropy():
    x = tensor([1.0, 0.2, -0.5], grad=True)
    (grad,) = gradient(entropy_surrogate(x, 2.0), x)
    assert entropy((x + 0.01 * grad).detach(), 2.0) > entropy(x.detach(), 2.0)


# --- docs/paper.md 1 ----------------------------------------------------------------------------


@quick
@given(mild_advantages, st.floats(0.3, 20))
def test_d_dtau_of_expected_v_is_minus_variance_over_tau_squared(v, tau):
    """d/dtau E_pi[v] = -Var_pi[v] / tau^2, pi = softmax(v / tau).

    The printed sign and definition hold as they stand: the variance is that of v itself (not of v /
    tau), and the expectation falls with tau. In 1/tau, which the code carries, the same derivative
    is +Var_pi[v].
    """
    inv = tensor(1 / tau, grad=True)
    (d_inv,) = gradient(log_probs(tensor(v), inv).exp() * tensor(v), inv)
    pi = slow.softmax(v, 1 / tau)
    mean = sum(p * x for p, x in zip(pi, v, strict=True))
    variance = sum(p * (x - mean) ** 2 for p, x in zip(pi, v, strict=True))
    assert d_inv.item() == pytest.approx(variance, rel=1e-8, abs=1e-10)

    def expected(t):
        return sum(p * x for p, x in zip(slow.softmax(v, 1 / t), v, strict=True))

    h = 1e-4 * tau
    numerical = (expected(tau + h) - expected(tau - h)) / (2 * h)
    assert numerical == pytest.approx(-variance / tau**2, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(
    "function", [entropy_surrogate, lambda a, inv: policy_surrogate(a, inv, torch.tensor(0))]
)
def test_the_stopped_pi_of_a_surrogate_is_stopped_for_a_trainable_temperature_too(function):
    """sg(pi_tau) is a constant, also where tau is a trainable variable (docs/paper.md 2.7,
    casa/trainable_tau).
    """
    a, inv = tensor([1.0, 0.2, -0.5], grad=True), tensor(2.0, grad=True)
    (grad,) = torch.autograd.grad(function(a, inv), inv, allow_unused=True)
    assert grad is None or grad == 0
