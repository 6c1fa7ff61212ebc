"""plan/events.py against closed forms of queues."""

import numpy as np
import pytest

from dicerl.plan.events import Clock, Cores, Link


def run(clock):
    while clock.step():
        pass


def test_events_come_in_the_order_of_their_times():
    clock, seen = Clock(), []
    for when in (3.0, 1.0, 2.0, 1.0):
        clock.at(when, lambda when=when: seen.append((clock.now, when)))
    run(clock)
    assert seen == [(1.0, 1.0), (1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_tasks_share_cores_evenly():
    """Three tasks of 2 s on two cores: each gets two thirds of one, so all end after 3 s; the one
    that comes at 3 s has a core for itself.
    """
    clock, ends = Clock(), []
    cores = Cores(clock, 2)
    for _ in range(3):
        cores.work(2.0, lambda: ends.append(clock.now))
    run(clock)
    assert ends == pytest.approx([3.0, 3.0, 3.0])
    cores.work(2.0, lambda: ends.append(clock.now))
    run(clock)
    assert ends[-1] == pytest.approx(5.0)
    assert cores.busy == pytest.approx(8.0)


def test_a_task_that_ends_leaves_its_share_to_the_others():
    """1 s and 3 s on one core: half the core until the first has its second, then all of it."""
    clock, ends = Clock(), []
    cores = Cores(clock, 1)
    for seconds in (1.0, 3.0):
        cores.work(seconds, lambda: ends.append(clock.now))
    run(clock)
    assert ends == pytest.approx([2.0, 4.0])


def arrivals(clock, count, rate, rng, arrive):
    for when in np.cumsum(rng.exponential(1 / rate, count)):
        clock.at(float(when), arrive)


def test_a_core_that_tasks_share_is_a_queue_with_processor_sharing():
    """M/G/1-PS: the mean time of a task of S seconds is S / (1 - load), whatever its distribution:
    here S is constant.
    """
    clock, taken, load = Clock(), [], 0.6
    cores = Cores(clock, 1)

    def arrive():
        start = clock.now
        cores.work(1.0, lambda: taken.append(clock.now - start))

    arrivals(clock, 20_000, load, np.random.default_rng(0), arrive)
    run(clock)
    assert np.mean(taken) == pytest.approx(1 / (1 - load), rel=0.05)
    assert cores.busy / clock.now == pytest.approx(load, rel=0.05)


def test_a_link_is_a_queue_with_one_server():
    """M/D/1: the mean wait before the service of S seconds is load * S / (2 (1 - load))."""
    clock, waits, load = Clock(), [], 0.7
    link = Link(clock, 1000.0)

    def arrive():
        start = clock.now
        link.carry(1000.0, lambda: waits.append(clock.now - start - 1.0))

    arrivals(clock, 20_000, load, np.random.default_rng(1), arrive)
    run(clock)
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.05)
    assert link.busy / clock.now == pytest.approx(load, rel=0.05)


def test_a_link_carries_no_more_than_its_speed():
    clock, arrived = Clock(), []
    link = Link(clock, 100.0)
    for i in range(50):
        clock.at(i * 0.01, lambda: link.carry(10.0, lambda: arrived.append(clock.now)))
    run(clock)
    assert arrived[-1] == pytest.approx(5.0)  # 500 bytes
    assert link.carried == pytest.approx(500)
