"""Families of behaviour policies: which few numbers an episode draws, where they are searched, and
the policy they make.

    boltzmann     pi_tau                                        1/tau
    conditioned   pi_tau of a network that is told x            1/tau
    epsilon       eps * uniform + (1 - eps) * greedy            eps
    mixture       w * pi_tau1 + (1 - w) * pi_tau2               1/tau1 <= 1/tau2, w

Each number has a coordinate x in which the bandits tile it: x = log(1 + 1/tau) for a temperature, x
= -log eps for eps (so that eps = 1/(1 + 1/tau): both run from uniform at x = 0 towards greedy), x =
w for a weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

# names and coordinates come without torch: a report and the dashboard need no more
if TYPE_CHECKING:
    from torch import Tensor

NUMBERS: dict[str, tuple[str, ...]] = {
    "boltzmann": ("inv_temperature",),
    "conditioned": ("inv_temperature",),
    "epsilon": ("epsilon",),
    "mixture": ("inv_temperature_low", "inv_temperature_high", "weight_low"),
}


def largest_x(number: str, max_inv_temperature: float) -> float:
    """The search range of a number is [0, this] in x."""
    return 1.0 if number == "weight_low" else math.log1p(max_inv_temperature)


def from_x(number: str, x: Any) -> Any:
    """The value at x; elementwise."""
    if number == "epsilon":
        return np.exp(-np.asarray(x))
    return np.asarray(x) if number == "weight_low" else np.expm1(x)


def to_x(number: str, value: Any) -> Any:
    """The inverse of from_x."""
    if number == "epsilon":
        # eps = 0 would lie at infinity
        return -np.log(np.maximum(value, float(np.finfo(np.float32).tiny)))
    return np.asarray(value) if number == "weight_low" else np.log1p(value)


def ordered(family: str, x: Sequence[float]) -> list[float]:
    """A mixture's two temperatures in order: (tau1, tau2, w) and (tau2, tau1, 1 - w) are one
    policy, and a vote for each coordinate alone could not tell their two peaks apart.
    """
    return [*sorted(x[:2]), *x[2:]] if family == "mixture" else list(x)


def components(
    family: str, values: dict[str, Tensor], scale: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """(inv_temperature, weight) as core.policy takes them; ``scale`` is the unit in which A is
    measured, None if it is 1.

    [...] each -> [...], None for a single component, or [..., 2], [..., 2]
    """
    import torch

    if family == "epsilon":
        epsilon = values["epsilon"]
        ends = torch.tensor([0.0, math.inf], dtype=epsilon.dtype, device=epsilon.device)
        return ends.expand(*epsilon.shape, 2), torch.stack([epsilon, 1.0 - epsilon], -1)
    if family == "mixture":
        low, high, weight = (values[name] for name in NUMBERS["mixture"])
        both = torch.stack([low, high], -1)
        weights = torch.stack([weight, 1.0 - weight], -1)
        return both if scale is None else both / scale.unsqueeze(-1), weights
    inv_temperature = values["inv_temperature"]
    return inv_temperature if scale is None else inv_temperature / scale, None
