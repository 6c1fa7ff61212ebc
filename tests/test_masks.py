"""envs/masks.py: which actions an environment allows, and what is refused."""

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

import dicerl
from dicerl.config import Config
from dicerl.envs import env_spec, make_vector_env, mask_of, random_actions
from dicerl.envs.base import EnvSpec
from dicerl.envs.gym import GymEnv
from dicerl.envs.masks import parsed
from dicerl.envs.spaces import actions_of
from dicerl.errors import EnvironmentFailed
from masked import ALLOWED, STEPS, Branches, Entry, Masked, allowed


def spec_of(space):
    acts = actions_of(space, "test")
    return EnvSpec("test", (1,), np.dtype(np.float32), acts.count, branches=acts.branches)


# --- what is taken --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [[0, 1, 1], (0, 1, 1), np.array([0.0, 1, 1]), [False, True, True]]
)
def test_a_mask_may_be_anything_of_0_and_1(given):
    assert parsed(given, spec_of(Discrete(3, start=5))).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "space", [MultiDiscrete([2, 3]), MultiDiscrete([2, 3], start=[4, 5]), MultiDiscrete([[2], [3]])]
)
@pytest.mark.parametrize("as_tuple", [False, True])
def test_combinations_are_allowed_where_all_their_parts_are(space, as_tuple):
    """Every combination, against Gymnasium's own sampling with the same masks."""
    parts = np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8)
    mask = parsed(parts if as_tuple else np.concatenate(parts), spec_of(space))
    expected = [bool(a and b) for a in parts[0] for b in parts[1]]
    assert mask.tolist() == expected
    flat, spec = MultiDiscrete([2, 3], seed=0), spec_of(space)
    sampled = {tuple(flat.sample(mask=parts).tolist()) for _ in range(50)}
    ours = {tuple(int(x) for x in np.unravel_index(i, spec.branches)) for i in mask.nonzero()[0]}
    assert ours == sampled


