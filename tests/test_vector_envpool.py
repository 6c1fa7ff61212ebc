"""envs/vector.py: environments seeded when they are made. EnvPool's, where it is installed,
and everywhere a stand-in with its behaviour.
"""

import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

import dicerl
from dicerl.config import Config
from dicerl.envs import env_spec, make_vector_env
from dicerl.errors import DicerlError, EnvironmentFailed
from dicerl.evaluate.evaluate import evaluate
from probe import zeros
from runs import debug


class Pool(VectorEnv):
    """As EnvPool 1.2: spaces of one environment also where Gymnasium has those of all, its own
    layout of infos, a reset that ignores its seed and says so. An episode's observations are one
    drawn number and a count; every third is truncated.
    """

    __module__ = "envpool.python.standin"
    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    observation_space = single_observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = single_action_space = Discrete(3)
    log = None

    def __init__(self, num_envs, seed, batch_size=None, length=5):
        self.num_envs, self.length, self.is_async = num_envs, length, batch_size is not None
        self._streams = [np.random.default_rng(seed + i) for i in range(num_envs)]
        self._episodes = np.zeros(num_envs, np.int32)
        self.open = True
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{num_envs} {seed}\n")

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            warnings.warn("reset(seed=...) is ignored", stacklevel=2)
        self._steps = np.zeros(self.num_envs, np.int32)
        self._drawn = np.array([stream.random() for stream in self._streams], np.float32)
        self._over = np.zeros(self.num_envs, bool)
        return self._observation(), self._info()

    def step(self, actions):
        assert actions.shape == (self.num_envs,)
        again = self._over
        self._steps = np.where(again, 0, self._steps + 1).astype(np.int32)
        for i in np.flatnonzero(again):
            self._drawn[i] = self._streams[i].random()
        self._over = self._steps == self.length
        self._episodes += self._over
        truncated = self._over & (self._episodes % 3 == 0)
        reward = np.where(again, 0, 1).astype(np.float32)
        return self._observation(), reward, self._over & ~truncated, truncated, self._info()

    def _observation(self):
        return np.stack([self._drawn, self._steps], 1).astype(np.float32)

    def _info(self):
        each = np.arange(self.num_envs, dtype=np.int32)
        return {"env_id": each, "players": {"env_id": each}, "elapsed_step": self._steps}

    def close(self):
        self.open = False


def pool(num_envs, seed, **settings):
    return Pool(num_envs, seed, **settings)


def made(make, num_envs=3, **settings):
    return make_vector_env(Config().replace(env__kwargs=settings), num_envs, dicerl.vector(make))


def play(env, seed, steps=40):
    """Observations, rewards and ends of all steps."""
    seen = [env.reset(seed)]
    for _ in range(steps):
        seen += env.step(zeros(env))
    return seen


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_seed_makes_the_streams():
    env = made(pool)
    first = play(env, 7)
    assert same(first, play(env, 7))  # of one environment, again
    assert same(first, play(made(pool), 7))
    assert not same(first, play(env, 8))
    drawn = first[0][:, 0]
    assert len(set(drawn.tolist())) == 3  # each environment its own
    later = env.reset()  # without a seed the streams go on
    assert not np.array_equal(later, play(env, 8)[0])


def test_the_one_that_a_reset_replaces_is_closed():
    env = made(pool)
    before = env._env
    env.reset(1)
    assert not before.open
    assert env._env.open
    after = env._env
    env.reset()
    assert env._env is after
    env.close()
    assert not after.open


