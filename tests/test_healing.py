"""A run that heals itself, with real processes that are killed at chosen moments, in the counting
environment: what was trained is known, sequence by sequence (probe.py).
"""

import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import probe
from dicerl.api import train
from dicerl.config.presets import preset
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.runtime.children import LearnerChild
from recorded import BATCH, COMMON, REUSE

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="children end with their parent there"),
]
LONG = 120.0  # seconds that a learner may be silent; once it was stopped:
SHORT = 3.0
# update at which the learner falls -> how; each once, in this order
FALLS = {5: "inside", 8: "outside", 30: "stopped", 45: "inside"}
# frames; 6 trained steps a window, 2 uses of each, batches of 4: about 0.083 updates a step
EVERY = 300


@dataclass
class Falling:
    """An ``on_batch`` that keeps every batch and, at some updates, ends its own process."""

    recorder: probe.Recorder
    falls: dict[int, str]

    def __call__(self, learner, batch):
        self.recorder(learner, batch)
        how = self.falls.get(learner.updates)
        marker = self.recorder.directory / f"fell-at-{learner.updates}"
        if how is None or marker.exists():
            return
        marker.write_text(str(os.getpid()))
        if how == "inside":  # as between two writes to the weights
            learner.weights.lock.__enter__()
            learner.weights.vector.fill_(np.nan)
        os.kill(os.getpid(), signal.SIGSTOP if how == "stopped" else signal.SIGKILL)


@dataclass
class MakeMortal:
    """Makes ``Traced`` environments, one of which ends its actor after some steps, once."""

    directory: Path

    def __call__(self):
        return Mortal(self.directory)


