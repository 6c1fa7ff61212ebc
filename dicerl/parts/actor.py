"""The Actor: N environments in lock-step, batched inference, windows of the stream sent as soon as
they are long enough.

It knows callables only (parameters in, windows out, temperatures in), never a transport, a queue or
the learner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from dicerl.agent.networks import Network, Output
from dicerl.config import Config
from dicerl.core import family, policy
from dicerl.core.reward import shape_reward
from dicerl.envs import VectorEnv, require_finite
from dicerl.parts.sequence import Arrays, Schema, allocate, window_length
from dicerl.records.timing import Times


class Episode(NamedTuple):
    behaviour: tuple[float, ...]  # 1/tau, or what the family has (core/family.py)
    episode_return: float  # raw, undiscounted
    length: int  # agent steps


# (vector to copy into, known version) -> version, or None: that is the newest
GetParameters = Callable[[torch.Tensor, int], int | None]
SendSequences = Callable[[Arrays], None]  # windows [L, N, ...]; waits while the collector is full
# (episodes that ended, behaviours wanted) -> the behaviours, when called: nobody needs them before
# the reset step
NextTemperatures = Callable[[list[Episode], int], Callable[[], list[tuple[float, ...]]]]


class Actor:
    """Call ``act`` and ``advance`` in turn. ``act`` says whether it completed (and sent) a window
    of every environment.
    """

    def __init__(
        self,
        config: Config,
        env: VectorEnv,
        network: Network,
        fields: Schema,
        *,
        rng: np.random.Generator,
        env_seed: int,
        get_parameters: GetParameters,
        send_sequences: SendSequences,
        next_temperatures: NextTemperatures,
        first_env: int = 0,
        incarnation: int = 0,
    ) -> None:
        self.config, self.env, self.network = config, env, network
        self._rng, self._first_env, self.incarnation = rng, first_env, incarnation
        self._get_parameters, self._send, self._next_temperatures = (
            get_parameters,
            send_sequences,
            next_temperatures,
        )
        self._burn_in, self._length = config.sequence.burn_in, config.sequence.length
        self._fields = fields
        self._window = allocate(fields, window_length(config), env.num_envs)
        # What stood before each step of the window; a window is sent with what stood before its
        # first.
        self._before: Arrays = {
            n: np.stack([self._window[n]] * window_length(config))
            for n in ("state", "last_action", "last_reward")
        }
        self._parameters = family.PARAMETERS[config.behaviour.family]
        self.times = Times()  # in environments and in inference; whoever sends adds its own
        self.version = -1
        self.count = 0  # calls of act
        self.agent_steps = 0  # valid steps taken
        network.eval()
        self.restart(env_seed)

    def restart(self, env_seed: int) -> None:
        """Reset every environment and begin new streams; unfinished episodes are dropped, sent
        windows are not.
        """
        n = self.env.num_envs
        self._pull()
        for array in (*self._window.values(), *self._before.values()):
            array[...] = 0
        self._before["last_action"][...] = -1
        self._window["stream"][:, 0] = self.incarnation
        self._window["stream"][:, 1] = self._first_env + np.arange(n)
        self._t = self._burn_in
        self._observation = self.env.reset(env_seed)
        require_finite(self.env.spec, "observed value", self._observation)
        self._state = self.network.initial_state(n)
        # the observation is an episode's last: its next step is a reset step
        self._ended = np.zeros(n, np.bool_)
        self._last_action = np.full(n, -1, np.int64)
        self._last_reward = np.zeros(n, np.float32)
        self._return, self._steps = np.zeros(n), np.zeros(n, np.int64)
        # [N, parameters of the family]
        self._behaviour = np.array(self._next_temperatures([], n)(), np.float32)
        # environments, and how to get what they wait for
        self._asked: tuple[np.ndarray, Callable[[], list[tuple[float, ...]]]] | None = None
        # of the episode after this one, drawn at this one's end
        self._following = self._behaviour.copy()

    def act(self) -> bool:
        """Choose the next actions and record them; True where that completed the windows, which are
        then sent.
        """
        if self.count % self.config.runtime.pull_every == 0:
            self._pull()
        self.count += 1
        t, w = self._t, self._window
        self._before["state"][t] = self._state.transpose(0, 1).numpy()
        self._before["last_action"][t] = self._last_action
        self._before["last_reward"][t] = self._last_reward
        self._behaviour = self.network.own_inv_temperature(self._behaviour)
        with self.times("inference"):
            log_pi, out, scale = acting_policy(
                self.config,
                self.network,
                self._observation,
                self._state,
                self._last_action,
                self._last_reward,
                self._behaviour,
            )
            action = sample(log_pi, self._rng)
        self._state = out.state
        w["observation"][t] = self._observation
        w["action"][t] = action
        w["valid"][t] = ~self._ended
        w["log_prob"][t] = log_pi[np.arange(len(action)), action]
        for i, name in enumerate(self._parameters):
            w[name][t] = self._behaviour[:, i]
        w["scale"][t] = scale
        w["version"][t] = self.version
        if t < self._burn_in + self._length:
            return False
        for name, array in self._before.items():
            w[name][:] = array[0]
        w["created"][:] = time.time()
        self._fetch()  # one question at a time
        self._send(w)
        self._begin_next_window()
        return True

    def _begin_next_window(self) -> None:
        """The window's last burn_in + 1 steps are the next one's first: its bootstrap step is the
        next to be trained.
        """
        kept = self._burn_in + 1
        per_step = [array for name, array in self._window.items() if self._fields[name].per_step]
        for array in (*per_step, *self._before.values()):
            array[:kept] = array[self._length : self._length + kept]  # NumPy sees to an overlap
        self._window["stream"][:, 2] += 1
        self._t = self._burn_in

    def advance(self) -> None:
        """Take the chosen actions in the environments."""
        t, w = self._t, self._window
        action, valid, was_ended = w["action"][t], w["valid"][t], self._ended
        with self.times("environment"):
            observation, reward, terminated, truncated = self.env.step(action)
        require_finite(self.env.spec, "reward", reward)
        require_finite(self.env.spec, "observed value", observation)
        w["reward"][t] = reward
        np.multiply(self.config.loss.discount, ~terminated, out=w["discount"][t])
        self._return += reward
        self._steps += valid
        self.agent_steps += int(np.count_nonzero(valid))
        self._last_action, self._last_reward = action.copy(), w["reward"][t].copy()
        self._ended = terminated | truncated
        if was_ended.any():  # a reset step: what stands in `observation` now is an episode's first
            self._fetch()
            begun = np.flatnonzero(was_ended)
            self._state.numpy()[:, begun] = 0.0
            self._behaviour[begun] = self._following[begun]
            self._last_action[begun], self._last_reward[begun] = -1, 0.0
            self._ended[begun] = False
        if self._ended.any():
            ended = np.flatnonzero(self._ended)
            episodes = [
                Episode(
                    tuple(self._behaviour[i].tolist()), float(self._return[i]), int(self._steps[i])
                )
                for i in ended
            ]
            self._asked = ended, self._next_temperatures(episodes, len(episodes))
            self._return[ended], self._steps[ended] = 0.0, 0
        self._observation = observation
        self._t = t + 1

    def _fetch(self) -> None:
        """What was asked for where episodes ended."""
        if self._asked is not None:
            ended, answer = self._asked
            self._following[ended] = answer()
            self._asked = None

    def _pull(self) -> None:
        version = self._get_parameters(self.network.flat, self.version)
        self.version = self.version if version is None else version

    def state_dict(self) -> dict[str, Any]:
        """What ``restart`` does not renew."""
        return {"rng": self._rng.bit_generator.state, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.count = state["count"]


@torch.inference_mode()
def acting_policy(
    config: Config,
    network: Network,
    observation: np.ndarray,
    state: torch.Tensor,
    last_action: np.ndarray,
    last_reward: np.ndarray,
    behaviour: np.ndarray,
) -> tuple[np.ndarray, Output, float]:
    """(log pi [N, A], the network's output [1, N, ...], the unit of A) of one step of N
    environments; ``behaviour`` is [N, parameters].
    """
    device = network.advantage_scale.device

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    parameters = {
        name: tensor(behaviour[:, i])
        for i, name in enumerate(family.PARAMETERS[config.behaviour.family])
    }
    extra = {}
    if config.network.last_action_reward:
        reward = shape_reward(tensor(last_reward), config.env.reward_shape, config.env.reward_scale)
        extra = {"last_action": tensor(last_action)[None], "last_reward": reward[None]}
    if network.conditioned:
        extra["inv_temperature"] = parameters["inv_temperature"][None]
    out = network.unroll(tensor(observation)[None], state, None, **extra)
    scale = float(network.advantage_scale) if config.behaviour.scale == "normalised" else 1.0
    log_pi = policy.log_probs(
        out.advantage[0], *family.components(config.behaviour.family, parameters, scale)
    )
    return log_pi.cpu().numpy(), out, scale


def sample(log_pi: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One action from each row of log-probabilities.    [N, A] -> [N]"""
    cumulative = np.cumsum(np.exp(log_pi.astype(np.float64)), axis=1)
    draw = rng.random(len(log_pi)) * cumulative[:, -1]
    action: np.ndarray = np.minimum((cumulative <= draw[:, None]).sum(1), log_pi.shape[1] - 1)
    return action
