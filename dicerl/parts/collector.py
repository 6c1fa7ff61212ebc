"""The Data Collector: bounded; serves each sequence exactly ``reuse`` times, each time in another
batch.

Sequences are in the slots of a store (see sequence.py); only slot numbers move. A slot is *free*,
*lent* to an actor that writes it, *queued* for training, or *out* with a batch. When no slot is
free, actors wait: nothing is dropped or overwritten.

With ``replay`` a sequence is not dropped after its last use (LASER): the newest
``replay_capacity`` are *kept*, and ``replayed`` sequences of each batch are drawn from those
uniformly, without repetition, in addition to the ``reuse`` uses as a new sequence. Until that many
are kept, batches hold new sequences only.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from dicerl.config import Config, seeding
from dicerl.records.books import Books


class Collector:
    """Bookkeeping of ``capacity`` slots. ``replayed`` of the ``batch`` sequences in a batch come
    from replay.
    """

    def __init__(
        self,
        capacity: int,
        batch: int,
        reuse: int,
        replayed: int = 0,
        replay_capacity: int = 0,
        seed: int | np.random.SeedSequence = 0,
    ) -> None:
        if capacity < batch + replay_capacity:
            raise ValueError(
                f"a collector of {capacity} slots cannot hold a batch of"
                f" {batch}{f' and {replay_capacity} to replay' * (replayed > 0)}"
            )
        if not 0 <= replayed < batch or replayed > replay_capacity:
            raise ValueError(
                f"{replayed} of a batch of {batch} cannot come from {replay_capacity} kept"
                " sequences"
            )
        self.batch_size, self.reuse = batch, reuse
        # Slots for new sequences: before enough are kept, the others stay free, so that actors are
        # never further ahead of the learner.
        self._most_new = max(batch, capacity - batch - replay_capacity) if replayed else capacity
        self.replayed, self.replay_capacity = replayed, replay_capacity
        self.rng = np.random.default_rng(seed)
        self._kept: deque[int] = deque()  # oldest first
        # kept slots in a batch under way: not to be overwritten
        self._out: Counter[int] = Counter()
        self.served_again = 0  # uses of kept sequences
        self._free = deque(range(capacity))
        self._lent: set[int] = set()
        self._under_way: set[int] = set()  # new sequences in batches that are not copied yet
        # every slot at most once, so a batch never holds a sequence twice
        self._queue: deque[int] = deque()
        self._uses = [0] * capacity
        self.received = 0  # sequences
        self.due = 0  # uses of those
        self.lost: Counter[int] = Counter()  # lent slots that came back unwritten, by dead actor
        self.served = 0  # uses of sequences
        self.dropped = 0  # of those: never trained
        self.retired = 0  # sequences after their last use as new ones

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def room(self) -> int:
        """The number of slots that can be lent."""
        new = len(self._lent) + len(self._queue) + len(self._under_way)
        return min(len(self._free), self._most_new - new)

    def lend(self, count: int) -> list[int]:
        """Lend up to ``count`` slots, to be written and then received or given back."""
        slots = self._take(min(count, self.room))
        self._lent.update(slots)
        return slots

    def _take(self, count: int) -> list[int]:
        return [self._free.popleft() for _ in range(count)]

    def receive(self, slots: list[int]) -> None:
        """Queue lent slots that now hold a sequence each."""
        for slot in slots:
            self._lent.remove(slot)
            self._uses[slot] = 0
            self._queue.append(slot)
        self.received += len(slots)
        self.due += len(slots) * self.reuse

    def give_back(self, slots: list[int], dead: int | None = None) -> None:
        """Free lent slots that were not written: their actor was ended, or is ``dead``."""
        if dead is not None:
            self.lost[dead] += len(slots)
        for slot in slots:
            self._lent.remove(slot)
            self._free.append(slot)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def _older(self) -> int:
        """The number of replayed sequences in the next batch."""
        return self.replayed if len(self._kept) >= self.replayed else 0

    def ready(self) -> bool:
        """Whether there are enough sequences for a batch."""
        return len(self._queue) >= self.batch_size - self._older()

    def next_batch(self) -> list[int]:
        """The slots of the next batch: the new ones that waited longest, then replayed ones. Call
        ``taken`` once the learner has copied them.
        """
        older = self._older()
        slots = [self._queue.popleft() for _ in range(self.batch_size - older)]
        self._under_way.update(slots)
        if older:
            drawn = [self._kept[i] for i in self.rng.choice(len(self._kept), older, replace=False)]
            self._out.update(drawn)
            slots += drawn
        return slots

    def taken(self, slots: list[int]) -> None:
        """Record that a batch was copied: a slot after its last use becomes free (or kept), any
        other is queued again.
        """
        for slot in slots:
            if self._out[slot]:
                self._out[slot] -= 1
                self.served_again += 1
                continue
            self._under_way.remove(slot)
            self.served += 1
            self._uses[slot] += 1
            if self._uses[slot] == self.reuse:
                self.retired += 1
                (self._kept if self.replayed else self._free).append(slot)
            else:
                self._queue.append(slot)
        # A kept sequence in a batch under way stays until that batch is copied.
        surplus = len(self._kept) - self.replay_capacity
        if surplus > 0:
            for slot in [s for s in self._kept if not self._out[s]][:surplus]:
                self._kept.remove(slot)
                self._free.append(slot)

    def drop(self, uses: int) -> None:
        """Record that these uses, of a batch that was ``taken``, went with a learner."""
        self.dropped += uses

    def books(self) -> Books:
        """Where every sequence went. What waits is counted slot by slot, apart from the rest."""
        waiting = sum(self.reuse - self._uses[slot] for slot in (*self._queue, *self._under_way))
        return Books(
            self.received,
            self.due,
            self.served - self.dropped,
            self.served_again,
            self.dropped,
            waiting,
            [self.lost[actor] for actor in range(max(self.lost, default=-1) + 1)],
        )

    def go_on(self, books: Books) -> None:
        """Continue the books of a checkpoint. What waited then and was not restored is dropped."""
        here = self.books().waiting
        self.received, self.due, self.served_again = books.produced, books.due, books.replayed
        self.dropped = books.dropped + books.waiting - here
        self.served = books.trained + self.dropped
        self.lost = Counter(dict(enumerate(books.lost)))

    def numbers(self) -> dict[str, float]:
        """For the metrics: uses so far per sequence received, sequences queued, the books, and
        replay's numbers.
        """
        books = self.books()
        numbers = {
            "reuse_served": books.trained / max(1, books.produced),
            "queued_sequences": float(len(self._queue)),
            "produced_sequences": float(books.produced),
            "trained_uses": float(books.trained),
            "waiting_uses": float(books.waiting),
            "dropped_uses": float(books.dropped),
            "lost_sequences": float(sum(books.lost)),
        }
        if self.replayed:
            numbers |= {
                "kept_sequences": float(len(self._kept)),
                "replayed_fraction": self.served_again / max(1, self.served + self.served_again),
            }
        return numbers

    def kept(self) -> list[int]:
        """The slots kept for replay, oldest first."""
        return list(self._kept)

    def pending(self) -> list[tuple[int, int]]:
        """(slot, uses so far) of queued sequences, in order: what a checkpoint of the serial
        runtime saves.
        """
        return [(slot, self._uses[slot]) for slot in self._queue]

    def restore(self, uses: list[int], kept: int = 0) -> list[int]:
        """Queue saved sequences with these ``uses`` so far, and keep ``kept`` more for replay;
        return the slots to write them into, in this order.
        """
        slots = self._take(len(uses))
        self._queue.extend(slots)
        for slot, used in zip(slots, uses, strict=True):
            self._uses[slot] = used
        older = self._take(kept)
        self._kept.extend(older)
        return slots + older


def build(config: Config, capacity: int, kept: int) -> Collector:
    """Make the collector of a run; ``capacity`` counts every slot of its store, ``kept`` those at
    most that are kept for replay.
    """
    return Collector(
        capacity,
        config.sequence.batch,
        config.sequence.reuse,
        config.replayed,
        kept,
        seeding.stream(config.seed, "replay"),
    )


def default_capacity(batch: int, num_envs: int, num_learners: int, num_actors: int) -> int:
    """The default number of slots for new sequences: one for each environment, so that none waits
    for long, but at least a batch (its new sequences) for each learner beside the windows of one
    actor, so that learners do not wait while it acts.
    """
    return max(num_learners * batch + num_envs // num_actors, num_envs)
