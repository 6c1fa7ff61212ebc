"""runtime/supervisor.py: learners that die, alone or together, with the weights or without; over
threads, as in test_supervisor.py.
"""

import dataclasses
import math
from types import SimpleNamespace

import pytest

import probe
from dicerl.errors import DicerlError, LearnerLost
from dicerl.runtime import setup
from dicerl.runtime.supervisor import Supervisor
from in_threads import ThreadTransport, lines, run_in_threads


@pytest.fixture(autouse=True)
def _threads(single_threaded):
    """Roles set the number of threads of the whole process."""


def test_a_lost_learner_ends_the_run_with_the_way_on_where_it_may_not_be_replaced(tmp_path):
    with pytest.raises(
        DicerlError, match=r"because it vanished; continue from .* dicerl resume"
    ) as error:
        run_in_threads(
            tmp_path, lambda role, message: role == "learner", **{"runtime.max_restarts": 0}
        )
    assert not isinstance(error.value, LearnerLost)


def test_a_learner_that_is_lost_with_the_weights_takes_the_run_back(tmp_path):
    with pytest.raises(LearnerLost, match="the learner vanished"):
        run_in_threads(tmp_path, lambda role, message: role == "learner")


class Surviving(ThreadTransport):
    """The weights outlive the learner."""

    whole = True


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["trained", "Saved", "Published"])
def test_a_learner_that_died_outside_its_turn_is_replaced_and_goes_on(
    tmp_path, monkeypatch, kind, shared
):
    """It dies before it says that a batch was trained, a checkpoint written, or weights published:
    the next one does what is left, and no update is counted twice or not at all.
    """
    monkeypatch.setattr("in_threads.ThreadTransport", Surviving)
    real = setup.plan

    def plan(config, spec):
        return dataclasses.replace(real(config, spec), shared_cores=shared)

    monkeypatch.setattr(probe, "plan", plan)
    lost, seen = [], []

    def lose(role, message):
        if role != "learner" or lost:
            return False
        found = getattr(message, "trained", False) and seen[0].coordinator.updates > 3
        if found if kind == "trained" else type(message).__name__ == kind:
            lost.append(message)
            return True
        return False

    run, complete, transport = run_in_threads(tmp_path, lose, seen, **{"log_every": 1})
    assert complete
    assert lost
    (event,) = lines(run, event="learner_replaced")
    assert (event["reason"], event["restarts"], event["learner"]) == ("vanished", 1, 0)
    assert sum(h.role == "learner" for h in transport.started) == 2
    assert run.summary["healed"] == 1
    # none twice, none missing, and as many as the weights say
    trained = [line["updates"] for line in lines(run, kind="train")]
    assert trained == list(range(1, run.summary["updates"] + 1))
    assert transport.shared.weights.updates == run.summary["updates"]
    books = run.newest_checkpoint().state.books
    assert books.missing == 0
    batch = run.config.sequence.batch
    assert books.trained == batch * run.summary["updates"]
    assert books.dropped == event["dropped"] == 0


def test_two_learners_that_die_at_once_take_the_run_back(tmp_path, monkeypatch):
    """Nobody knows which of them made the updates of which nobody heard."""
    monkeypatch.setattr("in_threads.ThreadTransport", Surviving)

    def lose(role, message):
        return role == "learner" and getattr(message, "trained", False)

    with pytest.raises(LearnerLost):
        run_in_threads(tmp_path, lose, **{"runtime.num_learners": 2})


def test_one_of_two_learners_is_replaced_once_the_other_has_said_what_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr("in_threads.ThreadTransport", Surviving)
    lost = []

    def lose(role, message):
        if role == "learner" and getattr(message, "trained", False) and len(lost) < 1:
            lost.append(message)
            return True
        return False

    run, complete, transport = run_in_threads(tmp_path, lose, **{"runtime.num_learners": 2})
    assert complete
    assert sum(h.role == "learner" for h in transport.started) == 3
    assert transport.shared.weights.updates == run.summary["updates"]
    assert run.newest_checkpoint().state.books.missing == 0


@pytest.mark.parametrize("stopping", [False, True])
def test_a_stop_does_not_wait_until_a_learner_has_rested(stopping):
    """Its weights are saved by a learner: one that died again and again rests for up to 30 s."""
    resting, woken = SimpleNamespace(rests_until=math.inf), []
    supervisor = SimpleNamespace(
        learners=[resting],
        _fleet=SimpleNamespace(actors=[]),
        _stop=lambda: stopping,
        _go_on_with=woken.append,
    )
    Supervisor._wake_resting(supervisor)
    assert woken == [resting] * stopping
