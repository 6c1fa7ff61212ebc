"""plan/model.py with hand-made costs, whose answers are known."""

from dataclasses import replace

import pytest

from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.plan.costs import COMPRESSED, Books, Costs, Wire
from dicerl.plan.machines import Machines, layout
from dicerl.plan.model import forecast, load_of
from dicerl.plan.plan import who_waits
from planned import NOTHING, load


def test_actors_limit_a_run_whose_learner_is_quick():
    """10 actors of 1,000 steps/s; a learner of 16,000."""
    found = load()
    expected = forecast(found)
    assert expected.steps_per_s == pytest.approx(10_000)
    assert expected.limit == "actors"
    assert expected.busy["learner"] == pytest.approx(10 / 16)
    assert expected.saturating_actors == 16
    assert "38% of its time; 16 actors" in who_waits(found, expected)


def test_the_learner_limits_a_run_with_too_many_actors():
    """20 actors; an update of 160 steps takes 10 ms."""
    found = load(actors=(20,))
    expected = forecast(found)
    assert expected.steps_per_s == pytest.approx(16_000)
    assert expected.limit == "learner"
    assert who_waits(found, expected) == "actors wait for the learner 20% of their time"


@pytest.mark.parametrize(("learners", "threads"), [(2, 1), (1, 2), (2, 2)])
def test_learners_and_their_threads_share_the_updates(learners, threads):
    expected = forecast(load(actors=(100,), cpus=200, learners=learners, threads=threads))
    assert expected.steps_per_s == pytest.approx(16_000 * learners * threads)


def test_actors_and_learner_share_the_cores_of_a_machine():
    """1 ms to act and 10 ms / 160 to train: two cores have 2 s for both, not the slower of them."""
    expected = forecast(load(cpus=2, actors=(2,), threads=2))
    assert expected.steps_per_s == pytest.approx(2 / (1e-3 + 0.01 / 160))
    assert expected.limit == "cores"


def test_a_gpu_leaves_the_cores_to_the_actors():
    found = load(actors=(20,), gpu_update=0.02)
    assert forecast(found).steps_per_s == pytest.approx(8_000)
    shared = replace(found.layout, machines=replace(found.layout.machines, cpus=4))
    few = replace(found, layout=shared)
    assert forecast(few).steps_per_s == pytest.approx(4_000)
    assert forecast(few).limit == "cores"


def test_the_network_limits_actors_on_other_machines():
    """Three of four actors are elsewhere; a step is 1,000 bytes of the link's 1 MB/s."""
    found = load(actors=(1, 1, 1, 1), gbits=0.008)
    expected = forecast(replace(found, parameter_bytes=0))
    assert expected.limit == "network"
    assert expected.steps_per_s == pytest.approx(1e6 / 1000 / 0.75)
    assert "network" not in forecast(load(actors=(4,))).busy


def test_parameters_go_once_to_each_machine_and_version():
    """At 8,000 steps/s there are 50 versions a second, and every actor asks every 80 steps: those
    of the second machine too rarely for all of them.
    """
    found = load(actors=(2, 2, 4))
    assert found.network(8_000)[1] == pytest.approx((25 + 50) * 1e6)
    often = replace(found, pull_every=1)
    assert often.network(8_000)[1] == pytest.approx((50 + 50) * 1e6)
    rare = replace(found, push_every=100)
    assert rare.network(8_000)[1] == pytest.approx(2 * 0.5 * 1e6)


def test_the_supervisor_limits_many_actors_that_never_wait():
    """1,000 actors report 4 times a second, and 12.5 times they complete a window: 29 messages
    each. A message takes 0.1 ms.
    """
    found = load(actors=(1000,), cpus=10_000, threads=100, books=Books(0, 0, 1e-4, 0))
    expected = forecast(found)
    assert expected.limit == "supervisor"
    messages = found.messages(expected.steps_per_s)
    assert messages.received == pytest.approx(10_000)


def test_slots_limit_actors_that_wait_for_a_batch_to_fill():
    """40 environments with 44 slots: on average half a batch of 8 waits, so 40 act; with 24 slots
    half of them.
    """
    assert forecast(load(capacity=44)).steps_per_s == pytest.approx(10_000)
    found = load(capacity=24)
    expected = forecast(found)
    assert (expected.limit, expected.steps_per_s) == ("slots", pytest.approx(5_000))
    assert "collector.capacity" in who_waits(found, expected)


def test_a_serial_run_does_everything_in_turn():
    found = load(actors=(1,), books=Books(0, 0, 0, 1e-3))
    found = replace(found, layout=replace(found.layout, runtime="serial"))
    expected = forecast(found)
    assert expected.steps_per_s == pytest.approx(1 / (1e-3 + 0.01 / 160 + 1e-3 / 1000))
    assert expected.limit == "serial"


def test_a_message_costs_both_ends():
    """A window of 4 environments takes 80 steps, and three messages of an actor, 1 ms each."""
    found = load(wire=Wire(1e-3, 0.0, shared=True))
    found = replace(found, costs=replace(found.costs, episode_steps=1e12))
    assert found.actor_seconds() == pytest.approx(1e-3 + 3e-3 / 80)
    assert found.beside_update() == pytest.approx(2e-3)
    # over a network also a parcel and a question of parameters every 80 steps, here and there
    far = replace(found, wire=Wire(1e-3, 0.0, shared=False))
    assert far.actor_seconds() == pytest.approx(1e-3 + 5e-3 / 80)
    assert far.beside_update() == pytest.approx(2e-3 + 4e-3 + 1e-3)
    carried = replace(found, wire=Wire(0.0, 1e-3, shared=False), push_every=10)
    assert carried.beside_update() == pytest.approx(160e3 / 1e6 * 1e-3 + 0.1 * 1e-3)
    # 2 MB of frames in 20 steps: 0.1 ms a step at either end
    pressed = replace(carried, wire=Wire(0.0, 0.0, False, frames=1e-3), frame_bytes=2_000_000)
    assert pressed.actor_seconds() == pytest.approx(1e-3 + 1e-4)
    assert pressed.beside_update() == pytest.approx(160 * 1e-4)


def test_a_config_s_load():
    """laptop: 8 new sequences of 20 steps in a batch; a step is a frame and a little more."""
    config = preset("laptop", **{"env.id": "pong"})
    spec = env_spec(config)
    found = load_of(
        config,
        spec,
        layout(config, spec, Machines(2)),
        Costs(1e-3, 0.1, 0.0, valid=0.5),
        NOTHING,
        Wire(0, 0, True),
        1000,
    )
    assert found.updates_per_step == pytest.approx(1 / (8 * 20 * 0.5))
    assert found.new_sequences == 8
    assert found.parameter_bytes == 4000
    assert found.frame_bytes == 21 * 84 * 84
    assert 0 < found.sequence_bytes - COMPRESSED * found.frame_bytes < 2000  # the other fields
    assert found.slots_to_act() == 16 - 4  # one for each environment
