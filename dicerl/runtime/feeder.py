"""Which batch is with which learner: feeds the learners from the collector, and settles what a dead
one leaves behind.

Each learner is sent up to BATCHES_AHEAD batches, so that it need not wait for the supervisor. Where
learners share cores with actors, a slot is free when its batch is trained, else when it is copied.
"""

from __future__ import annotations

from dicerl.config import Config
from dicerl.parts.collector import Collector
from dicerl.runtime.children import LearnerChild, Sent
from dicerl.runtime.messages import Batch, BatchProgress
from dicerl.runtime.setup import Plan

BATCHES_AHEAD = 2  # at most, sent to a learner and not trained yet


class Feeder:
    """Feeds ``learners``; ``number`` is that of the next batch in the run."""

    def __init__(self, config: Config, plan: Plan, collector: Collector, number: int) -> None:
        self._log_every = config.log_every
        self._collector, self._number = collector, number
        several = plan.num_learners > 1
        self.learners = [
            LearnerChild(number=i if several else None) for i in range(plan.num_learners)
        ]
        # whether learners train every batch together, and which of them holds a slot's sequence
        self._together = plan.runtime == "ray" and several
        self._holder: dict[int, int] = {}
        self._fresh = plan.shared_cores

    def written(self, slots: list[int], learner: int) -> None:
        """Queue sequences that an actor wrote, for ``learner`` where they train together."""
        self._collector.receive(slots)
        if self._together:
            self._holder |= dict.fromkeys(slots, learner)

    def under_way(self) -> bool:
        """Whether learners have batches that they have not trained yet."""
        return any(map(_ahead, self.learners))

    def feed(self) -> None:
        """Send batches that are ready, unless a learner is missing: it may leave some behind."""
        if any(learner.handle is None for learner in self.learners):
            return
        alternate = 1 if self._together else len(self.learners)
        while self._collector.ready():
            takers = self.learners if self._together else [min(self.learners, key=_ahead)]
            if max(map(_ahead, takers)) == BATCHES_AHEAD:
                break
            slots, number = self._collector.next_batch(), self._number
            round_, rest = divmod(number, self._log_every)
            # learners that alternate take turns with diagnostics
            diagnose = rest == round_ % min(alternate, self._log_every)
            for learner in takers:
                batch = Batch(slots, diagnose, number)
                if self._together:
                    batch = self._share(learner, slots, diagnose, number)
                learner.batches.append(Sent(batch))
                assert learner.handle is not None
                learner.handle.send(batch)
            self._number += 1

    def _share(self, learner: LearnerChild, slots: list[int], diagnose: bool, number: int) -> Batch:
        """A learner's part of a batch: the sequences that it holds, be they many or few. Every
        actor sends to one of the learners, so their shares are even on average.
        """
        place = self.learners.index(learner)
        columns = [i for i, slot in enumerate(slots) if self._holder[slot] == place]
        return Batch([slots[i] for i in columns], diagnose and place == 0, number, columns)

    def progress(self, learner: LearnerChild, message: BatchProgress) -> bool:
        """Follow a learner's word; return whether an update was made by it."""
        if message.copied and not self._fresh:
            # of several batches with the same slots, the first that was not copied yet
            waiting = (sent for sent in learner.batches if sent.uses is None)
            sent = next(sent for sent in waiting if sent.batch.slots == message.copied)
            served = self._collector.served
            self._collector.taken(message.copied)
            sent.uses = self._collector.served - served  # without replayed ones
        if not message.trained:
            return False
        self._trained(learner)
        return not self._together or learner is self.learners[0]  # the first one's word is for all

    def _trained(self, learner: LearnerChild) -> Batch:
        sent = learner.batches.popleft()
        if sent.uses is None:
            self._collector.taken(sent.batch.slots)
        return sent.batch

    def settle(self, learner: LearnerChild, updates: int) -> tuple[list[Batch], int]:
        """Settle what a dead learner left, which made the last ``updates`` without saying so.
        Return the batches of those, and how many uses of sequences went with it.

        Those it had only copied are lost, since their slots may hold others by now; the rest is for
        the next one.
        """
        made = [self._trained(learner) for _ in range(updates)]
        dropped = sum(sent.uses for sent in learner.batches if sent.uses is not None)
        self._collector.drop(dropped)
        left = [sent for sent in learner.batches if sent.uses is None]
        learner.batches.clear()
        learner.batches.extend(left)
        return made, dropped


def _ahead(learner: LearnerChild) -> int:
    return learner.ahead
