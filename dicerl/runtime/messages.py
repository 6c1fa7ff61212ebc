"""What supervisor and children say to each other. Tensors are not among it: sequences are named by
their slots, parameters by their version.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dicerl.agent.behaviour import Behaviour, Region
from dicerl.parts.actor import Episode

# --- from an actor


class Alive(NamedTuple):
    """A sign of life, about twice a second; of an evaluator, too."""

    steps: int = 0  # agent steps taken since the last message that has steps


class SlotsWanted(NamedTuple):
    """Windows are complete and wait for slots; answered with ``Slots``."""

    steps: int
    number: int


class Written(NamedTuple):
    """These lent slots hold a sequence each."""

    slots: list[int]


class EpisodesEnded(NamedTuple):
    """Episodes that ended; answered with ``Drawn`` where behaviours are wanted."""

    steps: int
    episodes: list[Episode]
    wanted: int


class TimesSpent(NamedTuple):
    """Where an actor's time went lately, as fractions by stage."""

    fractions: dict[str, float]


# --- to an actor


class Slots(NamedTuple):
    """Slots lent: at least one, at most as many as were wanted."""

    slots: list[int]


class Drawn(NamedTuple):
    """Behaviours of the actor's next episodes."""

    behaviours: list[Behaviour]


# --- to a learner


class Batch(NamedTuple):
    """A batch to train; answered with ``Progress``."""

    slots: list[int]
    diagnose: bool  # whether its diagnostics are wanted
    number: int  # of the batch in the run


class Publish(NamedTuple):
    """Publish the parameters as they are now; answered with ``Published``."""


class Save(NamedTuple):
    """Write the tensors of a checkpoint; answered with ``Saved`` or ``NotSaved``."""

    folder: str


# --- from a learner


class Progress(NamedTuple):
    """A batch was copied out of its slots, or one was trained, or both."""

    copied: list[int]  # slots that are no longer needed for this use
    trained: bool
    diagnostics: dict[str, float] | None  # of the batch that was trained, where wanted


class Published(NamedTuple):
    """The newest parameters are there for actors and evaluator."""


class Saved(NamedTuple):
    """The tensors of a checkpoint are written."""

    steps_trained: int


class NotSaved(NamedTuple):
    """They could not be written."""

    reason: str


# --- to and from an evaluator


class Evaluate(NamedTuple):
    """Play with the newest published parameters; answered with ``Evaluated``."""

    region: Region


class Evaluated(NamedTuple):
    """The result, and the updates behind the parameters that played."""

    result: dict[str, Any]
    version: int


# --- from any child, its last words


class Failed(NamedTuple):
    """Something a person can act on: the run ends with this reason."""

    reason: str


class Crashed(NamedTuple):
    """A bug, or an environment's own."""

    reason: str
    traceback: str


class Ended(NamedTuple):
    """The child has ended, said by its transport."""

    how: str  # "was killed by SIGKILL", "ended with exit code 1"
