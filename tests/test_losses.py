"""core/losses.py: each loss term (docs/paper.md 2.3), its printed gradient, and the weighted sum
over the valid steps.
"""

import math

import numpy as np
import pytest
import torch

import reference as slow
from dicerl.core import entropy, losses, vtrace
from dicerl.core.losses import (
    entropy_bonus,
    masked_mean,
    policy_loss,
    q_loss,
    value_loss,
    weighted_sum,
)
from dicerl.core.targets import clipped_ratio

STEPS, BATCH, ACTIONS = 4, 3, 5


def random(*shape, seed=0, grad=False, dtype=torch.float64):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype
    ).requires_grad_(grad)


def gradient(output, *inputs):
    return torch.autograd.grad(output.sum(), inputs, allow_unused=True)


@pytest.mark.parametrize("loss", [value_loss, q_loss])
def test_value_and_q_loss_gradient_is_minus_the_difference(loss):
    """L = 1/2 (target - x)^2: its gradient is -(target - x), and none reaches the target."""
    x, target = random(STEPS, BATCH, grad=True), random(STEPS, BATCH, seed=1, grad=True)
    out = loss(x, target)
    assert torch.allclose(out, 0.5 * (target - x) ** 2)
    grad_x, grad_target = gradient(out, x, target)
    assert torch.allclose(grad_x, -(target - x))
    assert grad_target is None


@pytest.mark.parametrize("inv", [0.0, 0.7, 50.0])
def test_policy_loss_gradient_is_the_printed_policy_gradient(inv):
    """dL/dA(b) = -rho_t adv_t (1[b = a_t] - pi_tau(b)) (eq. pg_dice), and none reaches rho
    or adv.
    """
    a, rho, adv = (
        random(STEPS, BATCH, ACTIONS, grad=True),
        random(STEPS, BATCH, seed=1, grad=True),
        random(STEPS, BATCH, seed=2, grad=True),
    )
    action = torch.randint(ACTIONS, (STEPS, BATCH), generator=torch.Generator().manual_seed(3))
    loss = policy_loss(a, torch.full((STEPS, BATCH), inv, dtype=torch.float64), action, rho, adv)
    assert loss.shape == (STEPS, BATCH)
    grad, grad_rho, grad_adv = gradient(loss, a, rho, adv)
    assert grad_rho is None
    assert grad_adv is None
    for t in range(STEPS):
        for b in range(BATCH):
            pi = slow.softmax(a[t, b].tolist(), inv)
            printed = [
                -(rho[t, b] * adv[t, b]).item() * ((i == action[t, b].item()) - pi[i])
                for i in range(ACTIONS)
            ]
            np.testing.assert_allclose(grad[t, b].numpy(), printed, rtol=1e-10, atol=1e-14)


def test_policy_loss_descent_makes_a_good_action_likelier():
    """The sign: a step down the loss raises pi(a) where rho adv > 0 and lowers it where rho adv <
    0.
    """
    a = torch.zeros(2, 1, 3, dtype=torch.float64, requires_grad=True)
    action = torch.tensor([[1], [1]])
    loss = policy_loss(
        a,
        torch.ones(2, 1, dtype=torch.float64),
        action,
        torch.ones(2, 1),
        torch.tensor([[2.0], [-2.0]]),
    )
    (grad,) = gradient(loss, a)
    after = torch.softmax(a - 0.1 * grad, -1)[..., 1]
    assert after[0] > 1 / 3 > after[1]


@pytest.mark.parametrize("inv", [0.3, 1.0, 20.0])
def test_entropy_bonus_plain_is_h_and_its_gradient_is_that_of_tau_h_over_tau(inv):
    """``plain`` is H itself; ``tau`` has the gradient of tau * H, smaller by the factor 1/tau."""
    a = random(STEPS, BATCH, ACTIONS, grad=True)
    plain, tau = entropy_bonus(a, inv, "plain"), entropy_bonus(a, inv, "tau")
    assert torch.equal(plain, entropy(a, inv))
    assert torch.allclose(gradient(plain, a)[0], inv * gradient(tau, a)[0], rtol=1e-9, atol=1e-12)


