"""parts/collector.py with replay (docs/paper.md 2.7, laser): what is kept, and what is drawn from
it.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from books import ReplayBooks
from dicerl.parts.collector import Collector

quick = settings(max_examples=60, deadline=None, derandomize=True)
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
