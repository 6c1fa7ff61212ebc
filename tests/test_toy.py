"""envs/toy.py: the rules of the small environments that other tests rely on."""

import gymnasium
import numpy as np
import pytest

from dicerl.envs import toy


@pytest.mark.parametrize("name", ["Catch", "TMaze", "Counting"])
def test_each_is_registered_under_its_name(name):
    env = gymnasium.make(f"{toy.__name__}:{name}-v0")
    assert type(env.unwrapped) is getattr(toy, name)


@pytest.mark.parametrize("columns", [1, 5])
def test_catch_pays_for_the_ball_alone_and_only_at_the_bottom(columns):
    env = toy.Catch(rows=4, columns=columns)
    outcomes = set()
    for seed in range(20):
        board = env.reset(seed=seed)[0].reshape(4, columns)
        ball = board[0].argmax()
        assert board[-1, columns // 2] == 1.0  # the paddle starts in the middle
        for step in range(1, 4):
            board, reward, terminated, truncated, _ = env.step(0)  # left
            paddle = max(columns // 2 - step, 0)
            assert board.reshape(4, columns)[step, ball] == 1.0
            assert board.reshape(4, columns)[-1, paddle] == 1.0
            assert (terminated, truncated) == (step == 3, False)
            assert reward == ((1.0 if ball == paddle else -1.0) if step == 3 else 0.0)
        outcomes.add(reward)
    assert outcomes == ({1.0} if columns == 1 else {1.0, -1.0})


def test_the_cue_of_the_t_maze_is_seen_at_the_start_alone_and_decides_the_reward():
    env = toy.TMaze(length=3)
    cues = set()
    for seed in range(20):
        cue, start, junction = env.reset(seed=seed)[0]
        assert (abs(cue), start, junction) == (1.0, 1.0, 0.0)
        cues.add(float(cue))
        seen = [env.step(seed % 2)[0].tolist() for _ in range(3)]
        assert seen == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
        _, reward, terminated, truncated, _ = env.step(seed % 2)
        assert reward == float((seed % 2 == 0) == (cue > 0))
        assert (terminated, truncated) == (True, False)
    assert cues == {1.0, -1.0}


def test_counting_counts_and_ends_by_termination_and_truncation_in_turn():
    env = toy.Counting()
    observation, _ = env.reset(seed=1)
    lengths = set()
    for episode in range(10):
        for step in range(1, 31):
            before = observation
            observation, reward, terminated, truncated, _ = env.step(0)
            assert observation.tolist() == [before[0], episode, step]
            assert reward == step
            if terminated or truncated:
                break
        assert (terminated, truncated) == (episode % 2 == 0, episode % 2 == 1)
        lengths.add(step)
        observation, _ = env.reset()
    assert len(lengths) > 3
    assert env.reset(seed=2)[0][0] != observation[0]
    assert np.array_equal(env.reset(seed=1)[0], [observation[0], 0, 0])
