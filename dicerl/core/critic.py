"""Q from the two heads V and A (docs/paper.md 2.3)."""

from __future__ import annotations

from torch import Tensor


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """DiCE: Q(s, .) = V(s) + A(s, .).    [...], [..., A] -> [..., A]"""
    return value.unsqueeze(-1) + advantage


def casa(
    value: Tensor, advantage: Tensor, pi: Tensor, *, stop_pi: bool = True, stop_v: bool = True
) -> Tensor:
    """CASA: Q(s, .) = A(s, .) - sum_a sg(pi(a)) A(s, a) + sg(V(s)), so that E_pi[Q] = V and dQ = (1
    - pi) dA.

    ``stop_pi``, ``stop_v``: the two stop-gradients; the paper's ablations leave one out each.
    [...], [..., A], [..., A] -> [..., A]
    """
    if stop_pi:
        pi = pi.detach()
    if stop_v:
        value = value.detach()
    return advantage - (pi * advantage).sum(-1, keepdim=True) + value.unsqueeze(-1)
