"""The behaviour family pi_tau (docs/paper.md 2.1): closed-form, one dimension of freedom.

    pi_tau(a|s) = exp(A(s,a) / tau) / sum_b exp(A(s,b) / tau)

The code carries the inverse temperature ``1/tau`` in [0, 50]; nothing divides by tau, so both ends
are exact: 0 is the uniform policy, infinity the greedy one (the limit: equal maxima share), large
values approach it.

With ``weight`` the policy is a linear combination of such policies, the paper's own hint at larger
families:

    pi(a|s) = sum_k w_k pi_{tau_k}(a|s),    inv_temperature and weight [..., K]

Axes: ``[...]`` is any batch shape, ``A`` the number of actions, ``K`` the number of components.
"""

from __future__ import annotations

import torch
from torch import Tensor

InvTemperature = Tensor | float


def log_probs(
    advantage: Tensor, inv_temperature: InvTemperature, weight: Tensor | None = None
) -> Tensor:
    """log pi_tau = log_softmax(A * inv_temperature).    [..., A], [...] -> [..., A]

    With ``weight``: log sum_k w_k pi_{tau_k}.    [..., A], [..., K], [..., K] -> [..., A]
    """
    if weight is not None:
        # [..., K, A]
        terms = weight.log().unsqueeze(-1) + log_probs(
            advantage.unsqueeze(-2), torch.as_tensor(inv_temperature)
        )
        # Where no component takes an action every term is -inf, and the gradient of their sum would
        # be nan.
        return torch.logsumexp(terms.clamp_min(torch.finfo(terms.dtype).min), dim=-2)
    inv = torch.as_tensor(
        inv_temperature, dtype=advantage.dtype, device=advantage.device
    ).unsqueeze(-1)
    greedy = inv.isinf()
    # the host would wait for a GPU, and an exported graph has one path for all values
    at_hand = advantage.device.type == "cpu" and not torch.compiler.is_compiling()
    if at_hand and not greedy.any():
        return torch.log_softmax(advantage * inv, dim=-1)
    log_pi = torch.log_softmax(advantage * inv.masked_fill(greedy, 0.0), dim=-1)
    best = (advantage == advantage.amax(-1, keepdim=True)).to(advantage.dtype)
    return torch.where(greedy, (best / best.sum(-1, keepdim=True)).log(), log_pi)


def entropy(
    advantage: Tensor, inv_temperature: InvTemperature, weight: Tensor | None = None
) -> Tensor:
    """H[pi] = -sum_a pi log pi, from log|A| at inv_temperature 0 down to 0.
    [..., A], [...] -> [...]
    """
    log_pi = log_probs(advantage, inv_temperature, weight)
    # Where pi underflows to 0, log pi may be -inf; the product's limit is 0.
    return -(log_pi.exp() * log_pi.clamp_min(torch.finfo(log_pi.dtype).min)).sum(-1)


def policy_surrogate(
    advantage: Tensor, inv_temperature: InvTemperature, action: Tensor, weight: Tensor | None = None
) -> Tensor:
    """A(a) - sum_b sg(pi_tau(b)) A(b): its gradient is (1 - pi_tau) dA = tau * d log pi_tau(a).

    The printed policy gradient (eq. pg_dice) without dividing by tau: finite at both ends of the
    range. With ``weight`` each component's gradient counts by how likely the action came from it:

        d log pi = sum_k r_k d log pi_{tau_k},    r_k = w_k pi_{tau_k}(a) / pi(a)

    so the value is A(a) - sum_b sg(sum_k r_k pi_{tau_k}(b)) A(b).
    [..., A], [...], [...] -> [...]
    """
    fixed = advantage.detach()
    if weight is None:
        pi = log_probs(fixed, inv_temperature).exp().detach()
    else:
        components = log_probs(fixed.unsqueeze(-2), torch.as_tensor(inv_temperature))  # [..., K, A]
        chosen = gather(components, action.unsqueeze(-1).expand(components.shape[:-1]))  # [..., K]
        # An action that no component takes (a greedy policy that has changed since) belongs to all
        # alike.
        share = torch.softmax(
            (weight.log() + chosen).clamp_min(torch.finfo(advantage.dtype).min), -1
        )
        pi = (share.unsqueeze(-1) * components.exp()).sum(-2).detach()
    return gather(advantage, action) - (pi * advantage).sum(-1)


def entropy_surrogate(
    advantage: Tensor, inv_temperature: InvTemperature, weight: Tensor | None = None
) -> Tensor:
    """A value whose gradient is that of tau * H[pi_tau], without dividing by tau (docs/paper.md
    2.7, ``entropy``).

        d(tau H)/dA(a) = -pi(a) (log pi(a) + H)

    With ``weight``: the components' bonuses, weighted.    [..., A], [...] -> [...]
    """
    if weight is not None:
        return (
            weight * entropy_surrogate(advantage.unsqueeze(-2), torch.as_tensor(inv_temperature))
        ).sum(-1)
    fixed = advantage.detach()
    log_pi = log_probs(fixed, inv_temperature)
    slope = -log_pi.exp() * (
        log_pi.clamp_min(torch.finfo(log_pi.dtype).min)
        + entropy(fixed, inv_temperature).unsqueeze(-1)
    )
    return (slope.detach() * advantage).sum(-1)


def combined(advantage: Tensor, branches: tuple[int, ...]) -> Tensor:
    """A of every combination of branches: the sum of each one's.
    [..., sum n_k] -> [..., prod n_k]

    Then pi_tau of combinations is the product of pi_tau of each branch.
    """
    if not branches:
        return advantage
    total: Tensor
    total, *rest = advantage.split(branches, -1)
    for each in rest:
        total = (total.unsqueeze(-1) + each.unsqueeze(-2)).flatten(-2)
    return total


def gather(values: Tensor, action: Tensor) -> Tensor:
    """values(a): the entry of each chosen action.    [..., A], [...] -> [...]"""
    return values.gather(-1, action.unsqueeze(-1)).squeeze(-1)
