"""The messages between supervisor and children. They hold no tensors, but for the few batches of
updates that were skipped: sequences are named by their slots, parameters by their version.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dicerl.agent.behaviour import Behaviour, Region
from dicerl.parts.actor import Episode
from dicerl.parts.sequence import Arrays

# --- from an actor


class Alive(NamedTuple):
    """A sign of life, about twice a second; also sent by an evaluator."""

    steps: int = 0  # agent steps since the last message with steps


class Answered(NamedTuple):
    """From the transport itself: the child was asked whether it is there, and is. What it owes, it
    owes still.
    """


class SlotsWanted(NamedTuple):
    """Slots for the next windows, which wait for them before they begin (for those complete, where
    fewer were lent); answered with ``Slots``.
    """

    steps: int
    number: int  # of slots


class Written(NamedTuple):
    """The lent slots now hold a sequence each."""

    slots: list[int]
    learner: int = 0  # of those that train batches together, the one that has the sequences


class EpisodesEnded(NamedTuple):
    """Episodes that ended; answered with ``Drawn`` if behaviours are wanted."""

    steps: int
    episodes: list[Episode]
    wanted: int  # behaviours


class TimesSpent(NamedTuple):
    """How an actor spent its time since its last report, as fractions by stage."""

    fractions: dict[str, float]


# --- to an actor


class Slots(NamedTuple):
    """Lent slots: at least one, at most as many as were wanted."""

    slots: list[int]


class Drawn(NamedTuple):
    """Behaviours for the actor's next episodes."""

    behaviours: list[Behaviour]


# --- to a learner


class Batch(NamedTuple):
    """A batch to train; answered with ``BatchProgress``."""

    slots: list[int]
    diagnose: bool  # whether its diagnostics are wanted
    number: int  # of the batch in the run
    # of learners that train it together: the share of each, which ``slots`` are
    columns: list[int] | None = None


class Publish(NamedTuple):
    """Publish the current parameters; answered with ``Published``."""


class Save(NamedTuple):
    """Write the tensors of a checkpoint; answered with ``Saved`` or ``NotSaved``."""

    folder: str


# --- from a learner


class BatchProgress(NamedTuple):
    """A batch was copied out of its slots, or one was trained, or both."""

    copied: list[int]  # slots that are no longer needed for this use
    trained: bool
    diagnostics: dict[str, float] | None  # of the batch that was trained, where wanted


class Skipped(NamedTuple):
    """An update changed nothing, since its loss or its gradient is not finite."""

    update: int
    loss: float
    norm: float
    batch: Arrays | None  # to look at; None once a learner has sent some


class Published(NamedTuple):
    """The newest parameters are available to actors and the evaluator."""


class Saved(NamedTuple):
    """The tensors of a checkpoint are written."""

    steps_trained: int = 0


class NotSaved(NamedTuple):
    """The tensors of a checkpoint could not be written."""

    reason: str


# --- to and from an evaluator


class Evaluate(NamedTuple):
    """Evaluate the newest published parameters; answered with ``Pulled``."""


class Pulled(NamedTuple):
    """The parameters to evaluate are here; answered with ``Play``."""

    version: int


class Play(NamedTuple):
    """Play episodes with behaviours from this region; answered with ``Evaluated``. ``Save`` may
    follow: write the tensors that were evaluated, answered as by a learner.
    """

    region: Region


class Evaluated(NamedTuple):
    """The result of an evaluation."""

    result: dict[str, Any]


# --- from any child, as it ends


class Failed(NamedTuple):
    """An error the user can act on: the run ends with this reason."""

    reason: str


class Crashed(NamedTuple):
    """A bug, in dicerl or in an environment."""

    reason: str
    traceback: str


class Ended(NamedTuple):
    """The child has ended; sent by its transport."""

    how: str  # "was killed by SIGKILL", "ended with exit code 1"
    place_lost: bool = False  # with the machine it was on: no fault of its own
