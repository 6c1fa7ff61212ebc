"""parts/objective.py: reset steps and padding are no data, and the order of sequences does
not matter.
"""

import numpy as np
import pytest
import torch

import probe
from probe import BURN_IN, CASA, gradients

pytestmark = pytest.mark.usefixtures("single_threaded")


def spoil(batch, step, sequence, names, seed):
    rng = np.random.default_rng(seed)
    for name in names:
        old = batch[name][step, sequence].copy()
        if name == "action":
            batch[name][step, sequence] = (old + 1) % probe.ACTIONS
        elif name == "observation":
            batch[name][step, sequence] = 3 * rng.normal(size=old.shape)
        else:
            batch[name][step, sequence] = {
                "reward": 1e6,
                "discount": 0.5,
                "log_prob": -80.0,
                "inv_temperature": 40.0,
                "version": 99,
            }[name]
        assert not np.array_equal(batch[name][step, sequence], old)


EVERYTHING = (
    "observation",
    "action",
    "reward",
    "discount",
    "log_prob",
    "inv_temperature",
    "version",
)
# After a truncation the final observation and the action there are the bootstrap's.
AFTER_TRUNCATION = ("reward", "discount", "log_prob", "version")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.last_action_reward": True},
        {"loss.entropy": 1.0},
        {"loss.retrace_bootstrap": "expected"},
        {"network.lstm": 0},
        CASA | {"loss.auxiliary": 0.1},
        CASA | {"loss.stop_pi": False, "loss.stop_v": False},
        {"behaviour.family": "conditioned"},
    ],
    ids=str,
)
def test_reset_steps_add_nothing_to_the_gradient(changes):
    learner, batch = probe.learner_and_batch(**changes)
    before = gradients(learner, batch)
    for step, sequence, terminated in probe.ENDS:
        # the final observation is what forward dynamics predicts
        seen = not terminated or "loss.auxiliary" in changes
        spoil(batch, step, sequence, AFTER_TRUNCATION if seen else EVERYTHING, seed=step)
    after = gradients(learner, batch)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-7, msg=name)


def test_padding_adds_nothing_to_the_gradient():
    learner, batch = probe.learner_and_batch(**{"network.last_action_reward": True})
    batch["valid"][: BURN_IN + 1, 2] = False  # the padding and, for good measure, one step more
    before = gradients(learner, batch)
    for step in range(BURN_IN + 1):
        spoil(batch, step, 2, EVERYTHING, seed=step)
    batch["state"][2] += 5.0
    batch["last_action"][2], batch["last_reward"][2] = 0, 100.0
    after = gradients(learner, batch)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-7, msg=name)


def test_steps_that_are_valid_do_matter():
    """The two tests above can fail."""
    for name in ("observation", "action", "reward", "log_prob", "inv_temperature", "discount"):
        learner, batch = probe.learner_and_batch()
        before = gradients(learner, batch)
        spoil(batch, 5, 2, (name,), seed=0)
        after = gradients(learner, batch)
        assert any(not torch.allclose(after[n], before[n], rtol=1e-3) for n in before), name


def test_a_truncation_bootstraps_and_a_termination_does_not():
    for step, sequence, terminated in probe.ENDS[1:]:
        learner, batch = probe.learner_and_batch()
        before = gradients(learner, batch)
        spoil(batch, step, sequence, ("observation",), seed=0)
        after = gradients(learner, batch)
        same = all(torch.allclose(after[n], before[n], rtol=1e-5, atol=1e-7) for n in before)
        assert same is terminated


def test_the_order_of_sequences_in_a_batch_does_not_matter():
    learner, batch = probe.learner_and_batch()
    turned = {
        n: (
            a[:, ::-1].copy()
            if a.shape[:1] == batch["valid"].shape[:1] and a.ndim > 1
            else a[::-1].copy()
        )
        for n, a in batch.items()
    }
    before, after = gradients(learner, batch), gradients(learner, turned)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-6, msg=name)
