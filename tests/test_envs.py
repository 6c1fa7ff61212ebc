"""envs/: environments by id and their seeds, values that are not finite, an own callable."""

import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config, EnvConfig
from dicerl.config.presets import preset
from dicerl.envs import env_spec, make_vector_env, preset_for
from dicerl.envs.atari import AtariEnv
from dicerl.envs.toy import Catch
from dicerl.errors import EnvironmentFailed
from dicerl.parts.evaluator import Evaluator
from dicerl.runtime.setup import prepare_model

# --- what is not finite


class Wrong(Catch):
    """Gives one value that is not finite: in the observation of a reset or of its fifth step, or as
    its fifth reward.
    """

    def __init__(self, where, value, shape=(3,)):
        self.where, self.value = where, value
        self.action_space, self.observation_space = Discrete(2), Box(-9, 9, shape, np.float32)

    def observe(self, wrong):
        observation = np.zeros(self.observation_space.shape, np.float32)
        observation.flat[1] = self.value if wrong else 0.0
        return observation

    def reset(self, **_):
        self.taken = 0
        return self.observe(self.where == "reset"), {}

    def step(self, action):
        self.taken += 1
        wrong = self.taken == 5
        return (
            self.observe(wrong and self.where == "step"),
            self.value if wrong and self.where == "reward" else 0.0,
            False,
            False,
            {},
        )


def act(config, make):
    actor = probe.actor_of(config, make)
    for _ in range(8):
        actor.act()
        actor.advance()


def evaluate(config, make):
    Evaluator(ActorCritic(config, env_spec(config, make)), make).evaluate(
        [(0.0, 1.0)], np.random.SeedSequence(0)
    )


def play_at_random(config, make):
    prepare_model(
        config.replace(**{"network.normalise": "statistics"}), env_spec(config, make), make
    )


@pytest.mark.parametrize("user", [act, evaluate, play_at_random])
@pytest.mark.parametrize(
    ("where", "value", "shape"),
    [
        ("reset", np.nan, (3,)),
        ("step", np.inf, (3,)),
        ("step", -np.inf, (6, 6)),
        ("reward", np.nan, (3,)),
    ],
)
def test_what_is_not_finite_is_named_where_it_comes_from(user, where, value, shape):
    config = preset("debug")

    def wrong():
        return Wrong(where, value, shape)

    what = "reward" if where == "reward" else "observed value"
    if user is play_at_random and where == "reward":
        user(config, wrong)  # it only looks at observations
        return
    with pytest.raises(EnvironmentFailed) as caught:
        user(config, wrong)
    where_and_when = r" \(actor 0, step \d\)" if user is act else ""
    said = re.escape(f"wrong gave the {what} {value}; {what}s must be finite") + where_and_when
    assert re.fullmatch(said, str(caught.value)), caught.value


# --- by id


def test_environments_by_id():
    def spec(env_id):
        return env_spec(Config().replace(env__id=env_id))

    assert (spec("CartPole-v1").observation_shape, spec("CartPole-v1").num_actions) == ((4,), 2)
    assert (
        spec("dicerl.envs.toy:Catch-v0").observation_shape,
        spec("dicerl.envs.toy:Catch-v0").action_repeat,
    ) == ((50,), 1)
    minatar = spec("MinAtar/Breakout-v1")
    assert (minatar.observation_shape, minatar.observation_dtype, minatar.num_actions) == (
        (10, 10, 4),
        np.bool_,
        3,
    )
    assert minatar.channels_last
    assert spec("ALE/Skiing-v5").num_actions == 9


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("pong", "laptop"),
        ("ALE/MsPacman-v5", "laptop"),
        ("MinAtar/Breakout-v1", "minatar"),
        ("CartPole-v1", "classic"),
        ("my_module:MyEnv-v0", "classic"),
    ],
)
def test_the_preset_of_an_environment(env, expected):
    assert preset_for(env) == expected


