"""Where an episode's temperature comes from: the bandits' vote, a fixed value, or the vote's
initial distribution.

The same for the other families of core/family.py, whose episodes draw eps, or two temperatures and
a weight. A vote is always kept and updated, even where it is never sampled, so that "best region"
means the same for every variant (SPEC 4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dicerl.config import Config, seeding
from dicerl.core import family
from dicerl.core.bandit import BanditVote, JointVote

Region = list[tuple[float, float]]  # [low, high) in x of each parameter of the family


class Temperatures:
    def __init__(self, config: Config, num_actors: int) -> None:
        self.behaviour = config.behaviour
        self.parameters = family.PARAMETERS[config.behaviour.family]
        bandit = config.bandit
        self._per_actor = bandit.scope == "actor"

        def vote(key: int, dimension: int) -> BanditVote:
            right = family.largest_x(self.parameters[dimension], bandit.max_inv_temperature)
            return BanditVote(
                num_bandits=bandit.num_bandits,
                right=right,
                # as many tiles for each parameter
                accuracy=bandit.accuracy * right / math.log1p(bandit.max_inv_temperature),
                widths=bandit.widths,
                learning_rates=bandit.learning_rates,
                num_candidates=bandit.num_candidates,
                ucb_scale=bandit.ucb_scale,
                seed=seeding.stream(
                    config.seed, "bandit", key, *([dimension] if dimension else [])
                ),
            )

        def joint(key: int) -> JointVote:
            return JointVote([vote(key, dimension) for dimension in range(len(self.parameters))])

        self.votes = [joint(i) for i in range(num_actors if self._per_actor else 1)]
        # never updated: the initial distribution
        self._initial = [joint(i) for i in range(len(self.votes))]

    def _index(self, actor: int) -> int:
        return actor if self._per_actor else 0

    def fixed(self) -> tuple[float, ...] | None:
        """The one behaviour of every episode, where there is only one (a trainable temperature is
        the network's own).
        """
        if self.behaviour.source in ("bandit", "distribution"):
            return None
        if self.behaviour.family == "mixture":
            return self.behaviour.mixture
        return (
            (
                self.behaviour.epsilon
                if self.behaviour.family == "epsilon"
                else self.behaviour.inv_temperature
            ),
        )

    def next(self, actor: int = 0) -> tuple[float, ...]:
        """1/tau of the next episode, or what its family has."""
        fixed = self.fixed()
        if fixed is not None:
            return fixed
        votes = self.votes if self.behaviour.source == "bandit" else self._initial
        x = family.ordered(self.behaviour.family, votes[self._index(actor)].sample())
        return tuple(
            float(family.from_x(name, value))
            for name, value in zip(self.parameters, x, strict=True)
        )

    def update(self, behaviour: tuple[float, ...], episode_return: float, actor: int = 0) -> None:
        """An episode with this behaviour had this raw return."""
        x = [
            float(family.to_x(name, value))
            for name, value in zip(self.parameters, behaviour, strict=True)
        ]
        self.votes[self._index(actor)].update(x, episode_return)

    def best_region(self) -> Region:
        """[low, high) in x of each parameter; over all votes where each actor has its own."""
        if len(self.votes) == 1:
            return self.votes[0].best_region()
        return [
            _best_of([joint.votes[i] for joint in self.votes]) for i in range(len(self.parameters))
        ]

    def evaluation_region(self) -> Region:
        """Evaluation episodes draw from here: inside the best region, or the fixed value itself."""
        fixed = self.fixed()
        if fixed is None:
            return self.best_region()
        x = [
            float(family.to_x(name, value))
            for name, value in zip(self.parameters, fixed, strict=True)
        ]
        return [(value, value) for value in x]

    def favoured(self) -> dict[str, tuple[float, float]]:
        """The best region in each parameter's own units: {"inv_temperature": (low, high)}."""
        return {
            name: tuple(sorted(float(family.from_x(name, x)) for x in region))  # type: ignore[misc]
            for name, region in zip(self.parameters, self.best_region(), strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
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
    """The best-valued tile, averaged over votes, among those that any of them visited."""
    visited = np.sum([v.counts() for v in votes], axis=0) > 0
    if not visited.any():
        return votes[0].best_region()
    values = np.mean([v.values() for v in votes], axis=0)
    return votes[0].bandits[0].edges(int(np.argmax(np.where(visited, values, -np.inf))))


def draw_behaviour(
    config: Config, region: Region, rng: np.random.Generator, count: int
) -> np.ndarray:
    """The behaviour of ``count`` episodes, uniformly in x inside a region.
    [count, parameters]
    """
    name = config.behaviour.family
    x = np.stack([rng.uniform(low, high, count) for low, high in region], 1)
    if name == "mixture":
        x[:, :2].sort(axis=1)
    return np.stack(
        [family.from_x(p, x[:, i]) for i, p in enumerate(family.PARAMETERS[name])], 1
    ).astype(np.float32)
