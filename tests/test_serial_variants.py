"""runtime/serial.py: other settings, too, are bit for bit the same from a seed and from a
checkpoint.
"""

import json

import pytest

import dicerl
from dicerl.api import resume, train
from dicerl.records.checkpoint import checkpoints_of
from serial_runs import BOOKS, assert_same_run, config, lines, rewind

# seconds of CPU time, but whole runs: on a crowded machine they take their time
pytestmark = pytest.mark.timeout(900)


def test_the_same_seed_gives_the_same_run_without_lstm(tmp_path):
    """Catch, feed-forward, 200 updates."""
    changes = {
        "network.lstm": 0,
        "sequence.burn_in": 0,
        "frames": 3600,
        "evaluation.every": 0,
        "checkpoint.every": 0,
    }
    runs = [
        train(
            config("dicerl.envs.toy:Catch-v0", run_dir=str(tmp_path / name), **changes), quiet=True
        )
        for name in "ab"
    ]
    assert runs[0].summary["updates"] >= 200
    assert_same_run(*(run.directory for run in runs))


def test_atari_goes_on_from_a_checkpoint_exactly(tmp_path):
    """A fresh emulator and one that has played give the same games from the same seed, random
    no-ops and sticky actions included.
    """
    run = train(
        config(
            "pong",
            run_dir=str(tmp_path / "run"),
            **{
                "frames": 560,
                "checkpoint.every": 200,
                "evaluation.every": 0,
                "env.sticky_actions": 0.25,
                "env.image_size": 42,
                "network.torso": "impala_shallow",
                "network.normalise": "statistics",
                "network.statistics_steps": 64,
                "network.lstm": 8,
                "network.hidden": 16,
                "sequence.length": 4,
                "sequence.burn_in": 2,
                "sequence.batch": 2,
                "runtime.num_envs": 2,
                "runtime.learner_threads": 1,
            },
        ),
        quiet=True,
    )
    assert len(checkpoints_of(run.directory)) >= 3
    rewind(run.directory, tmp_path / "copy", 0)
    resume(tmp_path / "copy", quiet=True)
    assert_same_run(run.directory, tmp_path / "copy")


VARIANTS = {
    "mixture": {"behaviour.family": "mixture", "bandit.scope": "actor"},
    "trainable, random scaling, auxiliary losses": {
        "behaviour.source": "trainable",
        "loss.critic": "casa",
        "loss.estimator": "drtrace",
        "loss.auxiliary": 0.1,
        "loss.scaling": "random",
    },
    "replay": {"collector.replay": 0.4, "collector.replay_capacity": 13},
    "conditioned, from the initial distribution": {
        "behaviour.family": "conditioned",
        "behaviour.source": "distribution",
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_goes_on_from_a_checkpoint_exactly(tmp_path, name):
    """Catch, 900 steps; from its second checkpoint the run does again what it did."""
    run = train(
        config(
            "dicerl.envs.toy:Catch-v0",
            run_dir=str(tmp_path / "run"),
            **{"frames": 900, "checkpoint.every": 200, "evaluation.every": 400, **VARIANTS[name]},
        ),
        quiet=True,
    )
    assert len(checkpoints_of(run.directory)) >= 4
    updates = rewind(run.directory, tmp_path / "copy", 1)
    state = json.loads((tmp_path / f"copy/checkpoints/{updates}/state.json").read_text())
    assert state["serial"]["kept"] == (13 if name == "replay" else 0)
    resume(tmp_path / "copy", quiet=True)
    assert_same_run(run.directory, tmp_path / "copy")
    trained = [lines(directory, "train", ()) for directory in (run.directory, tmp_path / "copy")]
    for book in (*BOOKS, *(["replayed_fraction"] if name == "replay" else [])):
        here, there = ([line[book] for line in every] for every in trained)
        assert here == pytest.approx(there), book
    if name == "replay":
        assert trained[0][-1]["replayed_fraction"] > 0.3


def test_replay_is_in_exact_checkpoints_only(tmp_path):
    """Kept sequences are most of a checkpoint; a resumed run fills its replay anew."""
    fields = {"frames": 900, "checkpoint.every": 300, "checkpoint.exact": False}
    directory = tmp_path / "run"
    changes = {**fields, **VARIANTS["replay"]}
    train(config("dicerl.envs.toy:Catch-v0", run_dir=str(directory), **changes), quiet=True)
    updates = rewind(directory, tmp_path / "copy", 0)
    state = json.loads((tmp_path / f"copy/checkpoints/{updates}/state.json").read_text())
    assert state["serial"]["kept"] == 0
    resume(tmp_path / "copy", quiet=True)
    for ended in (directory, tmp_path / "copy"):
        assert lines(ended, "train", ())[-1]["kept_sequences"] > 0


def test_a_learner_with_threads_is_reproducible_too(tmp_path):
    ends = []
    for name in ("a", "b"):
        run = dicerl.train(
            dicerl.preset(
                "debug",
                **{
                    "env.id": "CartPole-v1",
                    "frames": 1000,
                    "runtime.learner_threads": 2,
                    "run_dir": str(tmp_path / name),
                    "evaluation.every": 0,
                },
            ),
            quiet=True,
        )
        ends.append((checkpoints_of(run.directory)[-1] / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]


SHORT = {"frames": 1600, "checkpoint.every": 200, "evaluation.every": 0, "log_every": 50}


@pytest.mark.parametrize("exact", [False, True])
def test_only_exact_checkpoints_hide_episodes(tmp_path, exact):
    """Every step is in an episode that is reported, or in one that still runs at the end."""
    made = config(**{**SHORT, "checkpoint.exact": exact, "run_dir": str(tmp_path / "run")})
    run = train(made, quiet=True)
    played = sum(line["length"] for line in lines(run.directory, "episode"))
    hidden = run.summary["agent_steps"] - played
    longest = max(line["length"] for line in lines(run.directory, "episode"))
    assert (hidden > made.runtime.num_envs * longest) == exact


def test_a_run_that_is_not_exact_continues_from_its_checkpoint(tmp_path):
    made = config(**{**SHORT, "checkpoint.exact": False, "run_dir": str(tmp_path / "run")})
    run = train(made, quiet=True)
    state = run.newest_checkpoint().state
    rewind(run.directory, tmp_path / "copy", 3)
    again = resume(tmp_path / "copy", quiet=True)
    assert again.summary["complete"]
    assert again.newest_checkpoint().state.incarnation == state.incarnation + 1
    frames = [line["frames"] for line in lines(tmp_path / "copy", "episode")]
    assert frames == sorted(frames)
