"""The Data Collector: bounded; serves each sequence exactly ``reuse`` times, each time in another batch.

Sequences live in the slots of a store (see sequence.py); only slot numbers move. A slot is *free*, *lent* to
an actor that writes it, *queued* for training, or *out* with a batch. When no slot is free actors wait: nothing
is dropped or overwritten.
"""

from __future__ import annotations

from collections import deque


class Collector:
    def __init__(self, capacity: int, batch: int, reuse: int) -> None:
        if capacity < batch:
            raise ValueError(f"a collector of {capacity} slots cannot hold a batch of {batch}")
        self.batch_size, self.reuse = batch, reuse
        self._free = deque(range(capacity))
        self._lent: set[int] = set()
        self._queue: deque[int] = deque()  # every slot at most once, so a batch never holds a sequence twice
        self._uses = [0] * capacity
        self.received = 0  # sequences
        self.served = 0  # uses of sequences
        self.retired = 0  # sequences that had all their uses

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def lend(self, count: int) -> list[int]:
        """Up to ``count`` free slots, to be written and then received or returned."""
        slots = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        self._lent.update(slots)
        return slots

    def receive(self, slots: list[int]) -> None:
        """These lent slots now hold a sequence each."""
        for slot in slots:
            self._lent.remove(slot)
            self._uses[slot] = 0
            self._queue.append(slot)
        self.received += len(slots)

    def give_back(self, slots: list[int]) -> None:
        """These lent slots were not written after all (their actor died)."""
        for slot in slots:
            self._lent.remove(slot)
            self._free.append(slot)

    def ready(self) -> bool:
        return len(self._queue) >= self.batch_size

    def next_batch(self) -> list[int]:
        """The slots that waited longest; tell ``taken`` when the learner has copied them."""
        return [self._queue.popleft() for _ in range(self.batch_size)]

    def taken(self, slots: list[int]) -> None:
        """The batch was copied: a slot that had all its uses is free again, any other waits for its next one."""
        self.served += len(slots)
        for slot in slots:
            self._uses[slot] += 1
            if self._uses[slot] == self.reuse:
                self.retired += 1
                self._free.append(slot)
            else:
                self._queue.append(slot)

    def pending(self) -> list[tuple[int, int]]:
        """(slot, uses so far) of what waits, in order: what a checkpoint of the serial runtime saves."""
        return [(slot, self._uses[slot]) for slot in self._queue]

    def restore(self, uses: list[int]) -> list[int]:
        """Queue saved sequences again; returns the slots to write them into."""
        slots = self.lend(len(uses))
        self.receive(slots)
        self.received -= len(slots)
        for slot, used in zip(slots, uses, strict=True):
            self._uses[slot] = used
        return slots


def default_capacity(batch: int, num_envs: int) -> int:
    """A batch that waits for its last sequence, and one round of every environment."""
    return batch + num_envs
