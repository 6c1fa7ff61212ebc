"""envs/gym.py: any Gymnasium environment, what is not supported, and what a broken one gives."""

import os
import signal
import sys
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import dicerl
from dicerl.config import Config
from dicerl.envs import env_spec
from dicerl.envs.gym import GymEnv, maker
from dicerl.envs.toy import Catch, Counting
from dicerl.errors import ConfigError, DicerlError, EnvironmentFailed
from probe import zeros
from runs import debug


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


class Counted(Catch):
    """Catch that counts what is asked of it."""

    asked = 0

    def reset(self, **more):
        self.asked += 1
        return super().reset(**more)

    def step(self, action):
        self.asked += 1
        return super().step(action)


def test_those_that_rest_are_asked_for_nothing_and_the_others_play_the_same_games():
    resting, all_ = GymEnv(Counted, 3, "catch"), GymEnv(Catch, 3, "catch")
    for seed in (1, 2):  # once more: a reset wakes all
        np.testing.assert_array_equal(resting.reset(seed), all_.reset(seed))
        done = np.zeros(3, bool)
        for number in range(20):
            actions = np.random.default_rng([seed, number]).integers(3, size=3)
            before = [env.asked for env in resting._envs]
            expected, found = all_.step(actions), resting.step(actions)
            for a, b in zip(expected, found, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(b[~done], a[~done])
                assert not b[done].any()
            asked = [env.asked for env in resting._envs]
            assert [a - b for a, b in zip(asked, before, strict=True)] == (~done).tolist()
            if number == 3:
                done[0] = True  # in mid-episode
                resting.rest(done)
            if number == 8:
                assert expected[2].all()
                done[1] = True  # at the end of one; the last plays on
                resting.rest(done)


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


def test_an_environment_that_exits_is_named_like_one_that_raises():
    """sys.exit would end a serial run with exit code 1 and no reason."""

    class Exits(Catch):
        def __init__(self, where):
            super().__init__()
            self.where = where

        def reset(self, **kwargs):
            return sys.exit("enough") if self.where == "reset" else super().reset(**kwargs)

        def step(self, action):
            sys.exit("enough")

    for where in ("reset", "step"):
        env = GymEnv(lambda where=where: Exits(where), 1, "exits")
        if where == "step":
            env.reset(0)
        act = {"reset": lambda env=env: env.reset(0), "step": lambda env=env: env.step(zeros(env))}
        with pytest.raises(EnvironmentFailed, match=f"exits raised in {where} .*SystemExit: enou"):
            act[where]()
    with pytest.raises(EnvironmentFailed, match="could not be made: SystemExit: enough"):
        GymEnv(lambda: sys.exit("enough"), 1, "exits")


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Outside(BaseException):
    """Not an Exception: nothing that catches those catches it."""


def lived(kind):
    """All that is done with an environment."""
    env = GymEnv(kind, 1, "raises")
    env.reset(0)
    env.step(zeros(env))
    env.close()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (Outside("out"), "Outside: out$"),
        (GeneratorExit(), "GeneratorExit: $"),
        (KeyboardInterrupt(), "KeyboardInterrupt: $"),
        (Wordless(), "Wordless: it cannot be shown$"),
        (ValueError("x" * 10_000), r"ValueError: x{500} \.\.\.$"),
        (ValueError("two\nlines"), "ValueError: two lines$"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("where", ["__init__", "reset", "step", "close"])
def test_whatever_an_environment_raises_is_one_line(raised, said, where):
    """Also what is no Exception, or cannot be shown. A run's own Ctrl-C names its signal."""

    def act(env, *_, **__):
        raise raised

    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(EnvironmentFailed, match=said):
            lived(type("Raises", (Catch,), {where: act}))
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("ours", [KeyboardInterrupt(2), DicerlError("ours")])
def test_a_stop_is_not_put_down_to_the_environment(ours):
    class Stopped(Catch):
        def step(self, action):
            raise ours

    env = GymEnv(Stopped, 1, "stopped")
    env.reset(0)
    with pytest.raises(type(ours)) as caught:
        env.step(zeros(env))
    assert caught.value is ours


@pytest.mark.parametrize("name", ["reward", "terminated", "truncated"])
@pytest.mark.parametrize(
    "value",
    ["1.0", None, 1 + 2j, np.complex64(1j), b"1", Wordless()],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_number_is_refused(name, value):
    """NumPy would take text for a number, None for False, and half of a complex number."""

    class Odd(Catch):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            found = {"reward": reward, "terminated": terminated, "truncated": truncated}
            return observation, *(found | {name: value}).values(), info

    env = GymEnv(Odd, 1, "odd")
    env.reset(0)
    with pytest.raises(EnvironmentFailed, match=rf"odd gave .* as {name} in step \(environment 0"):
        env.step(zeros(env))


@pytest.mark.parametrize("value", [1, np.float16(1), np.int8(1), np.array(1.0), Fraction(1)])
def test_any_number_is_a_reward(value):
    class Plain(Catch):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, value, *rest

    env = GymEnv(Plain, 1, "plain")
    env.reset(0)
    assert env.step(zeros(env))[1].tolist() == [1.0]


def test_spaces_that_raise_are_named():
    class Spaceless(Catch):
        @property
        def observation_space(self):
            raise ValueError("no space")

        @observation_space.setter
        def observation_space(self, space):
            pass

    with pytest.raises(EnvironmentFailed, match="observation_space is: ValueError: no space"):
        GymEnv(Spaceless, 1, "spaceless")


def test_pictures_that_do_not_fit_their_type_are_refused_at_any_step():
    class Bright(gymnasium.Env):
        observation_space = Box(0, 255, (8, 8, 1), np.uint8)
        action_space = Discrete(2)
        light = 255

        def reset(self, **_):
            return np.full((8, 8, 1), 255, np.uint8), {}

        def step(self, action):
            self.light += 1
            return np.full((8, 8, 1), self.light), 0.0, False, False, {}

    env = GymEnv(Bright, 1, "bright")
    env.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"bright observed 256 \(int64\) in step"):
        env.step(zeros(env))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
@pytest.mark.parametrize("where", ["__init__", "reset", "step", "close"])
def test_the_copy_that_an_environment_makes_of_us_ends(where, how):
    """One that forks, and whose copy comes back, too: both would write the same files and pipes."""
    us, copies = os.getpid(), []

    def fork(self, *args, **kwargs):
        copies.append(os.fork())
        if os.getpid() != us and how == "raises":
            raise ValueError("of the copy")
        if os.getpid() != us and how == "exits":
            sys.exit(3)
        return getattr(Catch, where)(self, *args, **kwargs)

    try:
        env = GymEnv(type("Forks", (Catch,), {where: fork}), 1, "forks")
        env.reset(0)
        env.step(np.zeros(1, int))
        env.close()
    finally:
        if os.getpid() != us:
            os._exit(1)
    assert os.waitpid(copies[0], 0)[1] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([1 + 2j, 3.0]),  # NumPy would drop the imaginary part
        np.array(["a", "b"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_observation_that_is_no_real_number_is_named(wrong, where):
    class Lies(Catch):
        def __init__(self):
            super().__init__()
            self.observation_space = Box(-1, 1, (2,), np.float32)

        def reset(self, **_):
            return (wrong if where == "reset" else np.zeros(2, np.float32)), {}

        def step(self, action):
            return wrong, 0.0, False, False, {}

    env = GymEnv(Lies, 1, "lies")
    if where == "step":
        env.reset()
    with pytest.raises(EnvironmentFailed) as caught:
        env.reset() if where == "reset" else env.step(zeros(env))
    assert str(caught.value) == (
        f"lies gave an observation of {wrong.dtype} in {where} (environment 0); its numbers must"
        " be real"
    )


@pytest.mark.parametrize("where", ["reset", "step", "reset after an episode"])
@pytest.mark.parametrize(
    ("space", "given", "shape"),
    [
        (Box(0, 1, (4,)), np.zeros(5), "(5,)"),
        # numpy would broadcast these into place
        (Box(0, 1, (4,)), np.zeros(1), "(1,)"),
        (Box(0, 1, (4,)), np.zeros((1, 4)), "(1, 4)"),
        (Box(0, 1, (4,)), 0.5, "() (float)"),
        (Box(0, 255, (6, 6, 3), np.uint8), np.zeros((6, 6, 1), np.uint8), "(6, 6, 1)"),
        (Box(0, 255, (6, 6, 3), np.uint8), np.zeros((3, 6, 6), np.uint8), "(3, 6, 6)"),
    ],
)
def test_an_observation_that_contradicts_its_space_is_named_with_both_shapes(
    where, space, given, shape
):
    class Lies(gymnasium.Env):
        observation_space, action_space = space, Discrete(2)
        resets = 0

        def reset(self, *, seed=None, options=None):
            self.resets += 1
            lie = where == "reset" or (where == "reset after an episode" and self.resets > 1)
            return given if lie else space.sample(), {}

        def step(self, action):
            return given if where == "step" else space.sample(), 0.0, True, False, {}

    def two_steps(env):
        env.reset(0)
        env.step(zeros(env))
        env.step(zeros(env))

    with pytest.raises(EnvironmentFailed) as caught:
        two_steps(GymEnv(Lies, 2, "lies"))
    assert str(caught.value) == (
        f"lies gave an observation of shape {shape} in {where.split()[0]} (environment 0); its"
        f" observation space has shape {space.shape}"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full((6, 6), 0.5), "lies observed 0.5 (float64) in reset (environment 0)"),
        (np.full((6, 6), 300), "lies observed 300 (int64) in reset (environment 0)"),
        (np.full((6, 6), 255), ""),  # a sloppy type that loses nothing
        (None, "lies gave ndarray in reset (environment 0); it must return (observation, info)"),
    ],
)
def test_what_reset_gives_fits_into_its_space(value, message):
    class Lies(gymnasium.Env):
        observation_space, action_space = Box(0, 255, (6, 6), np.uint8), Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((6, 6), np.uint8) if value is None else (value, {})

    env = GymEnv(Lies, 1, "lies")
    if not message:
        assert (env.reset(0) == 255).all()
        return
    with pytest.raises(EnvironmentFailed) as caught:
        env.reset(0)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("missing", ["action_space", "observation_space"])
def test_an_environment_without_a_space_is_told_so(missing):
    class Half(gymnasium.Env):
        if missing == "action_space":
            observation_space = Box(0, 1, (4,))
        else:
            action_space = Discrete(2)

    with pytest.raises(DicerlError, match=f"half has no {missing}; supported are"):
        GymEnv(Half, 1, "half")


class Grows(Catch):
    """The first that is made has a shorter observation than the others."""

    made = 0

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 1, (5 if Grows.made else 4,))
        Grows.made += 1

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def test_environments_of_several_shapes_are_named(monkeypatch):
    monkeypatch.setattr(Grows, "made", 0)
    with pytest.raises(EnvironmentFailed, match=r"\(environment 1\), but .* \(environment 0\)"):
        GymEnv(Grows, 2, "grows")


@pytest.mark.parametrize("inputs", ["none", "statistics"])  # first seen by the actor; before it
def test_an_environment_that_is_another_when_it_is_played(tmp_path, monkeypatch, inputs):
    monkeypatch.setattr(Grows, "made", 0)
    config = debug(tmp_path / "run", "", runtime__num_envs=1, network__normalise=inputs)
    with pytest.raises(EnvironmentFailed) as caught:
        dicerl.train(config, make_env=Grows, quiet=True)
    assert str(caught.value).startswith(
        "Grows observes (5,) float32 and has 3 actions, but when it was first made (4,) float32"
    )


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("pnog", "pong"),
        ("Breakot", "breakout"),
        ("ALE/Mspacmn-v5", "ms_pacman"),
        ("CartPol-v1", "CartPole-v1"),
        ("MinAtar/Brekout-v1", "MinAtar/Breakout-v1"),
        ("dicerl.envs.toy:Cath-v0", "dicerl.envs.toy:Catch-v0"),
        ("dicerl.envs.toy:Catch", "dicerl.envs.toy:Catch-v0"),
        ("dicerl.envs.toy:catch-v7", "dicerl.envs.toy:Catch-v0"),
    ],
)
def test_an_unknown_environment_is_answered_with_the_nearest(env_id, hint):
    with pytest.raises(ConfigError) as caught:
        maker(env_id)
    assert caught.value.field == "env.id"
    assert repr(env_id) in str(caught.value)
    assert f"did you mean {hint}?" in str(caught.value)
    assert env_spec(Config().replace(env__id=hint)).num_actions  # what is proposed can be made


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("dicerl.envs.toy:Nope-v0", "it has dicerl.envs.toy:Catch-v0, dicerl.envs.toy:TMaze-v0"),
        ("dicerl.games:MyEnv-v0", "dicerl.games registers no environment; it must call"),
        ("MyEnv-v0", "has that name; name the module that registers your own: my_module:MyEnv-v0"),
        ("no_such_module:MyEnv-v0", "its module cannot be imported: No module named"),
        ("not_python:MyEnv-v0", "its module cannot be imported: SyntaxError: "),
    ],
)
def test_an_unknown_environment_that_is_near_to_none(tmp_path, monkeypatch, env_id, message):
    (tmp_path / "not_python.py").write_text("x = (")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        maker(env_id)
    assert message in str(caught.value)
    assert "did you mean" not in str(caught.value)
