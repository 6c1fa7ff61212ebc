"""Evaluation episodes, separate from training. Their one loop, ``play``, serves the Evaluator of a
training run and ``dicerl evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic, sample
from dicerl.agent.behaviour import Region
from dicerl.config import Config
from dicerl.core.family import NUMBERS
from dicerl.envs import (
    MakeEnv,
    VectorEnv,
    make_evaluation_env,
    mask_of,
    require_finite,
    require_same,
)
from dicerl.records.vocabulary import EVALUATED, GREEDY


def t95(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: a 95 % interval is that many standard errors to each
    side. The expansion in 1 / freedom (Abramowitz and Stegun 26.7.5) is right to 0.003 from 5 on.
    """
    if freedom < 5:
        return {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}[freedom]
    z = 1.959964
    return (
        z
        + (
            (z**3 + z) / 4
            + (
                (5 * z**5 + 16 * z**3 + 3 * z) / 96
                + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / freedom
            )
            / freedom
        )
        / freedom
    )


def summarise(returns: np.ndarray) -> dict[str, Any]:
    """Statistics of episode returns [N], by their names in an evaluation line. A single episode has
    no interval.
    """
    n, mean = len(returns), float(returns.mean())
    stderr = float(returns.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    reach = t95(n - 1) * stderr if n > 1 else None
    return {
        "mean_return": mean,
        "median_return": float(np.median(returns)),
        "stderr": stderr,
        "interval": None if reach is None else [mean - reach, mean + reach],
        "returns": [round(float(r), 4) for r in returns],
    }


def summary_line(result: dict[str, Any]) -> str:
    """An evaluation in words: mean, 95 % interval and worst episode, at the best region and
    greedy.
    """
    parts = []
    for prefix, name in (("", "best region"), ("greedy_", "greedy")):
        mean, interval = result[prefix + "mean_return"], result[prefix + "interval"]
        around = "" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
        parts.append(f"{name} {mean:.2f}{around}, worst {min(result[prefix + 'returns']):.2f}")
    return f"{'; '.join(parts)}; {result['episodes']} episodes each"


def by_name(config: Config, behaviour: np.ndarray) -> dict[str, list[float]]:
    """Behaviours [N, numbers] by their names in an evaluation line: {"inv_temperatures": [...]}, or
    what the family has.
    """
    return {
        EVALUATED.name(name): [round(float(x), 4) for x in behaviour[:, i]]
        for i, name in enumerate(NUMBERS[config.behaviour.family])
    }


class Step(NamedTuple):
    """One step of every environment, as ``play`` passes it to ``watch``."""

    number: int
    value: np.ndarray  # [N], V(s)
    # [N, A], the behaviour policy at s; a greedy episode takes A's best action instead of sampling
    # from it
    log_pi: np.ndarray
    action: np.ndarray  # [N]
    reward: np.ndarray  # [N], raw
    returns: np.ndarray  # [N], so far, including this reward; final once the episode has ended
    alive: np.ndarray  # [N], bool: not ended yet; what had ended before may have V and pi of 0


@torch.inference_mode()
def play(
    model: ActorCritic,
    env: VectorEnv,
    behaviour: np.ndarray,
    greedy: np.ndarray,
    rng: np.random.Generator,
    max_steps: int,
    watch: Callable[[Step], None] = lambda step: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Play the first episode of every environment, for at most ``max_steps``; return (raw returns
    [N], whether each ended [N]).

    Environment i acts with ``behaviour[i]`` [numbers], or greedily where ``greedy[i]``. ``watch``
    is called after each step. One long episode must not cost as much as all together: what has
    ended rests, where the environment can (``VectorEnv``), and whenever half have ended the network
    is asked only for the others.
    """
    n = env.num_envs
    require_same(env.spec, model.spec)
    model.network.eval()
    observation = env.reset(int(rng.integers(2**31)))
    state = model.initial_state(n)
    last_action, last_reward = np.full(n, -1, np.int64), np.zeros(n, np.float32)
    total, alive = np.zeros(n), np.ones(n, np.bool_)
    asked = np.arange(n)  # [M], the environments the network acts in
    rest: Callable[[np.ndarray], None] | None = getattr(env, "rest", None)
    for number in range(max_steps):
        require_finite(env.spec, "observed value", observation)
        mask = mask_of(env, model.spec)
        if 2 * alive.sum() <= len(asked):
            state = state[:, torch.from_numpy(alive[asked]).to(state.device)]
            asked = asked[alive[asked]]
        step = model.step(
            observation[asked],
            state,
            last_action[asked],
            last_reward[asked],
            behaviour[asked],
            None if mask is None else mask[asked],
        )
        state = step.state
        # the others' environments may go on, too: any action they allow
        action = np.zeros(n, np.int64) if mask is None else mask.argmax(-1)
        action[asked] = np.where(greedy[asked], step.greedy(), sample(step.log_pi, rng))
        observation, reward, terminated, truncated = env.step(action)
        require_finite(env.spec, "reward", reward)
        total += np.where(alive, reward, 0.0)
        alive &= ~(terminated | truncated)
        if rest is not None:
            rest(~alive)
        value, log_pi = np.zeros(n, np.float32), np.zeros((n, step.log_pi.shape[1]), np.float32)
        value[asked], log_pi[asked] = step.value(), step.log_pi
        watch(Step(number, value, log_pi, action, reward, total, alive))
        last_action, last_reward = action, reward
        if not alive.any():
            break
    return total, ~alive


class Evaluator:
    """Plays the first episode of 2N environments: N with behaviours from a region, N greedy."""

    def __init__(
        self, model: ActorCritic, make_env: MakeEnv | None = None, env_threads: int = 0
    ) -> None:
        self.config, self.model = model.config, model
        self.episodes = self.config.evaluation.episodes
        self.env: VectorEnv = make_evaluation_env(
            self.config, 2 * self.episodes, make_env, env_threads
        )

    def evaluate(
        self, region: Region, seed: np.random.SeedSequence, beat: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Play the episodes; return the values of an evaluation line. ``beat`` is called every 100
        steps: long episodes need a sign of life.
        """
        rng = np.random.default_rng(seed)
        behaviour = self.model.draw(region, rng, self.episodes)
        returns, _ = play(
            self.model,
            self.env,
            np.concatenate([behaviour, behaviour]),
            np.arange(2 * self.episodes) >= self.episodes,
            rng,
            self.config.evaluation.max_steps,
            lambda step: beat() if step.number % 100 == 0 else None,
        )
        greedy = summarise(returns[self.episodes :])
        return {
            **summarise(returns[: self.episodes]),
            "episodes": self.episodes,
            **by_name(self.config, behaviour),
            **{GREEDY.name(name): value for name, value in greedy.items()},
        }

    def close(self) -> None:
        self.env.close()
