"""parts/objective.py: auxiliary losses and random scaling (docs/paper.md 2.7)."""

import math

import numpy as np
import pytest
import torch

import probe
import reference as slow
from dicerl.config.presets import preset
from dicerl.core import losses
from dicerl.parts.objective import draw_scaling
from probe import BURN_IN, CASA


def test_auxiliary_losses_by_hand():
    """Forward: the next features from what the heads see and the action; inverse: the action from
    two consecutive features.
    """
    learner, batch = probe.learner_and_batch(**CASA, **{"loss.auxiliary": 0.1})
    plain, _ = probe.learner_and_batch(**CASA)
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    terms = []
    for t, b in found.valid.nonzero().tolist():
        taken = torch.zeros(probe.ACTIONS)
        taken[batch["action"][BURN_IN + t, b]] = 1.0
        predicted = learner.network.forward_model(torch.cat([out.hidden[t, b], taken]))
        logits = learner.network.inverse_model(
            torch.cat([out.features[t, b], out.features[t + 1, b]])
        )
        forward = 0.5 * (predicted - out.features[t + 1, b]).square().mean()
        terms.append(
            forward.item()
            - math.log(slow.softmax(logits.tolist(), 1.0)[batch["action"][BURN_IN + t, b]])
        )
    assert loss.auxiliary.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert loss.total.item() == pytest.approx(
        plain_total(plain, learner, data) + 0.1 * np.mean(terms), rel=1e-5
    )
    loss.total.backward()
    for name, p in learner.network.named_parameters():
        assert p.grad.any() if "model" in name else p.grad is not None, name
    assert learner.update(batch, diagnose=True)["loss_auxiliary"] == pytest.approx(
        np.mean(terms), rel=1e-4
    )


def plain_total(plain, learner, data):
    """The loss of the same weights without the auxiliary heads."""
    plain.network.load_state_dict(
        {n: t for n, t in learner.network.state_dict().items() if "model" not in n}
    )
    return probe.loss_of(plain, data).losses.total.item()


def test_the_target_of_forward_dynamics_is_stopped():
    """Features of the bootstrap step are only a target there: the forward loss alone gives them no
    gradient, the inverse loss does.
    """
    learner, batch = probe.learner_and_batch(
        **CASA, **{"loss.auxiliary": 1.0, "network.lstm": 0, "sequence.burn_in": 4}
    )
    data = probe.tensors(batch)
    out = learner.model.window(data)
    predicted, guessed = learner.network.dynamics(
        out.hidden, out.features, data["action"][BURN_IN:-1]
    )
    for term, reaches in (
        (losses.forward_dynamics_loss(predicted, out.features[1:]), False),
        (losses.inverse_dynamics_loss(guessed, data["action"][BURN_IN:-1]), True),
    ):
        (grad,) = torch.autograd.grad(term.sum(), out.features, retain_graph=True)
        assert bool(grad[-1].any()) is reaches


def test_random_scaling_weighs_each_sequence_by_its_own_draw():
    learner, batch = probe.learner_and_batch(
        **CASA, **{"loss.scaling": "random", "loss.value": 0.0}
    )
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    fixed = {"loss.value": 0.0, "loss.q": 1.0, "loss.policy": 0.0}
    q = torch.autograd.grad(loss.total, out.advantage)[0]
    alone = []
    for changes in (fixed, fixed | {"loss.q": 0.0, "loss.policy": 1.0}):
        one, _ = probe.learner_and_batch(**CASA, **changes)
        there = probe.loss_of(one, data)
        alone.append(torch.autograd.grad(there.losses.total, there.window.advantage)[0])
    alpha, beta = draw_scaling(learner.config, learner.updates, learner.device)
    expected = alpha[None, :, None] * alone[0] + beta[None, :, None] * alone[1]
    torch.testing.assert_close(q, expected, rtol=1e-4, atol=1e-6)
    assert alpha.shape == beta.shape == (found.valid.shape[1],)
    assert not torch.allclose(alpha, beta)


def test_random_scaling_draws_from_0_to_twice_the_paper_s_value_anew_in_every_update():
    """U[0, 20]: mean 10, deviation 20/sqrt(12) = 5.77; the same for the same (seed, update)."""
    config = preset("debug", **{"loss.scaling": "random", "sequence.batch": 64})

    def draw(number, seed=0):
        return torch.stack(draw_scaling(config.replace(seed=seed), number, torch.device("cpu")))

    drawn = []
    for update in range(300):
        drawn.append(draw(update).numpy())
        assert not np.array_equal(draw(update, seed=1), drawn[-1])
    drawn = np.array(drawn)  # [updates, 2, B]
    assert len(np.unique(drawn)) > 0.99 * drawn.size
    assert 0.0 <= drawn.min() < 0.1
    assert 19.9 < drawn.max() <= 20.0
    for coefficient in (drawn[:, 0], drawn[:, 1]):
        assert coefficient.mean() == pytest.approx(10.0, abs=0.2)
        assert coefficient.std() == pytest.approx(20 / math.sqrt(12), abs=0.1)
    assert abs(np.corrcoef(drawn[:, 0].ravel(), drawn[:, 1].ravel())[0, 1]) < 0.03
    np.testing.assert_array_equal(draw(7), drawn[7])
