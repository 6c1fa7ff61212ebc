"""envs/spaces.py: odd spaces as arrays and numbers; agents learn in them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st

import dicerl
from dicerl.agent.actor_critic import ActorCritic
from dicerl.core import policy
from dicerl.envs.gym import GymEnv
from dicerl.envs.spaces import actions_of, observations_of
from dicerl.errors import DicerlError, EnvironmentFailed
from runs import debug

IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
SPACES = {
    "scalar": Box(-1, 1, ()),
    "frames of an image": Box(0, 255, (4, 12, 12, 3), np.uint8),
    "discrete": Discrete(5, start=-2),
    "multi-discrete": MultiDiscrete([3, 2, 4]),
    "multi-discrete with two axes": MultiDiscrete([[3, 2], [4, 5]]),
    "multi-binary": MultiBinary(6),
    "dict": Dict(place=Discrete(4), speed=Box(-1, 1, (2,)), sight=IMAGE),
    "tuple": Tuple([Discrete(3), Dict(a=MultiBinary((2, 2)), b=Box(0, 1, (3, 3)))]),
}


class Anything(gymnasium.Env):
    """Samples of its space; the reward is 1 for the action that is right."""

    def __init__(self, space, actions=None):
        self.observation_space = space
        self.action_space = Discrete(3) if actions is None else actions
        self.taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 5
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self._left -= 1
        reward = float(np.all(np.asarray(action) == 1))
        return self.observation_space.sample(), reward, self._left == 0, False, {}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_observation_is_one_array_and_differs_from_others(space):
    space.seed(0)
    kept = observations_of(space, "it")
    seen = [space.sample() for _ in range(30)]
    encoded = [kept.encode(x) for x in seen]
    assert all(x.shape == kept.shape for x in encoded)
    assert all(np.isfinite(x).all() for x in encoded)
    alike = {tuple(x.ravel().tolist()) for x in encoded}
    assert len(alike) == len({repr(x) for x in seen})


def test_what_the_numbers_mean():
    def of(space, value):
        return observations_of(space, "it").encode(value).tolist()

    assert of(Discrete(3, start=5), 6) == [0, 1, 0]
    assert of(MultiDiscrete([2, 3]), [1, 0]) == [0, 1, 1, 0, 0]
    assert of(Tuple([Discrete(2), Box(-5, 5, (2,))]), (0, [3, -4])) == [1, 0, 3, -4]
    image = np.full((3, 3), 51, np.uint8)
    assert of(Dict(x=Box(0, 255, (3, 3), np.uint8)), {"x": image}) == pytest.approx([0.2] * 9)
    frames = np.arange(2 * 3 * 4 * 1, dtype=np.uint8).reshape(2, 3, 4, 1)
    kept = observations_of(Box(0, 255, frames.shape, np.uint8), "it")
    assert kept.shape == (3, 4, 2)
    assert kept.dtype == np.uint8
    np.testing.assert_array_equal(kept.encode(frames)[..., 1], frames[1, ..., 0])


def test_images_inside_get_an_encoder_each():
    space = Dict(near=IMAGE, far=Box(0, 1, (30, 30)), speed=Box(-1, 1, (2,)))
    env = GymEnv(lambda: Anything(space), 2, "it")
    assert sorted(shape for _, shape in env.spec.images) == [(12, 12, 3), (30, 30)]
    config = dicerl.preset("classic", **{"env.id": "CartPole-v1"})
    network = ActorCritic(config, env.spec).network
    assert len(network.convolutions.convolutions) == 2
    seen = torch.from_numpy(env.reset(0))
    before = network.torso(seen)
    for offset, shape in (*env.spec.images, (len(seen[0]) - 2, (2,))):  # each of them matters
        changed = seen.clone()
        changed[:, offset : offset + int(np.prod(shape))] += 0.5
        assert (network.torso(changed) - before).abs().max() > 1e-6


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_run_trains_and_its_agent_acts(space, tmp_path):
    run = dicerl.train(
        debug(tmp_path / "run", "", runtime__kind="serial", frames=200),
        make_env=lambda: Anything(space),
        quiet=True,
    )
    assert run.summary["complete"]
    agent = dicerl.load_agent(run.directory, make_env=lambda: Anything(space))
    action, state = agent.act(space.sample())
    assert action in range(3)
    several = gymnasium.vector.SyncVectorEnv([lambda: Anything(space)] * 4)
    actions, _ = agent.act(several.reset(seed=0)[0])
    assert actions.shape == (4,)
    with pytest.raises(DicerlError, match=r"an observation"):
        agent.act(np.zeros((7, 7, 7)), state)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (Text(5), "supported are"),
        (Dict(a=Text(5)), "supported are"),
        (Discrete(3_000_000), "it must be 1 to 1,048,576"),
        (Box(0, 1, (0,)), "it must be 1 to"),
    ],
)
def test_what_cannot_be_observed(space, reason):
    with pytest.raises(DicerlError, match=reason) as caught:
        observations_of(space, "it")
    assert str(caught.value).startswith("it observes ")


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (Discrete(3), 3),
        (Discrete(3), -1),
        (MultiDiscrete([2, 2]), [0, 2]),
        (MultiDiscrete([2, 2]), [0]),
        (Dict(a=Discrete(2)), {"b": 1}),
        (Dict(a=Discrete(2)), {"a": 1, "b": 1}),
        (Tuple([Discrete(2), Discrete(2)]), (1,)),
        (Box(-1, 1, ()), "x"),
        (Discrete(3), None),
        (Discrete(3), 1.9),
        (MultiDiscrete([2, 2]), [0, 0.5]),
        (Box(0, 255, (2, 3, 3, 1), np.uint8), np.full((2, 3, 3, 1), 300.7)),
        (Dict(a=Box(0, 255, (3, 3), np.uint8)), {"a": np.full((3, 3), -1)}),
    ],
    ids=repr,
)
def test_an_observation_outside_of_its_space_is_named(space, seen):
    class Lies(Anything):
        def reset(self, **_):
            return seen, {}

    with pytest.raises(
        EnvironmentFailed, match=r"lies gave an observation in reset \(environment 0"
    ):
        GymEnv(lambda: Lies(space), 1, "lies").reset()


# --- actions --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.floats(0, 50), st.integers(0, 2**31))
def test_pi_tau_of_combinations_is_the_product_of_each_branch_s(branches, inv, seed):
    heads = torch.randn(sum(branches), dtype=torch.float64, generator=torch.manual_seed(seed))
    joint = policy.log_probs(policy.combined(heads, tuple(branches)), inv)
    each = [policy.log_probs(a, inv) for a in heads.split(branches)]
    for number in range(len(joint)):
        picked = np.unravel_index(number, branches)
        added = sum(float(log_pi[i]) for log_pi, i in zip(each, picked, strict=True))
        assert float(joint[number]) == pytest.approx(added, abs=1e-9)
    entropy = sum(float(policy.entropy(a, inv)) for a in heads.split(branches))
    assert float(policy.entropy(policy.combined(heads, tuple(branches)), inv)) == pytest.approx(
        entropy, abs=1e-9
    )


ACTIONS = {
    "multi-discrete": MultiDiscrete([2, 3], start=[1, -1]),
    "two axes": MultiDiscrete([[2, 3], [2, 2]]),
    "multi-binary": MultiBinary(3),
}


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_every_combination_is_an_action(space):
    env = GymEnv(lambda: Anything(Box(-1, 1, (2,)), space), 1, "it")
    env.reset(0)
    for number in range(env.spec.num_actions):
        env.step(np.array([number]))
        env.step(np.array([number]))  # every other one may be a reset
    taken = {tuple(np.ravel(action).tolist()) for action in env._envs[0].taken}
    assert len(taken) == env.spec.num_actions == actions_of(space, "it").count


def test_an_agent_learns_to_combine(tmp_path):
    """Only one of 12 combinations pays."""
    make = lambda: Anything(Box(-1, 1, (2,)), MultiDiscrete([2, 3, 2]))  # noqa: E731
    config = dicerl.preset(
        "classic",
        frames=12_000,
        tensorboard=False,
        run_dir=str(tmp_path / "run"),
        **{"evaluation.every": 12_000, "checkpoint.every": 0},
    )
    run = dicerl.train(config, make_env=make, quiet=True)
    agent = dicerl.load_agent(run.directory, make_env=make)
    action, _ = agent.act(np.zeros(2, np.float32), greedy=True)
    assert action.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (Box(-1, 1, (2,)), "continuous actions have no closed-form"),
        (MultiBinary(20), "1,048,576 combinations; there can be 4,096"),
        (MultiDiscrete([[99, 99], [99, 99]]), "96,059,601 combinations"),
        (Dict(a=Discrete(2)), "supported are"),
    ],
)
def test_what_cannot_be_done(space, reason):
    with pytest.raises(DicerlError, match=reason) as caught:
        GymEnv(lambda: Anything(Box(-1, 1, (2,)), space), 1, "it")
    assert len(str(caught.value).splitlines()) == 1
