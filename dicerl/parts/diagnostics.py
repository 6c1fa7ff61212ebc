"""Diagnostics of every ``log_every``-th update: losses, gradient, ratios, spreads, lag.

Their names and meanings are declared in records/vocabulary.py (docs/metrics.md).
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.weights import Weights, view
from dicerl.core import family, policy
from dicerl.parts.objective import Objective, Scaling
from dicerl.parts.sequence import Arrays
from dicerl.records.vocabulary import BATCH_MEAN


class Lag(NamedTuple):
    """Learner updates between acting and training, over the trained steps of one batch's new
    sequences.
    """

    mean: float
    largest: float


def policy_lag(version: np.ndarray, updates: int) -> Lag:
    """The lag of steps that acted with these versions and are trained after ``updates`` updates."""
    lag = updates - version
    return Lag(float(lag.mean()), float(lag.max()))


def diagnose(
    model: ActorCritic,
    weights: Weights,
    batch: Arrays,
    found: Objective,
    scaling: Scaling,
    gradient: Tensor,
    norm: Tensor,
    lags: list[Lag],
) -> dict[str, float]:
    """The numbers of one update by name, for a train line of the metrics.

    ``found`` is the update's objective, ``gradient`` its gradient after the clip, ``norm`` the
    gradient's norm before; ``lags`` are of every batch since the last diagnostics.
    """
    if not found.valid.any():
        return {"loss": found.losses.total.item()}
    numbers = _losses(model, found, norm) | _spreads(weights, found) | _ratios(model, found)
    for name, value in scaling._asdict().items():
        if isinstance(value, Tensor):  # the coefficients of each sequence
            numbers |= {f"{name}_mean": value.mean(), f"{name}_std": value.std(correction=0)}
    if model.network.log_inv_temperature is not None:
        numbers |= {
            "trainable_inv_temperature": weights["log_inv_temperature"].detach().exp(),
            "trainable_gradient": view(gradient, weights.layout, "log_inv_temperature"),
        }
    # one transfer from the device for all of them
    values = torch.stack([x.float().reshape(()) for x in numbers.values()]).tolist()
    return dict(zip(numbers, values, strict=True)) | _data(model, batch, lags)


def _losses(model: ActorCritic, found: Objective, norm: Tensor) -> dict[str, Tensor]:
    loss = found.losses
    numbers = {
        "loss": loss.total,
        "loss_value": loss.value,
        "loss_q": loss.q,
        "loss_policy": loss.policy,
        "entropy_bonus": loss.entropy,
        "gradient_norm": norm,
    }
    if model.config.loss.auxiliary:
        numbers["loss_auxiliary"] = loss.auxiliary
    return numbers


def _ratios(model: ActorCritic, found: Objective) -> dict[str, Tensor]:
    cfg = model.config.loss
    ratio = found.log_ratio.clamp(-20, 20).exp()[found.valid]
    entropy = -(found.log_pi.exp() * found.log_pi.clamp_min(-1e4)).sum(-1)[found.valid]
    return {
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "ratio_std": ratio.std(correction=0),
        "rho_clipped": (ratio > cfg.rho_bar).float().mean(),
        "c_clipped": (ratio > cfg.c_bar).float().mean(),
        "entropy": entropy.mean(),
    }


def _spreads(weights: Weights, found: Objective) -> dict[str, Tensor]:
    valid, window = found.valid, found.window
    value, advantage = window.value[:-1][valid], window.advantage[:-1][valid]
    mask = None if window.mask is None else window.mask[:-1][valid]
    features = window.features[:-1][valid]
    target = found.targets.value[valid]
    error = (found.targets.value - window.value[:-1])[valid]
    unexplained = error.var(correction=0) / target.var(correction=0).clamp_min(1e-12)
    return {
        "value_mean": value.mean(),
        "value_std": value.std(correction=0),
        "advantage_std": policy.deviation(advantage, mask).mean(),
        "advantage_scale": weights["advantage_scale"],
        **(
            {"return_size": weights["return_size"][0].sqrt()}
            if "return_size" in weights.layout
            else {}
        ),
        "target_advantage_std": found.targets.advantage[valid].std(correction=0),
        "value_explained": 1 - unexplained,
        # the same for every step of the batch
        "dead_units": (features.amax(0) == features.amin(0)).float().mean(),
        "feature_spread": features.std(0, correction=0).mean(),
    }


def _data(model: ActorCritic, batch: Arrays, lags: list[Lag]) -> dict[str, float]:
    start = model.config.sequence.burn_in
    valid = batch["valid"][start:-1]
    numbers = {
        "policy_lag": sum(lag.mean for lag in lags) / max(1, len(lags)),
        "policy_lag_max": max((lag.largest for lag in lags), default=0.0),
        "sequence_age": float(time.time() - batch["created"].mean()),
        "valid_fraction": float(valid.mean()),
    }
    for name in family.NUMBERS[model.config.behaviour.family]:
        drawn = batch[name][start:-1][valid]
        numbers[BATCH_MEAN.name(name)] = float(drawn.mean()) if drawn.size else 0.0
    return numbers
