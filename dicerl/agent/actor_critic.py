"""V, A and the policy they make: joins the network, the family of behaviours, A's unit and a
trainable tau.

Acting calls ``step``, training calls ``window``. Only this file decides what the network gets
besides the observation (the last action and reward, 1/tau) and which policy A stands for. So log
mu of acting and log pi of training are the same number for the same weights.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dicerl.agent.behaviour import Region, draw_behaviour
from dicerl.agent.frames import stacks
from dicerl.agent.networks import Network, Output
from dicerl.agent.weights import Flat, Weights
from dicerl.config import Config
from dicerl.core import family, losses, policy
from dicerl.core.reward import shape_reward, window_returns
from dicerl.envs.base import EnvSpec

SCALE_RATE = 0.01  # per update, of A's running deviation over actions
SCALE_FLOOR = 1e-6
SMALLEST, LARGEST = 1e-36, 1e36  # mean square of returns that float32 can hold
SIZE_RATE = 0.01  # at least, per update with a reward, of the running size of returns
HEADS = "value_head", "advantage_head"
# what is measured in the size of returns
IN_UNITS = *(f"{head}.{part}" for head in HEADS for part in ("weight", "bias")), "advantage_scale"


class PolicyStep(NamedTuple):
    """The model's result for one step of N environments."""

    log_pi: np.ndarray  # [N, A] of the behaviour policy
    scale: float  # the unit in which A was measured
    output: Output  # of the network, [1, N, ...]
    mask: Tensor | None = None  # [N, A] where actions are allowed; None: everywhere

    @property
    def state(self) -> Tensor:
        """The recurrent state after this step.    [2, N, H]"""
        return self.output.state

    def value(self) -> np.ndarray:
        """V(s).    [N]"""
        value: np.ndarray = self.output.value[0].cpu().numpy()
        return value

    def greedy(self) -> np.ndarray:
        """The allowed actions with the largest A.    [N]"""
        advantage = policy.masked(self.output.advantage[0], self.mask)
        action: np.ndarray = advantage.argmax(-1).cpu().numpy()
        return action


class PolicyWindow(NamedTuple):
    """The T + 1 steps after burn-in of B sequences, and the target policy.

    The target policy has the family and the numbers that acted; a trainable tau has its current
    value.
    """

    value: Tensor  # [T + 1, B]
    advantage: Tensor  # [T + 1, B, A]
    features: Tensor  # [T + 1, B, F] of the torso
    hidden: Tensor  # [T + 1, B, H] what the heads see
    # (1/tau [T + 1, B], None), or of a family with K components (1/tau_k, w_k), [T + 1, B, K] each
    policy: tuple[Tensor, Tensor | None]
    mask: Tensor | None  # [T + 1, B, A] where actions are allowed; None: everywhere


