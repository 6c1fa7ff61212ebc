"""core/critic.py: Q from V and A (docs/paper.md 2.3, 2.7), its lemmas (docs/paper.md 1), and
where its two stop-gradients let something through.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import entropy, log_probs
from dicerl.core.critic import casa, dueling

quick = settings(max_examples=60, deadline=None, derandomize=True)
advantages = st.lists(st.floats(-3, 3), min_size=2, max_size=6)
inv_temperatures = st.one_of(st.sampled_from([0.0, 50.0]), st.floats(0, 50))
mild_inv_temperatures = st.floats(0.05, 5)
STOPS = list(itertools.product([True, False], [True, False]))


def tensor(x, grad=False):
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def critic(a, v, inv, **stops):
    """Q of the casa critic with pi_tau of the same A, as the learner puts them together; pi carries
    A's gradient.
    """
    return casa(v, a, log_probs(a, inv).exp(), **stops)


def gradients(output, *inputs):
    """None where nothing flows."""
    return torch.autograd.grad(output, inputs, allow_unused=True, retain_graph=True)


# --- values ---------------------------------------------------------------------------------------


def test_dueling_by_hand():
    q = dueling(tensor([10.0, 20.0]), tensor([[1.0, 2.0, -3.0], [0.0, 5.0, 1.0]]))
    assert q.tolist() == [[11.0, 12.0, 7.0], [20.0, 25.0, 21.0]]


def test_dueling_lets_the_gradient_into_both_heads():
    v, a = tensor([1.0], True), tensor([[1.0, 2.0]], True)
    to_v, to_a = gradients(dueling(v, a)[0, 1], v, a)
    assert to_v.tolist() == [1.0]
    assert to_a.tolist() == [[0.0, 1.0]]


@quick
@given(advantages, inv_temperatures, st.floats(-3, 3))
def test_casa_is_the_printed_sum_and_centred_under_pi(a, inv, v):
    pi = slow.softmax(a, inv)
    q = critic(tensor(a), tensor(v), inv)
    np.testing.assert_allclose(q.numpy(), slow.casa(v, a, pi), rtol=1e-10, atol=1e-10)
    # E_pi[Q] = V
    assert sum(p * x for p, x in zip(pi, q.tolist(), strict=True)) == pytest.approx(v, abs=1e-10)


@pytest.mark.parametrize(("stop_pi", "stop_v"), STOPS)
def test_stop_gradients_leave_the_value_alone(stop_pi, stop_v):
    a, v = tensor([[0.3, -1.0, 0.8], [2.0, 0.0, 0.1]], True), tensor([0.5, -0.2], True)
    assert torch.equal(critic(a, v, 3.0, stop_pi=stop_pi, stop_v=stop_v), critic(a, v, 3.0))


def test_batch_shapes():
    """[T, B], [T, B, A], [T, B, A] -> [T, B, A]: every entry is its own state's."""
    rng = np.random.default_rng(0)
    a, v, inv = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2)), rng.uniform(0, 5, (3, 2))
    q = critic(tensor(a), tensor(v), tensor(inv))
    assert q.shape == (3, 2, 4)
    for t, b in itertools.product(range(3), range(2)):
        np.testing.assert_allclose(
            q[t, b],
            slow.casa(v[t, b], a[t, b].tolist(), slow.softmax(a[t, b].tolist(), inv[t, b])),
            atol=1e-12,
        )


# --- docs/paper.md 1: grad Q = (1 - pi) grad A --------------------------------------------------


@quick
@given(advantages, inv_temperatures, st.floats(-3, 3), st.data())
def test_grad_q_is_one_minus_pi(a, inv, v, data):
    """dQ(a)/dA(b) = 1[a = b] - pi(b), at both ends of the temperatures too."""
    action = data.draw(st.integers(0, len(a) - 1))
    x = tensor(a, True)
    (grad,) = gradients(critic(x, tensor(v), inv)[action], x)
    pi = slow.softmax(a, inv)
    np.testing.assert_allclose(
        grad.numpy(), [(b == action) - pi[b] for b in range(len(a))], rtol=1e-9, atol=1e-12
    )


