"""runtime/fleet.py under a supervisor whose children are threads: actors that are lost, and places
that come and go.
"""

import pytest

from dicerl.errors import DicerlError, NoRoom
from dicerl.records.vocabulary import LINES
from dicerl.runtime import restarts, setup
from dicerl.runtime.messages import Ended, Written
from in_threads import ThreadTransport, lines, run_in_threads


@pytest.fixture(autouse=True)
def _threads(single_threaded):
    """Roles set the number of threads of the whole process."""


def test_a_lost_actor_is_replaced_and_its_slots_come_back(tmp_path, monkeypatch):
    """It vanishes with lent slots, right before it would say that they are written."""
    # an actor that is lost twice would rest while the other one ends the run
    monkeypatch.setattr(restarts, "FIRST_PAUSE", 0.0)
    lost, seen = [], []

    def lose(role, message):
        if isinstance(message, Written) and len(lost) < 3:
            lost.append(message.slots)
            return True
        return False

    run, complete, transport = run_in_threads(tmp_path, lose, seen)
    assert complete
    assert len(lost) == 3
    assert [line["reason"] for line in lines(run, event="actor_replaced")] == ["vanished"] * 3
    assert sum(h.role == "actor" for h in transport.started) == 2 + 3
    told = lines(run, kind="train")[-1]["lost_sequences"]
    assert told >= sum(map(len, lost)) > 0
    books = seen[0].collector
    waiting, capacity = len(books), seen[0]._transport.shared.plan.capacity
    assert books.num_free + waiting == capacity  # none is missing
    state = run.newest_checkpoint().state
    assert state.incarnation >= 1
    # the windows of the others that it had begun went with it
    assert sum(state.books.lost) >= sum(map(len, lost))
    assert [sum(e["lost"] for e in lines(run, event="actor_replaced", actor=i)) for i in (0, 1)][
        : len(state.books.lost)
    ] == state.books.lost
    assert state.books.missing == 0
    assert run.summary["healed"] == 3


class Places(ThreadTransport):
    """There are ``few`` places for actors, and ``many`` after a while."""

    few, many, after = 1, 4, 60

    def _free(self):
        places = self.many if len(self.sent) > self.after else self.few
        return places - sum(h.role == "actor" and not h._gone.is_set() for h in self.started)

    def start(self, role, *args):
        if role == "actor" and self._free() < 1:
            raise NoRoom("no place")
        return super().start(role, *args)

    def room(self):
        return max(0, self._free())


@pytest.mark.parametrize(("wanted", "added"), [(2, [1]), (0, [1, 2, 3])])
def test_actors_are_started_as_places_come(tmp_path, monkeypatch, wanted, added):
    """Those that wait for one, and more of them only where their number was left open."""
    monkeypatch.setattr("in_threads.ThreadTransport", Places)
    monkeypatch.setattr(setup, "cores", lambda: 2)  # so that no number means one actor
    run, complete, transport = run_in_threads(
        tmp_path, **{"runtime.num_actors": wanted, "bandit.scope": "actor"}
    )
    assert complete
    told = lines(run, event="actor_added")
    assert [line["actor"] for line in told] == added
    assert set().union(*told) <= set(LINES["event"])
    assert sum(h.role == "actor" for h in transport.started) == 1 + len(added)
    assert {line["actor"] for line in lines(run, kind="episode")} == {0, *added}


def test_a_lost_machine_is_no_fault_of_its_actors(tmp_path, monkeypatch):
    """They come back as often as need be."""
    lost = []

    class Leaving(ThreadTransport):
        def receive(self, seconds):
            for handle, message in super().receive(seconds):
                gone = isinstance(message, Ended)
                yield handle, Ended("left", place_lost=True) if gone else message

    def lose(role, message):
        lost.append(isinstance(message, Written) and sum(lost) < 4)
        return lost[-1]

    monkeypatch.setattr("in_threads.ThreadTransport", Leaving)
    run, complete, _ = run_in_threads(tmp_path, lose, **{"runtime.max_restarts": 1})
    assert complete
    assert [line["restarts"] for line in lines(run, event="actor_replaced")] == [0] * 4


def test_a_run_without_a_place_for_any_actor_ends(tmp_path, monkeypatch):
    class Shrinking(Places):
        many, after = 0, 30

    monkeypatch.setattr("in_threads.ThreadTransport", Shrinking)
    lost = []

    def lose(role, message):
        lost.append(isinstance(message, Written) and len(lost) > 200)
        return lost[-1]

    with pytest.raises(DicerlError, match=r"for 1 s there was no place for any actor; continue"):
        run_in_threads(
            tmp_path,
            lose,
            **{"runtime.num_actors": 1, "frames": 10_000, "runtime.stuck_seconds": 1.0},
        )
