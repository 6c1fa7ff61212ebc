"""Which environments there are, what they observe and how one acts in them, and whether dicerl can
train them.

Looking must be quick. Atari games are described without their emulator, which takes a third of a
second to load a game, and MinAtar's without importing it, which takes two. Others are made once to
read their spaces, if at most ``LOOKED_AT`` of them are asked for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from dicerl.envs.atari import ATARI_57, game_name, games
from dicerl.envs.gym import ids_of, maker, register_plugins
from dicerl.envs.spaces import actions_of, in_line, observations_of
from dicerl.errors import DicerlError

LOOKED_AT = 100
# channels of an observation, and the actions that do something: what version 1 has
_MINATAR = {
    "Asterix": (4, 5),
    "Breakout": (4, 3),
    "Freeway": (7, 3),
    "Seaquest": (10, 6),
    "SpaceInvaders": (6, 4),
}


@dataclass(frozen=True)
class Known:
    """An environment, as a line of the list."""

    id: str  # as ``dicerl train`` takes it
    source: str  # atari57 (the paper's games), atari, minatar, gymnasium, or the module's name
    observation: str = ""  # empty: not looked at
    actions: str = ""
    trainable: bool | None = None  # None: not looked at
    why: str = ""  # it cannot be trained


def known(pattern: str = "", older: bool = False) -> list[Known]:
    """The environments that match ``pattern``: part of a name, or a whole one with ``*``, without
    regard to case. ``module:`` lists what a module registers, and imports it. ``older`` versions of
    an id are left out otherwise.
    """
    module, _, word = pattern.rpartition(":")
    if module:
        ids = [i for i in ids_of(pattern) if _matches(i, word)]
        return _looked_at([f"{module}:{i}" for i in ids], module)
    register_plugins(but="MinAtar")
    ids = [
        i
        for i, spec in gymnasium.registry.items()
        if "ale_py" not in str(spec.entry_point) and not i.startswith(("ALE/", "MinAtar/"))
    ]
    shown = set(ids) if older else _newest(ids)
    ids = [i for i in ids if i in shown and _matches(i, word)]
    return [*_atari(word), *_minatar(word, older), *_looked_at(ids, "gymnasium")]


def _matches(name: str, word: str) -> bool:
    if any(sign in word for sign in "*?["):
        return fnmatch.fnmatch(name.lower(), word.lower())
    return word.lower() in name.lower()


def _newest(ids: list[str]) -> set[str]:
    """The newest version of each name."""
    newest: dict[str, tuple[int, str]] = {}
    for name in ids:
        version = re.search(r"-v(\d+)$", name)
        number = int(version[1]) if version else -1
        stem = name[: version.start()] if version else name
        newest[stem] = max(newest.get(stem, (-2, "")), (number, name))
    return {name for _, name in newest.values()}


def _atari(word: str) -> Iterator[Known]:
    named = game_name(word)  # ALE/Pong-v5
    for game in dict.fromkeys([*ATARI_57, *games()]):
        if _matches(game, word) or game == named:
            source = "atari57" if game in ATARI_57 else "atari"
            yield Known(game, source, "4×84×84 uint8", "up to 18", True)


def _minatar(word: str, older: bool) -> Iterator[Known]:
    for game, (channels, actions) in _MINATAR.items():
        for version, count in ((0, 6), (1, actions)):
            name = f"MinAtar/{game}-v{version}"
            if (older or version == 1) and _matches(name, word):
                yield Known(name, "minatar", f"10×10×{channels} bool", str(count), True)


def _looked_at(ids: list[str], source: str) -> list[Known]:
    if len(ids) > LOOKED_AT:
        return [Known(name, source) for name in ids]
    return [_look(name, source) for name in ids]


def _look(name: str, source: str) -> Known:
    """Make the environment once, silently, to read its spaces."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of old versions, for example
            env = maker(name)()
            acts, seen = env.action_space, env.observation_space
            env.close()
    except (Exception, SystemExit) as error:  # it may do anything
        why = " ".join(str(error).split()) or type(error).__name__
        return Known(name, source, trainable=False, why=f"it cannot be made: {why}")
    why = ""
    try:
        actions_of(acts, name)
        observations_of(seen, name)
    except DicerlError as error:
        why = str(error).partition("; ")[2] or str(error)
    count = str(int(acts.n)) if isinstance(acts, Discrete) else _in_words(acts)
    return Known(name, source, _in_words(seen), count, not why, why)


def _in_words(space: Any) -> str:
    if isinstance(space, Box):
        return f"{'×'.join(map(str, space.shape)) or 'one'} {np.dtype(space.dtype)}"
    return in_line(space)
