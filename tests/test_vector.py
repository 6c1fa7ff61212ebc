"""envs/vector.py: vector environments of Gymnasium give the streams of the plain loop."""

import json
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

import dicerl
from dicerl.config import Config
from dicerl.envs import env_spec, make_filmed_env, make_vector_env
from dicerl.envs.gym import GymEnv
from dicerl.envs.toy import Counting
from dicerl.envs.vector import GymVector, vector
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed
from probe import Small, zeros
from runs import debug, one_line


def cartpole():
    return gymnasium.make("CartPole-v1")


class Odd(gymnasium.Env):
    """Dictionaries, and actions of two branches that do not start at 0."""

    observation_space = Dict({"place": Discrete(4), "action": Box(-9, 9, (2,), np.float64)})
    action_space = MultiDiscrete([3, 2], start=[1, -1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 6))
        return self._observe((0, 0)), {}

    def _observe(self, action):
        return {"place": self._left % 4, "action": np.array(action, np.float64)}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._left -= 1
        return self._observe(action), float(action[0]), self._left == 0, False, {}


def sync(make, **options):
    """Makes ``make`` in Gymnasium's loop."""

    def synced(num_envs):
        return SyncVectorEnv([make] * num_envs, **options)

    return vector(synced)


@pytest.mark.parametrize("make", [cartpole, Counting, Odd])
@pytest.mark.parametrize("copy", [True, False])  # False: Gymnasium uses its arrays again
def test_the_same_streams_as_the_plain_loop(make, copy):
    plain, other = GymEnv(make, 3, "x"), GymVector(sync(make, copy=copy), 3, "x")
    assert plain.spec == other.spec
    assert plain.spec.environment_actions(zeros(plain))[0] is not None
    kept = [(plain.reset(7), other.reset(7))]
    rng, ends = np.random.default_rng(0), np.zeros(2, int)
    for _ in range(200):
        actions = rng.integers(plain.spec.num_actions, size=3)
        kept += zip(plain.step(actions), other.step(actions), strict=True)
        ends += [kept[-2][0].sum(), kept[-1][0].sum()]
    for a, b in kept:  # after the last step: nothing was written over
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    assert ends[0] > 10
    assert ends[1] > 10 or make is not Counting
    other.close()


def test_nothing_is_lost_doubled_or_reordered():
    env = GymVector(sync(Counting), 3, "counting")
    observation, ended = env.reset(0), np.zeros(3, bool)
    for _ in range(200):
        before, was_ended = observation, ended
        observation, reward, terminated, truncated = env.step(zeros(env))
        identity, episode, step = observation.T
        ended = terminated | truncated
        assert (identity == before[:, 0]).all()
        assert (step == np.where(was_ended, 0, before[:, 2] + 1)).all()
        assert (episode == before[:, 1] + was_ended).all()
        assert (reward == np.where(was_ended, 0, step)).all()
        assert (episode[terminated] % 2 == 0).all()
        assert (episode[truncated] % 2 == 1).all()


