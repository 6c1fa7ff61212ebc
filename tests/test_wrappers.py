"""envs/wrappers.py: the arguments and wrappers that a config adds to an environment."""

import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import dicerl
from dicerl import cli
from dicerl.config import Config
from dicerl.config.options import config_of
from dicerl.envs import env_spec, make_filmed_env, make_vector_env, preset_for
from dicerl.errors import ConfigError
from probe import zeros
from runs import TINY, debug, one_line

MODULE = textwrap.dedent("""
    import gymnasium
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    class Grid(gymnasium.Env):
        action_space = Discrete(2)

        def __init__(self, size=3, render_mode=None):
            self.observation_space = Box(0, 1, (size, size), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(self.observation_space.shape, np.float32), {}

        def step(self, action):
            return np.ones(self.observation_space.shape, np.float32), 1.0, True, False, {}

    gymnasium.register("OwnGrid-v0", entry_point=Grid)

    class Ten(gymnasium.RewardWrapper):
        def reward(self, reward):
            return 10 * reward

    class PlusOne(gymnasium.RewardWrapper):
        def reward(self, reward):
            return reward + 1

    def nothing(env):
        return None

    def raises(env):
        raise ValueError("no\\nluck")

    number = 3
""")
ENV = "own_grid:OwnGrid-v0"
FLAT = "gymnasium.wrappers:FlattenObservation"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_grid.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    sys.modules.pop("own_grid", None)
    gymnasium.registry.pop("OwnGrid-v0", None)


def made(num_envs=2, **env):
    config = Config().replace(**{"env.id": ENV}, **{f"env.{k}": v for k, v in env.items()})
    return make_vector_env(config, num_envs)


def test_arguments_and_wrappers_reach_every_environment():
    assert made().spec.observation_shape == (3, 3)
    assert made(kwargs={"size": 5}).spec.observation_shape == (5, 5)
    env = made(kwargs={"size": 5}, wrappers=[FLAT])
    assert env.spec.observation_shape == (25,)
    env.reset(0)
    assert (env.step(zeros(env))[0] == 1).all()


@pytest.mark.parametrize(
    ("wrappers", "reward"),
    [
        ([], 1.0),
        (["own_grid:Ten", "own_grid:PlusOne"], 11.0),
        (["own_grid:PlusOne", "own_grid:Ten"], 20.0),
        (["own_grid:Ten", "own_grid:Ten"], 100.0),
    ],
)
def test_wrappers_are_applied_in_order(wrappers, reward):
    env = made(wrappers=wrappers)
    env.reset(0)
    assert env.step(zeros(env))[1].tolist() == [reward, reward]


def test_a_filmed_environment_is_made_alike():
    config = Config().replace(
        env__id="CartPole-v1",
        env__kwargs={"sutton_barto_reward": True},
        env__wrappers=["own_grid:Ten"],
    )
    env = make_filmed_env(config, 2)
    env.reset(0)
    assert env.step(zeros(env))[1].tolist() == [0.0, 0.0]
    assert len(env.pictures()) == 2
    env.close()


class Sized(gymnasium.Env):
    action_space = Discrete(2)

    def __init__(self, size=2):
        self.observation_space = Box(0, 1, (size,), np.float32)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def test_an_own_callable_gets_them_too():
    config = Config().replace(env__kwargs={"size": 7})
    assert env_spec(config, Sized).observation_shape == (7,)
    with pytest.raises(ConfigError, match=r"^env\.kwargs is .*Sized could not be made with that"):
        env_spec(Config().replace(env__kwargs={"sizes": 7}), Sized)
    wrapped = config.replace(env__wrappers=["own_grid:nothing"])
    with pytest.raises(ConfigError, match="it returned NoneType"):
        env_spec(wrapped, Sized)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("kwargs", '{"sizes": 9}', ("could not be made with that", "argument 'sizes'")),
        ("kwargs", '{"size": -1}', ("could not be made with that", "ValueError")),
        ("kwargs", '{"size": 9', ("it must be a JSON object", "delimiter")),
        ("wrappers", "gymnasium.wrappers:FlatenObservation", ("did you mean FlattenObservation?",)),
        ("wrappers", "nowhere:Wrapper", ("cannot be imported: No module named 'nowhere'",)),
        ("wrappers", "own_grid:Nope", ("own_grid has no Nope",)),
        ("wrappers", "own_grid:number", ("it is a int",)),
        ("wrappers", "own_grid:nothing", ("it returned NoneType; it must be a gymnasium.Env",)),
        ("wrappers", "own_grid:raises", (f"around {ENV} it raised ValueError: no luck",)),
        ("wrappers", f"{FLAT},own_grid:Nope", ("'own_grid:Nope'",)),
        ("wrappers", "gymnasium.envs.registration:make", ("it is no gymnasium.Wrapper",)),
        ("vector", "true", (f"{ENV} is registered without a vector_entry_point",)),
    ],
)
def test_mistakes_are_one_line(call, option, value, words):
    result = call("train", ENV, *TINY, f"--env.{option}", value)
    one_line(result, f"env.{option} is", *words)


