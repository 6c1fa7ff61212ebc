"""The behaviour family pi_tau (docs/paper.md 2.1): closed-form, one dimension of freedom.

    pi_tau(a|s) = exp(A(s,a) / tau) / sum_b exp(A(s,b) / tau)

The code carries the inverse temperature ``1/tau`` in [0, 50]; nothing divides by tau, so both ends
are exact: 0 is the uniform policy, infinity the greedy one (the limit: equal maxima share), large
values approach it.

With ``weight`` the policy is a linear combination of such policies, the paper's own hint at larger
families:

    pi(a|s) = sum_k w_k pi_{tau_k}(a|s),    inv_temperature and weight [..., K]

With ``mask`` only some actions are allowed, m(s,a) = 1 or 0 (True or False):

    pi_tau(a|s) = m(s,a) exp(A(s,a) / tau) / sum_b m(s,b) exp(A(s,b) / tau)

It is the policy over the allowed actions alone: those that are not have probability exactly 0 at
every temperature, 1/tau = 0 is uniform over the others, and A of a forbidden action, any finite
number, changes nothing and gets no gradient. At least one action must be allowed.

Axes: ``[...]`` is any batch shape, ``A`` the number of actions, ``K`` the number of components.
"""

from __future__ import annotations

import torch
from torch import Tensor

InvTemperature = Tensor | float


def log_probs(
    advantage: Tensor,
    inv_temperature: InvTemperature,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """log pi_tau = log_softmax(A * inv_temperature).    [..., A], [...] -> [..., A]

    With ``weight``: log sum_k w_k pi_{tau_k}.    [..., A], [..., K], [..., K] -> [..., A]

    With ``mask`` [..., A]: -inf where it is False (of a mixture: the least number), else that of
    the allowed actions.
    """
    if weight is not None:
        # [..., K, A]
        terms = weight.log().unsqueeze(-1) + _components(advantage, inv_temperature, mask)
        # Where no component takes an action every term is -inf, and the gradient of their sum would
        # be nan.
        return torch.logsumexp(terms.clamp_min(torch.finfo(terms.dtype).min), dim=-2)
    inv = torch.as_tensor(
        inv_temperature, dtype=advantage.dtype, device=advantage.device
    ).unsqueeze(-1)
    # the host would wait for a GPU, and an exported graph has one path for all values
    at_hand = advantage.device.type == "cpu" and not torch.compiler.is_compiling()
    if at_hand and (not inv.numel() or inv.max().item() < torch.inf):
        return torch.log_softmax(masked(advantage * inv, mask), dim=-1)
    greedy = inv.isinf()
    log_pi = torch.log_softmax(masked(advantage * inv.masked_fill(greedy, 0.0), mask), dim=-1)
    allowed = masked(advantage, mask)
    best = (allowed == allowed.amax(-1, keepdim=True)).to(advantage.dtype)
    return torch.where(greedy, (best / best.sum(-1, keepdim=True)).log(), log_pi)


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """``values`` with -inf where an action is not allowed; the logits, not A: 0 * -inf would be
    nan.    [..., A], [..., A] -> [..., A]
    """
    return values if mask is None else torch.where(mask, values, -torch.inf)


def _components(advantage: Tensor, inv_temperature: InvTemperature, mask: Tensor | None) -> Tensor:
    """log pi_{tau_k} of every component.    [..., A], [..., K] -> [..., K, A]"""
    return log_probs(
        advantage.unsqueeze(-2),
        torch.as_tensor(inv_temperature),
        mask=None if mask is None else mask.unsqueeze(-2),
    )


def entropy(
    advantage: Tensor,
    inv_temperature: InvTemperature,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """H[pi] = -sum_a pi log pi, from log|A| at inv_temperature 0 down to 0; |A| is the number of
    allowed actions.
    [..., A], [...] -> [...]
    """
    log_pi = log_probs(advantage, inv_temperature, weight, mask)
    # Where pi underflows to 0, log pi may be -inf; the product's limit is 0.
    return -(log_pi.exp() * log_pi.clamp_min(torch.finfo(log_pi.dtype).min)).sum(-1)


def policy_surrogate(
    advantage: Tensor,
    inv_temperature: InvTemperature,
    action: Tensor,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    log_pi: Tensor | None = None,
) -> Tensor:
    """A(a) - sum_b sg(pi_tau(b)) A(b): its gradient is (1 - pi_tau) dA = tau * d log pi_tau(a).

    The printed policy gradient (eq. pg_dice) without dividing by tau: finite at both ends of the
    range. With ``weight`` each component's gradient counts by how likely the action came from it:

        d log pi = sum_k r_k d log pi_{tau_k},    r_k = w_k pi_{tau_k}(a) / pi(a)

    so the value is A(a) - sum_b sg(sum_k r_k pi_{tau_k}(b)) A(b).

    ``log_pi`` [..., A] is that of these arguments, for a caller who has it.
    [..., A], [...], [...] -> [...]
    """
    fixed = advantage.detach()
    if weight is None:
        if log_pi is None:
            log_pi = log_probs(fixed, inv_temperature, mask=mask)
        pi = log_pi.detach().exp()
    else:
        components = _components(fixed, inv_temperature, mask)  # [..., K, A]
        chosen = gather(components, action.unsqueeze(-1).expand(components.shape[:-1]))  # [..., K]
        # An action that no component takes (a greedy policy that has changed since) belongs to all
        # alike.
        share = torch.softmax(
            (weight.log() + chosen).clamp_min(torch.finfo(advantage.dtype).min), -1
        )
        pi = (share.unsqueeze(-1) * components.exp()).sum(-2).detach()
    return gather(advantage, action) - (pi * advantage).sum(-1)


def entropy_surrogate(
    advantage: Tensor,
    inv_temperature: InvTemperature,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """A value whose gradient is that of tau * H[pi_tau], without dividing by tau (docs/paper.md
    2.7, ``entropy``).

        d(tau H)/dA(a) = -pi(a) (log pi(a) + H)

    With ``weight``: the components' bonuses, weighted.    [..., A], [...] -> [...]
    """
    if weight is not None:
        each = entropy_surrogate(
            advantage.unsqueeze(-2),
            torch.as_tensor(inv_temperature),
            mask=None if mask is None else mask.unsqueeze(-2),
        )
        return (weight * each).sum(-1)
    fixed = advantage.detach()
    log_pi = log_probs(fixed, inv_temperature, mask=mask)
    slope = -log_pi.exp() * (
        log_pi.clamp_min(torch.finfo(log_pi.dtype).min)
        + entropy(fixed, inv_temperature, mask=mask).unsqueeze(-1)
    )
    return (slope.detach() * advantage).sum(-1)


def deviation(advantage: Tensor, mask: Tensor | None = None) -> Tensor:
    """A's deviation over the allowed actions, sqrt(mean_a (A(a) - mean_b A(b))^2).
    [..., A] -> [...]
    """
    if mask is None:
        return advantage.std(-1, correction=0)
    count = mask.sum(-1, keepdim=True)
    mean = torch.where(mask, advantage, 0.0).sum(-1, keepdim=True) / count
    squares = torch.where(mask, (advantage - mean).square(), 0.0)
    return (squares.sum(-1, keepdim=True) / count).squeeze(-1).sqrt()


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
