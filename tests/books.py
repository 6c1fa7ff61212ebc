"""What a collector promises, tracked in the simplest way, for test_collector.py and
test_collector_replay.py.
"""

from collections import Counter

from dicerl.parts.collector import Collector


class Books:
    """What the collector promises, tracked in the simplest way: which sequence is in which slot,
    and how often it was served.
    """

    def __init__(self, capacity, batch, reuse):
        self.collector = Collector(capacity, batch, reuse)
        self.capacity, self.batch, self.reuse = capacity, batch, reuse
        self.lent, self.out = [], []
        self.holds = {}  # slot -> sequence
        self.order, self.uses, self.made = [], Counter(), 0

    def lend(self, count):
        slots = self.collector.lend(count)
        taken = set(self.lent) | set(self.holds)
        assert not taken & set(slots)
        assert len(slots) == min(count, self.capacity - len(taken), self.room())
        self.lent += slots

    def room(self):
        return self.capacity - len(self.lent) - len(self.holds)

    def balance(self):
        """The collector's own books, in mid-run, against those that were kept here."""
        found = self.collector.books()
        assert (found.produced, found.due) == (self.made, self.made * self.reuse)
        assert found.trained == len(self.order)
        owed = sum(self.reuse - self.uses[sequence] for sequence in self.holds.values())
        assert found.waiting == owed
        assert found.missing == 0

    def receive(self, count):
        slots, self.lent = self.lent[:count], self.lent[count:]
        for slot in slots:
            self.holds[slot] = self.made
            self.made += 1
        self.collector.receive(slots)

    def give_back(self, count):
        slots, self.lent = self.lent[:count], self.lent[count:]
        self.collector.give_back(slots)

    def serve(self, _):
        if not self.collector.ready():
            return
        slots = self.collector.next_batch()
        assert len(slots) == len(set(slots)) == self.batch
        assert not {slot for batch in self.out for slot in batch} & set(slots)
        self.out.append(slots)

    def take(self, _):
        if not self.out:
            return
        slots = self.out.pop(0)
        for slot in slots:
            sequence = self.holds[slot]
            self.uses[sequence] += 1
            self.order.append(sequence)
            if self.uses[sequence] == self.reuse:
                del self.holds[slot]
        self.collector.taken(slots)


class ReplayBooks(Books):
    """The same with replay: a batch is some new sequences, each of which has its own ``reuse``
    uses, then older ones.
    """

    def __init__(self, replayed, replay_capacity, batch, spare, reuse):
        super().__init__(batch + replay_capacity + spare, batch, reuse)
        self.collector = Collector(self.capacity, batch, reuse, replayed, replay_capacity, seed=1)
        self.replayed, self.replay_capacity = replayed, replay_capacity
        self.kept, self.again = [], Counter()  # slots, oldest first; sequence -> replayed uses
        self.finished = []  # sequences that had all their uses, in that order
        self.served_again = 0

    def room(self):
        """New sequences have slots of their own: more of them would only be older when trained."""
        most = max(self.batch, self.capacity - self.batch - self.replay_capacity)
        return most - len(self.lent) - (len(self.holds) - len(self.kept))

    def older_out(self):
        return Counter(slot for batch in self.out for slot in batch[1])

    def serve(self, _):
        older = self.replayed if len(self.kept) >= self.replayed else 0
        assert self.collector.ready() is (len(self.collector) >= self.batch - older)
        if not self.collector.ready():
            return
        slots = self.collector.next_batch()
        assert len(slots) == len(set(slots)) == self.batch  # no sequence twice in a batch
        new, again = slots[: self.batch - older], slots[self.batch - older :]
        # a new one that is out is in no other batch
        assert not {slot for batch in self.out for slot in batch[0]} & set(slots)
        assert set(again) <= set(self.kept)
        assert not set(new) & set(self.kept)
        self.out.append((new, again))

    def take(self, _):
        if not self.out:
            return
        new, again = self.out.pop(0)
        for slot in again:
            self.again[self.holds[slot]] += 1
        self.served_again += len(again)
        for slot in new:
            sequence = self.holds[slot]
            self.uses[sequence] += 1
            self.order.append(sequence)
            if self.uses[sequence] == self.reuse:
                self.kept.append(slot)
                self.finished.append(sequence)
        self.collector.taken(new + again)
        still = self.collector.kept()
        assert still == [slot for slot in self.kept if slot in set(still)]  # in the order they came
        for slot in set(self.kept) - set(still):
            assert not self.older_out()[slot], "a sequence that a batch holds was forgotten"
            del self.holds[slot]
        self.kept = still

    def check(self):
        free = set(self.collector._free)
        assert len(free) == self.collector.num_free
        assert not free & (set(self.kept) | set(self.lent) | set(self.holds))
        # every slot is somewhere, once
        assert len(free) + len(self.lent) + len(self.holds) == self.capacity
        assert (
            self.collector.num_kept
            == len(self.kept)
            <= self.replay_capacity + len(self.older_out())
        )
        assert all(self.uses[self.holds[slot]] == self.reuse for slot in self.kept)
