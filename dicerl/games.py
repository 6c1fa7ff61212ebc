"""Spelling of Atari game names. Reports use it too, so neither an emulator nor Gymnasium is
imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def find_game(env_id: str, games: Iterable[str]) -> str | None:
    """The game among ``games`` whose name matches an environment's id, or None.

    Games are written like ms_pacman; an id may be ms_pacman, MsPacman, ALE/MsPacman-v5,
    MsPacmanNoFrameskip-v4. The id may still name another environment; ``envs.atari.game_name``
    also checks Gymnasium's registry.
    """
    word = re.sub(r"^ALE/", "", env_id)
    word = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", word)
    squeezed = word.replace("_", "").replace(" ", "").lower()
    return {game.replace("_", ""): game for game in games}.get(squeezed)
