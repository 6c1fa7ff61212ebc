"""runtime/supervisor.py over another transport: the same roles in threads, with queues. So the
supervisor needs no pipe and no process, and what it does about lost children can
be seen step by step.
"""

import dataclasses
import time

import numpy as np
import pytest

import dicerl
import probe
from dicerl.envs.toy import Catch
from dicerl.errors import DicerlError, Diverged, GoBack, LearnerLost
from dicerl.parts.collector import Collector
from dicerl.records.checkpoint import best_of, checkpoints_of, read_state
from dicerl.runtime import children, setup
from dicerl.runtime.messages import (
    Alive,
    Answered,
    Batch,
    BatchProgress,
    Evaluate,
    Published,
    SlotsWanted,
    Written,
)
from in_threads import ThreadTransport, lines, run_in_threads


@pytest.fixture(autouse=True)
def _threads(single_threaded):
    """Roles set the number of threads of the whole process."""


def test_a_run_over_threads_is_whole(tmp_path):
    run, complete, transport = run_in_threads(tmp_path)
    assert complete
    assert run.summary["frames"] >= 1500
    assert len(lines(run, kind="evaluation")) >= 2
    assert len(checkpoints_of(run.directory)) >= 2
    state = run.newest_checkpoint().state
    assert (state.updates, state.frames) == (run.summary["updates"], run.summary["frames"])
    assert state.serial is None
    # exactly what had the best evaluation is kept: its parameters, counters and vote
    evaluated = lines(run, kind="evaluation")
    first_best = max(evaluated, key=lambda line: line["mean_return"])
    kept = read_state(best_of(run.directory))
    assert (kept.updates, kept.frames) == (first_best["version"], first_best["frames"])
    assert (state.best_checkpoint, state.best_evaluation) == (
        kept.updates,
        pytest.approx(first_best["mean_return"], rel=1e-5),
    )
    agent = dicerl.load_agent(best_of(run.directory), make_env=Catch)
    low, high = agent.region[0]
    drawn = np.log1p(first_best["inv_temperatures"])
    assert ((low - 1e-3 <= drawn) & (drawn <= high + 1e-3)).all()
    assert [h.role for h in transport.started] == ["learner", "actor", "actor", "evaluator"]
    # what a child of one transport wrote, every other runtime goes on from
    action, _ = dicerl.load_agent(run, make_env=Catch).act(np.zeros(50, np.float32))
    assert action in (0, 1, 2)


@pytest.mark.parametrize("shared", [True, False])
def test_slots_are_free_when_trained_where_cores_are_shared_and_else_when_copied(
    tmp_path, monkeypatch, shared
):
    told = []  # the learner's messages, and slots that became free by them

    class Watched(ThreadTransport):
        def receive(self, seconds):
            for handle, message in super().receive(seconds):
                if isinstance(message, BatchProgress):
                    told.append((message.copied, message.trained))
                yield handle, message

    taken = Collector.taken

    def noted(self, slots):
        told.append(slots)
        taken(self, slots)

    monkeypatch.setattr(Collector, "taken", noted)
    monkeypatch.setattr("in_threads.ThreadTransport", Watched)
    real = setup.plan

    def plan(config, spec):
        return dataclasses.replace(real(config, spec), shared_cores=shared)

    monkeypatch.setattr(setup, "plan", plan)
    monkeypatch.setattr(probe, "plan", plan, raising=False)
    run, complete, _ = run_in_threads(tmp_path)
    assert complete
    copied = [entry[0] for entry in told if isinstance(entry, tuple) and entry[0]]
    freed = [entry for entry in told if isinstance(entry, list) and entry]
    assert freed == copied
    assert len(freed) == run.summary["updates"]
    first = told.index(freed[0])
    message = told[first - 1]
    assert message[1] is shared  # the message that freed it says trained, or only copied


class Failing(ThreadTransport):
    """Fails once some updates were made; ``silent``: its children answer no more then."""

    after, silent = 20, False

    def failing(self):
        trained = self.shared.weights.updates
        return "the cluster is gone" if trained >= self.after else ""

    def receive(self, seconds):
        found = list(super().receive(seconds))
        return [] if self.silent and self.failing() else found


