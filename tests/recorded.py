"""Runs whose learner writes down everything it receives, for test_pipeline.py and
test_pipeline_variants.py.
"""

from types import SimpleNamespace

import probe
from dicerl.api import train
from dicerl.config.presets import preset
from dicerl.records import checkpoint

# 5 windows a round in batches of 4: rounds and batches never align
BURN_IN, LENGTH, BATCH, REUSE, ENVS = 4, 6, 4, 2, 5

# A large learning rate: each version acts differently from the one before.
COMMON = {
    "tensorboard": False,
    "frames": 900,
    "evaluation.every": 0,
    "runtime.num_envs": ENVS,
    "runtime.push_every": 2,
    "runtime.pull_every": 3,
    "sequence.burn_in": BURN_IN,
    "sequence.length": LENGTH,
    "sequence.batch": BATCH,
    "sequence.reuse": REUSE,
    "network.hidden": 16,
    "network.lstm": 8,
    "network.normalise": "statistics",
    "network.statistics_steps": 256,
    "optimizer.learning_rate": 2e-3,
    "optimizer.warmup": 0.0,
    "runtime.learner_threads": 1,
    "runtime.num_learners": 1,
}
# All temperatures alike: which ones the bandits come to like depends on the actors' timing, and
# among cold ones nearly every step is certain.
CURIOUS = {"bandit.ucb_scale": 1000.0}
RUNS = {
    # Checkpoints restart the environments twice in mid-run.
    "serial": {
        "runtime.kind": "serial",
        "behaviour.scale": "raw",
        "checkpoint.every": 300,
        "checkpoint.exact": True,
    },
    "serial-normalised": {
        "runtime.kind": "serial",
        "behaviour.scale": "normalised",
        "checkpoint.every": 0,
        "frames": 500,
    },
    # Two actors with 2 and 3 environments; one slot more than a batch, so that they wait all the
    # time.
    "process": {
        "runtime.kind": "process",
        "behaviour.scale": "normalised",
        "checkpoint.every": 0,
        "runtime.num_actors": 2,
        "sequence.capacity": BATCH + 1,
        **CURIOUS,
    },
}
RUNS["ray"] = RUNS["process"] | {"runtime.kind": "ray", "ray.cpus_per_actor": 0.5}
# each actor sends to a learner of its own; both train every batch
RUNS["ray-together"] = RUNS["ray"] | {"runtime.num_learners": 2, "frames": 600}


def record(folder, players=0, make_env=None, **changes):
    """Train and read back everything the learner received."""
    config = preset("debug", **COMMON).replace(run_dir=str(folder / "run"), **changes)
    recorder = probe.Recorder(folder / "batches", players)
    recorder.directory.mkdir()
    make_env = make_env or probe.MakeTraced(recorder.directory)
    run = train(config, make_env, quiet=True, on_batch=recorder)
    batches = probe.load_batches(recorder.directory)
    streams = probe.collect(batches)
    return SimpleNamespace(
        config=config,
        directory=run.directory,
        summary=run.summary,
        batches=batches,
        streams=streams,
        make_env=make_env,
        parameters=probe.load_parameters(recorder.directory),
        path=checkpoint.newest(run.directory)[0],
        burn_in=config.sequence.burn_in,
        length=config.sequence.length,
    )


def assert_consecutive(streams):
    for key, windows in streams.items():
        assert sorted(windows) == list(range(len(windows))), (
            f"stream {key} has windows {sorted(windows)}"
        )
