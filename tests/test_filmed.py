"""envs/filmed.py: the pictures belong to what the agent observes."""

import numpy as np
import pytest

import dicerl
from dicerl.envs import make_filmed_env
from dicerl.errors import DicerlError


@pytest.mark.parametrize(("game", "sticky"), [("pong", 0.0), ("seaquest", 0.25)])
def test_the_second_emulator_shows_what_the_agent_sees(game, sticky):
    """The observation is the larger of the last two screens, grey, averaged down to 84x84: computed
    here from the pictures.
    """

    def areas(size, to):  # [to, size]: how much of each source pixel lies in each target pixel
        edges = np.linspace(0, size, to + 1)
        overlap = np.minimum(edges[1:, None], np.arange(size) + 1) - np.maximum(
            edges[:-1, None], np.arange(size)
        )
        return np.maximum(overlap, 0) / (size / to)

    rows, columns = areas(210, 84), areas(160, 84)
    env = make_filmed_env(dicerl.preset("paper", env__id=game, env__sticky_actions=sticky), 3)
    rng = np.random.default_rng(0)
    env.reset(12345)
    env.pictures()
    for _ in range(80):
        observation, *_ = env.step(rng.integers(env.spec.num_actions, size=3))
        screens = np.stack(env.pictures()[-2:]).astype(np.float64) @ [0.299, 0.587, 0.114]
        np.testing.assert_allclose(observation[0, -1], rows @ screens.max(0) @ columns.T, atol=2.5)


def test_a_film_that_leaves_the_game_is_not_shown():
    env = make_filmed_env(dicerl.preset("paper", env__id="breakout"), 1)
    env.reset(1)
    env._ale.reset_game()  # the second emulator is not where the game is
    rng = np.random.default_rng(0)

    def on():
        for _ in range(400):
            env.step(rng.integers(env.spec.num_actions, size=1))

    with pytest.raises(DicerlError, match="has left the game"):
        on()
