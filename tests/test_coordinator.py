"""runtime/coordinator.py: counters, when something is due, which checkpoint is the best, and what a
checkpoint holds. That actors get what was drawn for them is in test_pipeline.py.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
import safetensors.numpy

from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.errors import Diverged
from dicerl.parts.actor import Episode
from dicerl.records import checkpoint, metrics
from dicerl.records.metrics import read_lines
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.records.state import RunState
from dicerl.runtime.coordinator import BAD_IN_A_ROW, RECENT, Coordinator
from dicerl.runtime.setup import plan

SPEC = EnvSpec("test", (4,), np.dtype(np.float32), 3, action_repeat=4)


@pytest.fixture
def make(tmp_path):
    """Coordinators of one run, of 4 frames a step: the first, then those that continue."""
    made = []

    def build(start=None, **changes):
        config = preset(
            "debug",
            **{
                "env.id": "CartPole-v1",
                "run_dir": str(tmp_path / "run"),
                "tensorboard": False,
                "frames": 4000,
                "evaluation.every": 400,
                "checkpoint.every": 1000,
                "checkpoint.keep": 1,
                **changes,
            },
        )
        run = made[0].run if made else Run.create(config)
        made.append(Coordinator(config, SPEC, plan(config, SPEC), run, Progress("", True), start))
        return made[-1]

    yield build
    for coordinator in made:
        coordinator.close()
    made[0].run.unlock()


def episodes(coordinator, *returns):
    drawn = coordinator.next_behaviours(0, len(returns))
    return [Episode(b, g, 10) for b, g in zip(drawn, returns, strict=True)]


def evaluation(score):
    numbers = {"mean_return": score, "stderr": 0.1, "interval": None, "returns": [score]}
    return {"episodes": 1, **numbers, **{f"greedy_{name}": x for name, x in numbers.items()}}


def lines(coordinator, kind):
    coordinator.metrics.sync()  # writes what waits
    every = read_lines(coordinator.run.directory / "metrics.jsonl")
    return [line for line in every if line["kind"] == kind]


def test_updates_that_were_skipped_are_counted_and_a_few_of_their_batches_kept(make):
    coordinator = make()
    batch = {"reward": np.full((3, 2), np.nan, np.float32), "valid": np.ones((3, 2), np.bool_)}
    for update in (10, 12, 14, 16):
        coordinator.skipped(update, math.nan, 1.5, batch)
    coordinator.skipped(20, 1.0, math.inf, None)
    assert coordinator.updates_skipped == 5
    events = lines(coordinator, "event")[1:]
    assert [line["event"] for line in events] == ["update_skipped"] * 5
    assert events[0]["reason"] == "loss nan, gradient norm 1.5"
    files = [f"bad_batch-{update}.safetensors" for update in (10, 12, 14)]
    assert [line["batch"] for line in events] == [*files, None, None]
    assert sorted(path.name for path in coordinator.run.directory.glob("bad_*")) == files
    kept = safetensors.numpy.load_file(coordinator.run.directory / files[0])
    assert np.isnan(kept["reward"]).all()
    assert coordinator.synced_state(0, 0).skipped == 5


def test_too_many_skipped_in_a_row_are_too_many(make):
    """In whichever order learners report them."""
    coordinator = make()
    row = [*range(30, 30 + BAD_IN_A_ROW - 1)]
    row = row[::2] + row[1::2]
    for update in (29 - BAD_IN_A_ROW, 28, *row):
        coordinator.skipped(update, math.nan, math.nan, None)
    assert len(lines(coordinator, "event")) < 2 + len(row)  # not one for each of a row
    with pytest.raises(Diverged, match=r"10 updates in a row .*\(update 39: loss nan") as caught:
        coordinator.skipped(30 + BAD_IN_A_ROW - 1, math.nan, math.nan, None)
    assert caught.value.until == 30


def test_frames_are_steps_times_the_action_repeat_and_end_the_run(make):
    coordinator = make()
    coordinator.stepped(999)
    assert coordinator.counters() == {"agent_steps": 999, "frames": 3996, "updates": 0}
    assert not coordinator.collected_all()
    coordinator.stepped(1)
    assert coordinator.collected_all()


@pytest.mark.parametrize("what", ["evaluation", "checkpoint"])
def test_something_is_due_every_so_many_frames_after_it_began(make, what):
    coordinator = make(**{"evaluation.every": 400, "checkpoint.every": 400})
    due = getattr(coordinator, f"{what}_due")
    assert not due()
    coordinator.stepped(99)
    assert not due()
    coordinator.stepped(51)  # 600 frames: late
    assert due()
    {"evaluation": coordinator.evaluation_requested, "checkpoint": coordinator.checkpoint_begins}[
        what
    ]()
    assert not due()
    coordinator.stepped(99)
    assert not due()
    coordinator.stepped(1)  # 1000 frames
    assert due()


def test_nothing_is_due_where_it_is_switched_off(make):
    coordinator = make(**{"evaluation.every": 0, "checkpoint.every": 0})
    coordinator.stepped(10_000)
    assert not coordinator.evaluation_due()
    assert not coordinator.checkpoint_due()


def test_returns_teach_the_vote_and_are_counted_and_written(make):
    coordinator = make()
    ended = episodes(coordinator, 1.0, 4.0)
    coordinator.stepped(20)
    coordinator.end_episodes(1, ended)
    (vote,) = coordinator.behaviours.votes[0].votes
    assert vote.counts().sum() > 0
    found = lines(coordinator, "episode")
    assert [(line["return"], line["length"], line["actor"]) for line in found] == [
        (1.0, 10, 1),
        (4.0, 10, 1),
    ]
    assert [line["inv_temperature"] for line in found] == [
        pytest.approx(e.behaviour.values[0], rel=1e-5) for e in ended
    ]
    coordinator.close()
    assert coordinator.run.summary["episodes"] == 2
    assert coordinator.run.summary["recent_return"] == 2.5


def test_of_many_episodes_some_have_a_line_and_all_are_counted(make, monkeypatch):
    """After a resume, too: only their number decides."""
    monkeypatch.setattr(metrics, "EPISODES", 4)
    first, seen = make(), []
    first.callbacks = lambda moment, line: seen.append(line["return"])
    first.end_episodes(0, episodes(first, *range(1, 11)))
    state = first.synced_state(0, 0)
    first.end_episodes(0, episodes(first, 99))  # lost with the rest of its life
    first.close()
    again = make(state)
    again.end_episodes(0, episodes(again, *range(11, 21)))
    assert seen == [*range(1, 11), 99]
    written = [line["return"] for line in lines(again, "episode")]
    assert written == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20]
    assert again.synced_state(0, 0).episodes == 20


def test_the_recent_return_forgets_what_is_older_than_the_last_episodes(make):
    coordinator = make()
    coordinator.end_episodes(0, episodes(coordinator, 1e6, *[3.0] * RECENT))
    coordinator.trained({"loss": 0.5})
    (line,) = lines(coordinator, "train")
    assert line["recent_return"] == 3.0
    assert (line["loss"], line["episodes"], line["updates"]) == (0.5, RECENT + 1, 1)


def test_only_updates_with_diagnostics_make_a_line(make):
    coordinator = make()
    for update in range(6):
        coordinator.trained({"loss": 1.0} if update % 3 == 2 else None)
    assert [line["updates"] for line in lines(coordinator, "train")] == [3, 6]


def test_an_evaluation_is_of_the_moment_it_began(make):
    """What happens while its episodes are played changes neither its line nor what is kept."""
    coordinator = make()
    best = []
    for version, score in enumerate((5.0, 4.0, 6.0, 6.0)):
        coordinator.trained(None)
        coordinator.stepped(10)
        coordinator.evaluation_requested()
        coordinator.stepped(5)
        coordinator.evaluation_begins(version)
        votes = coordinator.behaviours.state_dict()
        coordinator.end_episodes(0, episodes(coordinator, 2.0))
        coordinator.stepped(100)
        coordinator.trained(None)
        state = coordinator.evaluated(evaluation(score))
        if state is not None:
            assert (state.updates, state.temperatures) == (version, votes)
            coordinator.best_kept(state)
            best.append((version, state.frames))
    coordinator.metrics.sync()
    written = [(line["version"], line["frames"]) for line in lines(coordinator, "evaluation")]
    assert written == [(v, 4 * (15 + 115 * v)) for v in range(4)]
    assert best == [written[0], written[2]]  # as good as the best is not better
    state = coordinator.synced_state(0, 0)
    assert (state.best_evaluation, state.best_checkpoint) == (6.0, 2)


def test_a_run_continues_with_what_its_checkpoint_held(make):
    first = make()
    first.stepped(150)
    first.end_episodes(0, episodes(first, 2.0, 8.0))
    first.evaluation_requested()
    first.evaluation_begins(0)
    first.best_kept(first.evaluated(evaluation(3.0)))
    first.trained(None)
    first.checkpoint_begins()
    state = first.synced_state(steps_trained=70, incarnation=2)
    assert (state.steps_trained, state.incarnation, state.serial) == (70, 2, None)
    lost = first.updates + 1
    first.trained({"loss": 9.0})  # after the checkpoint: to be set aside
    first.close()
    again = make(RunState.from_dict(json.loads(json.dumps(state.to_dict()))))
    assert again.counters() == {"agent_steps": 150, "frames": 600, "updates": 1}
    assert again.elapsed >= state.elapsed
    assert not again.evaluation_due()
    assert not again.checkpoint_due()
    assert again.behaviours.state_dict() == first.behaviours.state_dict()
    now = again.synced_state(70, 2)
    for field in dataclasses.fields(RunState):
        if field.name not in ("elapsed", "metrics_offset"):
            assert getattr(now, field.name) == getattr(state, field.name), field.name
    assert lost not in [line["updates"] for line in lines(again, "train")]
    assert [line["event"] for line in lines(again, "event")] == ["start", "resume"]
    again.close()
    assert again.run.summary["recent_return"] == 5.0
    assert again.run.summary["evaluation"] == evaluation(3.0)


def test_a_run_that_goes_back_before_an_evaluation_has_none(make):
    first = make()
    first.stepped(150)
    state = first.synced_state(0, 0)
    first.evaluation_begins(0)
    first.evaluated(evaluation(3.0))
    first.close()
    assert first.run.summary["evaluation"] == evaluation(3.0)
    again = make(state)
    again.close()
    assert again.run.summary["evaluation"] == {}


@pytest.mark.parametrize(("known", "stays"), [(7, True), (3, False), (None, False)])
def test_a_best_that_the_checkpoint_does_not_know_is_forgotten(make, known, stays):
    """Otherwise one that is worse could replace it, or be taken for it."""
    first = make()
    kept = dataclasses.replace(first.synced_state(0, 0), updates=7)
    checkpoint.save_best(first.run.directory, {}, kept)
    score = None if known is None else 5.0
    start = dataclasses.replace(
        first.synced_state(0, 0), best_evaluation=score, best_checkpoint=known
    )
    first.close()
    state = make(start).synced_state(0, 0)
    assert (checkpoint.best_of(first.run.directory) is not None) == stays
    expected = (5.0, 7) if stays else (None, None)
    assert (state.best_evaluation, state.best_checkpoint) == expected


def test_the_best_that_the_last_checkpoint_knows_stays_until_another_does(make):
    """A run that dies between a new best and its checkpoint goes back to the one before."""
    run = make()

    def better(version, score):
        run.evaluation_begins(version)
        state = run.evaluated(evaluation(score))
        checkpoint.save_best(run.run.directory, {}, state)
        run.best_kept(state)

    def kept():
        return sorted(int(p.name) for p in (run.run.directory / "best").iterdir())

    better(1, 1.0)
    state = run.synced_state(0, 0)
    run.saved(run.run.directory)
    better(2, 2.0)
    assert kept() == [1, 2]
    better(3, 3.0)
    assert kept() == [1, 3]
    run.close()
    run = make(state)
    assert kept() == [1]
    assert run.synced_state(0, 0).best_checkpoint == 1
    better(4, 4.0)
    run.saved(run.run.directory)
    assert kept() == [4]