def weights(run):
    folder = max((run.directory / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return (folder / "model.safetensors").read_bytes()


def test_a_run_is_bit_for_bit_that_of_the_plain_loop(tmp_path):
    def trained(name, make_env):
        config = debug(tmp_path / name, "", frames=500, network__normalise="statistics")
        return dicerl.train(config, make_env, quiet=True)

    plain, other = trained("plain", Small), trained("vector", sync(Small))
    assert plain.summary["episodes"] == other.summary["episodes"] > 10
    assert weights(plain) == weights(other)
    assert other.config.env.id == "<synced>"
    agent = dicerl.load_agent(other, sync(Small))
    assert agent.act(np.zeros(4, np.float32))[0] in range(4)
    with pytest.raises(ConfigError, match="pass it again as make_env"):
        dicerl.load_agent(other)


class Batch(VectorEnv):
    """Counts in one array for all, which it gives away; no single environment is behind it."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = Discrete(3)
    log = None
    seeded = None

    def __init__(self, num_envs, length=5):
        self.num_envs, self.length = num_envs, length
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{num_envs}\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeded = seed
        self._count = np.zeros((self.num_envs, 2), np.float32)
        return self._count, {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        over = self._count[:, 0] == self.length
        self._count += 1
        self._count[over] = 0
        ended = self._count[:, 0] == self.length
        return self._count, np.where(over, 0.0, 1.0), ended, np.zeros_like(ended), {}


def test_arrays_that_the_environment_uses_again_are_copied():
    env = GymVector(vector(Batch), 2, "batch")
    seen = [env.reset(3)] + [env.step(zeros(env))[0] for _ in range(6)]
    assert [int(o[0, 0]) for o in seen] == [0, 1, 2, 3, 4, 5, 0]
    assert isinstance(env._env.seeded, int)  # a vector environment has one generator


def test_each_actor_makes_its_share(tmp_path):
    def make(num_envs, length=5):
        env_type = type("Logged", (Batch,), {"log": str(tmp_path / "log")})
        return env_type(num_envs, length)

    config = debug(
        tmp_path / "run",
        "",
        frames=400,
        runtime__kind="process",
        runtime__num_envs=6,
        runtime__num_actors=2,
        evaluation__episodes=5,
        env__kwargs={"length": 7},
    )
    run = dicerl.train(config, dicerl.vector(make), quiet=True)
    assert run.summary["recent_return"] == 7.0
    sizes = (tmp_path / "log").read_text().split()
    assert sizes[0] == "1"  # its spaces
    assert sizes.count("3") >= 1
    assert set(sizes) == {"1", "3", "10"}  # an actor's share, an evaluation


def test_the_entry_point_that_it_is_registered_with(call, tmp_path):
    args = ("--preset", "debug", "--env.vector", "--frames", "300", "--quiet", "--run-dir", "run")
    code, _, err = call("train", "CartPole-v1", *args, "--env.kwargs", '{"max_episode_steps": 9}')
    assert code == 0, err
    code, out, err = call("evaluate", "run", "--episodes", "2", "--json")
    assert code == 0, err
    assert max(json.loads(out)["returns"]) <= 9
    one_line(call("evaluate", "run", "--episodes", "2", "--video"), "cannot be filmed")
    config = Config().replace(env__id="CartPole-v1", env__vector=True)
    assert type(make_vector_env(config, 2)._env).__name__ == "CartPoleVectorEnv"
    assert isinstance(make_vector_env(config.replace(env__vector=False), 2), GymEnv)


class Wrong(Batch):
    """Breaks one promise in its third step."""

    def __init__(self, num_envs, what):
        super().__init__(num_envs)
        self.what, self.taken = what, 0

    def step(self, actions):
        self.taken += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        if self.taken == 3 and self.what in ("raise", "shape", "rewards", "ends", "tuple"):
            return {
                "raise": lambda: [][0],
                "shape": lambda: (observation[:1], reward, terminated, truncated, info),
                "rewards": lambda: (observation, reward[:, None], terminated, truncated, info),
                "ends": lambda: (observation, reward, [None] * 2, truncated, info),
                "tuple": lambda: (observation, reward, terminated, info),
            }[self.what]()
        if self.what == "reward after the end" and self.taken == 6:
            reward = reward + 1
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "wrong raised in step: IndexError: list index out of range"),
        ("shape", r"gave observations of shape \(1, 2\) and dtype float32 in step; .* \(2, 2\)"),
        ("rewards", r"gave rewards of shape \(2, 1\) .* they must be 2 numbers"),
        ("ends", r"gave terminations of shape \(2,\) and dtype object"),
        ("tuple", r"gave tuple in step; it must return \(observations, rewards,"),
        ("reward after the end", r"in the step after an episode's last \(environment 0\)"),
    ],
)
def test_what_breaks_the_protocol_is_named(what, message):
    env = GymVector(lambda n: Wrong(n, what), 2, "wrong")
    env.reset(0)
    for _ in range(5 if what == "reward after the end" else 2):
        env.step(zeros(env))
    with pytest.raises(EnvironmentFailed, match=message):
        env.step(zeros(env))


class Bytes(Batch):
    single_observation_space = Box(0, 255, (8, 8), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 8, 8), np.float32), {}


class NoMode(Batch):
    metadata: ClassVar = {}


class Resets(Batch):
    def reset(self, *, seed=None, options=None):
        return 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: Batch(4), "gave 4 environments instead of 2"),
        (lambda n: Counting(), r"gave Counting; make\(num_envs\) must give a gymnasium\.vector"),
        (lambda n: 1 / 0, r"could not be made \(2 of it\): ZeroDivisionError"),
        (NoMode, r"metadata\['autoreset_mode'\] None; it must be AutoresetMode\.NEXT_STEP"),
        (sync(Counting, autoreset_mode=AutoresetMode.SAME_STEP), r"AutoresetMode\.SAME_STEP; it"),
        (sync(Counting, autoreset_mode=AutoresetMode.DISABLED), r"AutoresetMode\.DISABLED; it"),
        (lambda n: gymnasium.make_vec("Pendulum-v1", n), "continuous actions"),
        (Bytes, r"dtype float32 in reset; by its observation space it must be \(2, 8, 8\) and uin"),
        (Resets, r"gave int in reset; it must return \(observations, infos\)"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(DicerlError, match=message):
        GymVector(make, 2, "x").reset(0)


def test_how_to_pass_one():
    with pytest.raises(DicerlError, match=r"dicerl\.vector\(make\), with make\(num_envs\)"):
        env_spec(Config(), lambda: sync(Counting)(1))
    with pytest.raises(DicerlError, match=r"it must be a callable: make\(num_envs\)"):
        dicerl.vector(Batch(2))
    config = Config().replace(env__wrappers=["gymnasium.wrappers:FlattenObservation"])
    with pytest.raises(ConfigError, match="wrappers go around single environments"):
        env_spec(config, vector(Batch))
    with pytest.raises(ConfigError, match=r"env\.vector is True; Counting makes single"):
        env_spec(Config().replace(env__vector=True), Counting)
    with pytest.raises(DicerlError, match="Batch cannot be filmed: it is a vector environment"):
        make_filmed_env(Config(), 2, vector(Batch))


def test_processes_of_its_own():
    """AsyncVectorEnv, with the same streams."""
    plain = GymEnv(Counting, 2, "x")
    other = GymVector(vector(lambda n: AsyncVectorEnv([Counting] * n)), 2, "x")
    assert np.array_equal(plain.reset(1), other.reset(1))
    for _ in range(40):
        for a, b in zip(plain.step(zeros(plain)), other.step(zeros(other)), strict=True):
            assert np.array_equal(a, b)
    other.close()
