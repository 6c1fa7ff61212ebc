"""parts/collector.py: bounded, nothing dropped or overwritten (docs/paper.md 2.5)."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.parts.collector import Collector, default_capacity

quick = settings(max_examples=60, deadline=None, derandomize=True)


def test_a_sequence_is_served_reuse_times_then_its_slot_is_free():
    collector = Collector(capacity=3, batch=2, reuse=3)
    collector.receive(collector.lend(2))
    for use in (1, 2, 3):
        assert collector.ready()
        slots = collector.next_batch()
        assert len(set(slots)) == 2
        assert not collector.ready()  # a slot that is out cannot be served again
        collector.taken(slots)
        assert collector.served == 2 * use
    assert (collector.received, collector.retired, collector.num_free, len(collector)) == (
        2,
        2,
        3,
        0,
    )


def test_a_full_collector_lends_nothing_until_a_slot_retires():
    collector = Collector(capacity=3, batch=2, reuse=1)
    assert len(collector.lend(5)) == 3
    assert collector.lend(1) == []  # lent slots are not lent again
    collector.receive([0, 1, 2])
    assert collector.lend(1) == []  # nor queued ones
    batch = collector.next_batch()
    assert collector.lend(1) == []  # nor those out with a batch
    collector.taken(batch)
    assert sorted(collector.lend(5)) == sorted(batch)


def test_slots_of_a_dead_actor_come_back_without_being_served():
    collector = Collector(capacity=2, batch=2, reuse=1)
    collector.give_back(collector.lend(2))
    assert (collector.num_free, len(collector), collector.received) == (2, 0, 0)
    assert not collector.ready()


def test_only_lent_slots_are_received_or_given_back():
    collector = Collector(capacity=2, batch=1, reuse=1)
    with pytest.raises(KeyError):
        collector.receive([0])
    with pytest.raises(KeyError):
        collector.give_back([1])


def test_a_collector_holds_at_least_a_batch():
    with pytest.raises(ValueError, match="3 slots cannot hold a batch of 4"):
        Collector(capacity=3, batch=4, reuse=1)


def test_the_default_capacity_never_makes_one_round_wait_for_itself():
    """Less than a batch waits, a whole round arrives: both fit."""
    for batch, envs in ((1, 1), (4, 5), (64, 160), (7, 2)):
        collector = Collector(default_capacity(batch, envs, 1), batch, 2)
        for _ in range(6):
            slots = collector.lend(envs)
            assert len(slots) == envs
            collector.receive(slots)
            while collector.ready():
                collector.taken(collector.next_batch())


def test_restore_goes_on_where_pending_stopped():
    """The same sequences come in the same batches, and are used as often, as without the stop."""
    before = Collector(capacity=8, batch=3, reuse=2)
    before.receive(before.lend(5))
    before.taken(before.next_batch())
    pending = before.pending()
    assert pending == [(3, 0), (4, 0), (0, 1), (1, 1), (2, 1)]

    after = Collector(capacity=8, batch=3, reuse=2)
    slots = after.restore([used for _, used in pending])
    # which sequence lies in which slot now
    names = dict(zip(slots, [slot for slot, _ in pending], strict=True))
    assert after.received == 0  # they were counted when they first came
    for collector in (before, after):
        collector.receive(collector.lend(1))
    names |= {slot: "new" for slot, used in after.pending() if slot not in names}
    fresh = before.pending()[-1][0]
    while before.ready():
        a, b = before.next_batch(), after.next_batch()
        assert ["new" if slot == fresh else slot for slot in a] == [names[slot] for slot in b]
        before.taken(a)
        after.taken(b)
    assert not after.ready()
    assert before.retired == after.retired


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
        assert len(slots) == min(count, self.capacity - len(taken))
        self.lent += slots

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


@quick
@given(
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.sampled_from(["lend", "receive", "give_back", "serve", "take"]), st.integers(0, 4)
        ),
        max_size=80,
    ),
)
def test_any_order_of_events_keeps_the_books(batch, spare, reuse, events):
    books = Books(batch + spare, batch, reuse)
    for name, count in events:
        getattr(books, name)(count)
    # Let everything that is under way come to its end.
    books.receive(len(books.lent))
    while books.collector.ready() or books.out:
        books.serve(0)
        books.take(0)
    collector = books.collector
    assert len(collector) < batch
    assert all(uses <= reuse for uses in books.uses.values())
    assert sum(books.uses[s] < reuse for s in range(books.made)) == len(collector)  # none was lost
    first_uses = list(dict.fromkeys(books.order))
    assert first_uses == sorted(first_uses)  # in the order they came
    assert (collector.received, collector.served) == (books.made, len(books.order))
    assert collector.retired == sum(uses == reuse for uses in books.uses.values())
    assert collector.num_free + len(collector) == books.capacity


# --- replay ---------------------------------------------------------------------------------------


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


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lend", "receive", "give_back", "serve", "take"]), st.integers(0, 4)
    ),
    max_size=120,
)


@quick
@given(st.integers(2, 4), st.data(), st.integers(0, 5), st.integers(1, 3), EVENTS)
def test_any_order_of_events_keeps_the_books_with_replay(batch, data, spare, reuse, events):
    """Lending is checked in Books.lend: never a slot that is queued, out or kept."""
    replayed = data.draw(st.integers(1, batch - 1))
    books = ReplayBooks(replayed, data.draw(st.integers(replayed, 6)), batch, spare, reuse)
    for name, count in [("lend", 4), ("receive", 4), *events]:
        getattr(books, name)(count)
        books.check()
    books.receive(len(books.lent))
    while books.collector.ready() or books.out:
        books.serve(0)
        books.take(0)
        books.check()
    collector = books.collector
    assert all(uses <= reuse for uses in books.uses.values())
    assert sum(books.uses[s] < reuse for s in range(books.made)) == len(collector)
    first_uses = list(dict.fromkeys(books.order))
    assert first_uses == sorted(first_uses)
    assert (collector.received, collector.served, collector.served_again) == (
        books.made,
        len(books.order),
        books.served_again,
    )
    assert (
        collector.retired
        == len(books.finished)
        == sum(uses == reuse for uses in books.uses.values())
    )
    assert collector.num_kept <= books.replay_capacity


def feed(collector, rounds, each):
    """One batch at a time, as the serial runtime does; gives the kept slots and the slots of each
    batch.
    """
    for _ in range(rounds):
        collector.receive(collector.lend(each))
        while collector.ready():
            kept = collector.kept()
            slots = collector.next_batch()
            collector.taken(slots)
            yield kept, slots


def test_replayed_draws_are_uniform_over_what_is_kept_and_without_repetition():
    """Over the rank of age: a fifth of 20 kept ones in each batch, the same for the newest and the
    oldest.
    """
    collector = Collector(
        capacity=8 + 20 + 8, batch=8, reuse=2, replayed=4, replay_capacity=20, seed=3
    )
    ranks, pairs = Counter(), Counter()
    for kept, slots in feed(collector, 3000, 4):
        if len(kept) == 20:
            drawn = sorted(kept.index(slot) for slot in slots[4:])
            assert len(set(drawn)) == 4
            ranks.update(drawn)
            pairs.update((i, j) for i in drawn for j in drawn if i < j)
    total = ranks.total()
    assert total > 20_000
    # chi-square, 19 degrees of freedom, 1 in 1000
    assert sum((n - total / 20) ** 2 for n in ranks.values()) / (total / 20) < 43.8
    assert min(pairs.values()) > 0.7 * pairs.total() / 190  # no two ages avoid each other


def test_kept_are_the_newest_that_had_their_uses():
    """Slots are named by the sequence they hold; what is kept is always the last 5 that
    finished.
    """
    collector = Collector(capacity=4 + 5 + 4, batch=4, reuse=2, replayed=2, replay_capacity=5)
    holds, uses, finished, made = {}, Counter(), [], 0
    for _ in range(200):
        for slot in (lent := collector.lend(3)):
            holds[slot], made = made, made + 1
        collector.receive(lent)
        while collector.ready():
            older = 2 if collector.num_kept >= 2 else 0
            slots = collector.next_batch()
            assert {holds[slot] for slot in slots[4 - older :]} <= set(finished[-5:])
            for slot in slots[: 4 - older]:
                uses[holds[slot]] += 1
                if uses[holds[slot]] == 2:
                    finished.append(holds[slot])
            collector.taken(slots)
            assert [holds[slot] for slot in collector.kept()] == finished[-5:]
    assert len(finished) > 500


def test_until_enough_is_kept_batches_are_new():
    collector = Collector(capacity=30, batch=4, reuse=1, replayed=3, replay_capacity=6)
    sizes = [len(set(slots) & set(kept)) for kept, slots in feed(collector, 30, 4)]
    assert sizes[0] == 0
    assert set(sizes[1:]) == {3}
    numbers = collector.numbers()
    assert numbers["kept_sequences"] == 6
    assert numbers["replayed_fraction"] == pytest.approx(3 * (len(sizes) - 1) / (4 * len(sizes)))
    assert numbers["reuse_served"] == pytest.approx(1.0, abs=0.05)
    assert "kept_sequences" not in Collector(capacity=4, batch=4, reuse=1).numbers()


def test_a_kept_sequence_in_two_batches_under_way_stays_until_both_were_copied():
    """The process runtime sends two batches ahead."""
    collector = Collector(capacity=20, batch=2, reuse=1, replayed=1, replay_capacity=1)
    collector.receive(collector.lend(12))
    collector.taken(collector.next_batch())  # two new ones: the newer is kept
    (kept,) = collector.kept()
    one, other = collector.next_batch(), collector.next_batch()
    assert one[1] == other[1] == kept
    collector.taken(one)
    assert kept in collector.kept()
    assert kept not in collector.lend(20)
    collector.taken(other)
    assert len(collector.kept()) == 1


def test_restore_goes_on_with_the_same_replay():
    """Kept sequences and the random state come back: the same sequences in the same batches,
    evicted in the same order.
    """
    arguments = {
        "capacity": 24,
        "batch": 5,
        "reuse": 2,
        "replayed": 2,
        "replay_capacity": 8,
        "seed": 5,
    }
    before = Collector(**arguments)
    list(feed(before, 12, 4))
    pending, kept = before.pending(), before.kept()
    assert pending
    assert len(kept) == 8
    after = Collector(**arguments)
    slots = after.restore([used for _, used in pending], len(kept))
    after.rng.bit_generator.state = before.rng.bit_generator.state
    names = [
        dict(zip([s for s, _ in pending] + kept, range(100), strict=False)),
        dict(zip(slots, range(100), strict=False)),
    ]
    assert [names[1][slot] for slot in after.kept()] == [names[0][slot] for slot in kept]
    assert after.num_free == before.num_free
    for step in range(40):
        for collector, name in zip((before, after), names, strict=True):
            lent = collector.lend(3)
            name.update({slot: 1000 + 10 * step + i for i, slot in enumerate(lent)})
            collector.receive(lent)
        while before.ready():
            batches = [collector.next_batch() for collector in (before, after)]
            assert [names[0][s] for s in batches[0]] == [names[1][s] for s in batches[1]]
            for collector, slots in zip((before, after), batches, strict=True):
                collector.taken(slots)
        assert not after.ready()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"capacity": 11, "replayed": 2, "replay_capacity": 8},
            "11 slots cannot hold a batch of 4 and 8 to replay",
        ),
        ({"capacity": 20, "replayed": 4, "replay_capacity": 8}, "4 of a batch of 4"),
        (
            {"capacity": 20, "replayed": 3, "replay_capacity": 2},
            "3 of a batch of 4 cannot come from 2",
        ),
    ],
)
def test_impossible_replay_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Collector(batch=4, reuse=1, **arguments)
