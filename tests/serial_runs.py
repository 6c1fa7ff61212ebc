"""Serial runs for test_serial.py and test_serial_variants.py: what they train, what they leave
behind, and whether two of them are the same.
"""

import shutil
from pathlib import Path

import safetensors.torch
import torch

from dicerl.config.presets import preset
from dicerl.records.checkpoint import checkpoints_of
from dicerl.records.metrics import read_lines

# 3,600 steps in 8 or 9 checkpoints, 225 updates and more.
OPTIONS = {
    "seed": 3,
    "frames": 3600,
    "tensorboard": False,
    "log_every": 3,
    "runtime.kind": "serial",
    "runtime.num_envs": 8,
    "runtime.push_every": 5,
    "runtime.pull_every": 3,
    "sequence.batch": 5,
    "sequence.length": 6,
    "sequence.burn_in": 3,
    "optimizer.learning_rate": 3e-3,
    "evaluation.every": 1200,
    "evaluation.max_steps": 40,
    "checkpoint.every": 400,
    "checkpoint.exact": True,
    "checkpoint.keep": 100,
}
TIMES = (
    "time",
    "elapsed",
    "frames_per_s",
    "sequence_age",
    *(f"learner_{n}" for n in ("training", "copying", "pushing")),
    *(f"actor_{n}" for n in ("environment", "inference", "copying")),
)  # differ from run to run
# sums over many updates; they have a test of their own
BOOKS = ("reuse_served", "policy_lag", "policy_lag_max")


def config(env="CartPole-v1", **changes):
    return preset("debug", **{"env.id": env, **OPTIONS, **changes})


def final_model(directory):
    return (checkpoints_of(Path(directory))[-1] / "model.safetensors").read_bytes()


def lines(directory, kind, without=(*TIMES, *BOOKS)):
    every = read_lines(Path(directory) / "metrics.jsonl")
    return [
        {k: v for k, v in line.items() if k not in without}
        for line in every
        if line["kind"] == kind
    ]


def rewind(directory, copy, index):
    """The run as a kill leaves it when ``index`` is its newest checkpoint: what was written later
    is there, but not in a checkpoint.
    """
    shutil.copytree(directory, copy)
    for path in checkpoints_of(copy)[index + 1 :]:
        shutil.rmtree(path)
    return int(checkpoints_of(copy)[-1].name)


def assert_same_run(a, b):
    """Everything a run leaves behind but the time it took."""
    assert [p.name for p in checkpoints_of(a)] == [p.name for p in checkpoints_of(b)]
    for kind in ("train", "episode", "evaluation"):
        assert lines(a, kind) == lines(b, kind), kind
    for path in checkpoints_of(a):
        assert (path / "model.safetensors").read_bytes() == (
            b / "checkpoints" / path.name / "model.safetensors"
        ).read_bytes(), path
    for name in ("model", "optimizer"):
        one, two = (
            safetensors.torch.load_file(checkpoints_of(d)[-1] / f"{name}.safetensors")
            for d in (a, b)
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[k], two[k]) for k in one)