def test_multi_binary_has_two_entries_for_each():
    mask = parsed([1, 0, 1, 1], spec_of(MultiBinary(2)))  # the first must be 0
    assert mask.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("given", "space", "words"),
    [
        ([1, 1], Discrete(3), "shape (2,); it must have shape (3,)"),
        (1, Discrete(3), "shape (); it must have shape (3,)"),
        ([[1, 1], [1]], Discrete(3), "its parts have (2, 1) entries"),
        ([0, 2, 1], Discrete(3), "it is [0, 2, 1]; every entry must be 0 or 1"),
        ([0.0, -np.inf, 0.0], Discrete(3), "every entry must be 0 or 1"),
        ([0.0, np.nan, 0.0], Discrete(3), "every entry must be 0 or 1"),
        (["a", "b", "c"], Discrete(3), "every entry must be 0 or 1"),
        ([1] * 6, MultiDiscrete([2, 3]), "it must have shape (5,): 2 + 3, one branch after the"),
        (([1, 1, 1], [1, 1]), MultiDiscrete([2, 3]), "its parts have (3, 2) entries"),
        ([1, 1], MultiBinary(2), "it must have shape (4,): 2 + 2"),
    ],
)
def test_a_mask_that_does_not_fit(given, space, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        parsed(given, spec_of(space))


# --- environments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Masked, Entry, Branches])
def test_the_masks_of_every_step_reach_the_actor(make):
    """Through ends of episodes, where the mask before stays."""
    spec = env_spec(Config(), make)
    assert spec.masked
    env, rng = GymEnv(make, 2, "masked"), np.random.default_rng(0)
    env.reset(0)
    places = np.zeros(2, int)
    for _ in range(4 * STEPS):
        mask = mask_of(env, spec)
        for i, place in enumerate(places):
            given = allowed(min(place, STEPS - 1))
            given = (given, [0, 1, 1]) if make is Branches else given
            assert mask[i].tolist() == parsed(given, spec).tolist()
        before = mask.copy()
        env.step(random_actions(env, rng))
        assert (mask == before).all()  # a step leaves the last masks alone
        places = np.where(places == STEPS, 0, places + 1)


def test_random_actions_are_uniform_over_the_allowed_ones():
    env, rng = GymEnv(Masked, 3000, "masked"), np.random.default_rng(0)
    env.reset(0)
    counts = np.bincount(random_actions(env, rng), minlength=5)
    assert counts[[0, 3, 4]].tolist() == [0, 0, 0]
    assert abs(counts[1] - 1500) < 150


def test_taxi_has_masks_in_its_info():
    taxi = next(name for name in gymnasium.registry if name.startswith("Taxi-"))
    config = Config().replace(env__id=taxi)
    spec, env = env_spec(config), make_vector_env(config, 2)
    env.reset(1)
    for _ in range(20):
        mask = mask_of(env, spec)
        assert mask.shape == (2, 6)
        assert mask.any(1).all()
        assert not mask.all()
        env.step(random_actions(env, np.random.default_rng(0)))


def test_without_masks_nothing_is_said_of_them():
    config = Config().replace(env__id="CartPole-v1")
    spec, env = env_spec(config), make_vector_env(config, 2)
    env.reset(0)
    assert not spec.masked
    assert not env.spec.masked
    assert mask_of(env, spec) is None
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    assert (random_actions(env, one) == other.integers(2, size=2)).all()


# --- what is refused ------------------------------------------------------------------------------


class Given(gymnasium.Env):
    """Gives these masks, one a step; None is none."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)
    masks = ()

    def reset(self, *, seed=None, options=None):
        self._left = list(self.masks)
        return self._next()

    def _next(self):
        mask = self._left.pop(0)
        return np.zeros(1, np.float32), {} if mask is None else {"action_mask": mask}

    def step(self, action):
        seen, info = self._next()
        return seen, 0.0, False, False, info


def giving(*given):
    return type("Given", (Given,), {"masks": given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (([0, 0],), "in reset (environment 0) that forbids every action; one must be allowed"),
        (([0, 1], [0, 0]), "in step (environment 0) that forbids every action"),
        (([0, 1, 1],), "in reset (environment 0) that does not fit its 2 actions: it has shape"),
        (([0, 1], [0, 3]), "in step (environment 0) that does not fit its 2 actions: it is [0, 3]"),
        (([0, 1], None), "gave no action mask in step (environment 0), but before; it must give"),
        ((None, [0, 1]), "gave an action mask in step (environment 0), but not before; it must"),
    ],
)
def test_bad_masks_are_one_line(given, words, tmp_path):
    """Found before a run begins where the first reset shows it."""
    make = giving(*given)
    env = GymEnv(make, 1, "bad")

    def play():
        env.reset(0)
        env.step(np.array([1]))

    with pytest.raises(EnvironmentFailed, match=re.escape(words)) as error:
        play()
    assert "\n" not in str(error.value)
    if len(given) == 1:
        with pytest.raises(EnvironmentFailed, match=re.escape(words)):
            dicerl.train(make, preset="debug", run_dir=str(tmp_path / "run"), quiet=True)
        assert not (tmp_path / "run").exists()


def test_an_entry_that_is_no_mask_of_the_actions():
    class Short(Entry):
        action_space = Discrete(6)

    with pytest.raises(EnvironmentFailed, match=r"does not fit its 6 actions: it has shape \(5,\)"):
        env_spec(Config(), Short)


def test_another_environment_than_the_network_was_built_for():
    spec = env_spec(Config(), Masked)
    env = GymEnv(giving(None, None), 1, "other")
    env.reset(0)
    with pytest.raises(EnvironmentFailed, match="gave no action mask, but one when it was first"):
        mask_of(env, spec)
    env = GymEnv(Masked, 1, "other")
    env.reset(0)
    with pytest.raises(EnvironmentFailed, match="gave an action mask, but none when it was first"):
        mask_of(env, env_spec(Config(), giving(None)))


def test_the_tests_environment_allows_what_it_says():
    assert isinstance(Entry.observation_space, Dict)
    assert all(sorted(ALLOWED[p]) == allowed(p).nonzero()[0].tolist() for p in range(3))
