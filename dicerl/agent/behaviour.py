"""Behaviours: what an episode draws. That is 1/tau, or the numbers of another family of
core/family.py (eps, or two temperatures and a weight).

A behaviour comes from the bandits' vote, a fixed value, or the vote's initial distribution. A vote
is always kept and updated, even if it is never sampled, so that "best region" means the same for
every variant (docs/paper.md 2.4).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dicerl.config import Config, seeding
from dicerl.core import family
from dicerl.core.bandit import BanditVote, JointVote

Region = list[tuple[float, float]]  # [low, high) in x of each number of the family


class Behaviour(NamedTuple):
    """What one episode draws. The vote is taught x as it was drawn: the value passes through
    float32, and an x computed from that could fall into the neighbouring tile.
    """

    x: tuple[float, ...]  # where the bandits search
    values: tuple[float, ...]  # what the policy takes: 1/tau, or the numbers of its family


class Behaviours:
    """Behaviours for the episodes of a run, and the vote that learns from their returns."""

    def __init__(self, config: Config, num_actors: int) -> None:
        self.config = config.behaviour
        self.names = family.NUMBERS[config.behaviour.family]
        bandit = config.bandit
        self._per_actor = bandit.scope == "actor"

        def vote(key: int, dimension: int) -> BanditVote:
            right = family.largest_x(self.names[dimension], bandit.max_inv_temperature)
            return BanditVote(
                num_bandits=bandit.num_bandits,
                right=right,
                # the same number of tiles for each number of the family
                accuracy=bandit.accuracy * right / math.log1p(bandit.max_inv_temperature),
                widths=bandit.widths,
                learning_rates=bandit.learning_rates,
                num_candidates=bandit.num_candidates,
                ucb_scale=bandit.ucb_scale,
                memory=bandit.memory,
                min_visits=bandit.min_visits,
                record=bandit.record,
                seed=seeding.stream(
                    config.seed, "bandit", key, *([dimension] if dimension else [])
                ),
            )

        def joint(key: int) -> JointVote:
            return JointVote([vote(key, dimension) for dimension in range(len(self.names))])

        self.votes = [joint(i) for i in range(num_actors if self._per_actor else 1)]
        self._fixed = self.fixed()
        # never updated: the initial distribution
        self._initial = [joint(i) for i in range(len(self.votes))]

    def _index(self, actor: int) -> int:
        return actor % len(self.votes) if self._per_actor else 0  # actors may join in mid-run

    def fixed(self) -> Behaviour | None:
        """The behaviour of every episode if they all have the same, else None. (The network
        replaces a trainable temperature by its own.)
        """
        if self.config.source in ("bandit", "distribution"):
            return None
        if self.config.family == "mixture":
            return self._of_values(self.config.mixture)
        if self.config.family == "epsilon":
            return self._of_values((self.config.epsilon,))
        return self._of_values((self.config.inv_temperature,))

    def _of_values(self, values: tuple[float, ...]) -> Behaviour:
        pairs = zip(self.names, values, strict=True)
        return Behaviour(tuple(float(family.to_x(name, value)) for name, value in pairs), values)

    def next(self, actor: int = 0) -> Behaviour:
        """Draw the behaviour of this actor's next episode."""
        if self._fixed is not None:
            return self._fixed
        votes = self.votes if self.config.source == "bandit" else self._initial
        x = family.ordered(self.config.family, votes[self._index(actor)].sample())
        pairs = zip(self.names, x, strict=True)
        return Behaviour(
            tuple(x), tuple(float(family.from_x(name, value)) for name, value in pairs)
        )

    def update(self, behaviour: Behaviour, episode_return: float, actor: int = 0) -> None:
        """Teach the vote the raw return of an episode with this behaviour."""
        if self.config.source == "trainable":  # not drawn: the network's own tau, as it acted
            behaviour = self._of_values(behaviour.values)
        self.votes[self._index(actor)].update(behaviour.x, episode_return)

    def best_region(self) -> Region:
        """The best region, [low, high) in x of each number; over all votes if actors have their
        own.
        """
        if len(self.votes) == 1:
            return self.votes[0].best_region()
        return [_best_of([joint.votes[i] for joint in self.votes]) for i in range(len(self.names))]

    def evaluation_region(self) -> Region:
        """The region that evaluation episodes draw from: the best one, or the fixed value alone."""
        if self._fixed is None:
            return self.best_region()
        return [(x, x) for x in self._fixed.x]

    def favoured(self) -> dict[str, tuple[float, float]]:
        """The best region in each number's own units: {"inv_temperature": (low, high)}."""
        favoured = {}
        for name, region in zip(self.names, self.best_region(), strict=True):
            one, other = (float(family.from_x(name, x)) for x in region)
            favoured[name] = min(one, other), max(one, other)  # eps falls where x rises
        return favoured

    def at_end(self) -> list[str]:
        """The numbers whose best region is the last tile where the policy is greediest: better ones
        may lie beyond the range that is searched.
        """
        tables = self.votes[0].votes
        pairs = zip(self.names, tables, self.best_region(), strict=True)
        return [
            name for name, vote, (low, high) in pairs if high >= vote.bandits[0].right and low > 0
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state of all votes, as a JSON value."""
        return {
            "votes": [v.state_dict() for v in self.votes],
            "initial": [v.state_dict() for v in self._initial],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for votes, saved in ((self.votes, state["votes"]), (self._initial, state["initial"])):
            # A resumed run may have another number of actors: the first votes carry on.
            for vote, value in zip(votes, saved, strict=False):
                vote.load_state_dict(value)


def _best_of(votes: list[BanditVote]) -> tuple[float, float]:
    """The best tile on average over votes, among those that all votes together visited often
    enough.
    """
    counts = np.sum([v.counts() for v in votes], axis=0)
    if not counts.any():
        return votes[0].best_region()
    known = counts >= min(votes[0].min_visits, counts.max())
    merits = np.mean([v.merits() for v in votes if v.counts().any()], axis=0)
    return votes[0].bandits[0].edges(int(np.argmax(np.where(known, merits, -np.inf))))


def draw_behaviour(
    config: Config, region: Region, rng: np.random.Generator, count: int
) -> np.ndarray:
    """Draw the values of ``count`` episodes' behaviours, uniformly in x inside ``region``.
    [count, numbers of the family]
    """
    name = config.behaviour.family
    x = np.stack([rng.uniform(low, high, count) for low, high in region], 1)
    if name == "mixture":
        x[:, :2].sort(axis=1)
    values = [family.from_x(number, x[:, i]) for i, number in enumerate(family.NUMBERS[name])]
    return np.stack(values, 1).astype(np.float32)
