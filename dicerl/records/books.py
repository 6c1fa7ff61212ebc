"""Where every sequence of a run went: the sum must hold at the end of every run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field


@dataclass
class Books:
    """A sequence that an actor wrote has ``sequence.reuse`` uses due. Each is trained, dropped, or
    still waits:

        due = trained + dropped + waiting

    They go back with the run to a checkpoint, as every counter does; what waited then is dropped.
    """

    produced: int = 0  # sequences that actors wrote
    due: int = 0  # uses of those, in all
    trained: int = 0  # uses
    replayed: int = 0  # uses of kept sequences, beside those (collector.replay)
    dropped: int = 0  # uses that went with a learner, or were not saved in a checkpoint
    waiting: int = 0  # uses of sequences in the collector; in flight, where this is saved
    lost: list[int] = field(default_factory=list)  # sequences begun, and lost with each actor

    @property
    def missing(self) -> int:
        """Uses of which nobody knows; anything but 0 is a bug."""
        return self.due - self.trained - self.dropped - self.waiting

    def to_dict(self) -> dict[str, int | list[int]]:
        """The books as a dict, for metrics and summaries."""
        return dataclasses.asdict(self)
