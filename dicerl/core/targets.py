"""Off-policy targets (docs/paper.md 2.2): V-Trace, ReTrace, DR-Trace and its ablation, as backward
recursions.

Every argument is ``[T, B]``, time-major; ``discount`` is gamma_t (0 where step t ended the episode
for good), ``valid`` is 0 on reset steps, whose rho_t = c_t = 0. ``next_*`` is the entry of step
t+1, so its last row is the bootstrap. With ratio_t = pi(a_t|s_t) / mu(a_t|s_t), both at the same
temperature,

    rho_t = min(ratio_t, rho_bar),    c_t = min(ratio_t, c_bar).

Nothing here carries a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    value: Tensor  # [T, B] vs_t
    advantage: Tensor  # [T, B] r_t + gamma_t vs_{t+1} - V_t


class ReTrace(NamedTuple):
    q: Tensor  # [T, B] qs_t


class DRTrace(NamedTuple):
    value: Tensor  # [T, B] vs_t
    q: Tensor  # [T, B] qs_t
    advantage: Tensor  # [T, B] r_t + gamma_t vs_{t+1} - V_t


def clipped_ratio(log_ratio: Tensor, valid: Tensor, bar: float) -> Tensor:
    """min(ratio, bar) as exp(min(log ratio, log bar)), so that nothing overflows; 0 where not
    valid.
    """
    ratio = log_ratio.clamp_max(math.log(bar)).exp()
    return torch.where(valid.bool(), ratio, 0.0)


@torch.no_grad()
def vtrace(
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    *,
    rho_bar: float = 1.05,
    c_bar: float = 1.05,
) -> VTrace:
    """V-Trace (IMPALA):

    vs_t = V_t + sum_k gamma^k c_[t:t+k-1] rho_{t+k} (r_{t+k} + gamma V_{t+k+1} - V_{t+k}) vs_t -
    V_t = rho_t delta_t + gamma_t c_t (vs_{t+1} - V_{t+1}),    delta_t = r_t + gamma_t V_{t+1} - V_t
    """
    _check(
        value=value,
        next_value=next_value,
        reward=reward,
        discount=discount,
        log_ratio=log_ratio,
        valid=valid,
    )
    reward = _clean(reward, valid)
    rho, c = _ratios(log_ratio, valid, rho_bar, c_bar)
    correction = _backward_sum(rho * (reward + discount * next_value - value), discount * c)
    return _vtrace(value, next_value, reward, discount, correction)


@torch.no_grad()
def retrace(
    q: Tensor,
    next_q: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    *,
    c_bar: float = 1.05,
) -> ReTrace:
    """ReTrace, as printed:

        qs_t = Q_t + sum_k gamma^k c_[t+1:t+k] (r_{t+k} + gamma Q_{t+k+1} - Q_{t+k})
        qs_t - Q_t = delta_t + gamma_t c_{t+1} (qs_{t+1} - Q_{t+1}),
        delta_t = r_t + gamma_t Q_{t+1} - Q_t

    ``next_q`` is Q(s_{t+1}, a_{t+1}) of the sampled action (printed) or E_pi Q(s_{t+1}, .) (the
    original).
    """
    _check(q=q, next_q=next_q, reward=reward, discount=discount, log_ratio=log_ratio, valid=valid)
    reward = _clean(reward, valid)
    weight = discount * _next(clipped_ratio(log_ratio, valid, c_bar))
    return ReTrace(q + _backward_sum(reward + discount * next_q - q, weight))


@torch.no_grad()
def vtrace_and_retrace(
    value: Tensor,
    next_value: Tensor,
    q: Tensor,
    next_q: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    *,
    rho_bar: float = 1.05,
    c_bar: float = 1.05,
) -> tuple[VTrace, ReTrace]:
    """``vtrace`` and ``retrace`` of the same steps, the same numbers in half the operations: their
    sums are computed side by side.
    """
    _check(
        value=value,
        next_value=next_value,
        q=q,
        next_q=next_q,
        reward=reward,
        discount=discount,
        log_ratio=log_ratio,
        valid=valid,
    )
    reward = _clean(reward, valid)
    rho, c = _ratios(log_ratio, valid, rho_bar, c_bar)
    of_v = rho * (reward + discount * next_value - value)
    of_q = reward + discount * next_q - q
    both = _backward_sum(
        torch.cat([of_v, of_q], 1), torch.cat([discount * c, discount * _next(c)], 1)
    )
    v_correction, q_correction = both.chunk(2, 1)
    v = _vtrace(value, next_value, reward, discount, v_correction)
    return v, ReTrace(q + q_correction)


@torch.no_grad()
def drtrace(
    value: Tensor,
    next_value: Tensor,
    q: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    *,
    rho_bar: float = 1.05,
    c_bar: float = 1.05,
) -> DRTrace:
    """DR-Trace (CASA), doubly robust, one estimator for V and Q:

    vs_t = V_t + sum_k gamma^k c_[t:t+k-1] rho_{t+k} (r_{t+k} + gamma V_{t+k+1} - Q_{t+k}) vs_t -
    V_t = rho_t delta_t + gamma_t c_t (vs_{t+1} - V_{t+1}),    delta_t = r_t + gamma_t V_{t+1} - Q_t
    qs_t = r_t + gamma_t vs_{t+1}
    """
    _check(
        value=value,
        next_value=next_value,
        q=q,
        reward=reward,
        discount=discount,
        log_ratio=log_ratio,
        valid=valid,
    )
    reward = _clean(reward, valid)
    rho, c = _ratios(log_ratio, valid, rho_bar, c_bar)
    correction = _backward_sum(rho * (reward + discount * next_value - q), discount * c)
    target_q = reward + discount * (next_value + _next(correction))
    return DRTrace(value + correction, target_q, target_q - value)


@torch.no_grad()
def qtrace(
    q: Tensor,
    next_q: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
    *,
    rho_bar: float = 1.05,
    c_bar: float = 1.05,
) -> ReTrace:
    """DR-Trace's sum for Q with Q in the place of V (the ablation ``no_drtrace``):

    qs_t = Q_t + sum_k gamma^k c_[t+1:t+k-1] rho~_{t,k} (r_{t+k} + gamma Q_{t+k+1} - Q_{t+k}),
    rho~_{t,0} = 1, else rho_{t+k} qs_t - Q_t = delta_t + gamma_t D_{t+1},    D_t = rho_t delta_t +
    gamma_t c_t D_{t+1}
    """
    _check(q=q, next_q=next_q, reward=reward, discount=discount, log_ratio=log_ratio, valid=valid)
    delta = _clean(reward, valid) + discount * next_q - q
    rho, c = _ratios(log_ratio, valid, rho_bar, c_bar)
    return ReTrace(q + delta + discount * _next(_backward_sum(rho * delta, discount * c)))


def _ratios(
    log_ratio: Tensor, valid: Tensor, rho_bar: float, c_bar: float
) -> tuple[Tensor, Tensor]:
    """rho_t and c_t.    [T, B] each"""
    rho = clipped_ratio(log_ratio, valid, rho_bar)
    return rho, rho if c_bar == rho_bar else clipped_ratio(log_ratio, valid, c_bar)


def _vtrace(
    value: Tensor, next_value: Tensor, reward: Tensor, discount: Tensor, correction: Tensor
) -> VTrace:
    """V-Trace's targets from ``correction``, vs_t - V_t."""
    following = next_value + _next(correction)
    return VTrace(value + correction, reward + discount * following - value)


def _next(x: Tensor) -> Tensor:
    """x_{t+1}; 0 after the window's last step.    [T, B] -> [T, B]"""
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def _clean(reward: Tensor, valid: Tensor) -> Tensor:
    """A reset step's reward may be anything; what is not finite would outlive the factor 0 that
    removes it.
    """
    return torch.where(valid.bool(), reward, reward.nan_to_num(0.0, 0.0, 0.0))


def _backward_sum(term: Tensor, weight: Tensor) -> Tensor:
    """x_t = term_t + weight_t x_{t+1}, with x_T = 0.    [T, B], [T, B] -> [T, B]"""
    sums = term.clone()
    rows, weights = sums.unbind(), weight.unbind()
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(weights[t], rows[t + 1])
    return sums


def _check(**tensors: Tensor) -> None:
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if (
        len(set(shapes.values())) != 1
        or len(next(iter(shapes.values()))) != 2
        or next(iter(shapes.values()))[0] == 0
    ):
        raise ValueError(f"targets take tensors of one shape [T, B] with T >= 1; got {shapes}")
