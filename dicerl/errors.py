"""Errors a user can act on: one clear line, exit code 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DicerlError(Exception):
    """An error the user can act on. The message names what is wrong, the value given and what would
    be right.
    """


class ConfigError(DicerlError):
    """A config field has an invalid value; ``expected`` describes a valid one."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {value!r}; {expected}")
        self.field = field


class CheckpointError(DicerlError):
    """A checkpoint is missing, damaged or could not be written."""


class EnvironmentFailed(DicerlError):
    """The user's environment raised or returned something that cannot be used."""


class NoRoom(DicerlError):
    """No machine has a place for another actor now."""


def nearest(word: str, known: Iterable[str]) -> str:
    """'; did you mean pong?' if a known word is close to ``word``, else ''."""
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[close[0]]}?" if close else ""
