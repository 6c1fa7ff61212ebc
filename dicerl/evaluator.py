"""Evaluation episodes, separate from training: tau from the bandits' best region, and greedy ones beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dicerl.actor import acting_policy, sample
from dicerl.config import Config
from dicerl.core.family import PARAMETERS
from dicerl.envs import MakeEnv, VectorEnv, make_vector_env
from dicerl.networks import Network
from dicerl.temperature import Region, draw_behaviour


def summarise(returns: np.ndarray) -> dict[str, Any]:
    return {
        "mean_return": float(returns.mean()), "median_return": float(np.median(returns)),
        "stderr": float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0,
        "returns": [round(float(r), 4) for r in returns],
    }


class Evaluator:
    """The first episode of each of 2N environments: N with tau from a region, N greedy."""

    def __init__(self, config: Config, network: Network, make_env: MakeEnv | None = None, env_threads: int = 0) -> None:
        self.config, self.network = config, network
        self.episodes = config.evaluation.episodes
        self.env: VectorEnv = make_vector_env(config, 2 * self.episodes, make_env, env_threads)

    def evaluate(
        self, region: Region, seed: np.random.SeedSequence, beat: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """``beat`` is called now and then: long episodes are a sign of life."""
        rng = np.random.default_rng(seed)
        behaviour = draw_behaviour(self.config, region, rng, self.episodes)
        if self.network.log_inv_temperature is not None:
            behaviour[:] = self.network.log_inv_temperature.exp().item()
        returns = self._play(np.concatenate([behaviour, behaviour]), rng, beat)
        greedy = summarise(returns[self.episodes:])
        return {
            **summarise(returns[: self.episodes]), "episodes": self.episodes,
            **{f"{name}s": [round(float(x), 4) for x in behaviour[:, i]] for i, name in enumerate(PARAMETERS[self.config.behaviour.family])},
            **{f"greedy_{k}": v for k, v in greedy.items()},
        }

    @torch.inference_mode()
    def _play(self, behaviour: np.ndarray, rng: np.random.Generator, beat: Callable[[], None]) -> np.ndarray:
        """Raw return of one episode of every environment; the second half acts greedily.    [2N, parameters] -> [2N]"""
        n = self.env.num_envs
        greedy = np.arange(n) >= self.episodes
        network = self.network.eval()
        observation = self.env.reset(int(rng.integers(2**31)))
        state = network.initial_state(n)
        last_action, last_reward = np.full(n, -1, np.int64), np.zeros(n, np.float32)
        total, alive = np.zeros(n), np.ones(n, np.bool_)
        for step in range(self.config.evaluation.max_steps):
            if step % 100 == 0:
                beat()
            log_pi, out, _ = acting_policy(self.config, network, observation, state, last_action, last_reward, behaviour)
            state = out.state
            action = np.where(greedy, out.advantage[0].argmax(-1).cpu().numpy(), sample(log_pi, rng))
            observation, reward, terminated, truncated = self.env.step(action)
            total += np.where(alive, reward, 0.0)
            alive &= ~(terminated | truncated)
            last_action, last_reward = action, reward
            if not alive.any():
                break
        return total

    def close(self) -> None:
        self.env.close()
