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
from dicerl.errors import DicerlError
from dicerl.parts.diagnostics import Lag, diagnose, policy_lag
from dicerl.parts.objective import Objective, Scaling, Targets, draw_scaling, objective
from dicerl.parts.optimizer import Optimizer
from dicerl.parts.sequence import Arrays, episode_starts, schema, window_length
from dicerl.parts.staging import Fetching, Staging


class Learner:
    """Trains the model's weights, a batch at a time.

    ``threads`` split the sequences of a batch. On a CPU that uses cores better than threads inside
    each operation, most of which are too small to split (docs/architecture.md).

    Learners in several processes may train one set of ``weights``, each on its own batches. Each
    starts an update from the current weights; while it computes, the others apply theirs, so its
    gradient is late by about as many updates as there are other learners. ``publish`` is called
    with the network's vector and its version every ``runtime.push_every`` updates.

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
    ) -> None:
        """``total`` is the number of updates of the whole run, for the schedules."""
        self.config = model.config
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.optimizer = Optimizer(self.config, total)
        self.weights = (weights or Weights(model.flat)).on(self.device)
        self._publish = publish
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
        self.gradient = torch.zeros(self.weights.num_trained, device=self.device)
        self._gradients = [
            view(self.gradient, self.weights.layout, name)
            for name, _ in self.network.named_parameters()
        ]  # of each parameter, inside the vector
        self.lags: list[Lag] = []  # of every batch since the last diagnostics

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def updates(self) -> int:
        return self.weights.updates

    def update(
        self, batch: Arrays, diagnose: bool = False, number: int | None = None
    ) -> dict[str, float] | None:
        """Take one step of AdamW on a batch [L, B, ...]; return its diagnostics if ``diagnose``.

        ``number`` is the batch's number in the run, which distinguishes batches that several
        learners train at the same time; by default it is the number of updates.
        """
        self.settle()
        self._measure(batch)
        self.fetch()
        scaling = draw_scaling(self.config, self.updates if number is None else number, self.device)
        trained = batch["valid"][self.config.sequence.burn_in : -1]
        steps = int(np.count_nonzero(trained))
        new = slice(self.config.sequence.batch - self.config.replayed)  # columns: before replayed
        if trained[:, new].any():
            version = batch["version"][self.config.sequence.burn_in : -1, new][trained[:, new]]
            self.lags.append(policy_lag(version, self.updates))
        data = self._staging.send(batch)
        # on a CPU each thread looks in its own sequences
        starts = None if self.device.type == "cpu" else episode_starts(batch["valid"])
        found = self._compute_gradient(data, scaling, starts)
        norm = self.optimizer.clip(self.gradient)
        with self.weights.lock:
            update = self.weights.updates
            rates = self.optimizer.step(self.weights, self.gradient)
            advantage = found.window.advantage.detach()[:-1]
            self.model.follow(self.weights, advantage, found.valid)
            self.weights.updates = update + 1
            self.weights.steps_trained += steps
            if self.weights.updates % self.config.runtime.push_every == 0:
                self._begin_publishing()
        self._staging.trained()
        if not diagnose:
            return None
        return self._diagnose(batch, found, scaling, norm, update) | rates._asdict()

    def _diagnose(
        self, batch: Arrays, found: Objective, scaling: Scaling, norm: Tensor, update: int
    ) -> dict[str, float]:
        numbers = diagnose(
            self.model, self.weights, batch, found, scaling, self.gradient, norm, self.lags
        )
        self.lags = []
        if not math.isfinite(numbers["loss"]):
            raise DicerlError(
                f"the loss became {numbers['loss']} at update {update}; try a smaller"
                " optimizer.learning_rate"
            )
        return numbers

    def _measure(self, batch: Arrays) -> None:
        """Let the size of returns follow a batch, before it is trained in units of that."""
        returns = self.model.window_returns(batch)
        if returns is not None:
            with self.weights.lock:
                self.model.follow_returns(self.weights, returns)
            self._fetched = -1

    @torch.no_grad()
    def fetch(self) -> None:
        """Copy the current weights into the network, unless they are the network's own."""
        vector = self.model.flat.vector
        if self.weights.vector is not vector and self._fetched != self.updates:
            with self.weights.lock:
                vector.copy_(self.weights.vector)
                self._fetched = self.updates

    def buffers(self) -> Arrays | None:
        """The arrays that the next batch is best read into; None: anywhere."""
        return self._staging.buffers()

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

    def _compute_gradient(
        self, data: dict[str, Tensor], scaling: Scaling, starts: frozenset[int] | None
    ) -> Objective:
        """Compute the gradient of the batch's loss into ``gradient``. Every loss is a mean over
        valid steps, so the batch's is the mean of its shards' losses, weighted by their number of
        valid steps.
        """
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


def _columns_of(scaling: Scaling, columns: slice) -> Scaling:
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
    targets = zip(*(shard.targets for shard in shards), strict=True)
    rest = zip(*(shard[3:] for shard in shards), strict=True)
    return Objective(
        Losses(*(sum(each[1:], each[0]) for each in terms)),
        PolicyWindow(value, advantage, features, hidden, policy),
        Targets(*map(side_by_side, targets)),
        *map(side_by_side, rest),
    )
