"""parts/learner.py: an update, threads that share a batch, and learners that share weights."""

import math

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.weights import Weights
from dicerl.parts.learner import Learner
from probe import BURN_IN, CASA

pytestmark = pytest.mark.usefixtures("single_threaded")


def test_a_trainable_tau_moves_where_the_policy_gradient_points_and_stays_in_the_search_range():
    changes = CASA | {
        "behaviour.source": "trainable",
        "behaviour.inv_temperature": 2.0,
        "optimizer.learning_rate": 0.5,
        "optimizer.warmup": 0.0,
        "optimizer.weight_decay": 0.0,
    }
    for sign in (1, -1):
        learner, batch = probe.learner_and_batch(**changes)
        for _ in range(25):
            best = learner.model.window(probe.tensors(batch)).advantage.argmax(-1).numpy()
            batch["action"][BURN_IN:] = best
            batch["reward"][...] = sign * 5.0  # what is best at present pays, or costs
            learner.update(batch)
            assert 1 / 50 * 0.999 <= learner.network.log_inv_temperature.exp().item() <= 50 * 1.001
        assert (learner.network.log_inv_temperature.item() > math.log(2.0)) is (sign > 0)


def test_a_fixed_batch_is_overfitted():
    """On one batch, over and over, the loss falls to a small part of its beginning."""
    learner, batch = probe.learner_and_batch(
        **{
            "optimizer.learning_rate": 1e-2,
            "optimizer.warmup": 0.0,
            "optimizer.weight_decay": 0.0,
            "loss.policy": 0.0,
            "loss.discount": 0.0,
        }
    )
    batch["discount"][...] = 0.0  # the targets stand still
    losses = [learner.update(batch, diagnose=True)["loss"] for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
    assert np.mean(losses[-10:]) < np.mean(losses[40:50]) < np.mean(losses[:10])


@pytest.mark.parametrize("diagnose", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.lstm": 0, "runtime.push_every": 1},
        {"behaviour.scale": "normalised", "env.reward_unit": "returns", "env.reward_shape": "none"},
        {"optimizer.decay": "matrices", "optimizer.weight_decay": 0.1},
        CASA | {"behaviour.source": "trainable", "behaviour.inv_temperature": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("field", "value"), [("reward", np.inf), ("reward", np.nan), ("observation", np.nan)]
)
def test_an_update_that_is_not_finite_changes_nothing(field, value, changes, diagnose):
    if field == "observation":  # rewards that are good still set their own unit
        changes = {name: x for name, x in changes.items() if not name.startswith("env.")}
    skipped = []
    learner, batch = probe.learner_and_batch(**changes)
    learner._skipped = skipped.append
    learner.update(batch)
    weights = learner.weights
    kept = [x.clone() for x in (weights.vector, weights.moments, weights.adam_steps)]
    good = batch[field].copy()
    batch[field][6, 1] = value
    numbers = learner.update(batch, diagnose)
    for x, before in zip((weights.vector, weights.moments, weights.adam_steps), kept, strict=True):
        assert torch.equal(x, before)
    assert learner.updates == 2  # it counts as an update
    (outcome,) = skipped
    assert outcome.update == 1
    assert not math.isfinite(outcome.loss + outcome.norm)
    assert outcome.batch is batch
    assert numbers is None or not math.isfinite(numbers["loss"])
    batch[field] = good
    learner.update(batch)
    assert len(skipped) == 1
    assert not torch.equal(weights.vector, kept[0])
    assert weights.vector.isfinite().all()


def test_a_gradient_that_is_not_finite_is_enough(monkeypatch):
    """Its norm overflows, though the loss is finite."""
    learner, batch = probe.learner_and_batch()
    skipped, before = [], learner.weights.vector.clone()
    learner._skipped = skipped.append
    clip = learner.optimizer.clip
    monkeypatch.setattr(learner.optimizer, "clip", lambda g: clip(g.mul_(1e30)))
    learner.update(batch)
    assert math.isfinite(skipped[0].loss)
    assert math.isinf(skipped[0].norm)
    assert torch.equal(learner.weights.vector, before)


# --- threads, and batches without data ------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.lstm": 0},
        {"behaviour.scale": "normalised"},
        {"loss.entropy": 1.0},
        {"behaviour.family": "mixture"},
        {"behaviour.family": "conditioned"},
        CASA | {"loss.auxiliary": 0.1, "loss.scaling": "random", "behaviour.source": "trainable"},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_threads_of_a_learner_share_a_batch_and_change_nothing(changes, threads):
    """To float tolerance: a sum over sequences in another order. Sequences have different numbers
    of valid steps.
    """
    alone, batch = probe.learner_and_batch(**changes)
    together, _ = probe.learner_and_batch(**changes)
    together = Learner(together.model, together.optimizer.total, threads=threads)
    batch["valid"][BURN_IN + 1 : BURN_IN + 4, 1] = False
    for learner in (alone, together):
        learner.weights.updates = 10
    reported, shared = alone.update(batch, diagnose=True), together.update(batch, diagnose=True)
    assert alone.gradient.any()
    torch.testing.assert_close(together.gradient, alone.gradient, rtol=1e-4, atol=1e-6)
    age = ("sequence_age",)
    assert {n: x for n, x in shared.items() if n not in age} == pytest.approx(
        {n: x for n, x in reported.items() if n not in age}, rel=1e-4, abs=1e-6
    )
    torch.testing.assert_close(together.network.advantage_scale, alone.network.advantage_scale)


def test_a_shared_batch_without_a_valid_step_moves_nothing():
    learner, batch = probe.learner_and_batch(**{"optimizer.weight_decay": 0.0})
    learner = Learner(learner.model, learner.optimizer.total, threads=2)
    batch["valid"][...] = False
    before = probe.flat_state(learner.model)
    assert learner.update(batch, diagnose=True)["loss"] == 0.0
    assert torch.equal(probe.flat_state(learner.model), before)


def test_a_batch_without_a_valid_step_moves_nothing_but_the_weight_decay():
    learner, batch = probe.learner_and_batch(**{"optimizer.weight_decay": 0.0})
    batch["valid"][...] = False
    before = probe.flat_state(learner.model)
    reported = learner.update(batch, diagnose=True)
    assert reported["loss"] == 0.0
    assert torch.equal(probe.flat_state(learner.model), before)


# --- learners of the same weights -----------------------------------------------------------------


TRAINABLE = {"loss.critic": "casa", "loss.estimator": "drtrace", "behaviour.source": "trainable"}


def sharing(count, **changes):
    """Learners of the same weights, and a batch."""
    first, batch = probe.learner_and_batch(**changes)
    weights = Weights(first.model.flat, shared=True)
    pushed = []
    return (
        [
            Learner(
                ActorCritic(first.config, first.model.spec),
                first.optimizer.total,
                weights=weights,
                publish=lambda flat, version: pushed.append((version, flat.clone())),
            )
            for _ in range(count)
        ],
        batch,
        pushed,
    )


@pytest.mark.parametrize("changes", [{}, {"behaviour.scale": "normalised"}, TRAINABLE], ids=str)
def test_learners_that_take_turns_are_as_good_as_one(changes):
    """Each starts with what the other left, so no gradient is late here: all of it is the same as
    with one learner, bit for bit.
    """
    one, batch = probe.learner_and_batch(**changes)
    two, _, _ = sharing(2, **changes)
    for turn in range(4):
        assert (
            two[turn % 2].update(batch, diagnose=True)["loss"]
            == one.update(batch, diagnose=True)["loss"]
        )
        assert torch.equal(two[turn % 2].weights.vector, one.model.flat.vector)
    assert two[0].updates == two[1].updates == one.updates == 4
    assert two[0].weights.steps_trained == one.weights.steps_trained


def test_a_late_gradient_is_that_of_the_weights_it_was_computed_with(monkeypatch):
    (a, b), batch, _ = sharing(2)
    alone, _ = probe.learner_and_batch()
    alone.model.flat.vector.copy_(b.model.flat.vector)
    alone.update(batch)
    compute = b._compute_gradient

    def slowly(*arguments):
        result = compute(*arguments)
        a.update(batch)  # meanwhile
        return result

    monkeypatch.setattr(b, "_compute_gradient", slowly)
    b.update(batch)
    assert b.updates == 2
    assert torch.equal(b.gradient, alone.gradient)
    only_a = probe.flat_state(alone.model)
    assert not torch.equal(b.weights.vector, only_a)  # b's came on top of a's
    b.fetch()
    assert torch.equal(b.model.flat.vector, b.weights.vector)


def test_sequences_of_batches_under_way_at_once_are_scaled_differently():
    (a, b), batch, _ = sharing(2, **{"loss.scaling": "random"})
    reported = [
        learner.update(batch, diagnose=True, number=number) for learner, number in ((a, 6), (b, 7))
    ]
    assert reported[0]["alpha_mean"] != reported[1]["alpha_mean"]
    again, _, _ = sharing(1, **{"loss.scaling": "random"})
    assert (
        again[0].update(batch, diagnose=True, number=6)["alpha_mean"] == reported[0]["alpha_mean"]
    )


def test_learners_publish_what_all_of_them_trained():
    (a, b), batch, pushed = sharing(2, **{"runtime.push_every": 2})
    for learner in (a, b, a, b):
        learner.update(batch)
    assert [version for version, _ in pushed] == [2, 4]
    assert torch.equal(pushed[-1][1], b.weights.vector)


def test_an_environment_may_switch_gradients_off():
    """In the runtime serial it shares the learner's process."""
    learner, batch = probe.learner_and_batch()
    before = learner.weights.vector.clone()
    with torch.set_grad_enabled(False):
        learner.update(batch)
    assert not torch.equal(learner.weights.vector, before)
