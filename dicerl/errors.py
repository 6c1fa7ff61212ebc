"""Errors a user can act on: one clear line, exit code 2, no traceback."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path

LONGEST = 500  # characters of a value in a message


class DicerlError(Exception):
    """An error the user can act on. The message names what is wrong, the value given and what would
    be right.
    """


class ConfigError(DicerlError):
    """A config field has an invalid value; ``expected`` describes a valid one."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shortened(value)}; {expected}")
        self.field = field


class CheckpointError(DicerlError):
    """A checkpoint is missing, damaged or could not be written."""


class GoBack(DicerlError):
    """A run cannot go on as it is: it must go back to its last checkpoint of at most ``until``
    updates, after ``pause`` seconds.
    """

    def __init__(self, message: str, until: float = math.inf, pause: float = 0.0) -> None:
        super().__init__(message)
        self.until, self.pause = until, pause


class Diverged(GoBack):
    """Too many updates in a row, from update ``until`` on, had a loss or a gradient that is not
    finite.
    """


class LearnerLost(GoBack):
    """A learner died, and the weights with it, or halfway through a change of them."""


class EnvironmentFailed(DicerlError):
    """The user's environment raised or returned something that cannot be used."""


class NoRoom(DicerlError):
    """No machine has a place for another actor now."""


def require_folder(field: str, file: Path) -> None:
    """Refuse a file that was named in a folder which is not there: a typing mistake must not make
    one.
    """
    if not file.parent.is_dir():
        raise ConfigError(field, str(file), f"there is no folder {file.parent}; make it first")


def told(error: BaseException) -> str:
    """``ValueError: why`` of whatever somebody's code raised, in one line; its own text may be of
    any length, or raise in turn.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "it cannot be shown"
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return f"{type(error).__name__}: {text}"


def shortened(value: object) -> str:
    """The value as Python writes it, cut where that would fill the screen."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def printable(text: str) -> str:
    """The text with every character that is not to be seen written as an escape sequence: names of
    files may hold any, and a terminal would obey some.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """'; did you mean pong?' if a known word is close to ``word``, else ''."""
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    return f"; did you mean {folded[close[0]]}?" if close else ""
