"""Names of Atari games as strings. Reports read them too, so neither an emulator nor Gymnasium is
imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def find_game(env_id: str, games: Iterable[str]) -> str | None:
    """The one of ``games`` that an environment's id is spelt like, or None.

    Games are written like ms_pacman; an id may be ms_pacman, MsPacman, ALE/MsPacman-v5,
    MsPacmanNoFrameskip-v4. It may still be another environment with such a name: who can look
    (``envs.atari.game_name``) asks Gymnasium's registry.
    """
    word = re.sub(r"^ALE/", "", env_id)
    word = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", word)
    squeezed = word.replace("_", "").replace(" ", "").lower()
    return {game.replace("_", ""): game for game in games}.get(squeezed)