# --- seeds


def stream_of(env, seed, steps=12):
    """Observations from a reset on, the actions always the same."""
    rng = np.random.default_rng(0)
    seen = [env.reset(seed)] + [
        env.step(rng.integers(env.spec.num_actions, size=env.num_envs))[0] for _ in range(steps)
    ]
    env.close()
    return np.stack(seen)


def make(kind, num_envs=3):
    if kind == "atari":
        return AtariEnv("pong", EnvConfig(noop_max=30), num_envs, num_threads=1)
    return make_vector_env(Config().replace(env__id=kind), num_envs)


@pytest.mark.parametrize("kind", ["atari", "CartPole-v1", "dicerl.envs.toy:Counting-v0"])
def test_the_same_seed_gives_the_same_stream_and_no_two_environments_share_one(kind):
    first, again, other = (stream_of(make(kind), seed) for seed in (5, 5, 6))
    assert (first == again).all()
    assert (first != other).any()
    if kind != "atari":  # there only the no-ops differ, and few of them
        assert len({first[:, i].tobytes() for i in range(3)}) == 3


# --- an own callable

SCRIPT = textwrap.dedent("""
    # No `if __name__ == "__main__"`: a child that ran this file again would start training too.
    import json, os, sys, time
    import gymnasium
    import numpy as np
    import dicerl

    log = os.path.abspath("log")
    print("script runs", flush=True)

    def build():
        class Local(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (2,))
            action_space = gymnasium.spaces.Discrete(3, start=5)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                if seed is not None:
                    with open(log, "a") as file:
                        file.write(json.dumps([kind, os.getpid(), seed]) + "\\n")
                self.steps = 0
                return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

            def step(self, action):
                assert action in (5, 6, 7), action
                self.steps += 1
                seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
                return seen, 1.0, self.steps == 10, False, {}

        return Local

    def wait(learner, batch):
        "The first batch waits for all four environments: a quick actor must not finish alone."
        end = time.monotonic() + 90
        while kind == "process" and time.monotonic() < end:
            if open(log).read().count('"process"') >= 5:  # the first by train itself
                break
            time.sleep(0.02)

    Local = build()
    for kind, make_env in (("serial", lambda: Local()), ("process", Local)):
        config = dicerl.preset(
            "debug", frames=400, runtime__kind=kind, runtime__num_actors=2 * (kind == "process"),
            run_dir=kind, tensorboard=False, evaluation__every=0)
        run = dicerl.train(config, make_env, quiet=True, on_batch=wait)
        print(json.dumps({"kind": kind, "parent": os.getpid(), **run.summary}), flush=True)
""")


@pytest.fixture(scope="module")
def own_callable(tmp_path_factory):
    directory = tmp_path_factory.mktemp("own")
    (directory / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return (
        lines[0],
        [json.loads(line) for line in lines[1:]],
        [json.loads(line) for line in (directory / "log").read_text().splitlines()],
    )


def test_an_own_callable_trains_in_both_runtimes_from_an_unguarded_script(own_callable):
    first, runs, _ = own_callable
    assert first == "script runs"  # once: no child ran it again
    assert [run["kind"] for run in runs] == ["serial", "process"]
    for run in runs:
        assert run["complete"]
        assert run["frames"] == run["agent_steps"] >= 400
        assert run["updates"] > 0
        assert run["recent_return"] == 10.0


def test_the_environments_of_different_actors_have_different_seeds(own_callable):
    _, runs, log = own_callable
    for run in runs:
        probe, *resets = [(pid, seed) for kind, pid, seed in log if kind == run["kind"]]
        assert probe[0] == run["parent"]  # train looks what the environment is like
        pids = {pid for pid, _ in resets}
        if run["kind"] == "process":
            assert len(pids) == 2
            assert run["parent"] not in pids
            assert len(resets) == 4  # environments, each seeded once
        assert len({seed for _, seed in resets}) == len(resets)