def test_grad_q_is_one_minus_pi_through_a_network():
    """The lemma is about the parameters: dQ(a)/dtheta = sum_b (1[a = b] - pi(b)) dA(b)/dtheta, here
    of a small network.
    """
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    ).double()
    a, theta = net(tensor([0.3, -0.2, 0.9])), list(net.parameters())
    pi = slow.softmax(a.tolist(), 2.0)
    for action in range(4):
        of_q = gradients(critic(a, tensor(0.7), 2.0)[action], *theta)
        of_a = [gradients(a[b], *theta) for b in range(4)]
        for i, grad in enumerate(of_q):
            expected = sum(((b == action) - pi[b]) * of_a[b][i] for b in range(4))
            torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)


# --- docs/paper.md 1: E_pi[(Q - V) grad log pi] = -tau grad H -----------------------------------


@quick
@given(advantages, mild_inv_temperatures, st.floats(-3, 3))
def test_policy_gradient_of_the_critic_is_minus_tau_grad_entropy(a, inv, v):
    x = tensor(a, True)
    log_pi = log_probs(x, inv)
    difference = (critic(x, tensor(v), inv) - v).detach()
    left = sum(
        log_pi[b].exp().item() * difference[b].item() * gradients(log_pi[b], x)[0]
        for b in range(len(a))
    )
    (of_entropy,) = gradients(entropy(x, inv), x)
    np.testing.assert_allclose(left.numpy(), -of_entropy.numpy() / inv, rtol=1e-8, atol=1e-9)


# --- docs/paper.md 2.7: no_stop_pi, no_stop_v -----------------------------------------------------


@pytest.mark.parametrize(("stop_pi", "stop_v"), STOPS)
@pytest.mark.parametrize("inv", [0.0, 0.7, 4.0])
def test_the_gradient_is_present_or_absent_where_the_table_says(stop_pi, stop_v, inv):
    """Of every action's Q, with respect to V, to A, and to pi itself."""
    a, v = [0.3, -1.0, 0.8], 0.5
    for action in range(3):
        x, value = tensor(a, True), tensor(v, True)
        pi = log_probs(x, inv).exp()
        pi.retain_grad()
        to_v, to_a, to_pi = gradients(
            casa(value, x, pi, stop_pi=stop_pi, stop_v=stop_v)[action], value, x, pi
        )
        assert (to_v is None) if stop_v else (to_v == 1.0)
        assert (to_pi is None) if stop_pi else torch.equal(to_pi, -x)
        np.testing.assert_allclose(
            to_a.numpy(), slow.casa_slope(a, inv, action, stop_pi), rtol=1e-10, atol=1e-12
        )
    if inv:  # else pi does not depend on A
        assert not np.allclose(
            slow.casa_slope(a, inv, 0, True), slow.casa_slope(a, inv, 0, False), atol=1e-3
        )


@pytest.mark.parametrize("stop_pi", [True, False])
def test_a_trainable_temperature_gets_a_gradient_from_q_only_through_pi(stop_pi):
    """dQ/d(1/tau) = -d E_pi[A]/d(1/tau) = -Var_pi[A] (docs/paper.md 1) where pi is not stopped;
    nothing where it is.
    """
    a, inv = [0.3, -1.0, 0.8], tensor(2.0, True)
    q = casa(tensor(0.5), tensor(a), log_probs(tensor(a), inv).exp(), stop_pi=stop_pi)
    pi = slow.softmax(a, 2.0)
    mean = sum(p * x for p, x in zip(pi, a, strict=True))
    variance = sum(p * (x - mean) ** 2 for p, x in zip(pi, a, strict=True))
    if stop_pi:
        assert not q.requires_grad
    else:
        assert gradients(q[1], inv)[0].item() == pytest.approx(-variance)


@pytest.mark.parametrize("inv", [0.0, 50.0, math.inf])
@pytest.mark.parametrize(("stop_pi", "stop_v"), STOPS)
def test_values_and_gradients_are_finite_at_both_ends(inv, stop_pi, stop_v):
    for dtype in (torch.float32, torch.float64):
        a = torch.tensor([[1e3, -1e3, 0.0], [1.0, 1.0, 0.0]], dtype=dtype, requires_grad=True)
        q = critic(
            a, torch.zeros(2, dtype=dtype, requires_grad=True), inv, stop_pi=stop_pi, stop_v=stop_v
        )
        assert torch.isfinite(q).all()
        assert torch.isfinite(gradients(q[:, 0].sum(), a)[0]).all()
