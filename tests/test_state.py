"""records/state.py: state.json as one value, and runs that were written before it was one."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import dicerl
from dicerl.errors import CheckpointError
from dicerl.records.checkpoint import checkpoints_of, read_state
from dicerl.records.state import FORMAT, RunState, SerialState

# CartPole, preset debug, with sequence.capacity and a plain dictionary as state.json: 13a6eb6.
OLD = Path(__file__).parent / "data" / "run-format-2"
SERIAL = SerialState(
    actor={"rng": {}, "count": 3},
    uses=[1, 0],
    kept=2,
    replay_rng={},
    lags=[(1.5, 3.0)],
    spikes=[1.0, 0.0, 0.5, -1.0, 0.0, 1.0],
    received=7,
    served=5,
    served_again=1,
    retired=2,
)


@pytest.mark.parametrize("serial", [None, SERIAL])
def test_a_state_comes_back_from_json(serial):
    state = RunState(agent_steps=5, best_evaluation=1.5, recent=[1.0, 2.0], serial=serial)
    again = RunState.from_dict(json.loads(json.dumps(state.to_dict())))
    if serial is not None:
        again.serial.lags = [tuple(lag) for lag in again.serial.lags]  # JSON has no tuples
    assert again == state


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(RunState)])
def test_a_missing_field_is_named(name):
    data = {k: v for k, v in RunState().to_dict().items() if k != name}
    # other runtimes wrote none; runs from before wrote none
    if name in ("serial", "precision", "skipped", "healed", "books"):
        assert RunState.from_dict(data) == RunState()
        return
    with pytest.raises(CheckpointError, match="format None" if name == "format" else f"no {name}"):
        RunState.from_dict(data)


def test_another_format_is_named_with_the_one_that_is_read():
    with pytest.raises(CheckpointError, match=f"format 3; this version reads {FORMAT}"):
        RunState.from_dict(RunState().to_dict() | {"format": 3})


def test_a_run_written_before_is_read_resumed_and_plays(tmp_path):
    run = Path(shutil.copytree(OLD, tmp_path / "run"))
    (path,) = checkpoints_of(run)
    state = read_state(path)
    assert (state.updates, state.format, state.serial.received) == (
        22,
        2,
        44,
    )  # batches of 4, each sequence twice
    action, _ = dicerl.load_agent(run).act([0.0, 0.0, 0.0, 0.0], greedy=True)
    assert action in (0, 1)
    again = dicerl.resume(run, quiet=True)
    assert again.config.collector.capacity == 12  # it was sequence.capacity then
    assert again.summary["complete"]
    assert again.summary["updates"] == 44
