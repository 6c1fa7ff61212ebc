"""The behaviour family pi_tau (SPEC 1): closed-form, one dimension of freedom.

    pi_tau(a|s) = exp(A(s,a) / tau) / sum_b exp(A(s,b) / tau)

The code carries the inverse temperature ``1/tau`` in [0, 50]; nothing divides by tau, so both ends are
exact: 0 is the uniform policy, large values approach the greedy one. Axes: ``[...]`` is any batch shape,
``A`` the number of actions.
"""

from __future__ import annotations

import torch
from torch import Tensor

InvTemperature = Tensor | float


def _logits(advantage: Tensor, inv_temperature: InvTemperature) -> Tensor:
    inv = torch.as_tensor(inv_temperature, dtype=advantage.dtype, device=advantage.device)
    return advantage * inv.unsqueeze(-1)


def log_probs(advantage: Tensor, inv_temperature: InvTemperature) -> Tensor:
    """log pi_tau = log_softmax(A * inv_temperature).    [..., A], [...] -> [..., A]"""
    return torch.log_softmax(_logits(advantage, inv_temperature), dim=-1)


def entropy(advantage: Tensor, inv_temperature: InvTemperature) -> Tensor:
    """H[pi_tau] = -sum_a pi log pi, from log|A| at inv_temperature 0 down to 0.    [..., A], [...] -> [...]"""
    log_pi = log_probs(advantage, inv_temperature)
    # Where pi underflows to 0, log pi may be -inf; the product's limit is 0.
    return -(log_pi.exp() * log_pi.clamp_min(torch.finfo(log_pi.dtype).min)).sum(-1)


def policy_surrogate(advantage: Tensor, inv_temperature: InvTemperature, action: Tensor) -> Tensor:
    """A(a) - sum_b sg(pi_tau(b)) A(b): its gradient is (1 - pi_tau) dA = tau * d log pi_tau(a).

    The printed policy gradient (eq. pg_dice) without dividing by tau: finite at both ends of the range.
    [..., A], [...], [...] -> [...]
    """
    pi = log_probs(advantage, inv_temperature).exp().detach()
    return gather(advantage, action) - (pi * advantage).sum(-1)


def entropy_surrogate(advantage: Tensor, inv_temperature: InvTemperature) -> Tensor:
    """A value whose gradient is that of tau * H[pi_tau], without dividing by tau (SPEC 7, ``entropy``).

        d(tau H)/dA(a) = -pi(a) (log pi(a) + H)

    [..., A], [...] -> [...]
    """
    fixed = advantage.detach()
    log_pi = log_probs(fixed, inv_temperature)
    weight = -log_pi.exp() * (log_pi.clamp_min(torch.finfo(log_pi.dtype).min) + entropy(fixed, inv_temperature).unsqueeze(-1))
    return (weight.detach() * advantage).sum(-1)


def gather(values: Tensor, action: Tensor) -> Tensor:
    """values(a): the entry of each chosen action.    [..., A], [...] -> [...]"""
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