def test_entropy_bonus_refuses_another_scale():
    with pytest.raises(ValueError, match=r"entropy_scale is 'sqrt'.*'tau' or 'plain'"):
        entropy_bonus(torch.zeros(1, 1, 2), 1.0, "sqrt")


def test_policy_loss_of_a_mixture_is_its_components_by_their_share():
    a, rho, adv = (
        random(STEPS, BATCH, ACTIONS, grad=True),
        random(STEPS, BATCH, seed=1),
        random(STEPS, BATCH, seed=2),
    )
    action = torch.randint(ACTIONS, (STEPS, BATCH), generator=torch.Generator().manual_seed(3))
    inv, weight = random(STEPS, BATCH, 2, seed=4).abs(), random(STEPS, BATCH, 2, seed=5).softmax(-1)
    (grad,) = gradient(policy_loss(a, inv, action, rho, adv, weight), a)
    for t in range(STEPS):
        for b in range(BATCH):
            share = slow.mixture_surrogate_gradient(
                a[t, b].tolist(), inv[t, b].tolist(), action[t, b].item(), weight[t, b].tolist()
            )
            np.testing.assert_allclose(
                grad[t, b].numpy(),
                [-(rho[t, b] * adv[t, b]).item() * x for x in share],
                rtol=1e-10,
                atol=1e-13,
            )


# --- casa's own terms -----------------------------------------------------------------------------


@pytest.mark.parametrize("p", [-1.0, 0.0, 2.5])
def test_temperature_loss_gradient_is_that_of_the_policy_loss_for_tau(p):
    """-rho adv tau d log pi(a) / d log(1/tau), by autograd; none reaches A, rho or adv
    (docs/paper.md 2.7, trainable_tau).
    """
    a, rho, adv = (
        random(STEPS, BATCH, ACTIONS, grad=True),
        random(STEPS, BATCH, seed=1, grad=True),
        random(STEPS, BATCH, seed=2, grad=True),
    )
    action = torch.randint(ACTIONS, (STEPS, BATCH), generator=torch.Generator().manual_seed(3))
    log_inv = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    loss = losses.temperature_loss(
        log_inv, a, log_inv.exp().detach().expand(STEPS, BATCH), action, rho, adv
    )
    assert loss.shape == (STEPS, BATCH)
    grad, *others = gradient(loss, log_inv, a, rho, adv)
    assert others == [None, None, None]
    taken = torch.log_softmax(a.detach() * log_inv.exp(), -1).gather(-1, action[..., None])[..., 0]
    (expected,) = gradient(-(rho * adv).detach() * math.exp(-p) * taken, log_inv)
    assert grad.item() == pytest.approx(expected.item(), rel=1e-9)
    assert abs(grad.item()) > 1e-3


def test_forward_dynamics_by_hand():
    """1/2 the mean squared error over the features; the target's gradient is stopped."""
    predicted = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]], requires_grad=True)
    target = torch.tensor([[[3.0, 2.0], [1.0, -3.0]]], requires_grad=True)
    loss = losses.forward_dynamics_loss(predicted, target)
    assert loss.tolist() == [[1.0, 2.5]]
    grad, of_target = gradient(loss, predicted, target)
    assert of_target is None
    assert torch.equal(grad, (predicted - target).detach() / 2)


def test_inverse_dynamics_by_hand():
    """The cross-entropy of the action taken: gradient softmax - onehot."""
    logits = random(STEPS, BATCH, ACTIONS, grad=True)
    action = torch.randint(ACTIONS, (STEPS, BATCH), generator=torch.Generator().manual_seed(3))
    loss = losses.inverse_dynamics_loss(logits, action)
    (grad,) = gradient(loss, logits)
    for t in range(STEPS):
        for b in range(BATCH):
            p = slow.softmax(logits[t, b].tolist(), 1.0)
            assert loss[t, b].item() == pytest.approx(-math.log(p[action[t, b]]))
            np.testing.assert_allclose(
                grad[t, b], [x - (i == action[t, b].item()) for i, x in enumerate(p)], atol=1e-12
            )


