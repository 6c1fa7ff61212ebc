"""games.py: how the name of an Atari game may be spelled. Ids that mean another environment are in
test_atari.py.
"""

import subprocess
import sys

import pytest

from dicerl.games import find_game

GAMES = ("pong", "ms_pacman", "up_n_down")


@pytest.mark.parametrize(
    ("env_id", "game"),
    [
        ("pong", "pong"),
        ("PONG", "pong"),
        ("ms_pacman", "ms_pacman"),
        ("ms pacman", "ms_pacman"),
        ("MsPacman", "ms_pacman"),
        ("ALE/MsPacman-v5", "ms_pacman"),
        ("MsPacmanNoFrameskip-v4", "ms_pacman"),
        ("UpNDownDeterministic-v0", "up_n_down"),
        ("pnog", None),
        ("Pong-v", None),
        ("my_module:Pong-v0", None),
        ("MinAtar/Pong-v1", None),
        ("breakout", None),  # none of these games
        ("", None),
    ],
)
def test_a_game_is_found_however_it_is_spelled(env_id, game):
    assert find_game(env_id, GAMES) == game


def test_spelling_needs_neither_an_emulator_nor_gymnasium():
    code = "import sys, dicerl.games; print({'ale_py', 'gymnasium', 'torch'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True
    )
    assert done.stdout == "set()\n"
