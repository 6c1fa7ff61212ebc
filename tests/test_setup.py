"""runtime/setup.py: what the machine is used for, and the device, the memory and the statistics of
a run that starts.
"""

from pathlib import Path

import numpy as np
import pytest

import dicerl
import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config.presets import preset
from dicerl.envs import EnvSpec
from dicerl.errors import ConfigError
from dicerl.parts.collector import build
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.records.run import Run
from dicerl.runtime import setup
from dicerl.runtime.device import choose_device
from dicerl.runtime.launch import describe
from dicerl.runtime.machine import amount
from dicerl.runtime.setup import moments, plan

SPEC = EnvSpec("test", (4, 6), np.dtype(np.uint8), 3)


@pytest.mark.parametrize(
    ("runtime", "frames", "least"),
    # 4 environments, 8 steps: 32 frames a round
    [("serial", 33, 8), ("serial", 64, 8), ("process", 95, 8), ("process", 96, 12)],
)
def test_a_batch_must_be_filled_at_least_once(runtime, frames, least):
    """A run of one batch more than there are sequences would play to its end and learn nothing."""
    fields = {"runtime.kind": runtime, "frames": frames}
    config = preset("debug", **fields)
    plan(config.replace(**{"sequence.batch": least}), SPEC)
    with pytest.raises(ConfigError) as caught:
        plan(config.replace(**{"sequence.batch": least + 1}), SPEC)
    assert caught.value.field == "sequence.batch"
    assert f"give {least} sequences of 8 steps" in str(caught.value)
    enough = int(str(caught.value).split()[-2].replace(",", ""))
    plan(config.replace(**{"sequence.batch": least + 1, "frames": enough}), SPEC)


def test_a_device_that_is_not_there_is_refused():
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match=r"runtime\.device is 'nonsense'; it cannot be used here"):
        choose_device("nonsense")


@pytest.mark.parametrize("capacity", [0, 7])
def test_memory_for_replay_is_stated_before_the_run(capacity):
    """The store holds what the plan says: the new half of a batch and a round (or
    collector.capacity), what is replayed, and a batch in progress.
    """
    config = preset(
        "debug",
        **{
            "collector.replay": 0.5,
            "collector.replay_capacity": 100,
            "sequence.capacity": capacity,
        },
    )
    machine = plan(config, SPEC)
    assert machine.capacity == (capacity or 2 + 4) + 100 + 4
    store = Store(schema(config, SPEC), window_length(config), machine.capacity)
    assert sum(a.nbytes for a in store.arrays.values()) == machine.store_bytes
    said = "\n".join(
        describe(config, SPEC, machine, ActorCritic(config, SPEC), Run(Path("run"), config))
    )
    assert (
        f"collector {machine.capacity} slots of {amount(machine.slot_bytes)}:"
        f" {amount(machine.store_bytes)}" in said
    )
    assert plan(config.replace(**{"collector.replay": 0.0}), SPEC).capacity == (capacity or 8)
    collector = build(config, machine.capacity, machine.kept)
    assert (collector.replayed, collector.replay_capacity, collector.num_free) == (
        2,
        100,
        machine.capacity,
    )
    assert plan(config.replace(**{"collector.replay": 0.0}), SPEC).kept == 0


@pytest.mark.parametrize(("slots", "kept"), [(0, 100), (200, 100), (40.5, 40), (1, 2)])
def test_large_sequences_are_kept_in_smaller_numbers(slots, kept):
    """As many as fit into ``collector.replay_memory`` (0: any), at least those of a batch."""
    config = preset("debug", **{"collector.replay": 0.5, "collector.replay_capacity": 100})
    slot = plan(config, SPEC).slot_bytes
    machine = plan(config.replace(**{"collector.replay_memory": slots * slot / 2**30}), SPEC)
    assert (machine.kept, machine.capacity) == (kept, 2 + 4 + kept + 4)
    assert build(config, machine.capacity, machine.kept).replay_capacity == kept


