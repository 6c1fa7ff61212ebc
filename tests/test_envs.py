"""envs/: the 57 games as the paper wants them, any Gymnasium environment, an own callable, and
where their seeds come from.
"""

import itertools
import json
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config, EnvConfig, seeding
from dicerl.config.presets import preset
from dicerl.envs import env_spec, make_vector_env, preset_for
from dicerl.envs.atari import ATARI_57, AtariEnv, game_name
from dicerl.envs.gym import GymEnv, maker
from dicerl.envs.toy import Catch, Counting
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed
from dicerl.parts.evaluator import Evaluator
from dicerl.runtime.setup import prepare_model


def atari(game, num_envs=1, **config):
    return AtariEnv(game, EnvConfig(**{"noop_max": 0, **config}), num_envs, num_threads=1)


def zeros(env):
    return np.zeros(env.num_envs, np.int64)


# --- Atari


def test_the_57_games_and_their_actions():
    assert len(set(ATARI_57)) == 57
    counts = {}
    for game in ATARI_57:
        env = atari(game)
        counts[game] = env.spec.num_actions
        assert env.spec.observation_shape == (4, 84, 84)
        assert env.spec.action_repeat == 4
        env.close()
    assert counts == {game: 9 if game == "skiing" else 18 for game in ATARI_57}


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("pong", "pong"),
        ("Pong", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("Pong-v0", "pong"),
        ("MsPacman", "ms_pacman"),
        ("ms_pacman", "ms_pacman"),
        ("mspacman", "ms_pacman"),
        ("ALE/MsPacman-v5", "ms_pacman"),
        ("UpNDown", "up_n_down"),
        ("hero", "hero"),
        ("CartPole-v1", None),
        ("pnog", None),
        ("MinAtar/Breakout-v1", None),
        ("dicerl.envs.toy:Catch-v0", None),
        ("", None),
    ],
)
def test_names_resolve(name, game):
    assert game_name(name) == game


def test_a_gymnasium_id_is_not_taken_for_a_game_that_happens_to_be_called_like_it():
    """Gymnasium's card game, not the Atari cartridge: both exist."""
    assert "Blackjack-v1" in gymnasium.registry
    assert game_name("Blackjack-v1") is None
    assert game_name("ALE/Blackjack-v5") == "blackjack"


def test_atari_as_the_paper_sets_it_up():
    env = atari("pong", 2)
    first = env.reset(0)
    assert first.shape == (2, 4, 84, 84)
    assert first.dtype == np.uint8
    observation, reward, terminated, truncated = env.step(zeros(env))
    assert observation.shape == (2, 4, 84, 84)
    assert reward.dtype == np.float32
    assert not terminated.any()
    assert not truncated.any()
    assert env.spec.game == "pong"
    env.close()
    smaller = atari("pong", full_action_space=False, image_size=42, frame_stack=2, action_repeat=2)
    assert smaller.spec.num_actions == 6
    assert smaller.reset(0).shape == (1, 2, 42, 42)
    assert smaller.spec.action_repeat == 2
    smaller.close()


@pytest.mark.timeout(60, method="thread")  # a wait inside ale-py cannot be interrupted
@pytest.mark.parametrize("actions", [[0, 18], [-1, 0], [0], [0, 0, 0], [[0, 0]]])
def test_an_action_that_does_not_exist_is_refused_instead_of_waited_for(actions):
    env = atari("pong", 2)
    env.reset(0)
    with pytest.raises(DicerlError, match=r"pong takes 2 actions from 0 to 17"):
        env.step(np.array(actions))
    env.step(zeros(env))  # and the environment still answers
    env.close()


def test_rewards_are_not_clipped():
    env = atari("asterix", 4)
    env.reset(0)
    rng = np.random.default_rng(0)
    rewards = np.stack([env.step(rng.integers(18, size=4))[1] for _ in range(150)])
    env.close()
    assert rewards.max() >= 50


def test_atari_truncates_and_resets_on_the_next_step():
    a, b = (atari("pong", 2, max_episode_frames=64) for _ in range(2))
    assert (a.reset(3) == b.reset(3)).all()
    for steps in itertools.count(1):
        observation, reward, terminated, truncated = a.step(zeros(a))
        b.step(zeros(b))
        if truncated.any() or steps == 40:
            break
    assert steps == 64 // 4
    assert truncated.all()
    assert not terminated.any()
    # the episode's last observation: the whole stack is filled
    assert (observation[:, 0] != 0).any()
    # The next step ignores its action: any two give the same first observation, with reward 0.
    first, reward, terminated, truncated = a.step(np.full(2, 2))
    other, *_ = b.step(np.full(2, 5))
    assert (first == other).all()
    assert (first[:, :3] == 0).all()
    assert (first[:, 3] != 0).any()
    assert not reward.any()
    assert not (terminated | truncated).any()
    a.close()
    b.close()


def test_atari_terminates_without_truncating():
    env = atari("breakout", 2, episodic_life=True)
    env.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        observation, _, terminated, truncated = env.step(rng.integers(18, size=2))
        assert not truncated.any()
        if terminated.any():
            break
    assert terminated.any()
    assert (observation[terminated][:, 0] != 0).any()
    env.close()


def test_no_life_is_an_episode():
    env = atari("breakout", 2)
    env.reset(0)
    rng = np.random.default_rng(0)
    ends = sum(env.step(rng.integers(18, size=2))[2].sum() for _ in range(60))
    env.close()
    assert ends == 0


# --- Gymnasium


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
    with pytest.raises(EnvironmentFailed) as told:
        user(config, wrong)
    assert str(told.value) == f"wrong gave the {what} {value}; {what}s must be finite"


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


def test_every_actor_life_and_purpose_has_a_seed_of_its_own():
    def state(*keys):
        return tuple(seeding.stream(*keys).generate_state(4).tolist())

    users = [
        (seed, name, actor, life)
        for seed in (0, 1)
        for name in seeding.STREAMS
        for actor in range(8)
        for life in range(4)
    ]
    assert len({state(*user) for user in users}) == len(users)
    assert state(0, "actor", 1, 2) == state(0, "actor", 1, 2)
    environments = {
        seeding.integer(seeding.stream(0, "environment", actor, life))
        for actor in range(16)
        for life in range(16)
    }
    assert len(environments) == 256


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
            if open(log).read().count('"process"') >= 4:
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
        resets = [(pid, seed) for kind, pid, seed in log if kind == run["kind"]]
        pids = {pid for pid, _ in resets}
        if run["kind"] == "process":
            assert len(pids) == 2
            assert run["parent"] not in pids
            assert len(resets) == 4  # environments, each seeded once
        assert len({seed for _, seed in resets}) == len(resets)


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
