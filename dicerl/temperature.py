"""Where an episode's temperature comes from: the bandits' vote, a fixed value, or the vote's initial distribution.

A vote is always kept and updated, even where it is never sampled, so that "best region" means the same for
every variant (SPEC 4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dicerl import seeding
from dicerl.config import Config
from dicerl.core.bandit import BanditVote, inv_temperature_from_x, x_from_inv_temperature


class Temperatures:
    def __init__(self, config: Config, num_actors: int) -> None:
        self.behaviour = config.behaviour
        bandit = config.bandit
        self._per_actor = bandit.scope == "actor"

        def vote(key: int) -> BanditVote:
            return BanditVote(
                num_bandits=bandit.num_bandits, right=math.log1p(bandit.max_inv_temperature), accuracy=bandit.accuracy,
                widths=bandit.widths, learning_rates=bandit.learning_rates, num_candidates=bandit.num_candidates,
                ucb_scale=bandit.ucb_scale, seed=seeding.stream(config.seed, "bandit", key),
            )

        self.votes = [vote(i) for i in range(num_actors if self._per_actor else 1)]
        self._initial = [vote(i) for i in range(len(self.votes))]  # never updated: the initial distribution

    def _index(self, actor: int) -> int:
        return actor if self._per_actor else 0

    def next(self, actor: int = 0) -> float:
        """1/tau of the next episode."""
        if self.behaviour.source == "fixed":
            return self.behaviour.inv_temperature
        votes = self.votes if self.behaviour.source == "bandit" else self._initial
        return float(inv_temperature_from_x(votes[self._index(actor)].sample()))

    def update(self, inv_temperature: float, episode_return: float, actor: int = 0) -> None:
        """An episode at this temperature had this raw return."""
        self.votes[self._index(actor)].update(float(x_from_inv_temperature(inv_temperature)), episode_return)

    def best_region(self) -> tuple[float, float]:
        """[low, high) in x; over all votes where each actor has its own."""
        if len(self.votes) == 1:
            return self.votes[0].best_region()
        values = np.mean([v.values() for v in self.votes], axis=0)
        visited = np.sum([v.counts() for v in self.votes], axis=0) > 0
        if not visited.any():
            return self.votes[0].best_region()
        return self.votes[0].bandits[0].edges(int(np.argmax(np.where(visited, values, -np.inf))))

    def evaluation_region(self) -> tuple[float, float]:
        """1/tau of evaluation episodes lies here: inside the best region, or the fixed value itself."""
        if self.behaviour.source == "fixed":
            return self.behaviour.inv_temperature, self.behaviour.inv_temperature
        low, high = self.best_region()
        return float(inv_temperature_from_x(low)), float(inv_temperature_from_x(high))

    def state_dict(self) -> dict[str, Any]:
        return {"votes": [v.state_dict() for v in self.votes], "initial": [v.state_dict() for v in self._initial]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for votes, saved in ((self.votes, state["votes"]), (self._initial, state["initial"])):
            # A resumed run may have another number of actors: the first votes carry on.
            for vote, value in zip(votes, saved, strict=False):
                vote.load_state_dict(value)


def draw_inv_temperature(region: tuple[float, float], rng: np.random.Generator, count: int) -> np.ndarray:
    """1/tau uniformly in x inside a region of 1/tau.    [count]"""
    low, high = x_from_inv_temperature(np.asarray(region))
    return np.asarray(inv_temperature_from_x(rng.uniform(low, high, count)), np.float32)
