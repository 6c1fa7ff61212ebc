"""The Actor: N environments in lock-step, batched inference, windows of each stream sent as soon as
they are complete.

It only knows callables (parameters and behaviours in; windows and episodes out), never a transport,
a queue or the learner.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic, sample
from dicerl.agent.behaviour import Behaviour
from dicerl.agent.frames import history_at
from dicerl.core import family
from dicerl.envs import VectorEnv, mask_of, require_finite, require_same, require_torch_as_it_was
from dicerl.errors import EnvironmentFailed
from dicerl.parts.sequence import Arrays, allocate, schema, window_length
from dicerl.records.timing import Times


class Episode(NamedTuple):
    """An episode that ended."""

    behaviour: Behaviour  # with the values that acted
    episode_return: float  # raw, undiscounted
    length: int  # agent steps


# (vector to copy into, known version) -> version, or None if the known one is the newest
GetParameters = Callable[[torch.Tensor, int], int | None]
# takes windows [L, N, ...], which do not change until the actor's next ``advance``; waits while the
# collector is full
SendSequences = Callable[[Arrays], None]
EndEpisodes = Callable[[list[Episode]], None]
# number of behaviours -> a callable that returns them, called no later than the reset step: until
# then the answer may be under way
NextBehaviours = Callable[[int], Callable[[], list[Behaviour]]]


class Actor:
    """Acts in N environments and records windows. Call ``act`` and ``advance`` in turn; ``act``
    returns whether it completed (and sent) a window of every environment.

    ``rng`` samples actions, ``env_seed`` seeds the environments. ``first_env`` numbers the
    environments across actors; an ``incarnation`` is one life of an actor. Both only label the
    windows, as ``number`` does what its environments are blamed for.
    """

    def __init__(
        self,
        model: ActorCritic,
        env: VectorEnv,
        *,
        rng: np.random.Generator,
        env_seed: int,
        get_parameters: GetParameters,
        send_sequences: SendSequences,
        end_episodes: EndEpisodes,
        next_behaviours: NextBehaviours,
        first_env: int = 0,
        number: int = 0,
        incarnation: int = 0,
    ) -> None:
        config = model.config
        require_same(env.spec, model.spec)
        self.config, self.env, self.model = config, env, model
        self._rng, self._first_env, self.incarnation = rng, first_env, incarnation
        self._number = number
        self._get_parameters, self._send_sequences = get_parameters, send_sequences
        self._end_episodes, self._next_behaviours = end_episodes, next_behaviours
        self._burn_in, self._length = config.sequence.burn_in, config.sequence.length
        self._stacked = env.spec.frame_stack > 1
        self._fields = schema(config, model.spec)
        self._window = allocate(self._fields, window_length(config), env.num_envs)
        self._numbers = family.NUMBERS[config.behaviour.family]
        self.times = Times()  # environment and inference; send_sequences may add its own
        self.version = -1
        self.count = 0  # calls of act
        self.agent_steps = 0  # valid steps taken
        model.network.eval()
        self.restart(env_seed)

    def restart(self, env_seed: int) -> None:
        """Reset every environment and begin new streams; unfinished episodes are dropped, windows
        already sent are not.
        """
        n = self.env.num_envs
        self._pull()
        for array in self._window.values():
            array[...] = 0
        self._window["stream"][:, 0] = self.incarnation
        self._window["stream"][:, 1] = self._first_env + np.arange(n)
        self._t, self._sent = self._burn_in, False
        try:
            self._observation = self.env.reset(env_seed)
            require_finite(self.env.spec, "observed value", self._observation)
            self._mask = mask_of(self.env, self.model.spec)
        except EnvironmentFailed as error:
            raise self._blamed(error) from error
        self._state = self.model.initial_state(n)
        # whether the observation is an episode's last: the next step is then a reset step
        self._ended = np.zeros(n, np.bool_)
        self._last_action = np.full(n, -1, np.int64)
        self._last_reward = np.zeros(n, np.float32)
        # What stood before the first step of each window not sent yet, the oldest first. The first
        # windows begin in the padding, before the stream does.
        padded = -(-self._burn_in // self._length)
        self._starts = deque(self._start() for _ in range(padded))
        self._return, self._steps = np.zeros(n), np.zeros(n, np.int64)
        self._drawn = list(self._next_behaviours(n)())  # each episode's behaviour
        self._behaviour = np.array([b.values for b in self._drawn], np.float32)  # [N, numbers]
        # environments whose episodes ended, and the callable that returns their next behaviours
        self._asked: tuple[np.ndarray, Callable[[], list[Behaviour]]] | None = None
        # behaviour of each environment's next episode, drawn at the end of this one
        self._following = self._drawn.copy()

    def act(self) -> bool:
        """Choose and record the next actions. Return whether that completed the windows, which are
        then sent.
        """
        if self.count % self.config.runtime.pull_every == 0:
            self._pull()
        self.count += 1
        t, w = self._t, self._window
        if t % self._length == 0:  # the first step of a window: they begin with this stride
            self._starts.append(self._start())
        with self.times("inference"):
            self._behaviour = self.model.present(self._behaviour)
            step = self.model.step(
                self._observation,
                self._state,
                self._last_action,
                self._last_reward,
                self._behaviour,
                self._mask,
            )
            action = sample(step.log_pi, self._rng)
        self._state = step.state
        w["observation"][t] = self._observation[:, -1] if self._stacked else self._observation
        if self._mask is not None:
            w["action_mask"][t] = self._mask
        w["action"][t] = action
        w["valid"][t] = ~self._ended
        w["log_prob"][t] = step.log_pi[np.arange(len(action)), action]
        for i, name in enumerate(self._numbers):
            w[name][t] = self._behaviour[:, i]
        w["scale"][t] = step.scale
        w["version"][t] = self.version
        if t < self._burn_in + self._length:
            return False
        for name, start in self._starts.popleft().items():
            w[name][:] = start
        w["created"][:] = time.time()
        self._fetch()  # at most one request at a time
        self._send_sequences(w)
        self._sent = True
        return True

    def _start(self) -> Arrays:
        """What a window has of the time before its first step, if that is the next one."""
        return {
            "state": self._state.transpose(0, 1).numpy().copy(),
            "last_action": self._last_action.copy(),
            "last_reward": self._last_reward.copy(),
        }

    def _begin_next_window(self) -> None:
        """Make the window's last burn_in + 1 steps the first of the next one: its bootstrap step is
        the next step to be trained.
        """
        kept, w = self._burn_in + 1, self._window
        if self._stacked:
            w["history"][:] = history_at(self._length, w["history"], w["observation"], w["valid"])
        per_step = [array for name, array in self._window.items() if self._fields[name].per_step]
        for array in per_step:
            array[:kept] = array[self._length : self._length + kept]  # NumPy handles an overlap
        self._window["stream"][:, 2] += 1
        self._t, self._sent = self._burn_in, False

    def advance(self) -> None:
        """Step the environments with the chosen actions; end and begin episodes."""
        if self._sent:
            self._begin_next_window()
        t, w = self._t, self._window
        action, valid, was_ended = w["action"][t], w["valid"][t], self._ended
        try:
            with self.times("environment"):
                observation, reward, terminated, truncated = self.env.step(action)
            require_finite(self.env.spec, "reward", reward)
            require_finite(self.env.spec, "observed value", observation)
            mask = mask_of(self.env, self.model.spec)
            require_torch_as_it_was(self.env.spec.name)
        except EnvironmentFailed as error:
            raise self._blamed(error) from error
        w["reward"][t] = reward
        np.multiply(self.config.loss.discount, ~terminated, out=w["discount"][t])
        self._return += reward
        self._steps += valid
        self.agent_steps += int(np.count_nonzero(valid))
        self._last_action, self._last_reward = action.copy(), w["reward"][t].copy()
        self._ended = terminated | truncated
        if was_ended.any():  # a reset step: `observation` now is an episode's first
            self._begin_episodes(np.flatnonzero(was_ended))
        if self._ended.any():
            ended = np.flatnonzero(self._ended)
            self._end_episodes([self._episode(env) for env in ended.tolist()])
            self._asked = ended, self._next_behaviours(len(ended))
            self._return[ended], self._steps[ended] = 0.0, 0
        self._observation, self._mask = observation, mask
        self._t = t + 1

    def _blamed(self, error: EnvironmentFailed) -> EnvironmentFailed:
        """What an environment did wrong, with where and when."""
        return EnvironmentFailed(f"{error} (actor {self._number}, step {self.count:,})")

    def _begin_episodes(self, envs: np.ndarray) -> None:
        self._fetch()
        self._state.numpy()[:, envs] = 0.0
        for i in envs:
            self._drawn[i] = self._following[i]
            self._behaviour[i] = self._drawn[i].values
        self._last_action[envs], self._last_reward[envs] = -1, 0.0
        self._ended[envs] = False

    def _episode(self, env: int) -> Episode:
        acted = tuple(self._behaviour[env].tolist())
        behaviour = Behaviour(self._drawn[env].x, acted)
        return Episode(behaviour, float(self._return[env]), int(self._steps[env]))

    def _fetch(self) -> None:
        """Receive the behaviours requested when episodes ended."""
        if self._asked is not None:
            ended, answer = self._asked
            for env, behaviour in zip(ended, answer(), strict=True):
                self._following[env] = behaviour
            self._asked = None

    def _pull(self) -> None:
        version = self._get_parameters(self.model.flat.vector, self.version)
        self.version = self.version if version is None else version

    def state_dict(self) -> dict[str, Any]:
        """The state that ``restart`` does not renew."""
        return {"rng": self._rng.bit_generator.state, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.count = operator.index(state["count"])  # a whole number, or a TypeError
