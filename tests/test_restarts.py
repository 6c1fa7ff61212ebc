"""runtime/restarts.py: how often a part may die, and how long it waits then."""

import pytest

from dicerl.config import RuntimeConfig
from dicerl.errors import DicerlError
from dicerl.runtime.restarts import CALM, LONGEST_PAUSE, Restarts


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def die(restarts, limits, part="actor 0"):
    count = restarts.count(part, limits)
    return count, restarts.pause(part, "was killed", limits)


def test_a_part_that_dies_again_and_again_waits_longer_each_time_and_then_no_more(clock):
    restarts, limits = Restarts(clock), RuntimeConfig(max_restarts=9, restart_window=1e6)
    pauses = []
    for count in range(1, 10):
        assert die(restarts, limits)[0] == count
        pauses.append(restarts.pause("actor 0", "was killed", limits))
        clock.now += pauses[-1] + 1.0  # it lives for a second
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE]
    with pytest.raises(DicerlError) as error:
        die(restarts, limits)
    assert str(error.value) == (
        "actor 0 had to be replaced 10 times (runtime.max_restarts is 9 within 1e+06 s), last"
        " because it was killed"
    )


def test_a_part_that_lived_for_a_while_is_replaced_at_once(clock):
    restarts, limits = Restarts(clock), RuntimeConfig()
    for _ in range(100):  # once a minute, for ever
        assert die(restarts, limits)[1] == 0.0
        clock.now += max(CALM, 60.0)


def test_only_what_died_within_the_window_counts_and_every_part_for_itself(clock):
    restarts, limits = Restarts(clock), RuntimeConfig(max_restarts=2, restart_window=100.0)
    for _ in range(2):
        die(restarts, limits)
        die(restarts, limits, "the learner")
    assert restarts.of("actor 0", limits) == 2
    assert restarts.of("actor 1", limits) == 0
    clock.now += 100.0
    assert restarts.of("actor 0", limits) == 0
    assert die(restarts, limits) == (1, 0.0)
    assert restarts.pause("actor 1", "left", limits) == 0.0  # it never died of itself


def test_time_in_which_a_part_did_nothing_of_use_does_not_count(clock):
    """It is taken for dead after longer than the window, each time."""
    restarts, limits = Restarts(clock), RuntimeConfig(max_restarts=3, restart_window=100.0)
    for _ in range(10):  # but it had done something before
        clock.now += 120.0
        assert restarts.count("actor 0", limits) == 1
    for count in range(2, 5):
        clock.now += 120.0
        assert restarts.count("actor 0", limits, useful=False) == count
    with pytest.raises(DicerlError, match="replaced 4 times"):
        restarts.pause("actor 0", "did nothing", limits)
    clock.now += 120.0
    assert restarts.of("actor 0", limits) == 0  # of use since then, for all that is known
    assert restarts.count("actor 0", limits) == 1


def test_none_is_allowed_where_max_restarts_is_0(clock):
    with pytest.raises(DicerlError, match="replaced 1 times"):
        die(Restarts(clock), RuntimeConfig(max_restarts=0))