@pytest.mark.parametrize("silent", [False, True])
def test_a_run_whose_transport_fails_saves_first_and_goes_back_to_that(
    tmp_path, monkeypatch, silent
):
    monkeypatch.setattr(Failing, "silent", silent)
    monkeypatch.setattr("in_threads.ThreadTransport", Failing)
    monkeypatch.setattr("dicerl.runtime.supervisor.LEAVING", 2.0)
    with pytest.raises(GoBack, match="the cluster is gone") as error:
        run_in_threads(tmp_path, **{"checkpoint.every": 10_000})
    assert not isinstance(error.value, LearnerLost)
    saved = [int(path.name) for path in checkpoints_of(tmp_path / "run")]
    assert [n >= Failing.after for n in saved] == ([] if silent else [True])
    left = [path.name for path in (tmp_path / "run" / "checkpoints").glob("*")]
    assert left == [str(n) for n in saved]


def test_a_run_ends_with_the_way_on_where_nothing_replaces_its_transport(tmp_path, monkeypatch):
    monkeypatch.setattr(Failing, "renewable", False)
    monkeypatch.setattr("in_threads.ThreadTransport", Failing)
    with pytest.raises(DicerlError, match=r"is gone; continue with: dicerl resume .*run") as error:
        run_in_threads(tmp_path)
    assert not isinstance(error.value, GoBack)
    assert int(checkpoints_of(tmp_path / "run")[-1].name) >= Failing.after


def test_a_lost_evaluator_costs_one_evaluation(tmp_path):
    lost = []

    def lose(role, message):
        if role == "evaluator" and not lost:
            lost.append(message)
            return True
        return False

    run, complete, transport = run_in_threads(tmp_path, lose)
    assert complete
    assert len(lines(run, event="evaluator_died")) == 1
    asked = sum(isinstance(message, Evaluate) for _, message in transport.sent)
    assert len(lines(run, kind="evaluation")) == asked - 1 >= 1
    assert sum(h.role == "evaluator" for h in transport.started) == 2


def test_too_many_lost_actors_end_the_run_with_the_reason(tmp_path):
    with pytest.raises(
        DicerlError, match=r"replaced 2 times .* because it vanished, in .* after \d+ steps"
    ):
        run_in_threads(
            tmp_path,
            lambda role, message: isinstance(message, SlotsWanted),
            **{"runtime.max_restarts": 1, "runtime.num_actors": 1},
        )


SLOWLY = {"runtime.max_restarts": 2, "runtime.restart_window": 1.0, "runtime.num_actors": 1}


@pytest.mark.parametrize("first", [Alive, SlotsWanted, BatchProgress])
def test_a_part_that_is_never_of_use_ends_the_run_however_slowly_it_dies(
    tmp_path, monkeypatch, first
):
    """An actor that dies before its first window, a learner before its first update, each after
    more than the window.
    """
    monkeypatch.setattr(ThreadTransport, "whole", True)
    deaths = []

    def lose(role, message):
        if not isinstance(message, first) or role == "evaluator":
            return False
        deaths.append(message)
        time.sleep(1.1)
        return True

    with pytest.raises(DicerlError, match="replaced 3 times"):
        run_in_threads(tmp_path, lose, **SLOWLY)
    assert len(deaths) == 3


def test_a_part_that_is_of_use_is_replaced_for_ever_if_it_dies_slowly(tmp_path):
    wrote, deaths = [], []

    def lose(role, message):
        if isinstance(message, Written):
            wrote.append(message)
        if not wrote or not isinstance(message, SlotsWanted) or len(deaths) == 3:
            return False
        wrote.clear()
        deaths.append(message)
        time.sleep(1.1)
        return True

    run, complete, _ = run_in_threads(tmp_path, lose, **SLOWLY)
    assert complete
    assert [x["restarts"] for x in lines(run, event="actor_replaced")] == [1, 1, 1]


@pytest.mark.parametrize("role", ["learner", "evaluator"])
def test_a_child_that_owes_a_message_for_too_long_is_taken_for_dead(tmp_path, monkeypatch, role):
    """Its messages are lost on the way, so it seems to be silent."""
    monkeypatch.setattr(children, "STARTING_SECONDS", 0.5)

    class Deaf(ThreadTransport):
        def receive(self, seconds):
            for handle, message in super().receive(seconds):
                if handle.role != role:
                    yield handle, message

    monkeypatch.setattr("in_threads.ThreadTransport", Deaf)
    changes = {"runtime.stuck_seconds": 0.1 if role == "evaluator" else 0.2}
    if role == "learner":
        with pytest.raises(LearnerLost, match="the learner did nothing for 1 s"):
            run_in_threads(tmp_path, **changes)
        return
    monkeypatch.setattr(children.ActorChild, "patience", lambda self, stuck: 60.0)
    began = time.monotonic()
    run, complete, _ = run_in_threads(tmp_path, **changes)
    assert complete
    assert time.monotonic() - began < 60
    reasons = {line["reason"] for line in lines(run, event="evaluator_died")}
    assert reasons == {"did nothing for 0 s"} or reasons == {"did nothing for 1 s"}
    assert not lines(run, kind="evaluation")


