"""It learns: short versions of benchmarks/learn.py."""

import pytest

from dicerl import load_agent, preset, train
from dicerl.envs.toy import Catch


def run(tmp_path, env_id, **changes):
    config = preset(
        "classic",
        **{
            "env.id": env_id,
            "run_dir": str(tmp_path / "run"),
            "tensorboard": False,
            "checkpoint.every": 0,
            **changes,
        },
    )
    return train(config, quiet=True)


@pytest.mark.timeout(120)
def test_catch_is_solved(tmp_path):
    """Random play catches about 1 ball in 3 (mean return -0.4); a solved game is 1.0, and so is
    what the loaded agent plays.
    """
    result = run(
        tmp_path,
        "dicerl.envs.toy:Catch-v0",
        frames=30_000,
        **{"evaluation.every": 30_000, "evaluation.episodes": 50},
    )
    assert result.summary["evaluation"]["mean_return"] >= 0.95
    assert result.summary["evaluation"]["greedy_mean_return"] >= 0.95
    agent, env = load_agent(result), Catch()
    total = 0.0
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        state, done = None, False
        while not done:
            action, state = agent.act(observation, state, greedy=True)
            observation, reward, done, _, _ = env.step(action)
            total += reward
    assert total / 20 >= 0.95


MEMORY = {
    "frames": 40_000,
    "evaluation.every": 40_000,
    "evaluation.episodes": 100,
    "sequence.burn_in": 10,
    "env.reward_scale": 1.0,
}


@pytest.mark.timeout(120)
def test_a_memory_task_is_solved_with_the_lstm(tmp_path):
    result = run(tmp_path, "dicerl.envs.toy:TMaze-v0", **MEMORY, **{"network.lstm": 64})
    assert result.summary["evaluation"]["greedy_mean_return"] >= 0.95


@pytest.mark.timeout(120)
def test_a_memory_task_is_not_solved_without_it(tmp_path):
    result = run(tmp_path, "dicerl.envs.toy:TMaze-v0", **MEMORY, **{"network.lstm": 0})
    assert result.summary["evaluation"]["greedy_mean_return"] <= 0.7  # 0.5 is chance


@pytest.mark.timeout(120)
def test_cartpole_gets_better(tmp_path):
    """Random play stands for about 22 steps; the whole 200k steps reach 500
    (benchmarks/results/cartpole.json).
    """
    result = run(tmp_path, "CartPole-v1", frames=30_000, **{"evaluation.every": 30_000})
    assert result.summary["evaluation"]["mean_return"] >= 60