def test_arguments_come_with_the_seed():
    ends = play(made(pool, length=3), 1, steps=3)
    assert ends[-2].all()  # terminated in the third step


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: Pool(n, 42), r"seeds are fixed when it is made: .* a make\(num_envs, seed\)"),
        (lambda n, seed=0: Pool(n, seed), r"seeds are fixed when it is made"),
        (lambda n, seed: Pool(n, seed, batch_size=1), "some of its environments at a time; leave"),
        (lambda n, seed: 1 / 0, r"could not be made \(3 of it\): ZeroDivisionError"),
        (lambda n, seed: 3, r"gave int; make\(num_envs\) must give a gymnasium\.vector\.VectorEnv"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(DicerlError, match=message) as caught:
        made(make)
    assert "\n" not in str(caught.value)


def test_one_that_cannot_be_made_again_is_named():
    def once(num_envs, seed):
        if seed:
            raise OSError("too many threads")
        return Pool(num_envs, seed)

    env = made(once)
    with pytest.raises(EnvironmentFailed, match=r"made \(3 of it\): OSError: too many threads"):
        env.reset(5)
    env.close()


def weights(run):
    folder = max((run.directory / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return (folder / "model.safetensors").read_bytes()


def test_a_serial_run_is_reproducible(tmp_path):
    def trained(name, seed):
        config = debug(tmp_path / name, "", frames=400, seed=seed, runtime__kind="serial")
        return dicerl.train(config, dicerl.vector(pool), quiet=True)

    one, other, third = trained("a", 3), trained("b", 3), trained("c", 4)
    assert weights(one) == weights(other) != weights(third)
    found = evaluate(one.directory, dicerl.vector(pool), episodes=4).result
    assert found["mean_return"] == 5.0


@pytest.mark.slow  # as test_vector.py has it for Gymnasium's
def test_each_actor_has_its_own_seed(tmp_path):
    def logged(num_envs, seed):
        kind = type("Pool", (Pool,), {"log": str(tmp_path / "log")})
        return kind(num_envs, seed)

    config = debug(
        tmp_path / "run",
        "",
        frames=400,
        runtime__kind="process",
        runtime__num_envs=6,
        runtime__num_actors=2,
    )
    dicerl.train(config, dicerl.vector(logged), quiet=True)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    seeds = [seed for size, seed in lines if size == "3" and seed != "0"]
    assert len(seeds) == len(set(seeds)) >= 2


def example():
    """That of docs/environments.md."""
    page = (Path(__file__).parent.parent / "docs/environments.md").read_text()
    (block,) = [x for x in re.findall(r"```python\n(.*?)```", page, re.S) if "envpool" in x]
    return block


def run_example(monkeypatch, folder):
    monkeypatch.chdir(folder)
    short = {"frames": 200, "preset": "debug", "quiet": True, "tensorboard": False}
    train = dicerl.train
    monkeypatch.setattr(dicerl, "train", lambda env, **given: train(env, **given | short))
    names = {}
    exec(example(), names)
    assert names["run"].summary["complete"]
    return names["agent"]


def test_the_page_s_example(monkeypatch, tmp_path):
    def make(name, *, env_type, num_envs, seed, num_threads):
        assert (name, env_type, num_threads) == ("CartPole-v1", "gymnasium", 1)
        return Pool(num_envs, seed)

    monkeypatch.setitem(sys.modules, "envpool", SimpleNamespace(make=make))
    agent = run_example(monkeypatch, tmp_path)
    assert agent.act(np.zeros(2, np.float32))[0] in range(3)


# --- the real one ---------------------------------------------------------------------------------


def cart_pole(num_envs, seed, **settings):
    import envpool

    return envpool.make(
        "CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=seed, **settings
    )


def acrobot(num_envs, seed, **settings):
    import envpool

    return envpool.make(
        "Acrobot-v1", env_type="gymnasium", num_envs=num_envs, seed=seed, **settings
    )


@pytest.fixture
def envpool():
    return pytest.importorskip("envpool")


pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting.*:UserWarning")


@pytest.mark.parametrize("make", [cart_pole, acrobot])
def test_envpool_s_streams_and_ends(envpool, make):
    env = made(make, max_episode_steps=30)
    seen = play(env, 7, steps=70)
    assert same(seen, play(made(make, max_episode_steps=30), 7, steps=70))
    assert not same(seen, play(env, 8, steps=70))
    terminated, truncated = np.array(seen[3::4]), np.array(seen[4::4])  # [steps, 3]
    assert (truncated if make is acrobot else terminated).any()
    assert not (terminated & truncated).any()
    if make is acrobot:  # not solved by doing nothing: each episode has 30 steps, then it resets
        assert (np.flatnonzero(truncated[:, 0]) == [29, 60]).all()


def test_envpool_is_trained(envpool, tmp_path):
    assert env_spec(Config(), dicerl.vector(cart_pole)).num_actions == 2
    for kind in ("serial", "process"):
        config = debug(tmp_path / kind, "", frames=600, runtime__kind=kind)
        run = dicerl.train(config, dicerl.vector(cart_pole), quiet=True)
        assert run.summary["complete"]
        assert 8 <= run.summary["recent_return"] <= 200
    with pytest.raises(DicerlError, match="seeds are fixed when it is made"):
        env_spec(Config(), dicerl.vector(lambda n: cart_pole(n, 0)))
    with pytest.raises(DicerlError, match="some of its environments at a time"):
        made(lambda n, seed: cart_pole(n, seed, batch_size=2))


def test_the_page_s_example_with_envpool(envpool, monkeypatch, tmp_path):
    agent = run_example(monkeypatch, tmp_path)
    assert agent.act(np.zeros(4, np.float32))[0] in range(2)
