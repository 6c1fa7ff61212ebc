"""envs/known.py: the list of environments, and that what it says is true."""

import gymnasium
import pytest

from dicerl.config import Config
from dicerl.envs import env_spec, known
from dicerl.envs.atari import ATARI_57, games
from dicerl.envs.known import Known


def ids(*args, **kwargs):
    return [env.id for env in known.known(*args, **kwargs)]


def test_all_of_them():
    found = known.known()
    names = [env.id for env in found]
    assert len(names) == len(set(names))
    assert [env.id for env in found if env.source == "atari57"] == list(ATARI_57)
    assert {env.id for env in found if env.source == "atari"} == games().keys() - set(ATARI_57)
    assert {"CartPole-v1", "MinAtar/Breakout-v1", "Taxi-v4"} <= set(names)
    assert not {"CartPole-v0", "MinAtar/Breakout-v0", "ALE/Pong-v5", "combat"} & set(names)
    assert {"CartPole-v0", "MinAtar/Breakout-v0"} <= set(ids(older=True))
    assert all(env.trainable is not None for env in found)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("PONG", ["pong"]),
        ("ALE/MsPacman-v5", ["ms_pacman"]),
        ("frozenlake-v", ["FrozenLake-v1"]),
        ("Blackjack-v1", ["Blackjack-v1"]),  # not the cartridge
        ("minatar/*s-v1", ["MinAtar/SpaceInvaders-v1"]),
        ("dicerl.envs.toy:c", [f"dicerl.envs.toy:{name}-v0" for name in ("Catch", "Counting")]),
        ("dicerl.envs.toy:T*", ["dicerl.envs.toy:TMaze-v0"]),
        ("no such", []),
        ("[", []),
    ],
)
def test_patterns(pattern, expected):
    assert ids(pattern) == expected


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Blackjack-v1", "FrozenLake-v1", "dicerl.envs.toy:Catch-v0"]
)
def test_what_trains_can_be_made(env_id):
    (env,) = [env for env in known.known(env_id) if env.id == env_id]
    assert env.trainable
    assert env.actions == str(env_spec(Config().replace(env__id=env_id)).num_actions)


def test_minatar_is_as_the_list_says_without_importing_it():
    for env in known.known("MinAtar/", older=True):
        spec = env_spec(Config().replace(env__id=env.id))
        shape = "×".join(map(str, spec.observation_shape))
        assert (f"{shape} {spec.observation_dtype}", str(spec.num_actions)) == (
            env.observation,
            env.actions,
        )


def test_what_does_not_train_says_why():
    (pendulum,) = known.known("Pendulum-v1")
    assert (pendulum.trainable, pendulum.actions) == (False, "1 float32")
    assert pendulum.why.startswith("continuous actions have no closed-form pi_tau")


class Loud(gymnasium.Env):
    def __init__(self, how="raise"):
        print("made")
        if how == "exit":
            raise SystemExit("bye\nnow")
        self.action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.spaces.Text(5)


@pytest.fixture
def loud():
    gymnasium.register("LoudText-v0", entry_point=Loud)
    gymnasium.register("LoudExit-v0", entry_point=Loud, kwargs={"how": "exit"})
    yield
    for name in ("LoudText-v0", "LoudExit-v0"):
        gymnasium.registry.pop(name)


def test_environments_that_misbehave_are_lines_like_others(loud, capsys, monkeypatch):
    text, leaves = known.known("Loud")
    assert not text.trainable
    assert text.why.startswith("supported are Discrete")
    assert (leaves.trainable, leaves.why) == (False, "it cannot be made: bye now")
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(known, "LOOKED_AT", 1)
    assert known.known("Loud") == [
        Known("LoudText-v0", "gymnasium"),
        Known("LoudExit-v0", "gymnasium"),
    ]


def test_a_game_that_ale_py_cannot_play_is_not_one():
    """To open its ROM would end the process."""
    assert "combat" not in games()
    assert set(ATARI_57) <= games().keys()
    assert games()["tic_tac_toe_3d"] == "ALE/TicTacToe3D-v5"