@pytest.mark.parametrize(
    "given", ['--env.kwargs={"mode": 1}', f"--env.wrappers={FLAT}", "--env.vector"]
)
def test_atari_by_its_short_name_takes_none(call, given):
    one_line(call("train", "pong", *TINY, given), "ale-py", "protocol", "ale_py:ALE/Pong-v5")


def test_atari_as_a_plain_environment_takes_them():
    config = Config().replace(
        env__id="ale_py:ALE/Pong-v5", env__kwargs={"obs_type": "grayscale"}, env__wrappers=[FLAT]
    )
    assert env_spec(config).observation_shape == (210 * 160,)


def test_a_run_keeps_them(call, tmp_path):
    given = ("--env.kwargs", '{"size": 4}', "--env.wrappers", f"{FLAT},own_grid:Ten", "--quiet")
    code, out, err = call("train", ENV, *TINY, *given, "--run-dir", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["recent_return"] == 10.0
    env = json.loads((tmp_path / "run" / "config.json").read_text())["env"]
    assert (env["kwargs"], env["wrappers"]) == ({"size": 4}, [FLAT, "own_grid:Ten"])
    one_line(
        call("resume", "run", "--env.kwargs", '{"size": 5}'), "env.kwargs", "this run has {'size'"
    )
    assert call("resume", "run", "--frames", "700", "--quiet")[0] == 0
    agent = dicerl.load_agent(tmp_path / "run")
    agent.act(np.zeros(16, np.float32))
    code, out, err = call("evaluate", "run", "--episodes", "3", "--json")
    assert json.loads(out)["returns"] == [10.0] * 3


def test_in_the_actors_of_other_processes(tmp_path):
    config = debug(
        tmp_path / "run",
        ENV,
        frames=300,
        runtime__kind="process",
        runtime__num_actors=1,
        env__wrappers=[FLAT, "own_grid:Ten"],
    )
    assert dicerl.train(config, quiet=True).summary["recent_return"] == 10.0


# --- docs/environments.md

PAGE = (Path(__file__).parent.parent / "docs/environments.md").read_text()
OWN_VECTOR = """
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv as MyVectorEnv
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A folder with the modules that the page speaks of, and its Python examples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(OWN_VECTOR)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (own,) = [block for block in blocks if block.startswith("# my_wrappers.py")]
    (tmp_path / "my_wrappers.py").write_text(own)
    # EnvPool's is run by test_vector_envpool.py
    yield [block for block in blocks if block != own and "envpool" not in block]
    for name in ("my_module", "my_wrappers"):
        sys.modules.pop(name, None)


def test_the_commands_of_the_page_can_be_started(page):
    commands = re.findall(r"^dicerl train .*", PAGE, re.M)
    assert len(commands) == 6
    for command in commands:
        args = cli.build_parser().parse_args(shlex.split(command)[1:])
        assert env_spec(config_of(args, preset_for)).num_actions > 1


def test_the_page_s_python_runs(page, monkeypatch):
    short = {"frames": 200, "preset": "debug", "quiet": True, "tensorboard": False}
    train = dicerl.train
    monkeypatch.setattr(dicerl, "train", lambda env, **given: train(env, **given | short))
    assert len(page) == 2
    for block in page:
        exec(block, {})


def test_the_page_s_wrapper_trains_continuous_actions(page):
    config = Config().replace(env__id="Pendulum-v1", env__wrappers="my_wrappers:FiveTorques")
    env = make_vector_env(config, 2)
    assert env.spec.num_actions == 5
    env.reset(0)
    stronger, weaker = env.step(np.array([4, 0]))[0][:, 2]
    assert stronger != weaker