class Mortal(probe.Traced):
    def __init__(self, directory):
        super().__init__(directory / f"stepped-by-{os.getpid()}")
        self._marker = directory / "actor-fell"
        last_life = (directory / f"fell-at-{max(FALLS)}").exists()
        self._left = 30 if last_life else -1

    def step(self, action):
        self._left -= 1
        if self._left == 0 and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run: its learner dies inside its turn before there is a checkpoint, then outside of it,
    is stopped, dies inside once more; then an actor dies.
    """
    folder = tmp_path_factory.mktemp("story")
    batches = folder / "batches"
    batches.mkdir()

    def patience(self, stuck):
        stopped = batches / "fell-at-30"
        pid = str(self.handle.process.pid)
        return SHORT if stopped.exists() and stopped.read_text() == pid else LONG

    changes = {
        "frames": 1500,
        "log_every": 1,
        "checkpoint.every": EVERY,
        "checkpoint.keep": 9,
        "runtime.kind": "process",
        "runtime.num_actors": 2,
    }
    config = preset("debug", **COMMON).replace(run_dir=str(folder / "run"), **changes)
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearnerChild, "patience", patience)
        patch.setattr("dicerl.records.progress.Progress.say", lambda _, line: said.append(line))
        run = train(config, MakeMortal(batches), on_batch=Falling(probe.Recorder(batches), FALLS))
    lines, discarded = (
        read_lines(run.directory / f"{name}.jsonl") for name in ("metrics", "metrics.discarded")
    )
    return SimpleNamespace(
        run=run,
        said=said,
        batches=batches,
        lines=lines,
        every=sorted(lines + discarded, key=lambda line: line["time"]),
        books=checkpoint.newest(run.directory).state.books,
        summary=run.summary,
    )


def events(lines, *names):
    return [line for line in lines if line.get("event") in names]


def test_the_run_is_whole_and_every_fall_was_healed(story):
    assert story.summary["complete"]
    assert sorted(path.name for path in story.batches.glob("*fell*")) == sorted(
        ["actor-fell", *(f"fell-at-{update}" for update in FALLS)]
    )
    assert story.summary["healed"] == len(FALLS) + 1
    assert checkpoint.newest(story.run.directory).state.healed == len(FALLS) + 1


def test_metrics_have_no_gap_and_no_doubled_range(story):
    for name in ("agent_steps", "frames", "updates"):
        values = [line[name] for line in story.lines]
        assert values == sorted(values), f"{name} jumps back"
    trained = [line["updates"] for line in story.lines if line["kind"] == "train"]
    assert trained == list(range(1, story.summary["updates"] + 1))
    assert [line.get("event") for line in story.lines].count("start") == 1


def test_a_learner_that_died_outside_its_turn_goes_on_with_the_weights_it_left(story):
    outside, stopped = events(story.every, "learner_replaced")
    assert outside["reason"] == "was killed by SIGKILL"
    assert stopped["reason"] == f"did nothing for {SHORT:.0f} s"
    assert [e["updates"] for e in (outside, stopped)] == [8, 30]
    assert any(
        line.startswith("the learner was killed by SIGKILL; replaced") for line in story.said
    )


def test_a_learner_that_died_inside_its_turn_takes_the_run_back(story):
    """To the beginning where there is no checkpoint, else to the last one."""
    beginning, back = events(story.every, "rolled_back")
    assert (beginning["updates"], beginning["agent_steps"]) == (0, 0)
    assert beginning["redone"] > 0
    assert "the learner was killed by SIGKILL; going back to update 0" in story.said
    saved = [e["updates"] for e in events(story.lines, "checkpoint")]
    assert back["updates"] == max(update for update in saved if update <= 45)
    assert 0 < back["redone"] < EVERY + 200
    # what it wrote there went nowhere
    for path in checkpoint.checkpoints_of(story.run.directory):
        assert all(x.isfinite().all() for x in checkpoint.read_tensors(path, "model").values())


def test_no_random_stream_is_used_twice(story):
    """Each life of the run has incarnations of its own."""
    probe.collect(final_batches(story))  # two windows of one name would differ
    incarnations = {
        int(batch["stream"][i, 0])
        for batch in final_batches(story)
        for i in range(len(batch["stream"]))
    }
    # the first life is forgotten; that after the return to the beginning, that after the
    # checkpoint, and in it, if it is quick enough, the next life of the actor that died
    assert incarnations - {3} == {1, 2}


def final_batches(story):
    """The batch of every update that was not undone: the last one that was trained as such."""
    last = {}
    for path in sorted(story.batches.glob("*.npz"), key=lambda path: path.stat().st_mtime_ns):
        last[int(path.stem.split("-")[0])] = path
    found = []
    for update in range(story.summary["updates"]):
        with np.load(last[update]) as file:
            found.append({name: file[name] for name in file.files})
    return found


def test_every_sequence_is_accounted_for(story):
    books = story.books
    uses = Counter(
        tuple(batch["stream"][i].tolist())
        for batch in final_batches(story)
        for i in range(len(batch["stream"]))
    )
    assert max(uses.values()) <= REUSE
    assert books.trained == uses.total() == BATCH * story.summary["updates"]
    assert books.due == REUSE * books.produced
    assert books.due == books.trained + books.dropped + books.waiting
    assert len(uses) <= books.produced
    # every sequence that was produced and misses a use is dropped or waits
    missing = sum(REUSE - n for n in uses.values()) + REUSE * (books.produced - len(uses))
    assert missing == books.dropped + books.waiting
    assert books.waiting < BATCH * REUSE
    assert story.summary["books"] == books.to_dict()
    assert books.missing == 0


def test_books_are_in_the_metrics_at_every_checkpoint_and_in_train_lines(story):
    saved = events(story.lines, "checkpoint")
    assert len(saved) >= 4
    for event in saved:
        found = event["books"]
        assert found["due"] == found["trained"] + found["dropped"] + found["waiting"]
        assert found["trained"] == BATCH * event["updates"]
    assert saved[-1]["books"] == story.books.to_dict()
    last = [line for line in story.lines if line["kind"] == "train"][-1]
    assert last["trained_uses"] == story.books.trained
    assert last["dropped_uses"] == story.books.dropped
    assert last["lost_sequences"] == sum(story.books.lost)


def test_what_was_dropped_is_what_was_in_flight_at_the_checkpoint_it_went_back_to(story):
    _, back = events(story.lines, "rolled_back")
    at = [e["books"] for e in events(story.lines, "checkpoint") if e["updates"] == back["updates"]]
    with_learners = sum(e["dropped"] for e in events(story.lines, "learner_replaced"))
    assert story.books.dropped == at[0]["waiting"] + with_learners


def test_what_an_actor_had_begun_is_lost_with_its_number(story):
    (replaced,) = events(story.lines, "actor_replaced")
    assert replaced["lost"] > 0
    assert story.books.lost[replaced["actor"]] == replaced["lost"]
    assert sum(story.books.lost) == replaced["lost"]