def test_moments_are_mean_and_deviation_over_steps_and_environments():
    seen = probe.observations((4, 3), "uint8", 50, 8).numpy()
    mean, deviation = moments(seen)
    np.testing.assert_allclose(mean, seen.reshape(400, 4, 3).mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, seen.reshape(400, 4, 3).std(0), rtol=1e-5)
    constant = np.full((5, 8, 2), 7.0, np.float32)
    assert moments(constant)[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"sequence.batch": 640}, "sequence.batch is 640"), ({}, "network.hidden is 128")],
)
def test_slots_and_weights_must_fit_into_shared_memory(monkeypatch, changes, field):
    """Weights, moments and published sets take five times the network."""
    changes = {"runtime.kind": "process", "collector.replay": 0.0, **changes}
    config = preset("classic", **changes)
    machine = plan(config, SPEC)
    network = ActorCritic(config, SPEC).flat.vector.numel() * 4
    pages = setup.PAGE * (len(schema(config, SPEC)) + 8)
    needed = machine.store_bytes + 5 * network + pages
    monkeypatch.setattr(setup, "_free_shared_memory", lambda: needed)
    plan(config, SPEC)
    monkeypatch.setattr(setup, "_free_shared_memory", lambda: machine.store_bytes + 5 * network)
    with pytest.raises(ConfigError, match=rf"{field}; the collector's .* free in /dev/shm; use"):
        plan(config, SPEC)


def test_a_run_with_processes_needs_open_files(monkeypatch):
    config = preset("debug", **{"runtime.kind": "process", "runtime.num_actors": 3})
    asked = []
    monkeypatch.setattr(setup, "allow_open_files", lambda count: asked.append(count) or 30)
    with pytest.raises(ConfigError, match=r"runtime.kind is 'process'; 3 actors .* room for 30 \("):
        plan(config, SPEC)
    plan(config.replace(**{"runtime.kind": "serial"}), SPEC)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("cores", "preset", "spec", "changes", "actors", "learners", "threads"),
    [
        (2, "laptop", "atari", {}, 2, 1, 2),
        (8, "laptop", "atari", {}, 2, 1, 8),
        (64, "paper", "atari", {}, 20, 1, 64),
        (4, "laptop", "atari", {"sequence.batch": 3}, 2, 1, 3),
        (2, "classic", "vector", {}, 1, 1, 1),
        (2, "classic", "vector", {"network.lstm": 8}, 1, 2, 1),
        (1, "minatar", "minatar", {}, 1, 1, 1),
        (2, "minatar", "minatar", {}, 1, 2, 1),
        (8, "minatar", "minatar", {}, 4, 2, 1),
        (8, "minatar", "minatar", {"runtime.num_learners": 5}, 4, 5, 1),
        (8, "minatar", "minatar", {"runtime.kind": "serial"}, 1, 1, 1),
        (1, "laptop", "atari", {}, 1, 1, 1),
        (8, "laptop", "atari", {"runtime.num_envs": 4}, 1, 1, 8),
        (2, "laptop", "atari", {"runtime.num_actors": 1, "runtime.learner_threads": 1}, 1, 1, 1),
    ],
)
def test_what_the_machine_is_used_for(
    monkeypatch, cores, preset, spec, changes, actors, learners, threads
):
    specs = {
        "atari": EnvSpec("pong", (4, 84, 84), np.dtype(np.uint8), 18, action_repeat=4, game="pong"),
        "minatar": EnvSpec("m", (10, 10, 4), np.dtype(np.bool_), 3),
        "vector": EnvSpec("c", (4,), np.dtype(np.float32), 2),
    }
    monkeypatch.setattr(setup, "cores", lambda: cores)
    monkeypatch.setattr(setup, "_require_memory", lambda *_: None)
    config = dicerl.preset(
        preset, **{"env.id": "x", "runtime.kind": "process", "runtime.device": "cpu", **changes}
    )
    plan = setup.plan(config, specs[spec])
    assert (plan.num_actors, plan.num_learners, plan.learner_threads) == (actors, learners, threads)
    new, envs = config.sequence.batch - config.replayed, config.runtime.num_envs
    beside = plan.kept + config.sequence.batch if config.replayed else 0
    assert plan.capacity - beside == max(plan.num_learners * new + envs // plan.num_actors, envs)