@pytest.mark.parametrize("there", [False, True])
def test_a_learner_that_owes_nothing_is_missed_where_others_wait_for_it(
    tmp_path, monkeypatch, there
):
    """Actors cannot give a frozen learner their sequences, so it gets no batch and owes nothing.
    One that is ``there`` only has nothing to do.
    """
    monkeypatch.setattr(children, "STARTING_SECONDS", 0.5)
    monkeypatch.setattr(children.ActorChild, "patience", lambda self, stuck: 60.0)

    class Enough(Exception):
        pass

    class Waiting(ThreadTransport):
        asks = True
        updates, since = 0, 0.0

        def receive(self, seconds):
            for handle, message in super().receive(seconds):
                self.updates += isinstance(message, BatchProgress) and message.trained
                if self.updates < 5 or not isinstance(message, Written):
                    yield handle, message
            self.since = self.since or (self.updates >= 5 and time.monotonic())
            if there:
                yield from ((h, Answered()) for h in self.started if h.role == "learner")
                if self.since and time.monotonic() - self.since > 3.0:
                    raise Enough

    monkeypatch.setattr("in_threads.ThreadTransport", Waiting)
    changes = {"runtime.stuck_seconds": 0.1, "evaluation.every": 0}
    with pytest.raises(Enough if there else LearnerLost):
        run_in_threads(tmp_path, **changes)


def test_updates_that_a_learner_skipped_reach_the_books(tmp_path):
    """With their batches; too many in a row are too many."""

    def spoil(learner, batch):
        if learner.updates in (5, 7, 9, 11):
            batch["reward"][...] = np.nan

    run, complete, _ = run_in_threads(tmp_path / "some", on_batch=spoil)
    assert complete
    assert run.newest_checkpoint().state.skipped == 4
    skipped = lines(run, event="update_skipped")
    files = [f"bad_batch-{update}.safetensors" for update in (5, 7, 9)]
    assert [line["batch"] for line in skipped] == [*files, None]
    assert sorted(path.name for path in run.directory.glob("bad_*")) == files

    def ruin(learner, batch):
        batch["reward"][...] = np.nan

    with pytest.raises(Diverged, match="10 updates in a row"):
        run_in_threads(tmp_path / "all", on_batch=ruin)


def test_the_last_push_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "STARTING_SECONDS", 0.5)
    monkeypatch.setattr(children.ActorChild, "patience", lambda self, stuck: 60.0)

    class Deaf(ThreadTransport):
        def receive(self, seconds):
            found = super().receive(seconds)
            yield from ((h, m) for h, m in found if not isinstance(m, Published))

    monkeypatch.setattr("in_threads.ThreadTransport", Deaf)
    with pytest.raises(LearnerLost, match="the learner did nothing for 1 s"):
        run_in_threads(tmp_path, **{"frames": 400, "runtime.stuck_seconds": 0.2})
    saved = checkpoints_of(tmp_path / "run")
    assert read_state(saved[-1]).frames >= 400  # all that was trained


def test_a_supervisor_that_slept_itself_blames_no_child(tmp_path, monkeypatch):
    """As when a whole run is suspended and goes on: nobody said anything meanwhile."""
    monkeypatch.setattr(children, "STARTING_SECONDS", 0.5)
    monkeypatch.setattr(children.ActorChild, "patience", lambda self, stuck: 1.0)
    slept = []

    class Suspended(ThreadTransport):
        def receive(self, seconds):
            role, message = self.sent[-1] if self.sent else (None, None)
            if not slept and role == "learner" and isinstance(message, Batch) and message.number:
                slept.append(message)
                time.sleep(2.5)  # longer than anybody's patience
                return
            yield from super().receive(seconds)

    monkeypatch.setattr("in_threads.ThreadTransport", Suspended)
    run, complete, _ = run_in_threads(tmp_path, **{"runtime.stuck_seconds": 0.2})
    assert slept
    assert complete
    assert not lines(run, event="actor_replaced")


def test_the_end_is_evaluated_once(tmp_path):
    """Where the last evaluation is due at the end, that is the final one."""
    config = dicerl.preset(
        "debug",
        **{
            "env.id": "CartPole-v1",
            "runtime.kind": "process",
            "frames": 600,
            "evaluation.every": 600,
            "run_dir": str(tmp_path / "run"),
        },
    )
    dicerl.train(config, quiet=True)
    written = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert len(written) == 1
