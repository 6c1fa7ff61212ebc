"""The reward the learner sees, and the unit it is measured in."""

import json
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import dicerl
import probe
from dicerl.core.reward import shape_reward, window_returns


@pytest.mark.parametrize(
    ("reward", "shaped"),
    [
        (0.0, 0.0),
        (1.0, 2 * math.log(2)),
        (-1.0, -math.log(2)),
        (100.0, 2 * math.log(101)),
        (-6.5, -math.log(7.5)),
    ],
)
def test_shape_by_hand(reward, shaped):
    """log(|r| + 1) * (2 if r >= 0 else -1)."""
    assert shape_reward(torch.tensor([reward], dtype=torch.float64)).item() == pytest.approx(
        shaped, abs=1e-12
    )


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
def test_shape_is_the_slow_twins(reward, scale):
    r = reward * scale
    expected = math.log(abs(r) + 1) * (2 if r >= 0 else -1)
    assert shape_reward(
        torch.tensor(reward, dtype=torch.float64), "log", scale
    ).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_none_only_scales():
    assert shape_reward(torch.tensor([3.0, -2.0]), "none", 0.5).tolist() == [1.5, -1.0]
    with pytest.raises(ValueError, match="reward_shape"):
        shape_reward(torch.zeros(1), "square")


# --- the unit -------------------------------------------------------------------------------------


def test_returns_of_a_window_by_hand():
    reward = np.array([[1.0], [2.0], [np.nan], [8.0], [16.0]], np.float32)
    discount = np.array([[0.5], [0.0], [0.5], [0.5], [0.5]], np.float32)
    valid = np.array([[True], [True], [False], [True], [True]])
    # the second step ends an episode, the third is its reset step
    assert window_returns(reward, discount, valid)[:, 0].tolist() == [2.0, 2.0, 0.0, 16.0, 16.0]


def in_units(scale=1.0, updates=0, **changes):
    """A learner that measures returns, after some updates on one batch times ``scale``."""
    learner, batch = probe.learner_and_batch(
        **{"env.reward_unit": "returns", "env.reward_shape": "none", **changes}
    )
    batch["reward"] *= np.float32(scale)
    for _ in range(updates):
        learner.update(batch)
    return learner, batch


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**10])
def test_rewards_of_another_scale_are_learned_alike(scale):
    """Bit for bit, for powers of 2: only the unit differs. Without it, nothing is alike."""
    plain, scaled = in_units(updates=4)[0], in_units(scale, updates=4)[0]
    for (name, a), (_, b) in zip(
        plain.network.state_dict().items(), scaled.network.state_dict().items(), strict=True
    ):
        if name == "return_size":
            assert b[0] == a[0] * scale**2
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    fixed = [in_units(s, updates=4, **{"env.reward_unit": "fixed"})[0] for s in (1.0, scale)]
    vectors = [learner.weights.vector for learner in fixed]
    assert not torch.allclose(*vectors, rtol=0, atol=1e-5)


def test_a_whole_run_is_the_same_at_any_scale(tmp_path):
    """Vote, learner and best region of `classic`, bit for bit: times a power of 2 only the returns
    and the unit differ.
    """

    def run(scale):
        def make():
            return gymnasium.wrappers.TransformReward(
                gymnasium.make("CartPole-v1"), lambda reward: scale * float(reward)
            )

        config = dicerl.preset(
            "classic",
            frames=6_000,
            seed=3,
            run_dir=str(tmp_path / str(scale)),
            tensorboard=False,
            evaluation__every=3_000,
            runtime__learner_threads=1,
        )
        return dicerl.train(config, make, quiet=True)

    def told(run, kind, *names):
        rows = map(json.loads, (run.directory / "metrics.jsonl").read_text().splitlines())
        return [[row[name] for name in names] for row in rows if row["kind"] == kind]

    runs = {scale: run(scale) for scale in (1.0, 2.0**-7)}
    plain, scaled = runs.values()
    episode = ("agent_steps", "length", "inv_temperature")
    assert told(scaled, "episode", *episode) == told(plain, "episode", *episode)
    assert len({row[2] for row in told(plain, "episode", *episode)}) > 100
    for kind, name in (("episode", "return"), ("evaluation", "mean_return")):
        returns = [told(run, kind, name) for run in runs.values()]
        # a line holds six digits
        assert np.array(returns[1]) / 2.0**-7 == pytest.approx(np.array(returns[0]), rel=1e-4)
    weights = [
        dicerl.load_agent(run, CartPoleEnv).model.network.state_dict() for run in runs.values()
    ]
    for name, a in weights[0].items():
        if name == "return_size":
            assert weights[1][name][0] == a[0] * 2.0**-14
        else:
            torch.testing.assert_close(weights[1][name], a, rtol=0, atol=0)


def test_the_size_of_returns_is_a_running_mean_square():
    learner, batch = in_units()
    expected, sizes = 0.0, []
    for n in range(3):
        b = {k: v.copy() for k, v in batch.items()}
        b["reward"] *= np.float32(n + 1)
        window = [b[k][probe.BURN_IN : -1] for k in ("reward", "discount", "valid")]
        returns = window_returns(*window)
        square = float(np.square(returns[returns != 0]).mean())
        expected += (square - expected) / (n + 1)  # the first hundred count alike
        learner.update(b)
        sizes.append(learner.network.return_size.tolist())
    assert sizes[-1] == pytest.approx([expected, 3.0], rel=1e-5)


def test_without_rewards_the_unit_is_one_and_the_first_reward_sets_it():
    learner, batch = in_units()
    empty = {**batch, "reward": np.zeros_like(batch["reward"])}
    learner.update(empty)
    assert learner.network.return_size.tolist() == [0.0, 0.0]
    assert learner.model.shaped(torch.tensor(3.0)) == 3.0
    learner.update(batch)
    size = learner.network.return_size[0].sqrt()
    assert learner.model.shaped(torch.tensor(3.0)) == pytest.approx(float(3.0 / size))


def test_v_and_a_mean_the_same_in_a_new_unit():
    """With a learning rate of 0 only the unit changes."""
    learner, batch = in_units(updates=1, **{"optimizer.learning_rate": 0.0})
    data = probe.tensors(batch)

    def outputs():
        with torch.no_grad():
            window = learner.model.window(data)
        size = learner.network.return_size[0].sqrt()
        return size, window.value * size, window.advantage * size

    before = outputs()
    batch["reward"] *= 5
    learner.update(batch)
    after = outputs()
    assert after[0] > 1.5 * before[0]
    for x, y in zip(before[1:], after[1:], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_the_policy_does_not_notice_a_new_unit():
    learner, batch = in_units(
        updates=1, **{"optimizer.learning_rate": 0.0, "behaviour.scale": "normalised"}
    )
    scale = learner.network.advantage_scale.clone()
    size = learner.network.return_size[0].clone()
    batch["reward"] *= 5
    with torch.no_grad():
        learner.model.follow_returns(learner.weights, *learner.model.window_returns(batch))
    ratio = (size / learner.network.return_size[0]).sqrt()
    torch.testing.assert_close(learner.network.advantage_scale, scale * ratio)
