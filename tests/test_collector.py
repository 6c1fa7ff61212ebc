"""parts/collector.py: bounded, nothing dropped or overwritten (docs/paper.md 2.5). With replay it
is in test_collector_replay.py.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from books import Books
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


def test_what_a_dead_actor_had_begun_is_lost_with_its_number():
    collector = Collector(capacity=6, batch=2, reuse=1)
    collector.give_back(collector.lend(1))  # it was ended
    collector.give_back(collector.lend(2), dead=2)
    collector.give_back(collector.lend(3), dead=0)
    assert collector.books().lost == [3, 0, 2]
    assert collector.numbers()["lost_sequences"] == 5


@pytest.mark.parametrize("restored", [True, False])
def test_books_go_on_and_what_was_not_restored_is_dropped(restored):
    before = Collector(capacity=8, batch=3, reuse=2)
    before.receive(before.lend(5))
    before.give_back(before.lend(1), dead=1)
    batch = before.next_batch()
    assert before.books().waiting == 10  # with those under way
    before.taken(batch)
    before.taken(before.next_batch())
    before.drop(3)
    saved = before.books()
    assert (saved.produced, saved.trained, saved.dropped, saved.waiting) == (5, 3, 3, 4)

    after = Collector(capacity=8, batch=3, reuse=2)
    if restored:
        after.restore([used for _, used in before.pending()])
    after.go_on(saved)
    found = after.books()
    assert found.missing == 0
    if restored:
        assert found == saved
    else:
        assert (found.dropped, found.waiting, found.lost) == (3 + 4, 0, [0, 1])
    after.receive(after.lend(2))
    assert after.books().due == 14
    assert after.books().missing == 0


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
    """Less than a batch waits, a whole round of the only actor arrives: both fit."""
    for batch, envs in ((1, 1), (4, 5), (64, 160), (7, 2)):
        collector = Collector(default_capacity(batch, envs, 1, 1), batch, 2)
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
        books.balance()
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
