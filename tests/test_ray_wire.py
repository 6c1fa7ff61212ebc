"""runtime/ray_wire.py without a cluster: what crosses the network arrives bit for bit, and in
order.
"""

import pickle
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.weights import Weights
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.runtime.messages import TimesSpent
from dicerl.runtime.ray_wire import Mailbox, Receiver, dump, load, pack
from test_frames import played

pytestmark = pytest.mark.usefixtures("single_threaded")


# --- sequences ------------------------------------------------------------------------------------


def arrived(config, spec, windows, orders):
    """Send windows [L, N, ...] one after another, the columns of each in the parts that ``orders``
    gives; return the store's columns for each, and the bytes sent.
    """
    fields = schema(config, spec)
    count = windows[0]["valid"].shape[1]
    store = Store(fields, window_length(config), count)
    receiver, sent, number, found = Receiver(config, store), 0, 0, []
    for window, parts in zip(windows, orders, strict=True):
        for columns in parts:
            slots = [(column + 1) % count for column in columns]  # not the columns' own places
            number += 1
            parcel = pack(fields, config.sequence.burn_in, 7, number, slots, window, columns)
            sent += len(pickle.dumps(parcel))
            assert receiver.receive(parcel)
            assert receiver.receive(parcel)  # the answer was lost, so it was sent again
        found.append(store.read([(column + 1) % count for column in range(count)]))
    return found, sent


@pytest.mark.parametrize(("burn_in", "length"), [(4, 8), (0, 20), (9, 5), (5, 2)])
def test_windows_arrive_as_they_were(burn_in, length):
    """Stacked frames with ends of episodes, in one part, in single columns, and in any order."""
    config, windows, _ = played(
        60 // length, **{"sequence.burn_in": burn_in, "sequence.length": length}
    )
    spec = probe.env_spec(config, None)
    orders = [([[0, 1, 2]], [[2], [0, 1]], [[1], [2], [0]])[k % 3] for k in range(len(windows))]
    found, _ = arrived(config, spec, windows, orders)
    for window, there in zip(windows, found, strict=True):
        assert set(there) == set(window)
        for name, array in window.items():
            np.testing.assert_array_equal(there[name], array, err_msg=name)


def test_each_step_crosses_about_once():
    """At most a third of stacked frames with every window's burn-in."""
    config, windows, _ = played(9, **{"sequence.burn_in": 10, "sequence.length": 20})
    spec = probe.env_spec(config, None)
    _, sent = arrived(config, spec, windows, [[[0, 1, 2]]] * 9)
    stacks = 4 * sum(window["observation"].nbytes for window in windows)
    assert sent < 0.1 * stacks
    steps = 9 * 20 * 3
    assert sent < steps * (100 + 100)  # a frame of 441 bytes, and the other fields


def test_an_ended_child_writes_no_more():
    """Its slots are another's by now."""
    config, windows, _ = played(2)
    spec = probe.env_spec(config, None)
    fields = schema(config, spec)
    store = Store(fields, window_length(config), 3)
    receiver = Receiver(config, store)
    receiver.refuse(1)
    late = pack(fields, config.sequence.burn_in, 1, 1, [0, 1, 2], windows[0], [0, 1, 2])
    assert not receiver.receive(late)
    assert not any(array.any() for array in store.arrays.values())
    other = late._replace(child=2)
    assert receiver.receive(other)
    assert store.arrays["valid"].any()


# --- messages -------------------------------------------------------------------------------------


@given(st.permutations(range(8)))
@settings(max_examples=30)
def test_messages_are_received_in_the_order_they_were_sent(order):
    mailbox = Mailbox()
    for number in order:
        mailbox.deliver(number, f"message {number}")
    assert [mailbox.receive() for _ in order] == [f"message {n}" for n in range(8)]
    assert not mailbox.waits()


@given(st.lists(st.integers(0, 7), min_size=8, max_size=30))
@settings(max_examples=30)
def test_a_message_that_is_delivered_again_is_received_once(numbers):
    mailbox = Mailbox()
    for number in [*numbers, *range(8)]:
        mailbox.deliver(number, number)
    assert [mailbox.receive() for _ in range(8)] == list(range(8))
    assert not mailbox.waits()
    assert mailbox.collect(0, 0.0).delivered == 8


def test_messages_stay_until_they_have_arrived():
    mailbox = Mailbox()
    assert mailbox.collect(0, 0.01) == (0, [], 0)
    mailbox.send("a")
    mailbox.send("b")
    assert mailbox.collect(0, 60.0) == (0, ["a", "b"], 0)
    mailbox.send("c")
    assert mailbox.collect(0, 60.0) == (0, ["a", "b", "c"], 0)  # the answer was lost
    assert mailbox.collect(2, 60.0) == (2, ["c"], 0)
    assert mailbox.collect(0, 60.0) == (2, ["c"], 0)  # a call that was late
    threading.Timer(0.05, mailbox.send, ["d"]).start()
    start = time.monotonic()
    assert mailbox.collect(3, 60.0) == (3, ["d"], 0)
    assert time.monotonic() - start < 30


def test_times_spent_go_along_with_the_next_message():
    """A call that they alone would end is one that nobody needs."""
    mailbox, spent = Mailbox(), TimesSpent({"waiting": 0.5})
    mailbox.send(spent)
    start = time.monotonic()
    assert mailbox.collect(0, 0.2) == (0, [spent], 0)  # nothing else came
    assert time.monotonic() - start > 0.15
    threading.Timer(0.05, mailbox.send, ["a"]).start()
    assert mailbox.collect(0, 60.0) == (0, [spent, "a"], 0)
    assert mailbox.collect(0, 60.0) == (0, [spent, "a"], 0)  # the answer was lost
    assert time.monotonic() - start < 30


def test_a_closed_mailbox_tells_whoever_sends_or_receives():
    mailbox = Mailbox()
    mailbox.deliver(0, "in time")
    assert mailbox.receive() == "in time"
    told = []

    def wait():
        try:
            mailbox.receive()
        except EOFError:
            told.append("closed")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    mailbox.close()
    thread.join(60)
    assert told == ["closed"]
    with pytest.raises(BrokenPipeError):
        mailbox.send("a")


# --- weights --------------------------------------------------------------------------------------


def test_weights_go_to_another_machine_with_their_moments_and_counts():
    learner, batch = probe.learner_and_batch()
    learner.update(batch)
    learner.update(batch)
    other = load(
        Weights(ActorCritic(learner.config, learner.model.spec).flat), dump(learner.weights)
    )
    assert torch.equal(other.vector, learner.weights.vector)
    assert torch.equal(other.moments, learner.weights.moments)
    assert other.adam_steps == learner.weights.adam_steps
    assert (other.updates, other.steps_trained) == (2, learner.weights.steps_trained)
