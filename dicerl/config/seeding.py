"""Every random stream of a run, derived from one root seed."""

from __future__ import annotations

import numpy as np

# A name's index is its stream's first key; further keys (actor, incarnation, updates, ...) separate
# the stream's users.
STREAMS = (
    "network",
    "actor",
    "environment",
    "bandit",
    "evaluation",
    "statistics",
    "scaling",
    "replay",
    "evaluate",
    "search",
)


def stream(seed: int, name: str, *keys: int) -> np.random.SeedSequence:
    """The random stream ``name`` of a run for the user with these ``keys``, independent of every
    other. ``seed`` is the run's root seed.
    """
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *keys))


def integer(sequence: np.random.SeedSequence) -> int:
    """A plain integer seed, for libraries that need one."""
    return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF
