"""The Learner: fetch the weights, compute a batch's gradient, apply it, publish.

objective.py defines the loss, optimizer.py applies its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic, PolicyWindow
from dicerl.agent.networks import Network
from dicerl.agent.weights import Weights, view
from dicerl.core.losses import Losses
from dicerl.parts.diagnostics import Lag, diagnose, policy_lag
from dicerl.parts.objective import Objective, Scaling, Targets, draw_scaling, objective
from dicerl.parts.optimizer import Optimizer
from dicerl.parts.replicas import Replicas
from dicerl.parts.sequence import Arrays, episode_starts, schema, window_length
from dicerl.parts.spikes import Spikes
from dicerl.parts.staging import Fetching, Outcome, Staging


class Learner:
    """Trains the model's weights, a batch at a time.

    ``threads`` split the sequences of a batch. On a CPU that uses cores better than threads inside
    each operation, most of which are too small to split (docs/architecture.md).

    Learners in several processes may train one set of ``weights``, each on its own batches. Each
    starts an update from the current weights; while it computes, the others apply theirs, so its
    gradient is late by about as many updates as there are other learners. ``publish`` is called
    with the network's vector and its version every ``runtime.push_every`` updates.

    Or they train each batch together, as ``replicas`` (parts/replicas.py): all get its number and
    their shares of it at the same update. Their gradients are added up before the step, which the
    first one takes; only that publishes and reports, of its own share but for the losses.

    An update whose loss or gradient is not finite changes nothing but the counts; ``skipped`` is
    called with it, on a GPU one update later.

    On a GPU, ``update`` only tells the device what to do (parts/staging.py): weights are published
    by the next call, or by ``settle``. There is no TF32 there: actors stay on the CPU, and float32
    must mean the same to both.
    """

    def __init__(
        self,
        model: ActorCritic,
        total: int,
        device: torch.device | str = "cpu",
        threads: int = 1,
        weights: Weights | None = None,
        publish: Callable[[Tensor, int], None] | None = None,
        replicas: Replicas | None = None,
        skipped: Callable[[Outcome], None] = lambda outcome: None,
        in_parts: bool = False,
    ) -> None:
        """``total`` is the number of updates of the whole run, for the schedules. ``in_parts``: as
        in ``Network.allow_gradient_in_parts``.
        """
        self.replicas = replicas
        self.config = model.config
        self.device = torch.device(device)
        self.model = model.to(self.device)
        if in_parts:
            self.network.allow_gradient_in_parts()
        self.optimizer = Optimizer(self.config, total)
        self.weights = (weights or Weights(model.flat)).on(self.device)
        self._publish, self._skipped = publish, skipped
        self._fetched = -1  # version of the network's own weights
        self.fetch()
        self.threads = min(threads, self.config.sequence.batch)
        self._pool: ThreadPoolExecutor | None = None
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(
                self.threads, initializer=torch.set_num_threads, initargs=(1,)
            )
        fields = schema(self.config, model.spec)
        self._staging = Staging(
            fields, window_length(self.config), self.config.sequence.batch, self.device
        )
        self._fetching = None
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False
            self._fetching = Fetching(self.weights.vector.numel())
        self._per_step = {name for name, field in fields.items() if field.per_step}
        self._trained = list(self.network.parameters())
        # The gradient, and behind it what else learners add up: A's deviation, then the losses.
        self._sums = torch.zeros(
            self.weights.num_trained + 1 + len(Losses._fields), device=self.device
        )
        self.gradient = self._sums[: self.weights.num_trained]
        self._gradients = [
            view(self.gradient, self.weights.layout, name)
            for name, _ in self.network.named_parameters()
        ]  # of each parameter, inside the vector
        self.lags: list[Lag] = []  # of every batch since the last diagnostics
        self.spikes = Spikes()

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def updates(self) -> int:
        return self.weights.updates

    def update(
        self,
        batch: Arrays,
        diagnose: bool = False,
        number: int | None = None,
        columns: list[int] | None = None,
    ) -> dict[str, float] | None:
        """Take one step of AdamW on a batch [L, B, ...]; return its diagnostics if ``diagnose``.

        ``number`` is the batch's number in the run, which distinguishes batches that several
        learners train at the same time; by default it is the number of updates. A replica's
        ``batch`` is its share: these ``columns`` of the whole.
        """
        self.settle()
        trained = batch["valid"][self.config.sequence.burn_in : -1]
        own = int(np.count_nonzero(trained))
        steps = self._measure(batch, own)
        self.fetch()
        scaling = draw_scaling(self.config, self.updates if number is None else number, self.device)
        fresh = self.config.sequence.batch - self.config.replayed  # columns before replayed ones
        if columns is not None:
            scaling = _columns_of(scaling, columns)
            fresh = sum(column < fresh for column in columns)
        if trained[:, :fresh].any():
            version = batch["version"][self.config.sequence.burn_in : -1, :fresh]
            self.lags.append(policy_lag(version[trained[:, :fresh]], self.updates))
        found = self._compute_gradient(batch, scaling)
        spread = self.model.spread_of(
            found.window.advantage.detach()[:-1],
            found.valid,
            None if found.window.mask is None else found.window.mask[:-1],
        )
        if self.replicas is not None:
            found, spread = self._add_up(self.replicas, found, spread, own / max(1, steps))
        norm, loss = self.optimizer.clip(self.gradient), found.losses.total.detach()
        both = loss + norm
        # not finite (torch's own test takes twice as long): the device skips it, the host is told
        bad = (both - both) != 0.0
        with self.weights.lock:
            update = self.weights.updates
            rates = self.optimizer.step(self.weights, self.gradient, bad)
            self.model.follow(self.weights, spread, bad)
            if self.replicas is not None:
                self.replicas.follow(self.weights.vector)
            self.weights.updates = update + 1
            self.weights.steps_trained += steps
            if self.weights.updates % self.config.runtime.push_every == 0:
                self._begin_publishing()
        self._staging.trained(update, batch, loss, norm)
        self._judge()
        if not diagnose:
            return None
        return self._diagnose(batch, found, scaling, norm) | rates._asdict()

    def _judge(self) -> None:
        """Look at what came of an update: report one that was skipped, find spikes."""
        outcome = self._staging.outcome()
        if outcome is not None:
            self.spikes.add(outcome.norm)
            if not math.isfinite(outcome.loss + outcome.norm):
                self._skipped(outcome)

    def _diagnose(
        self, batch: Arrays, found: Objective, scaling: Scaling, norm: Tensor
    ) -> dict[str, float]:
        numbers = diagnose(
            self.model, self.weights, batch, found, scaling, self.gradient, norm, self.lags
        )
        self.lags = []
        return numbers | self.spikes.take()

    def _measure(self, batch: Arrays, own: int) -> int:
        """Let the size of returns follow a batch, before it is trained in units of that. ``own``
        are the valid steps here; return those of the whole batch.
        """
        squares, returns = self.model.window_returns(batch)
        steps = own
        if self.replicas is not None:
            total, squares, returns = self.replicas.total(own, squares, returns)
            steps = int(total)
        if returns:
            with self.weights.lock:
                self.model.follow_returns(self.weights, squares, returns)
            self._fetched = -1
        return steps

    @torch.no_grad()
    def _add_up(
        self, replicas: Replicas, found: Objective, spread: Tensor, weight: float
    ) -> tuple[Objective, Tensor]:
        """Make gradient, A's deviation and losses those of the whole batch, at the first learner.
        Every one is a mean over valid steps: this share's ``weight`` is its part of those.
        """
        rest = self._sums[self.weights.num_trained :]
        rest.copy_(torch.stack([spread, *found.losses]))
        self._sums.mul_(weight)
        replicas.add_up(self._sums)
        return found._replace(losses=Losses(*rest[1:])), rest[0]

    @torch.no_grad()
    def fetch(self) -> None:
        """Copy the current weights into the network, unless they are the network's own."""
        vector = self.model.flat.vector
        if self.weights.vector is not vector and self._fetched != self.updates:
            with self.weights.lock:
                vector.copy_(self.weights.vector)
                self._fetched = self.updates

    def buffers(self, count: int | None = None) -> Arrays | None:
        """The arrays that the next batch, or a share of ``count`` sequences, is best read into;
        None: anywhere.
        """
        return self._staging.buffers(count)

    def publish(self) -> None:
        """Publish the current weights. Call it with the weights' lock held, or while no other
        learner trains.
        """
        self._begin_publishing()
        self.settle()

    def _begin_publishing(self) -> None:
        if self._publish is None:
            return
        if self._fetching is None:
            self._publish(self.weights.vector.detach().cpu(), self.updates)
        else:
            self._fetching.begin(self.weights.vector, self.updates)

    def settle(self) -> None:
        """Publish weights that are on their way from a GPU."""
        fetched = None if self._fetching is None else self._fetching.end()
        if fetched is not None and self._publish is not None:
            self._publish(*fetched)

    @torch.enable_grad()  # whatever an environment in the same process has set
    def _compute_gradient(self, read: Arrays, scaling: Scaling) -> Objective:
        """Compute the gradient of a batch's loss into ``gradient``. Every loss is a mean over valid
        steps, so the batch's is the mean of its shards' losses, weighted by their number of valid
        steps.
        """
        data = self._staging.send(read)
        # on a CPU each thread looks in its own sequences
        starts = None if self.device.type == "cpu" else episode_starts(read["valid"])
        if self._pool is None:
            found = objective(self.model, data, scaling, starts)
            torch._foreach_copy_(self._gradients, self._gradient_of(found.losses.total))
            return found
        batch = data["valid"].shape[1]
        valid = data["valid"][self.config.sequence.burn_in : -1]
        total = valid.sum().clamp_min(1)

        def work(columns: slice) -> tuple[Objective, tuple[Tensor, ...]]:
            share = {
                name: x[:, columns] if name in self._per_step else x[columns]
                for name, x in data.items()
            }
            found = objective(self.model, share, _columns_of(scaling, columns))
            weight = valid[:, columns].sum() / total
            weighted = Losses(*(weight * term for term in found.losses))
            return found._replace(losses=weighted), self._gradient_of(weighted.total)

        borders = [batch * i // self.threads for i in range(self.threads + 1)]
        columns = (slice(a, b) for a, b in pairwise(borders))
        shards, gradients = zip(*self._pool.map(work, columns), strict=True)
        torch._foreach_copy_(self._gradients, gradients[0])
        for each in gradients[1:]:
            torch._foreach_add_(self._gradients, each)
        return _joined(shards)

    def _gradient_of(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, self._trained, materialize_grads=True)


def _columns_of(scaling: Scaling, columns: slice | list[int]) -> Scaling:
    return Scaling(*(x if isinstance(x, float) else x[columns] for x in scaling))


def _joined(shards: tuple[Objective, ...]) -> Objective:
    """Join the shards of a batch side by side; their losses are weighted already."""

    def side_by_side(tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([x.detach() for x in tensors], 1)  # [T, B, ...]

    terms = zip(*(shard.losses for shard in shards), strict=True)
    windows = [shard.window for shard in shards]
    value, advantage, features, hidden = (
        side_by_side(field) for field in zip(*(window[:4] for window in windows), strict=True)
    )
    inv, weight = zip(*(window.policy for window in windows), strict=True)
    policy = side_by_side(inv), None if weight[0] is None else side_by_side(weight)
    masks = [window.mask for window in windows if window.mask is not None]
    targets = zip(*(shard.targets for shard in shards), strict=True)
    rest = zip(*(shard[3:] for shard in shards), strict=True)
    return Objective(
        Losses(*(sum(each[1:], each[0]) for each in terms)),
        PolicyWindow(
            value,
            advantage,
            features,
            hidden,
            policy,
            side_by_side(tuple(masks)) if masks else None,
        ),
        Targets(*map(side_by_side, targets)),
        *map(side_by_side, rest),
    )
