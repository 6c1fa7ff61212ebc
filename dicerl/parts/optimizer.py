"""AdamW on the vector of a network: gradient clip, learning-rate and weight-decay schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from dicerl.agent.weights import Weights
from dicerl.config import Config


class Rates(NamedTuple):
    """The scheduled rates of one update."""

    learning_rate: float
    weight_decay: float


def total_updates(config: Config, action_repeat: int) -> int:
    """The number of updates of the whole run: every step is trained ``reuse`` times, in batches of
    B * T steps less those replayed.
    """
    s = config.sequence
    trained = config.frames / action_repeat * s.reuse
    return max(1, math.ceil(trained / ((s.batch - config.replayed) * s.length)))


def schedule(config: Config, updates: float, total: int) -> Rates:
    """The rates after ``updates`` of the run's ``total`` updates: linear warm-up of the learning
    rate, then both linear to 0 (docs/paper.md 2.6).
    """
    o = config.optimizer
    warmup = o.warmup * total if o.warmup < 1 else o.warmup
    left = max(0.0, 1.0 - updates / total)
    rate = o.learning_rate * min(1.0, (updates + 1) / warmup if warmup > 0 else 1.0)
    if updates >= warmup:
        rate = o.learning_rate * max(0.0, (total - updates) / max(1.0, total - warmup))
    return Rates(rate, o.weight_decay * left)


class Optimizer:
    """AdamW with its clip and schedules. Its state is in the weights, so learners can share it."""

    def __init__(self, config: Config, total: int) -> None:
        self.config, self.total = config, total

    def clip(self, gradient: Tensor) -> Tensor:
        """Scale ``gradient`` down to the clip norm, in place; return the norm it had."""
        norm: Tensor = torch.linalg.vector_norm(gradient)
        scale = (self.config.optimizer.clip_norm / (norm + 1e-6)).clamp_max(1.0)
        # 0 for nan: between the parameters' own, the vector has zeros that must stay zeros
        gradient.mul_(scale.nan_to_num_(0.0))
        return norm

    @torch.no_grad()
    def step(self, weights: Weights, gradient: Tensor, bad: Tensor) -> Rates:
        """Apply the gradient of the parameters to ``weights``, unless it is ``bad`` (a tensor, so
        that the host need not know); return the rates used.
        """
        o = self.config.optimizer
        # Reset steps are no data: progress is counted in whole batches of valid steps, so the
        # schedules end with the run.
        full = self.config.sequence.batch * self.config.sequence.length
        rates = schedule(self.config, weights.steps_trained / full, self.total)
        decay = rates.weight_decay
        if o.decay == "matrices":  # p -= rate * decay * p, as AdamW does, where p is in a matrix
            left = torch.where(bad, 1.0, 1.0 - rates.learning_rate * decay)
            for matrix in self._matrices(weights):
                matrix.mul_(left)
            decay = 0.0
        adamw(
            [weights.vector[: weights.num_trained]],
            [gradient],
            [weights.moments[0]],
            [weights.moments[1]],
            [],
            [weights.adam_steps],
            fused=True,
            found_inf=bad.float(),  # neither weights nor moments nor the step count change then
            amsgrad=False,
            maximize=False,
            beta1=o.beta1,
            beta2=o.beta2,
            lr=rates.learning_rate,
            weight_decay=decay,
            eps=o.eps,
        )
        return rates

    @staticmethod
    def _matrices(weights: Weights) -> Iterator[Tensor]:
        """The weights of dense layers, convolutions and the LSTM."""
        for name, place in weights.layout.items():
            if place.offset < weights.num_trained and len(place.shape) > 1:
                yield weights[name]
