"""Every random stream of a run from one root seed."""

from __future__ import annotations

import numpy as np

# The first key of each stream; the rest tells its users apart (actor, incarnation, updates, ...).
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
)


def stream(seed: int, name: str, *keys: int) -> np.random.SeedSequence:
    """The stream ``name`` of a run, for one of its users: independent of every other."""
    return np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *keys))


def integer(sequence: np.random.SeedSequence) -> int:
    """A seed for libraries that want a plain integer."""
    return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF
