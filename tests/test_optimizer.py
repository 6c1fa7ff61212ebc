"""parts/optimizer.py: how many updates a run has, the schedules over them, AdamW and the clip."""

import math

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.weights import view
from dicerl.config.presets import preset
from dicerl.parts.optimizer import schedule, total_updates
from probe import BURN_IN, gradients

pytestmark = pytest.mark.usefixtures("single_threaded")


def test_the_paper_s_run_has_19532_updates():
    """50M agent steps, each trained twice, in batches of 64 * 80."""
    assert (
        total_updates(preset("paper"), action_repeat=4)
        == math.ceil(50_000_000 * 2 / (64 * 80))
        == 19_532
    )
    assert total_updates(preset("paper", frames=1), action_repeat=4) == 1


def test_with_replay_a_run_has_more_updates_for_the_same_frames():
    """Half of each batch is new: each step is still trained ``reuse`` times as a new one."""
    assert total_updates(preset("paper", "laser"), action_repeat=4) == math.ceil(
        50_000_000 * 2 / (32 * 80)
    )


def rates(total, **changes):
    config = preset(
        "paper", **{"optimizer.learning_rate": 8.0, "optimizer.weight_decay": 2.0, **changes}
    )
    return np.array([schedule(config, u, total) for u in range(total + 3)])


@pytest.mark.parametrize("warmup", [4.0, 0.2])  # updates, or a fraction of 20
def test_warm_up_rises_linearly_then_the_rate_falls_linearly_to_0(warmup):
    rate = rates(20, **{"optimizer.warmup": warmup})[:, 0]
    np.testing.assert_allclose(rate[:4], [2.0, 4.0, 6.0, 8.0])
    np.testing.assert_allclose(rate[4:21], np.linspace(8.0, 0.0, 17))
    np.testing.assert_allclose(rate[20:], 0.0)


def test_without_warm_up_the_first_rate_is_the_peak():
    np.testing.assert_allclose(
        rates(10, **{"optimizer.warmup": 0.0})[:11, 0], np.linspace(8.0, 0.0, 11)
    )


def test_a_run_shorter_than_its_warm_up_only_rises():
    rate = rates(5, **{"optimizer.warmup": 10.0})[:, 0]
    np.testing.assert_allclose(rate[:5], [0.8, 1.6, 2.4, 3.2, 4.0])


@pytest.mark.parametrize("warmup", [0.0, 4.0, 100.0])
def test_weight_decay_falls_linearly_to_0(warmup):
    decay = rates(20, **{"optimizer.warmup": warmup})[:, 1]
    np.testing.assert_allclose(decay[:21], np.linspace(2.0, 0.0, 21))
    np.testing.assert_allclose(decay[20:], 0.0)


def test_an_update_is_as_far_in_the_schedule_as_its_valid_steps():
    """Reset steps are no data: progress is counted in batches of valid steps, so that the rates
    reach 0 with the last step.
    """
    learner, batch = probe.learner_and_batch(**{"optimizer.warmup": 2.0})
    fraction = batch["valid"][BURN_IN:-1].mean()
    assert 0.8 < fraction < 1.0
    o, trained = learner.config.optimizer, learner.weights.num_trained
    twin = torch.nn.Parameter(probe.flat_state(learner.model)[:trained])
    torchs = torch.optim.AdamW([twin], betas=(o.beta1, o.beta2), eps=o.eps)
    for update in range(6):
        reported = learner.update(batch, diagnose=True)
        expected = schedule(learner.config, update * fraction, learner.optimizer.total)
        assert (reported["learning_rate"], reported["weight_decay"]) == pytest.approx(expected)
        torchs.param_groups[0]["lr"], torchs.param_groups[0]["weight_decay"] = expected
        twin.grad = learner.gradient.clone()
        torchs.step()
        torch.testing.assert_close(
            probe.flat_state(learner.model)[:trained], twin.detach(), rtol=1e-5, atol=1e-7
        )
        assert learner.updates == update + 1


def test_at_the_end_of_the_run_nothing_moves():
    learner, batch = probe.learner_and_batch()
    learner.update(batch)
    learner.weights.steps_trained = learner.optimizer.total * batch["valid"][BURN_IN:-1].size
    before = probe.flat_state(learner.model)
    learner.update(batch)
    assert torch.equal(probe.flat_state(learner.model), before)


def test_the_gradient_norm_is_told_before_it_is_clipped():
    learner, batch = probe.learner_and_batch(**{"optimizer.clip_norm": 1e-3})
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients(learner, batch).values()))
    assert learner.update(batch, diagnose=True)["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    clipped = float(learner.gradient.norm())
    assert clipped == pytest.approx(1e-3, rel=1e-3)


def test_weight_decay_on_matrices_alone_is_two_groups_of_adamw():
    """Beside torch's own AdamW with two parameter groups; a trainable tau, biases and LayerNorm
    stay where a gradient of 0 leaves them.
    """
    changes = {"network.layer_norm": True, "behaviour.source": "trainable"}
    learner, _ = probe.learner_and_batch(
        **{"optimizer.decay": "matrices", "optimizer.weight_decay": 0.5, **changes},
        **{"optimizer.learning_rate": 0.1, "optimizer.warmup": 0.0},
    )
    weights, o = learner.weights, learner.config.optimizer
    twins = {name: x.detach().clone() for name, x in learner.network.named_parameters()}
    groups = [
        {"params": [x for x in twins.values() if x.dim() > 1], "weight_decay": 0.5},
        {"params": [x for x in twins.values() if x.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.1, betas=(o.beta1, o.beta2), eps=o.eps)
    gradient = torch.randn(weights.num_trained, generator=torch.Generator().manual_seed(0))
    for name, x in twins.items():
        x.grad = view(gradient, weights.layout, name).clone()
    adamw.step()
    learner.optimizer.step(weights, gradient, torch.tensor(False))
    assert {name for name, x in twins.items() if x.dim() < 2} >= {
        "log_inv_temperature",
        "value_head.bias",
    }
    for name, x in twins.items():
        torch.testing.assert_close(weights[name], x, rtol=1e-5, atol=1e-7)
    before = weights["value_head.bias"].clone(), weights["value_head.weight"].clone()
    weights.moments.zero_()
    learner.optimizer.step(weights, torch.zeros_like(gradient), torch.tensor(False))
    assert torch.equal(weights["value_head.bias"], before[0])
    assert not torch.equal(weights["value_head.weight"], before[1])
