"""collector.py, sequence.Store and parameter_server.py: bounded, nothing dropped or overwritten, nothing torn (SPEC 5)."""

import pickle
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.collector import Collector, default_capacity
from dicerl.envs.base import EnvSpec
from dicerl.parameter_server import ParameterServer
from dicerl.presets import preset
from dicerl.sequence import Store, allocate, schema, window_bytes, window_length

quick = settings(max_examples=60, deadline=None, derandomize=True)


# --- Collector ----------------------------------------------------------------------------------------------------------------------


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
    assert (collector.received, collector.retired, collector.num_free, len(collector)) == (2, 2, 3, 0)


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
        collector = Collector(default_capacity(batch, envs), batch, 2)
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
    names = dict(zip(slots, [slot for slot, _ in pending], strict=True))  # which sequence lies in which slot now
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
    """What the collector promises, kept beside it in the simplest way: which sequence lies in which slot, and how often it was served."""

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
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 3),
       st.lists(st.tuples(st.sampled_from(["lend", "receive", "give_back", "serve", "take"]), st.integers(0, 4)), max_size=80))
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


# --- Store --------------------------------------------------------------------------------------------------------------------------

SPEC = EnvSpec("test", (4, 6), np.dtype(np.uint8), 3)


def random_windows(config, count, seed=0):
    rng = np.random.default_rng(seed)
    windows = allocate(schema(config, SPEC), window_length(config), count)
    for array in windows.values():
        array[...] = rng.integers(0, 2 if array.dtype == np.bool_ else 100, array.shape)
    return windows


@pytest.mark.parametrize("shared", [False, True])
def test_a_store_gives_back_what_was_written(shared):
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 7, shared=shared)
    windows, others = random_windows(config, 3), random_windows(config, 3, seed=1)
    store.write([5, 0, 3], windows, [2, 0, 1])
    store.write([1, 2], others, [0, 2])
    batch = store.read([3, 2, 5])
    assert set(batch) == set(schema(config, SPEC))
    for name, field in store.fields.items():
        column = (lambda x, i: x[:, i]) if field.per_step else (lambda x, i: x[i])
        for place, (source, i) in enumerate([(windows, 1), (others, 2), (windows, 2)]):
            np.testing.assert_array_equal(column(batch[name], place), column(source[name], i), err_msg=name)
        assert batch[name].dtype == field.dtype
        assert batch[name].shape[: 2 if field.per_step else 1] == ((window_length(config), 3) if field.per_step else (3,))


def test_a_batch_is_a_copy():
    """The slot may be written again while the learner trains."""
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 2)
    store.write([0], random_windows(config, 1), [0])
    batch = store.read([0])
    kept = {n: a.copy() for n, a in batch.items()}
    store.write([0], random_windows(config, 1, seed=1), [0])
    assert all(np.array_equal(batch[n], kept[n]) for n in batch)


def test_a_store_keeps_its_memory_when_it_is_sent_to_a_process():
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 2)
    store.write([1], random_windows(config, 1), [0])
    there = pickle.loads(pickle.dumps(store))
    for name, array in there.arrays.items():
        np.testing.assert_array_equal(array, store.arrays[name])
    there.write([0], random_windows(config, 1, seed=1), [0])  # its arrays are views of what its tensors hold
    assert all(np.array_equal(there.arrays[n], t.numpy()) for n, t in there._tensors.items())


def test_the_memory_of_a_window_is_counted_right():
    config = preset("debug")
    arrays = allocate(schema(config, SPEC), window_length(config), 5)
    assert 5 * window_bytes(schema(config, SPEC), window_length(config)) == sum(a.nbytes for a in arrays.values())


# --- ParameterServer ----------------------------------------------------------------------------------------------------------------


def test_a_reader_gets_the_newest_version_once():
    server = ParameterServer(3)
    assert server.pull() is None  # nothing was pushed yet
    server.push(torch.full((3,), 1.0), 0)
    assert server.pull(known=0) is None
    version, flat = server.pull()
    assert (version, flat.tolist()) == (0, [1.0, 1.0, 1.0])
    server.push(torch.full((3,), 2.0), 25)
    server.push(torch.full((3,), 3.0), 50)
    version, newer = server.pull(known=0)
    assert (version, newer.tolist()) == (50, [3.0, 3.0, 3.0])
    assert server.pull(known=50) is None
    assert flat.tolist() == [1.0, 1.0, 1.0]  # what a reader holds is its own


def push_constantly(server, size, stop, first=1):
    torch.set_num_threads(1)
    version = first
    while not stop.is_set():
        server.push(torch.full((size,), float(version)), version)
        version += 1
        time.sleep(0)


def read_while_it_is_pushed(server, seconds):
    """Versions pulled; each set must be whole and of its version."""
    seen, version = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(seen) < 5:
        newest = server.pull(version)
        if newest is None:
            continue
        before, (version, flat) = version, newest
        low, high = float(flat.min()), float(flat.max())
        assert low == high == version, f"torn: version {version} holds {low} to {high}"
        assert version > before
        seen.append(version)
        assert time.monotonic() < end + 60, "the reader starves"
    return seen


# Small sets are pushed faster than read, large ones overlap for long.
@pytest.mark.parametrize("size", [64, 300_000])
def test_a_reader_never_sees_a_torn_set_beside_a_thread_that_pushes(size):
    server, stop = ParameterServer(size), threading.Event()
    server.push(torch.zeros(size), 0)
    writer = threading.Thread(target=push_constantly, args=(server, size, stop))
    writer.start()
    try:
        seen = read_while_it_is_pushed(server, 0.7)
    finally:
        stop.set()
        writer.join()
    assert len(set(seen)) >= 5


def test_a_reader_never_sees_a_torn_set_beside_a_process_that_pushes():
    size, context = 300_000, mp.get_context("spawn")
    server, stop = ParameterServer(size, shared=True), context.Event()
    server.push(torch.zeros(size), 0)
    writer = context.Process(target=push_constantly, args=(server, size, stop), daemon=True)
    writer.start()
    try:
        end = time.monotonic() + 60
        while server.pull(0) is None and time.monotonic() < end:
            time.sleep(0.01)
        seen = read_while_it_is_pushed(server, 1.5)
    finally:
        stop.set()
        writer.join(10)
        writer.kill()
    assert len(set(seen)) >= 5
