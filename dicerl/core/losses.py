"""The loss terms (SPEC 3) and their weighted sum: loss = xi L_V + alpha L_Q + beta L_pi (- entropy bonus).

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


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """L_V = 1/2 (vs_t - V_t)^2; gradient -(vs_t - V_t) dV."""
    return 0.5 * (target.detach() - value).square()


def q_loss(q: Tensor, target: Tensor) -> Tensor:
    """L_Q = 1/2 (qs_t - Q_t)^2; gradient -(qs_t - Q_t) dQ."""
    return 0.5 * (target.detach() - q).square()


def policy_loss(advantage_head: Tensor, inv_temperature: Tensor, action: Tensor, rho: Tensor, target_advantage: Tensor) -> Tensor:
    """L_pi = -rho_t adv_t (A(a_t) - sum_a sg(pi_tau) A): gradient -rho_t adv_t (1 - pi_tau) dA (eq. pg_dice)."""
    return -(rho * target_advantage).detach() * policy.policy_surrogate(advantage_head, inv_temperature, action)


def entropy_bonus(advantage_head: Tensor, inv_temperature: Tensor, scale: str) -> Tensor:
    """``"tau"``: a value with the gradient of tau * H[pi_tau]; ``"plain"``: H[pi_tau] itself (SPEC 7)."""
    if scale == "tau":
        return policy.entropy_surrogate(advantage_head, inv_temperature)
    if scale == "plain":
        return policy.entropy(advantage_head, inv_temperature)
    raise ValueError(f"entropy_scale is {scale!r}; it can be 'tau' or 'plain'")


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid steps; 0 where there is none."""
    return torch.where(valid, x, torch.zeros_like(x)).sum() / valid.sum().clamp_min(1)


def weighted_sum(
    value: Tensor, q: Tensor, policy: Tensor, bonus: Tensor | None, valid: Tensor,
    *, xi: float, alpha: float, beta: float, entropy_coefficient: float = 0.0,
) -> Losses:
    """loss = xi L_V + alpha L_Q + beta L_pi - entropy_coefficient * bonus, each the mean over valid steps."""
    l_v, l_q, l_pi = masked_mean(value, valid), masked_mean(q, valid), masked_mean(policy, valid)
    total = xi * l_v + alpha * l_q + beta * l_pi
    l_h = torch.zeros_like(l_v)
    if bonus is not None:
        l_h = masked_mean(bonus, valid)
        total = total - entropy_coefficient * l_h
    return Losses(total, l_v, l_q, l_pi, l_h)
