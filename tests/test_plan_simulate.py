"""plan/simulate.py: the real supervisor over simulated children, beside the model and what must
hold.
"""

from dataclasses import replace

import pytest

from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.plan.costs import Books
from dicerl.plan.machines import Machines, layout, with_actors
from dicerl.plan.model import forecast
from dicerl.plan.simulate import measure_books, simulate
from dicerl.runtime.setup import build_model
from planned import load


@pytest.fixture(scope="module")
def parts():
    """A config with sequences as `planned.load` has them, its environment and its model."""
    config = preset(
        "debug",
        **{
            "env.id": "CartPole-v1",
            "sequence.batch": 8,
            "sequence.length": 20,
            "sequence.reuse": 1,
            "sequence.burn_in": 0,
            "log_every": 50,
        },
    )
    spec = env_spec(config)
    return config, spec, build_model(config, spec)


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, "actors"),
        ({"update": 0.05}, "learner"),
        ({"update": 0.05, "threads": 4}, "actors"),
        ({"actors": (2,), "cpus": 2, "update": 0.2, "threads": 2, "capacity": 40}, "cores"),
        ({"actors": (1, 3), "gbits": 0.008, "parameter_bytes": 0, "capacity": 40}, "network"),
        ({"actors": (20,), "gpu_update": 0.02, "capacity": 120}, "learner"),
        ({"books": Books(0, 0, 5e-3, 0)}, "supervisor"),
    ],
)
def test_the_simulation_agrees_with_the_model(parts, given, limit):
    """Actors, learner, cores, network and supervisor as the limit."""
    found = load(**{"capacity": 60, **given})
    expected = forecast(found)
    assert expected.limit == limit
    simulated = simulate(*parts, found)
    assert simulated.steps_per_s == pytest.approx(expected.steps_per_s, rel=0.12)
    assert simulated.settled
    if limit == "learner":
        assert simulated.learner == pytest.approx(1.0, abs=0.03)
        assert simulated.acting < 0.9
    if limit == "supervisor":
        assert simulated.supervisor > 0.9
        assert simulated.messages_per_s == pytest.approx(200, rel=0.05)


def test_without_costs_beside_steps_actors_never_wait(parts):
    simulated = simulate(*parts, load(update=1e-6, capacity=200))
    assert simulated.acting == pytest.approx(1.0, abs=0.01)
    assert simulated.steps_per_s == pytest.approx(10_000, rel=0.02)
    assert simulated.votes_per_s == pytest.approx(10, rel=0.15)  # episodes of 1,000 steps


def test_a_queue_before_the_learner_makes_sequences_older(parts):
    """The more slots, the more updates between acting and training: at 80 slots about ten batches
    of 8 are ahead of a new one.
    """
    few = simulate(*parts, load(actors=(20,), update=0.05, capacity=88))
    many = simulate(*parts, load(actors=(20,), update=0.05, capacity=400))
    assert few.steps_per_s == pytest.approx(many.steps_per_s, rel=0.05)
    assert 10 < few.policy_lag < 25
    assert many.policy_lag > 2 * few.policy_lag


def test_two_cores_of_a_real_preset():
    """`classic`, whose batches are mostly replayed, in processes: model and simulation agree on
    what two cores do.
    """
    config = preset("classic", **{"env.id": "CartPole-v1", "runtime.kind": "process"})
    spec = env_spec(config)
    found = layout(config, spec, Machines(2))
    assert (found.num_actors, found.learners, found.kept) == (1, 1, 4000)
    given = load(update=6e-3, step=5e-5, books=Books(3e-5, 1e-6, 1e-5, 1e-4))
    given = replace(given, layout=found, new_sequences=4, updates_per_step=1 / 80, pull_every=1)
    simulated = simulate(config, spec, build_model(config, spec), given)
    assert simulated.steps_per_s == pytest.approx(forecast(given).steps_per_s, rel=0.15)


def test_hundreds_of_actors_on_a_cluster(parts):
    """A supervisor that takes 3 ms for a message cannot answer all of them."""
    config, spec, _ = parts
    config = config.replace(**{"runtime.num_envs": 40, "runtime.num_actors": 10})
    base = layout(config, spec, Machines(100))
    given = load(update=1e-4, books=Books(0, 0, 3e-3, 0))
    fleet = replace(given, layout=with_actors(base, config, spec, 300))
    simulated = simulate(*parts, fleet, visits=1e5)
    assert (simulated.actors, simulated.machines) == (300, 4)
    assert simulated.supervisor > 0.95
    assert simulated.messages_per_s == pytest.approx(1000 / 3, rel=0.1)
    assert simulated.acting < 0.5


def test_the_supervisor_is_measured(parts):
    """Every part costs something, and less than what a person would notice."""
    books = measure_books(*parts, load())
    for seconds in vars(books).values():
        assert 1e-8 < seconds < 5e-3
    assert books.episode + books.message + books.tick > 1e-5
