"""plan/machines.py: planned machines are used as real ones would be."""

import pytest

from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.errors import ConfigError
from dicerl.plan.machines import Machines, layout, with_actors
from dicerl.runtime import setup
from dicerl.runtime.machine import cores


def planned(machines, name="paper", env="pong", **changes):
    config = preset(name, **{"env.id": env, **changes})
    return layout(config, env_spec(config), machines)


@pytest.mark.parametrize(
    ("name", "env"), [("laptop", "pong"), ("minatar", "MinAtar/Breakout-v1"), ("debug", "pong")]
)
@pytest.mark.parametrize("runtime", ["serial", "process"])
def test_this_machine_is_planned_as_it_is_used(name, env, runtime):
    config = preset(name, **{"env.id": env, "runtime.kind": runtime, "runtime.device": "cpu"})
    spec = env_spec(config)
    real = setup.plan(config, spec)
    found = layout(config, spec, Machines(cores()))
    assert (found.num_actors, found.learners, found.threads) == (
        real.num_actors,
        real.num_learners,
        real.learner_threads,
    )
    assert (found.capacity, found.kept, found.slot_bytes) == (
        real.capacity,
        real.kept,
        real.slot_bytes,
    )


def test_the_paper_s_machine():
    found = planned(Machines(92, 1))
    assert found.runtime == "process"
    assert (found.actors, found.envs_per_actor, found.capacity) == ((20,), 8, 160)
    assert planned(Machines(92, 1), **{"runtime.num_actors": 91}).envs_per_actor == 2


def test_machines_of_a_cluster_share_the_actors():
    """The learner's machine keeps a CPU; 160 environments are the most that can be divided."""
    found = planned(Machines(32, 1, 3))
    assert (found.runtime, sum(found.actors)) == ("ray", 95)
    assert found.actors == (31, 32, 32)
    assert found.remote == pytest.approx(64 / 95)
    assert planned(Machines(92, 1, 4)).actors == (40, 40, 40, 40)
    assert planned(Machines(8, 1, 2), **{"ray.cpus_per_actor": 2.0}).actors == (3, 4)


def test_a_fleet_keeps_the_size_of_its_actors():
    config = preset("paper", **{"env.id": "pong"})
    spec = env_spec(config)
    base = layout(config, spec, Machines(92, 1))
    found = with_actors(base, config, spec, 1000)
    assert (found.num_actors, found.num_envs, found.envs_per_actor) == (1000, 8000, 8)
    assert found.machines.nodes == len(found.actors) == 12
    assert (found.runtime, found.capacity) == ("ray", 8000)
    assert with_actors(base, config, spec, 20) == base
    assert with_actors(base, config, spec, 2).runtime == "process"


@pytest.mark.parametrize(
    ("machines", "changes", "field"),
    [
        (Machines(8, 0, 2), {"runtime.kind": "process"}, "nodes"),
        (Machines(8, 1), {"runtime.device": "cpu"}, "gpus"),
        (Machines(8, 0), {"runtime.device": "cuda"}, "gpus"),
        (Machines(8, 1), {"runtime.num_learners": 2}, "runtime.num_learners"),
        (Machines(8, 1, 2), {"runtime.num_learners": 2}, "runtime.num_learners"),
        (Machines(1, 0, 2), {"ray.cpus_per_actor": 4.0}, "ray.cpus_per_actor"),
    ],
)
def test_what_cannot_be_is_refused(machines, changes, field):
    with pytest.raises(ConfigError) as caught:
        planned(machines, **changes)
    assert caught.value.field == field