def test_coefficients_of_each_sequence():
    """random_scaling: alpha and beta of [B] weigh each sequence's own steps; the single losses stay
    as they are.
    """
    valid = torch.tensor([[True, True], [True, False]])
    q, policy, zero = (
        torch.tensor([[1.0, 2.0], [3.0, 9e9]]),
        torch.tensor([[5.0, 1.0], [7.0, 9e9]]),
        torch.zeros(2, 2),
    )
    out = weighted_sum(
        zero,
        q,
        policy,
        None,
        valid,
        xi=1.0,
        alpha=torch.tensor([10.0, 0.5]),
        beta=torch.tensor([0.0, 4.0]),
    )
    assert (out.q.item(), out.policy.item()) == pytest.approx((2.0, 13 / 3))
    assert out.total.item() == pytest.approx(
        (10 * (1 + 3) + 0.5 * 2) / 3 + (0 * (5 + 7) + 4 * 1) / 3
    )
    plain = weighted_sum(zero, q, policy, None, valid, xi=1.0, alpha=3.0, beta=2.0)
    same = weighted_sum(
        zero,
        q,
        policy,
        None,
        valid,
        xi=1.0,
        alpha=torch.full((2,), 3.0),
        beta=torch.full((2,), 2.0),
    )
    assert plain.total.item() == pytest.approx(same.total.item())


def test_the_auxiliary_loss_adds_with_its_coefficient():
    valid, one = torch.tensor([[True], [True], [False]]), torch.ones(3, 1)
    auxiliary = torch.tensor([[2.0], [4.0], [9e9]])
    out = weighted_sum(
        one,
        one,
        one,
        None,
        valid,
        xi=1.0,
        alpha=1.0,
        beta=1.0,
        auxiliary=auxiliary,
        auxiliary_coefficient=0.1,
    )
    assert out.auxiliary.item() == 3.0
    assert out.total.item() == pytest.approx(3.3)
    assert (
        weighted_sum(one, one, one, None, valid, xi=1.0, alpha=1.0, beta=1.0).auxiliary.item()
        == 0.0
    )


# --- the mean and the sum -------------------------------------------------------------------------


def test_masked_mean_by_hand():
    x = torch.tensor([[1.0, 100.0], [3.0, 8.0]])
    assert masked_mean(x, torch.tensor([[True, False], [True, True]])).item() == 4.0
    assert masked_mean(x, torch.ones(2, 2, dtype=torch.bool)).item() == 28.0


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_masked_mean_ignores_what_stands_on_a_reset_step(garbage):
    x = torch.tensor([[1.0], [garbage], [3.0]])
    assert masked_mean(x, torch.tensor([[True], [False], [True]])).item() == 2.0


def test_masked_mean_without_a_valid_step_is_zero():
    x = random(STEPS, BATCH, grad=True)
    mean = masked_mean(x, torch.zeros(STEPS, BATCH, dtype=torch.bool))
    assert mean.item() == 0.0
    assert torch.equal(gradient(mean, x)[0], torch.zeros_like(x))


def test_masked_mean_gives_each_valid_step_the_same_weight():
    valid = torch.tensor([[True, False], [True, True]])
    x = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(gradient(masked_mean(x, valid), x)[0], valid.double() / 3)


