"""runtime/setup.py: the device, the memory and the statistics that a run starts with."""

from pathlib import Path

import numpy as np
import pytest

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError
from dicerl.parts.collector import build
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.records.run import Run
from dicerl.runtime.launch import describe
from dicerl.runtime.setup import amount, choose_device, moments, plan

SPEC = EnvSpec("test", (4, 6), np.dtype(np.uint8), 3)


def test_a_device_that_is_not_there_is_refused():
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match=r"runtime\.device is 'nonsense'; it cannot be used here"):
        choose_device("nonsense")


@pytest.mark.parametrize("capacity", [0, 7])
def test_memory_for_replay_is_stated_before_the_run(capacity):
    """The store holds what the plan says: a batch and a round (or collector.capacity), what is
    replayed, and a batch in progress.
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
    assert machine.capacity == (capacity or 4 + 4) + 100 + 4
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
    collector = build(config, machine.capacity)
    assert (collector.replayed, collector.replay_capacity, collector.num_free) == (
        2,
        100,
        machine.capacity,
    )
    assert build(config.replace(**{"collector.replay": 0.0}), 8).replay_capacity == 0


def test_moments_are_mean_and_deviation_over_steps_and_environments():
    seen = probe.observations((4, 3), "uint8", 50, 8).numpy()
    mean, deviation = moments(seen)
    np.testing.assert_allclose(mean, seen.reshape(400, 4, 3).mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, seen.reshape(400, 4, 3).std(0), rtol=1e-5)
    constant = np.full((5, 8, 2), 7.0, np.float32)
    assert moments(constant)[1].tolist() == [0.0, 0.0]
