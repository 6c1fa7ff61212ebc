"""The loss terms (docs/paper.md 2.3) and their weighted sum: loss = xi L_V + alpha L_Q + beta L_pi
(- entropy bonus + auxiliary).

Each term is given per step, ``[T, B]``; a loss is its mean over the valid steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dicerl.core import policy


class Losses(NamedTuple):
    total: Tensor
    value: Tensor
    q: Tensor
    policy: Tensor
    entropy: Tensor  # the mean bonus before its coefficient; 0 where no bonus is asked for
    # forward plus inverse dynamics before their coefficient; 0 where not asked for
    auxiliary: Tensor


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """L_V = 1/2 (vs_t - V_t)^2; gradient -(vs_t - V_t) dV."""
    return 0.5 * (target.detach() - value).square()


def q_loss(q: Tensor, target: Tensor) -> Tensor:
    """L_Q = 1/2 (qs_t - Q_t)^2; gradient -(qs_t - Q_t) dQ."""
    return 0.5 * (target.detach() - q).square()


def policy_loss(
    advantage_head: Tensor,
    inv_temperature: Tensor,
    action: Tensor,
    rho: Tensor,
    target_advantage: Tensor,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    log_pi: Tensor | None = None,
) -> Tensor:
    """L_pi = -rho_t adv_t (A(a_t) - sum_a sg(pi_tau) A): gradient -rho_t adv_t (1 - pi_tau) dA (eq.
    pg_dice). ``log_pi`` as in ``policy_surrogate``.
    """
    return -(rho * target_advantage).detach() * policy.policy_surrogate(
        advantage_head, inv_temperature, action, weight, mask, log_pi
    )


def temperature_loss(
    log_inv_temperature: Tensor,
    advantage_head: Tensor,
    inv_temperature: Tensor,
    action: Tensor,
    rho: Tensor,
    target_advantage: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """The same policy gradient, -rho_t adv_t tau d log pi_tau(a_t), for a trainable p = log(1/tau)
    (``trainable_tau``):

        tau * d log pi_tau(a) / dp = A(a) - sum_b pi_tau(b) A(b)
    """
    slope = policy.policy_surrogate(advantage_head, inv_temperature, action, mask=mask)
    return -(rho * target_advantage * slope).detach() * log_inv_temperature


def forward_dynamics_loss(predicted: Tensor, next_feature: Tensor) -> Tensor:
    """1/2 |f(h_t, a_t) - sg(z_{t+1})|^2, averaged over the features z of the torso.
    [T, B, F], [T, B, F] -> [T, B]
    """
    return 0.5 * (next_feature.detach() - predicted).square().mean(-1)


def inverse_dynamics_loss(logits: Tensor, action: Tensor) -> Tensor:
    """-log g(a_t | z_t, z_{t+1}): cross-entropy of the action taken.
    [T, B, A], [T, B] -> [T, B]
    """
    return -policy.gather(torch.log_softmax(logits, -1), action)


def entropy_bonus(
    advantage_head: Tensor,
    inv_temperature: Tensor,
    scale: str,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """``"tau"``: a value with the gradient of tau * H[pi_tau]; ``"plain"``: H[pi_tau] itself
    (docs/paper.md 2.7).
    """
    if scale == "tau":
        return policy.entropy_surrogate(advantage_head, inv_temperature, weight, mask)
    if scale == "plain":
        return policy.entropy(advantage_head, inv_temperature, weight, mask)
    raise ValueError(f"entropy_scale is {scale!r}; it can be 'tau' or 'plain'")


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid steps; 0 where there is none.    [..., T, B], [T, B] -> [...]"""
    return torch.where(valid, x, 0.0).sum((-2, -1)) / valid.sum().clamp_min(1)


def weighted_sum(
    value: Tensor,
    q: Tensor,
    policy: Tensor,
    bonus: Tensor | None,
    valid: Tensor,
    *,
    xi: float,
    alpha: float | Tensor,
    beta: float | Tensor,
    entropy_coefficient: float = 0.0,
    auxiliary: Tensor | None = None,
    auxiliary_coefficient: float = 0.0,
) -> Losses:
    """loss = xi L_V + alpha L_Q + beta L_pi - entropy_coefficient * bonus + auxiliary_coefficient *
    auxiliary, means over valid steps.

    alpha and beta may be given for each sequence, ``[B]`` (the ablation ``random_scaling``).
    """
    l_v, l_q, l_pi = masked_mean(torch.stack([value, q, policy]), valid).unbind()

    def scaled(scale: float | Tensor, term: Tensor, mean: Tensor) -> Tensor:
        return masked_mean(scale * term, valid) if isinstance(scale, Tensor) else scale * mean

    total = xi * l_v + scaled(alpha, q, l_q) + scaled(beta, policy, l_pi)
    l_h = l_a = torch.zeros_like(l_v)
    if bonus is not None:
        l_h = masked_mean(bonus, valid)
        total = total - entropy_coefficient * l_h
    if auxiliary is not None:
        l_a = masked_mean(auxiliary, valid)
        total = total + auxiliary_coefficient * l_a
    return Losses(total, l_v, l_q, l_pi, l_h, l_a)