def test_weighted_sum_by_hand():
    """Means over the two valid steps: L_V 2, L_Q 3, L_pi -1, bonus 5; the third step is not
    data.
    """
    valid = torch.tensor([[True], [True], [False]])
    value, q, policy, bonus = (
        torch.tensor(x)[:, None]
        for x in ([1.0, 3.0, 9e9], [2.0, 4.0, 9e9], [0.0, -2.0, 9e9], [4.0, 6.0, 9e9])
    )
    out = weighted_sum(
        value, q, policy, bonus, valid, xi=2.0, alpha=10.0, beta=7.0, entropy_coefficient=0.5
    )
    assert (out.value.item(), out.q.item(), out.policy.item(), out.entropy.item()) == (
        2.0,
        3.0,
        -1.0,
        5.0,
    )
    assert out.total.item() == pytest.approx(2 * 2 + 10 * 3 + 7 * -1 - 0.5 * 5)


def test_weighted_sum_without_a_bonus():
    """DiCE has no entropy term."""
    valid = torch.ones(2, 1, dtype=torch.bool)
    one = torch.ones(2, 1)
    out = weighted_sum(one, 2 * one, 3 * one, None, valid, xi=1.0, alpha=10.0, beta=10.0)
    assert out.total.item() == pytest.approx(1 + 20 + 30)
    assert out.entropy.item() == 0.0


def total_loss(valid, reward, dtype=torch.float64, inv=2.0, a_scale=1.0):
    """The whole chain with the dueling critic Q = V + A; returns the loss and the gradients of V
    and A.
    """
    v, a = (
        random(STEPS + 1, BATCH, grad=True, dtype=dtype),
        (a_scale * random(STEPS, BATCH, ACTIONS, seed=1, dtype=dtype)).requires_grad_(),
    )
    action = torch.randint(ACTIONS, (STEPS, BATCH), generator=torch.Generator().manual_seed(3))
    log_ratio, discount = (
        random(STEPS, BATCH, seed=4, dtype=dtype),
        torch.full((STEPS, BATCH), 0.9, dtype=dtype),
    )
    target = vtrace(v[:-1], v[1:], reward, discount, log_ratio, valid)
    q = v[:-1] + a.gather(-1, action[..., None])[..., 0]
    out = weighted_sum(
        value_loss(v[:-1], target.value),
        q_loss(q, target.value),
        policy_loss(a, inv, action, clipped_ratio(log_ratio, valid, 1.05), target.advantage),
        entropy_bonus(a, inv, "tau"),
        valid,
        xi=1.0,
        alpha=10.0,
        beta=10.0,
        entropy_coefficient=1.0,
    )
    return out.total, *gradient(out.total, v, a)


def test_a_reset_step_is_in_no_loss():
    """Whatever its reward: the loss and every other gradient stay the same; its own gradient is
    zero.
    """
    valid = torch.ones(STEPS, BATCH, dtype=torch.bool)
    valid[1, 0] = valid[2, 1] = False
    reward = random(STEPS, BATCH, seed=5)
    other = torch.where(valid, reward, reward + 1e3)
    for x, y in zip(total_loss(valid, reward), total_loss(valid, other), strict=True):
        assert torch.equal(x, y)
    _, grad_v, grad_a = total_loss(valid, reward)
    assert not grad_v[:-1][~valid].any()
    assert not grad_a[~valid].any()
    assert (grad_a[valid].abs().sum(-1) > 0).all()


def test_a_nan_reward_on_a_reset_step_gives_finite_gradients():
    valid = torch.ones(STEPS, BATCH, dtype=torch.bool)
    valid[1, 0] = False
    reward = random(STEPS, BATCH, seed=5)
    reward[1, 0] = math.nan
    assert all(torch.isfinite(x).all() for x in total_loss(valid, reward))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inv", [0.0, 50.0])
def test_losses_and_gradients_are_finite_at_both_ends(inv, dtype):
    valid = torch.ones(STEPS, BATCH, dtype=torch.bool)
    for x in total_loss(valid, random(STEPS, BATCH, seed=5, dtype=dtype), dtype, inv, a_scale=1e3):
        assert x.dtype == dtype
        assert torch.isfinite(x).all()
