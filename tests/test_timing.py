"""timing.py: fractions of the time that passed."""

import pytest

from dicerl.records.timing import Times


def test_what_is_timed_inside_another_is_not_the_other_s(clock):
    times = Times("waiting")
    with times("training"):
        clock[0] += 3.0
        with times("pushing"):
            clock[0] += 1.0
        with times("pushing"):
            clock[0] += 1.0
    clock[0] += 5.0
    assert times.take() == pytest.approx({"training": 0.3, "pushing": 0.2, "waiting": 0.0})
    with times("training"):
        clock[0] += 2.0
    # a name stays
    assert times.take() == pytest.approx({"training": 1.0, "pushing": 0.0, "waiting": 0.0})


def test_time_in_what_failed_counts_too(clock):
    times = Times()

    def fail():
        with times("training"):
            clock[0] += 1.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock[0] += 1.0
    assert times.take() == {"training": 0.5}