class ActorCritic:
    """The model that acts and is trained: ``network`` is a plain module, ``flat`` the same network
    as one vector.
    """

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec
        self.network = Network(config, spec)
        self.flat = Flat(self.network)
        self._numbers = family.NUMBERS[config.behaviour.family]
        self._normalised = config.behaviour.scale == "normalised"

    def to(self, device: torch.device | str) -> ActorCritic:
        """Move the tensors to ``device``; return self."""
        target = torch.device(device)  # "cuda" means any index
        if target.type != self.device.type or target.index not in (None, self.device.index):
            self.network.to(device)
            self.flat = Flat(self.network)
        return self

    @property
    def device(self) -> torch.device:
        return self.flat.vector.device

    def initial_state(self, count: int) -> Tensor:
        """The recurrent state at the start of ``count`` episodes.    [2, count, H]"""
        return self.network.initial_state(count)

    def draw(self, region: Region, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw behaviours for ``count`` evaluation episodes: uniformly in x inside ``region``, or
        the trainable tau.    [count, numbers of the family]
        """
        return self.present(draw_behaviour(self.config, region, rng, count))

    def present(self, behaviour: np.ndarray) -> np.ndarray:
        """What acts in the place of ``behaviour``: a trainable 1/tau at its present value, else
        ``behaviour`` itself.
        """
        log_inv_temperature = self.network.log_inv_temperature
        if log_inv_temperature is None:
            return behaviour
        return np.full_like(behaviour, log_inv_temperature.detach().exp().item())

    @torch.inference_mode()
    def step(
        self,
        observation: np.ndarray,
        state: Tensor,
        last_action: np.ndarray,
        last_reward: np.ndarray,
        behaviour: np.ndarray,
        mask: np.ndarray | None = None,
    ) -> PolicyStep:
        """Compute one step of N environments from observations [N, ...] and ``state`` [2, N, H].

        ``last_action`` is -1 and ``last_reward`` 0 where an episode starts. ``behaviour`` is
        [N, numbers of the family], ``mask`` [N, A] where actions are allowed.
        """
        device = self.device

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        numbers = {name: tensor(behaviour[:, i]) for i, name in enumerate(self._numbers)}
        last, allowed = (tensor(last_action), tensor(last_reward)), None
        if mask is not None:
            allowed = tensor(mask)
        log_pi, out = self.log_pi(tensor(observation), state, numbers, *last, allowed)
        scale = float(self.network.advantage_scale) if self._normalised else 1.0
        return PolicyStep(log_pi.cpu().numpy(), scale, out, allowed)

    def log_pi(
        self,
        observation: Tensor,
        state: Tensor,
        numbers: dict[str, Tensor],
        last_action: Tensor,
        last_reward: Tensor,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Output]:
        """The same step in tensors only, as an exported file computes it (export/graph.py):
        log pi [N, A] and the network's output [1, N, ...]. ``numbers`` are the family's, [N] each.
        """
        extra: dict[str, Tensor] = {}
        if self.config.network.last_action_reward:
            extra["last_action"] = last_action[None]
            extra["last_reward"] = self.shaped(last_reward)[None]
        if self.network.conditioned:
            extra["inv_temperature"] = numbers["inv_temperature"][None]
        out = self.network.unroll(observation[None], state, None, **extra, starts=None)
        scale = self.network.advantage_scale if self._normalised else None
        inv_temperature, weight = family.components(self.config.behaviour.family, numbers, scale)
        return policy.log_probs(out.advantage[0], inv_temperature, weight, mask), out

    def window(
        self, batch: dict[str, Tensor], starts: frozenset[int] | None = None
    ) -> PolicyWindow:
        """Run a batch of windows [L, B, ...] (parts/sequence.py) from the stored state, burn-in
        without gradient; return the steps after burn-in.

        ``starts`` are the steps at which an episode starts in any of the windows, where the caller
        knows them (agent/lstm.py).
        """
        start = self.config.sequence.burn_in
        first, extra = self._beside(batch)
        observation = self._observation(batch, first)
        state = self._warmed_up(batch, observation, first, extra, starts)
        out = self.network.unroll(
            observation[start:],
            state,
            first[start:],
            **{name: x[start:] for name, x in extra.items()},
            starts=None if starts is None else frozenset(t - start for t in starts if t >= start),
        )
        scale = batch["scale"][start:]
        numbers = {name: batch[name][start:] for name in self._numbers}
        if self.network.log_inv_temperature is not None:
            trained = self.network.log_inv_temperature.exp()
            numbers = {"inv_temperature": trained.expand_as(scale)}
        target = family.components(self.config.behaviour.family, numbers, scale)
        mask = batch["action_mask"][start:] if self.spec.masked else None
        return PolicyWindow(out.value, out.advantage, out.features, out.hidden, target, mask)

    def burn_in(self, batch: dict[str, Tensor]) -> Tensor:
        """The recurrent state after a batch's burn-in steps.    [2, B, H]"""
        first, extra = self._beside(batch)
        return self._warmed_up(batch, self._observation(batch, first), first, extra)

    def _observation(self, batch: dict[str, Tensor], first: Tensor) -> Tensor:
        """What the network sees at each step of a batch.    [L, B, ...]"""
        if self.spec.frame_stack == 1:
            return batch["observation"]
        return stacks(batch["history"], batch["observation"], first)

    def _beside(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What the network gets besides observations: where episodes start [L, B], and by name the
        extra inputs that this network uses.
        """
        # At step 0 the stored state is correct already.
        first = ~torch.cat([torch.ones_like(batch["valid"][:1]), batch["valid"][:-1]])
        extra: dict[str, Tensor] = {}
        if self.config.network.last_action_reward:
            action = torch.where(batch["valid"], batch["action"], -1)
            reward = torch.where(batch["valid"], batch["reward"], 0.0)
            extra["last_action"] = torch.cat([batch["last_action"][None], action[:-1]])
            last_reward = torch.cat([batch["last_reward"][None], reward[:-1]])
            extra["last_reward"] = self.shaped(last_reward)
        if self.network.conditioned:
            extra["inv_temperature"] = batch["inv_temperature"]
        return first, extra

    def _warmed_up(
        self,
        batch: dict[str, Tensor],
        observation: Tensor,
        first: Tensor,
        extra: dict[str, Tensor],
        starts: frozenset[int] | None = None,
    ) -> Tensor:
        state, end = batch["state"].transpose(0, 1), self.config.sequence.burn_in
        if not end or self.network.lstm is None:
            return state
        with torch.no_grad():
            return self.network.unroll(
                observation[:end],
                state,
                first[:end],
                **{name: x[:end] for name, x in extra.items()},
                starts=None if starts is None else frozenset(t for t in starts if t < end),
            ).state

    @torch.no_grad()
    def calibrate(self, observations: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Initialise A's running deviation from the network's A on observations [N, ...], with the
        ``mask`` [N, A] of each.
        """
        state = self.initial_state(len(observations))
        seen = torch.from_numpy(observations).to(self.device)
        out = self.network.unroll(seen[None], state, None)
        spread = policy.deviation(out.advantage)
        if mask is not None:
            allowed = torch.from_numpy(mask).to(self.device)[None]
            spread = policy.deviation(out.advantage, allowed)[_choices(allowed)]
        if spread.numel():
            self.network.advantage_scale.fill_(max(float(spread.mean()), SCALE_FLOOR))

    @torch.no_grad()
    def follow(self, weights: Weights, spread: Tensor, bad: Tensor) -> None:
        """Make the changes of an update that are not AdamW's: A's running deviation in ``weights``
        follows that of the trained steps (``spread_of``), and a trainable tau is kept in its range.
        A ``bad`` update changes nothing.
        """
        if self.network.log_inv_temperature is not None:
            most = abs(math.log(self.config.bandit.max_inv_temperature))
            weights["log_inv_temperature"].clamp_(min=-most, max=most)
        if self._normalised:
            scale = weights["advantage_scale"]
            scale.lerp_(torch.where(bad, scale, spread), SCALE_RATE).clamp_(min=SCALE_FLOOR)

    def spread_of(self, advantage: Tensor, valid: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean deviation of ``advantage`` [T, B, A] over actions, where ``valid`` [T, B]; 0 if
        nothing follows it. With a ``mask`` [T, B, A]: over the allowed actions, where there are
        several.
        """
        if not self._normalised:
            return advantage.new_zeros(())
        spread = policy.deviation(advantage, mask)
        if mask is None:
            return losses.masked_mean(spread, valid)
        choices = valid & _choices(mask)
        # where there are none, the scale stays (replicas weigh their means by valid steps)
        mean = losses.masked_mean(spread, choices)
        return torch.where(choices.any(), mean, self.network.advantage_scale)

    @torch.no_grad()
    def follow_returns(self, weights: Weights, squares: float, count: float) -> None:
        """Let the size of returns follow those of a batch: ``count`` of them, and the sum of their
        ``squares`` (``window_returns``). V and A are measured in it: their heads are rescaled, so
        that they mean the same as before (PopArt).
        """
        if not count:
            return
        square = squares / count
        if not math.isfinite(square):
            return
        size = weights["return_size"]
        # tensors, not numbers: the host does not wait for a GPU
        before, batches = size.double().unbind()
        seen = batches + 1
        rate = seen.reciprocal().clamp_min(SIZE_RATE)
        now = before + rate * (min(max(square, SMALLEST), LARGEST) - before)
        size.copy_(torch.stack([now, seen]))
        ratio = torch.where(batches > 0, (before / now).sqrt(), 1.0).to(torch.float32)
        torch._foreach_mul_([weights[name] for name in IN_UNITS], ratio)
        weights["advantage_scale"].clamp_(min=SCALE_FLOOR)

    def window_returns(self, batch: dict[str, np.ndarray]) -> tuple[float, float]:
        """Of the returns inside a batch's trained steps, shaped but in no unit, the sum of squares
        and the number of those that are not 0: where rewards are rare, their size matters and not
        their rarity. (0, 0) if nothing is learned from them.
        """
        if self.network.return_size is None:
            return 0.0, 0.0
        reward, discount, valid = (
            batch[name][self.config.sequence.burn_in : -1]
            for name in ("reward", "discount", "valid")
        )
        found = window_returns(self._shaped(torch.from_numpy(reward)).numpy(), discount, valid)
        seen = found[found != 0]
        return float(np.square(seen, dtype=np.float64).sum()), float(seen.size)

    def shaped(self, reward: Tensor) -> Tensor:
        """The reward as the learner and the network see it, in units of the size of returns if
        there is one.
        """
        size, shaped = self.network.return_size, self._shaped(reward)
        if size is None:
            return shaped
        return shaped * torch.where(size[0] > 0, size[0].rsqrt(), 1.0)  # 1: no reward seen yet

    def value_scale(self) -> float | None:
        """What V is multiplied with to be a (discounted) return in the environment's own rewards;
        None where a logarithm shapes them: sums of logarithms say nothing of the sum.
        """
        size, env = self.network.return_size, self.config.env
        if env.reward_shape != "none":
            return None
        unit = 1.0 if size is None or size[0] <= 0 else float(size[0].sqrt())
        return unit / env.reward_scale

    def _shaped(self, reward: Tensor) -> Tensor:
        return shape_reward(reward, self.config.env.reward_shape, self.config.env.reward_scale)


def _choices(mask: Tensor) -> Tensor:
    """Where a mask leaves several actions to choose from.    [..., A] -> [...]"""
    return mask.sum(-1) > 1


def sample(log_pi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one action from each row of log-probabilities; none of probability 0, as a draw is
    below the whole.    [N, A] -> [N]
    """
    cumulative = np.cumsum(np.exp(log_pi.astype(np.float64)), axis=1)
    draw = rng.random(len(log_pi)) * cumulative[:, -1]
    action: np.ndarray = np.minimum((cumulative <= draw[:, None]).sum(1), log_pi.shape[1] - 1)
    return action
