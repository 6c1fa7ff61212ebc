"""agent/agent.py: a loaded agent in batches whose episodes end at different times, and in
Stable-Baselines3's own loop.
"""

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import dicerl
from dicerl.errors import ConfigError
from dicerl.records import checkpoint
from runs import debug


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    config = debug(
        tmp_path_factory.mktemp("agent") / "run",
        "CartPole-v1",
        network__lstm=8,
        frames=900,
        evaluation__every=300,
        checkpoint__every=300,
    )
    return dicerl.train(config, quiet=True).directory


def test_episodes_in_a_batch_begin_at_different_times(recurrent):
    """An environment whose episode begins acts as if it were alone."""
    observation = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    agent = dicerl.load_agent(recurrent)
    _, state = agent.act(observation, inv_temperature=1.0, greedy=True)
    assert state.abs().max() > 0
    start = np.array([False, True, False])
    _, after = agent.act(observation, state, 1.0, greedy=True, episode_start=start)
    _, fresh = agent.act(observation, None, 1.0, greedy=True)
    _, going = agent.act(observation, state, 1.0, greedy=True)
    torch.testing.assert_close(after[:, 1], fresh[:, 1])
    torch.testing.assert_close(after[:, [0, 2]], going[:, [0, 2]])
    assert not torch.allclose(after[:, 1], going[:, 1])


def test_a_new_episode_draws_its_own_temperature(recurrent):
    agent = dicerl.load_agent(recurrent)
    agent.region = [(0.0, 3.0)]
    observation = np.zeros((3, 4), np.float32)
    _, state = agent.act(observation)
    before = agent._behaviour.copy()
    agent.act(observation, state, episode_start=[False, False, True])
    same = (agent._behaviour == before).all(1)
    assert same.tolist() == [True, True, False]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("deterministic", [True, False])
def test_stable_baselines3_evaluates_it(recurrent, count, deterministic):
    env = make_vec_env("CartPole-v1", n_envs=count, seed=0)
    agent = dicerl.load_agent(recurrent, seed=1)
    returns, lengths = evaluate_policy(
        agent,
        env,
        n_eval_episodes=6,
        deterministic=deterministic,
        return_episode_rewards=True,
        warn=False,
    )
    assert len(returns) == 6
    assert returns == lengths  # CartPole's reward is 1 a step


def test_predict_is_act(recurrent):
    agent = dicerl.load_agent(recurrent)
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    action, state = agent.predict(observation, deterministic=True)
    chosen, same = agent.act(observation, greedy=True)
    assert int(action) == chosen
    torch.testing.assert_close(state, same)


def test_the_best_checkpoint_and_the_seed_can_be_chosen(recurrent):
    best = checkpoint.best_of(recurrent)
    assert best is not None
    named = dicerl.load_agent(recurrent, checkpoint="best").model.flat.vector
    assert torch.equal(named, dicerl.load_agent(best).model.flat.vector)
    first = checkpoint.checkpoints_of(recurrent)[0]
    numbered = dicerl.load_agent(recurrent, checkpoint=first.name).model.flat.vector
    assert torch.equal(numbered, dicerl.load_agent(first).model.flat.vector)
    with pytest.raises(ConfigError, match="checkpoint is '7'"):
        dicerl.load_agent(recurrent, checkpoint="7")

    def actions(seed):
        agent = dicerl.load_agent(recurrent, seed=seed)
        return agent.act(np.zeros((64, 4), np.float32), inv_temperature=0.0)[0].tolist()

    assert actions(3) == actions(3) != actions(4)
