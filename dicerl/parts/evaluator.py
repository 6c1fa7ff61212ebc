"""Evaluation episodes, separate from training. ``play`` is the one loop: the Evaluator of a
training run and ``dicerl evaluate`` use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dicerl.agent.behaviour import Region, draw_behaviour
from dicerl.agent.networks import Network
from dicerl.config import Config
from dicerl.core.family import PARAMETERS
from dicerl.envs import MakeEnv, VectorEnv, make_vector_env, require_finite
from dicerl.parts.actor import acting_policy, sample


def summarise(returns: np.ndarray) -> dict[str, Any]:
    return {
        "mean_return": float(returns.mean()),
        "median_return": float(np.median(returns)),
        "stderr": float(returns.std(ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else 0.0,
        "returns": [round(float(r), 4) for r in returns],
    }


def parameters(config: Config, behaviour: np.ndarray) -> dict[str, list[float]]:
    """{"inv_temperatures": [...]}, or what the family has.    [N, parameters]"""
    return {
        f"{name}s": [round(float(x), 4) for x in behaviour[:, i]]
        for i, name in enumerate(PARAMETERS[config.behaviour.family])
    }


class Step(NamedTuple):
    """One step of every environment, for whoever watches."""

    number: int
    value: np.ndarray  # [N], V(s)
    # [N, A], the behaviour policy at s; a greedy episode takes A's best action instead of drawing
    # from it
    log_pi: np.ndarray
    action: np.ndarray  # [N]
    reward: np.ndarray  # [N], raw
    returns: np.ndarray  # [N], so far, this reward included; of an episode that ended: its return
    alive: np.ndarray  # [N], bool: not ended yet


@torch.inference_mode()
def play(
    config: Config,
    network: Network,
    env: VectorEnv,
    behaviour: np.ndarray,
    greedy: np.ndarray,
    rng: np.random.Generator,
    watch: Callable[[Step], None] = lambda step: None,
) -> tuple[np.ndarray, np.ndarray]:
    """The first episode of every environment: (raw returns, which ended before
    ``evaluation.max_steps``).
    [N], [N]

    Environment i acts with ``behaviour[i]`` [parameters], or greedily where ``greedy[i]``.
    ``watch`` is called after each step.
    """
    n = env.num_envs
    network.eval()
    observation = env.reset(int(rng.integers(2**31)))
    state = network.initial_state(n)
    last_action, last_reward = np.full(n, -1, np.int64), np.zeros(n, np.float32)
    total, alive = np.zeros(n), np.ones(n, np.bool_)
    for number in range(config.evaluation.max_steps):
        require_finite(env.spec, "observed value", observation)
        log_pi, out, _ = acting_policy(
            config, network, observation, state, last_action, last_reward, behaviour
        )
        state = out.state
        action = np.where(greedy, out.advantage[0].argmax(-1).cpu().numpy(), sample(log_pi, rng))
        observation, reward, terminated, truncated = env.step(action)
        require_finite(env.spec, "reward", reward)
        total += np.where(alive, reward, 0.0)
        alive &= ~(terminated | truncated)
        watch(Step(number, out.value[0].cpu().numpy(), log_pi, action, reward, total, alive))
        last_action, last_reward = action, reward
        if not alive.any():
            break
    return total, ~alive


class Evaluator:
    """The first episode of each of 2N environments: N with tau from a region, N greedy."""

    def __init__(
        self,
        config: Config,
        network: Network,
        make_env: MakeEnv | None = None,
        env_threads: int = 0,
    ) -> None:
        self.config, self.network = config, network
        self.episodes = config.evaluation.episodes
        self.env: VectorEnv = make_vector_env(config, 2 * self.episodes, make_env, env_threads)

    def evaluate(
        self, region: Region, seed: np.random.SeedSequence, beat: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """``beat`` is called now and then: long episodes are a sign of life."""
        rng = np.random.default_rng(seed)
        behaviour = self.network.own_inv_temperature(
            draw_behaviour(self.config, region, rng, self.episodes)
        )
        returns, _ = play(
            self.config,
            self.network,
            self.env,
            np.concatenate([behaviour, behaviour]),
            np.arange(2 * self.episodes) >= self.episodes,
            rng,
            lambda step: beat() if step.number % 100 == 0 else None,
        )
        greedy = summarise(returns[self.episodes :])
        return {
            **summarise(returns[: self.episodes]),
            "episodes": self.episodes,
            **parameters(self.config, behaviour),
            **{f"greedy_{k}": v for k, v in greedy.items()},
        }

    def close(self) -> None:
        self.env.close()
