"""envs/atari.py: the 57 games as the paper wants them."""

import itertools

import gymnasium
import numpy as np
import pytest

from dicerl.config import EnvConfig
from dicerl.envs import atari as atari_module
from dicerl.envs.atari import ATARI_57, AtariApart, AtariEnv, game_name
from dicerl.errors import DicerlError
from probe import zeros


def atari(game, num_envs=1, **config):
    return AtariEnv(game, EnvConfig(**{"noop_max": 0, **config}), num_envs, num_threads=1)


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


# each game by itself; groups of 3 and 2
@pytest.mark.parametrize(("most", "num_threads"), [(64, 0), (2, 1)])
def test_games_apart_are_the_same_games_and_those_that_rest_stand_still(
    monkeypatch, num_threads, most
):
    monkeypatch.setattr(atari_module, "MOST_APART", most)
    config, rng = EnvConfig(noop_max=30, sticky_actions=0.25, max_episode_frames=120), np.random
    together = AtariEnv("breakout", config, 5)
    apart = AtariApart("breakout", config, 5, num_threads)
    assert apart.spec == together.spec
    for seed in (7, 2**31 - 3):  # the second: once more, and where seeds come round
        ended, resting = np.zeros(5, bool), np.zeros(5, bool)
        np.testing.assert_array_equal(apart.reset(seed), together.reset(seed))
        for number in range(40):
            actions = rng.default_rng([seed, number]).integers(4, size=5)
            expected, found = together.step(actions), apart.step(actions)
            for a, b in zip(expected, found, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(b[~resting], a[~resting])
                assert not b[resting].any()
            ended |= expected[2] | expected[3]
            if number == 10:
                ended[[0, 1, 2, 4]] = True  # as if: 3 plays on, in groups with 4
            apart.rest(ended)
            resting = ended if most == 64 else np.repeat([ended[:3].all(), ended[3:].all()], [3, 2])
        assert ended.all()  # cut after 120 frames
    apart.close()
    together.close()


def test_one_who_still_plays_is_not_kept_waiting_by_those_who_rest():
    apart = AtariApart("pong", EnvConfig(noop_max=0), 3, 1)
    apart.reset(0)
    frames = [int(env._info["episode_frame_number"][0]) for _, env in apart._groups]
    apart.rest(np.array([True, False, True]))
    for _ in range(5):
        apart.step(np.zeros(3, np.int64))
    now = [int(env._info["episode_frame_number"][0]) for _, env in apart._groups]
    assert (np.array(now) - frames).tolist() == [0, 20, 0]
    apart.close()
