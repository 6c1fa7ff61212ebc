"""core/policy.py: linear combinations of policies, which the families epsilon and mixture are."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as slow
from dicerl.core import entropy, entropy_surrogate, log_probs, policy_surrogate

quick = settings(max_examples=60, deadline=None, derandomize=True)
advantages = st.lists(st.floats(-3, 3), min_size=2, max_size=6)


inv_temperatures = st.one_of(st.sampled_from([0.0, 50.0, math.inf]), st.floats(0, 50))


@st.composite
def mixtures(draw, inv=inv_temperatures):
    """(1/tau of each component, their weights): one to three components, weights 0 and 1 among
    them.
    """
    size = draw(st.integers(1, 3))
    weight = draw(
        st.lists(
            st.sampled_from([0.0, 1.0, 0.25, 1e-6]) | st.floats(0.01, 1),
            min_size=size,
            max_size=size,
        ).filter(sum)
    )
    return [draw(inv) for _ in range(size)], [w / sum(weight) for w in weight]


def tensor(x, grad=False, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype, requires_grad=grad)


def gradient(output, x):
    return torch.autograd.grad(output.sum(), x)[0]


@quick
@given(advantages, mixtures())
def test_log_probs_of_a_mixture_are_the_printed_sum(a, mixture):
    pi = log_probs(tensor(a), tensor(mixture[0]), tensor(mixture[1])).exp()
    np.testing.assert_allclose(pi.numpy(), slow.mixture(a, *mixture), rtol=1e-10, atol=1e-14)
    assert pi.sum().item() == pytest.approx(1.0, abs=1e-12)


@quick
@given(advantages, inv_temperatures)
def test_one_component_is_the_plain_policy(a, inv):
    x, one = tensor(a), tensor([1.0])
    action = torch.tensor(len(a) - 1)
    for mixed, plain in (
        (log_probs(x, tensor([inv]), one).exp(), log_probs(x, inv).exp()),
        (entropy(x, tensor([inv]), one), entropy(x, inv)),
        (policy_surrogate(x, tensor([inv]), action, one), policy_surrogate(x, inv, action)),
        (entropy_surrogate(x, tensor([inv]), one), entropy_surrogate(x, inv)),
    ):
        torch.testing.assert_close(mixed, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_inverse_temperature_is_exactly_greedy(dtype):
    """Equal maxima share; beside finite ones in the same batch, which stay what they are."""
    a = tensor([[0.1, 0.5, -2.0], [0.5, 0.5, 0.0], [1e3, 1e3, 1e3], [3.0, 2.0, 1.0]], dtype=dtype)
    inv = tensor([math.inf, math.inf, math.inf, 0.7], dtype=dtype)
    pi = log_probs(a, inv).exp()
    assert pi[:2].tolist() == [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
    torch.testing.assert_close(pi[2], torch.full((3,), 1 / 3, dtype=dtype))
    assert torch.equal(log_probs(a, inv)[3], log_probs(a[3], 0.7))
    assert entropy(a, inv)[:3].tolist() == pytest.approx([0.0, math.log(2), math.log(3)], abs=1e-6)


@quick
@given(advantages, mixtures(), st.data())
def test_the_surrogate_s_gradient_is_the_components_by_their_share(a, mixture, data):
    """sum_k r_k (1[a = b] - pi_k(b)), r_k = w_k pi_k(a) / pi(a)."""
    action = data.draw(
        st.sampled_from([i for i, p in enumerate(slow.mixture(a, *mixture)) if p > 1e-200])
    )
    x = tensor(a, True)
    grad = gradient(
        policy_surrogate(x, tensor(mixture[0]), torch.tensor(action), tensor(mixture[1])), x
    )
    expected = slow.mixture_surrogate_gradient(a, mixture[0], action, mixture[1])
    np.testing.assert_allclose(grad.numpy(), expected, rtol=1e-8, atol=1e-10)


@quick
@given(advantages, mixtures(st.floats(0.05, 5)), st.data())
def test_the_surrogate_s_gradient_is_autograd_s_with_each_component_times_its_tau(a, mixture, data):
    """d log pi / dA by autograd, with a copy of A for each component, so that each one's part can
    be scaled by its own tau.
    """
    action = data.draw(st.integers(0, len(a) - 1))
    copies = [tensor(a, True) for _ in mixture[0]]
    parts = [
        w * torch.softmax(x * inv, -1)[action] for x, inv, w in zip(copies, *mixture, strict=True)
    ]
    of_copies = torch.autograd.grad(sum(parts).log(), copies)
    expected = sum(g / inv for g, inv in zip(of_copies, mixture[0], strict=True))
    x = tensor(a, True)
    grad = gradient(
        policy_surrogate(x, tensor(mixture[0]), torch.tensor(action), tensor(mixture[1])), x
    )
    np.testing.assert_allclose(grad.numpy(), expected.numpy(), rtol=1e-8, atol=1e-10)


@quick
@given(advantages, st.floats(0, 50), st.floats(0, 1), st.data())
def test_equal_temperatures_make_the_plain_surrogate(a, inv, w, data):
    action = torch.tensor(data.draw(st.integers(0, len(a) - 1)))
    x, y = tensor(a, True), tensor(a, True)
    mixed = policy_surrogate(x, tensor([inv, inv]), action, tensor([w, 1 - w]))
    plain = policy_surrogate(y, inv, action)
    torch.testing.assert_close(mixed, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient(mixed, x), gradient(plain, y), rtol=1e-10, atol=1e-12)


def test_a_step_along_the_surrogate_makes_the_action_likelier():
    x, mixture = tensor([0.4, 0.1, -0.2], True), (tensor([0.5, 8.0]), tensor([0.3, 0.7]))
    for action in range(3):
        grad = gradient(policy_surrogate(x, mixture[0], torch.tensor(action), mixture[1]), x)
        assert log_probs(x + 1e-3 * grad, *mixture)[action] > log_probs(x, *mixture)[action]


ENDS = {
    "eps 0": ([0.0, math.inf], [0.0, 1.0]),
    "eps 1": ([0.0, math.inf], [1.0, 0.0]),
    "eps 0.1": ([0.0, math.inf], [0.1, 0.9]),
    "w 0": ([0.0, 50.0], [0.0, 1.0]),
    "w 1": ([0.0, 50.0], [1.0, 0.0]),
    "cold": ([50.0, 50.0], [0.5, 0.5]),
    "hot": ([0.0, 0.0], [0.5, 0.5]),
    "one weight of 1e-30": ([1.0, 50.0], [1e-30, 1.0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mixture", ENDS.values(), ids=ENDS.keys())
def test_nothing_is_nan_or_infinite_at_any_end(mixture, dtype):
    """Values and gradients, whatever the action, even where it has probability 0 and A is a
    thousand.
    """
    mixture = [tensor(x, dtype=dtype) for x in mixture]
    functions = {
        "probabilities": lambda x: log_probs(x, *mixture).exp(),
        "entropy": lambda x: entropy(x, *mixture),
        "entropy surrogate": lambda x: entropy_surrogate(x, *mixture),
        **{
            f"surrogate of {a}": lambda x, a=a: policy_surrogate(
                x, mixture[0], torch.tensor([a, a]), mixture[1]
            )
            for a in range(3)
        },
    }
    mixture = [torch.stack([x, x]) for x in mixture]  # one for each state
    for name, function in functions.items():
        x = tensor([[1e3, -1e3, 0.0], [1.0, 1.0, 0.5]], True, dtype)
        value = function(x)
        assert value.dtype == dtype
        assert torch.isfinite(value).all(), name
        assert torch.isfinite(gradient(value, x)).all(), name
    assert not torch.isnan(log_probs(x, *mixture)).any()


@quick
@given(advantages, mixtures(st.floats(0.05, 5)))
def test_the_entropy_of_a_mixture(a, mixture):
    """H of the mixture itself; the surrogate's gradient is that of sum_k w_k tau_k H[pi_k]."""
    pi = slow.mixture(a, *mixture)
    assert entropy(tensor(a), *map(tensor, mixture)).item() == pytest.approx(
        -sum(p * math.log(p) for p in pi if p > 0), rel=1e-9, abs=1e-12
    )
    x, y = tensor(a, True), tensor(a, True)
    bonus = sum(w / inv * entropy(y, inv) for inv, w in zip(*mixture, strict=True))
    grad = gradient(entropy_surrogate(x, *map(tensor, mixture)), x)
    np.testing.assert_allclose(grad.numpy(), gradient(bonus, y).numpy(), rtol=1e-7, atol=1e-9)


def test_batches_of_mixtures():
    """[T, B, A] with [T, B, K]: every entry is its own state's."""
    rng = np.random.default_rng(0)
    a, inv, w = (
        tensor(rng.normal(size=(3, 2, 4))),
        tensor(rng.uniform(0, 5, (3, 2, 2))),
        tensor(rng.dirichlet([1, 1], (3, 2))),
    )
    inv[0, 0, 1] = math.inf
    action = torch.tensor([[0, 1], [2, 3], [1, 0]])
    for t, b in itertools.product(range(3), range(2)):
        one = a[t, b], inv[t, b]
        torch.testing.assert_close(log_probs(a, inv, w)[t, b], log_probs(*one, w[t, b]))
        torch.testing.assert_close(entropy(a, inv, w)[t, b], entropy(*one, w[t, b]))
        torch.testing.assert_close(
            entropy_surrogate(a, inv, w)[t, b], entropy_surrogate(*one, w[t, b])
        )
        torch.testing.assert_close(
            policy_surrogate(a, inv, action, w)[t, b], policy_surrogate(*one, action[t, b], w[t, b])
        )
