"""A trained network that acts, for whoever has the observations: ``load_agent`` in api.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space, iterate

from dicerl.agent.actor_critic import ActorCritic, sample
from dicerl.agent.behaviour import Region
from dicerl.agent.networks import Network
from dicerl.core.family import NUMBERS
from dicerl.envs import masks
from dicerl.envs.spaces import observations_of
from dicerl.errors import DicerlError


class Agent:
    """A trained network that acts, with behaviours from ``region`` (in x)."""

    def __init__(self, model: ActorCritic, region: Region, seed: int = 0) -> None:
        self.config, self.spec, self.model, self.region = model.config, model.spec, model, region
        model.network.eval()
        self._rng = np.random.default_rng(seed)
        self._behaviour = np.zeros((0, len(region)), np.float32)  # [N, numbers], current episodes
        self._encode = None
        if self.spec.space is not None:
            self._encode = observations_of(self.spec.space, self.spec.name).encode

    @property
    def network(self) -> Network:
        """The model's network, with the weights of the checkpoint."""
        return self.model.network

    def initial_state(self, batch: int = 1) -> torch.Tensor:
        """The recurrent state at the start of ``batch`` episodes.    [2, batch, H]"""
        return self.model.initial_state(batch)

    def act(
        self,
        observation: Any,
        state: torch.Tensor | None = None,
        inv_temperature: float | np.ndarray | None = None,
        *,
        greedy: bool = False,
        episode_start: Any = None,
        action_mask: Any = None,
    ) -> tuple[Any, torch.Tensor]:
        """Choose the action for one observation, or actions [N] for a batch [N, ...]; return
        (action, next state).

        Start an episode with ``state=None``: unless ``inv_temperature`` is given, its tau is then
        drawn from the bandits' best region and kept for the episode. In a batch whose episodes end
        at different times, ``episode_start`` [N] says where a new one begins. ``greedy`` takes A's
        best action instead of sampling. ``action_mask`` is the environment's own, if it has masks:
        ``info["action_mask"]``, of a batch one for each. An entry of the observation need not be
        given again.
        """
        seen = observation
        observation = self._encoded(observation)
        single = np.ndim(observation) == len(self.spec.observation_shape)
        batch = np.ascontiguousarray(observation, self.spec.observation_dtype)
        batch = batch[None] if single else batch
        if batch.shape[1:] != self.spec.observation_shape:
            raise DicerlError(
                f"an observation has shape {np.shape(observation)}; {self.spec.name} gives"
                f" {self.spec.observation_shape}"
            )
        if self.config.network.last_action_reward:
            raise DicerlError(
                "this network also takes the last action and reward, which act is not given; call"
                " model.step"
            )
        n = len(batch)
        begins = np.ones(n, np.bool_)
        if state is not None:
            begins = np.broadcast_to(
                np.asarray(False if episode_start is None else episode_start, np.bool_), (n,)
            )
        if state is None:
            state = self.initial_state(n)
        elif begins.any():
            state = state.clone()
            state[:, torch.from_numpy(begins.copy())] = 0.0
        nothing = np.zeros(n, np.float32)
        mask = self._mask(seen, action_mask, None if single else n)
        behaviour = self._choose(begins, inv_temperature, greedy)
        step = self.model.step(batch, state, nothing, nothing, behaviour, mask)
        chosen = step.greedy() if greedy else sample(step.log_pi, self._rng)
        action = self.spec.environment_actions(chosen)
        return (action[0] if single else np.array(action)), step.state

    def _encoded(self, observation: Any) -> Any:
        """One observation of the environment, or a batch of them, as the network takes them."""
        if self._encode is None:
            return observation
        try:
            return self._encode(observation)
        except (ValueError, TypeError, KeyError) as error:
            try:
                each = list(iterate(batch_space(self.spec.space, 1), observation))
                return np.stack([self._encode(one) for one in each])
            except (ValueError, TypeError, KeyError, AttributeError, IndexError):
                raise DicerlError(
                    f"an observation is not in the space of {self.spec.name}: {error}"
                ) from None

    def _mask(self, observation: Any, given: Any, count: int | None) -> np.ndarray | None:
        """The allowed actions [N, A], from what ``act`` was given for one observation (``count``
        None) or for a batch of ``count``; None if the environment has no masks.
        """
        if given is None and masks.in_observation(self.spec.space):
            given = observation[masks.KEY]
        if not self.spec.masked:
            if given is not None:
                raise DicerlError(
                    f"action_mask was given, but {self.spec.name} had none in training"
                )
            return None
        if given is None:
            raise DicerlError(
                f"{self.spec.name} has action masks, and none was given; pass"
                ' action_mask=info["action_mask"]'
            )
        each = [given] if count is None else list(given)
        try:
            found = np.stack([masks.parsed(one, self.spec) for one in each])
        except (ValueError, TypeError) as error:
            raise DicerlError(f"action_mask does not fit {self.spec.name}: {error}") from None
        if len(found) != (count or 1):
            raise DicerlError(f"action_mask holds {len(found)} masks for {count} observations")
        if not found.any(1).all():
            raise DicerlError("action_mask forbids every action; one must be allowed")
        return found

    def predict(
        self,
        observation: Any,
        state: torch.Tensor | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[np.ndarray, torch.Tensor]:
        """The same as ``act`` in the form of Stable-Baselines3, for what is written for that
        (``evaluate_policy``); ``deterministic`` means greedy, ``action_masks`` are as for
        sb3-contrib's MaskablePPO.
        """
        action, state = self.act(
            observation,
            state,
            greedy=deterministic,
            episode_start=episode_start,
            action_mask=action_masks,
        )
        return np.asarray(action), state

    def _choose(
        self, begins: np.ndarray, inv_temperature: float | np.ndarray | None, greedy: bool
    ) -> np.ndarray:
        """The behaviours of n episodes, new ones where they ``begin`` [n].    [n, numbers]"""
        n = len(begins)
        if inv_temperature is not None:
            if NUMBERS[self.config.behaviour.family] != ("inv_temperature",):
                raise DicerlError(
                    f"inv_temperature is {inv_temperature}, but this agent's family is"
                    f" {self.config.behaviour.family}; leave it out"
                )
            given = np.broadcast_to(np.asarray(inv_temperature, np.float32), (n,))[:, None].copy()
            if not np.isfinite(given).all() or (given < 0).any():
                raise DicerlError(
                    f"inv_temperature is {inv_temperature}; it must be 0 or more, and finite"
                )
            return given
        if greedy:  # a conditioned network gets the middle of the best region as its input
            middle = [((low + high) / 2,) * 2 for low, high in self.region]
            return self.model.draw(middle, np.random.default_rng(0), n)
        if len(self._behaviour) != n:
            begins = np.ones(n, np.bool_)
            self._behaviour = np.zeros((n, len(self.region)), np.float32)
        if begins.any():
            drawn = self.model.draw(self.region, self._rng, int(begins.sum()))
            self._behaviour = self._behaviour.copy()
            self._behaviour[begins] = drawn
        return self._behaviour
