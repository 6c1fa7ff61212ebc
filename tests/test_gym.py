"""envs/gym.py: any Gymnasium environment, what is not supported, and what a broken one gives."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from dicerl.envs.gym import GymEnv, maker
from dicerl.envs.toy import Catch, Counting
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed
from probe import zeros


def counting(num_envs, seed=0):
    env = GymEnv(Counting, num_envs, "counting")
    return env, env.reset(seed)


def test_gym_env_keeps_the_last_observation_and_resets_on_the_next_step():
    env, observation = counting(3)
    kinds = set()
    for _ in range(200):
        before = observation
        ended = env._ended.copy()
        observation, reward, terminated, truncated = env.step(zeros(env))
        identity, episode, step = observation.T
        assert (identity == before[:, 0]).all()
        # An ordinary step counts on; the step after a last one stands at the next episode's
        # beginning.
        assert (step == np.where(ended, 0, before[:, 2] + 1)).all()
        assert (episode == before[:, 1] + ended).all()
        assert (reward == np.where(ended, 0, step)).all()
        assert not (terminated & truncated).any()
        assert not (terminated | truncated)[ended].any()
        # Even episodes terminate, odd ones are truncated.
        assert (episode[terminated] % 2 == 0).all()
        assert (episode[truncated] % 2 == 1).all()
        kinds |= {"terminated"} if terminated.any() else set()
        kinds |= {"truncated"} if truncated.any() else set()
    assert kinds == {"terminated", "truncated"}


class Echo(gymnasium.Env):
    """Observes the last action; ends after every third step."""

    observation_space = Box(-100, 100, (1,), np.float64)
    action_space = Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.array([-7.0]), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r}"
        self._steps += 1
        return np.array([float(action)]), 1.0, self._steps == 3, False, {}


def test_actions_that_do_not_start_at_zero():
    env = GymEnv(Echo, 3, "echo")
    assert env.spec.num_actions == 3
    env.reset(0)
    assert env.step(np.array([0, 1, 2]))[0].ravel().tolist() == [1.0, 2.0, 3.0]


def test_the_action_of_a_reset_step_is_ignored():
    env = GymEnv(Echo, 1, "echo")
    env.reset(0)
    ends = [bool(env.step(np.array([i % 3]))[2]) for i in range(3)]
    assert ends == [False, False, True]
    observation, reward, terminated, _ = env.step(np.array([2]))
    assert observation.item() == -7.0
    assert reward.item() == 0.0
    assert not terminated.any()


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((3,), np.float64, np.float32),
        ((3,), np.uint8, np.float32),
        ((8, 8, 3), np.uint8, np.uint8),
        ((8, 8, 3), np.bool_, np.bool_),
        ((8, 8), np.float32, np.float32),
    ],
)
def test_observations_of_many_kinds(shape, dtype, expected):
    class Still(Catch):
        observation_space = Box(0, 1, shape, dtype)

        def __init__(self):
            pass

        def reset(self, **_):
            return self.observation_space.sample(), {}

    env = GymEnv(Still, 2, "still")
    assert env.spec.observation_shape == shape
    assert env.spec.observation_dtype == expected
    assert env.reset(0).dtype == expected


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        (Box(-1, 1, (2,)), Box(0, 1, (3,))),
        (MultiDiscrete([2, 2]), Box(0, 1, (3,))),
        (Discrete(2), Discrete(5)),
        (Discrete(2), Dict(a=Box(0, 1, (2,)))),
        (Discrete(2), Tuple([Discrete(2), Discrete(3)])),
        (Discrete(2), Box(0, 1, ())),
        (Discrete(2), Box(0, 1, (2, 2, 2, 2))),
    ],
)
def test_spaces_that_are_not_supported_are_named_with_those_that_are(action, observation):
    class Odd(gymnasium.Env):
        action_space, observation_space = action, observation

    with pytest.raises(DicerlError) as caught:
        GymEnv(Odd, 1, "odd")
    message = str(caught.value)
    assert message.startswith("odd ")
    assert str(observation if isinstance(action, Discrete) else action) in message
    assert "supported are Discrete actions and Box observations" in message
    assert len(message.splitlines()) == 1


class Trouble(Catch):
    where = "step"

    def reset(self, **kwargs):
        if self.where == "reset":
            raise ValueError("no\nluck")
        return super().reset(**kwargs)

    def step(self, action):
        if self.where == "step":
            raise ValueError("no\nluck")
        return super().step(action)


def test_an_environment_that_raises_is_named_with_its_reason():
    env = GymEnv(Trouble, 2, "trouble")
    env.reset(0)
    with pytest.raises(
        EnvironmentFailed, match=r"trouble raised in step \(environment 0\): ValueError: no"
    ):
        env.step(zeros(env))
    env._envs[1].where = "reset"
    with pytest.raises(
        EnvironmentFailed, match=r"trouble raised in reset \(environment 1\): ValueError: no"
    ):
        env.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"broken could not be made: ZeroDivisionError"):
        GymEnv(lambda: 1 / 0, 1, "broken")
    with pytest.raises(DicerlError, match=r"number gave int; it must be a gymnasium\.Env"):
        GymEnv(lambda: 3, 1, "number")


def test_an_observation_of_the_wrong_shape_is_named():
    class Lies(Catch):
        def step(self, action):
            return np.zeros(3), 0.0, False, False, {}

    env = GymEnv(Lies, 1, "lies")
    env.reset(0)
    with pytest.raises(EnvironmentFailed, match="lies raised in step"):
        env.step(zeros(env))


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("pnog", "pong"),
        ("Breakot", "breakout"),
        ("ALE/Mspacmn-v5", "ms_pacman"),
        ("CartPol-v1", "CartPole-v1"),
        ("MinAtar/Brekout-v1", "MinAtar/Breakout-v1"),
        ("dicerl.envs.toy:Cath-v0", "Catch-v0"),
    ],
)
def test_an_unknown_environment_is_answered_with_the_nearest(env_id, hint):
    with pytest.raises(ConfigError) as caught:
        maker(env_id)
    assert caught.value.field == "env.id"
    assert repr(env_id) in str(caught.value)
    assert f"did you mean {hint}?" in str(caught.value) or f":{hint}?" in str(caught.value)
