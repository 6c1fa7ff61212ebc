"""parts/diagnostics.py: what an update reports."""

import math
import time

import numpy as np
import pytest
import torch

import probe
from probe import BURN_IN, CASA

pytestmark = pytest.mark.usefixtures("single_threaded")

DIAGNOSTICS = {
    "loss",
    "loss_value",
    "loss_q",
    "loss_policy",
    "entropy_bonus",
    "gradient_norm",
    "ratio_mean",
    "ratio_max",
    "ratio_std",
    "rho_clipped",
    "c_clipped",
    "entropy",
    "value_mean",
    "value_std",
    "advantage_std",
    "advantage_scale",
    "policy_lag",
    "policy_lag_max",
    "sequence_age",
    "dead_units",
    "feature_spread",
    "learning_rate",
    "weight_decay",
    "valid_fraction",
    "inv_temperature_mean",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.lstm": 0},
        {"behaviour.scale": "normalised"},
        {"loss.entropy": 1.0},
        CASA | {"loss.auxiliary": 0.1, "loss.scaling": "random", "behaviour.source": "trainable"},
    ],
    ids=str,
)
def test_diagnostics_are_complete_and_finite(changes):
    learner, batch = probe.learner_and_batch(**changes)
    learner.weights.updates = 10
    reported = learner.update(batch, diagnose=True)
    assert set(reported) >= DIAGNOSTICS
    assert all(isinstance(x, float) and math.isfinite(x) for x in reported.values()), reported
    assert learner.update(batch) is None


def test_diagnostics_say_what_they_are_named_after():
    learner, batch = probe.learner_and_batch(**{"loss.rho_bar": 1.3, "network.activation": "relu"})
    learner.weights.updates = 10
    batch["version"][:, 1] = 7
    batch["version"][:BURN_IN] = -100  # burn-in is not trained: it does not count
    data = probe.tensors(batch)
    with torch.no_grad():
        found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    valid = batch["valid"][BURN_IN:-1]
    reported = learner.update(batch, diagnose=True)
    ratio = found.log_ratio.exp().numpy()[valid]
    value, head = out.value[:-1].numpy()[valid], out.advantage[:-1].numpy()[valid]
    features = out.features[:-1].numpy()[valid]
    pi = found.log_pi.exp().numpy()[valid]
    lag = 10 - batch["version"][BURN_IN:-1][valid]
    expected = {
        "loss": float(loss.total),
        "loss_value": float(loss.value),
        "loss_q": float(loss.q),
        "loss_policy": float(loss.policy),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "ratio_std": ratio.std(),
        "rho_clipped": (ratio > 1.3).mean(),
        "c_clipped": (ratio > 1.05).mean(),
        "entropy": -(pi * np.log(pi)).sum(-1).mean(),
        "value_mean": value.mean(),
        "value_std": value.std(),
        "advantage_std": head.std(-1).mean(),
        "advantage_scale": 1.0,
        "policy_lag": lag.mean(),
        "policy_lag_max": lag.max(),
        "dead_units": (features == features[0]).all(0).mean(),
        "feature_spread": features.std(0).mean(),
        "valid_fraction": valid.mean(),
        "inv_temperature_mean": batch["inv_temperature"][BURN_IN:-1][valid].mean(),
    }
    for name, x in expected.items():
        assert reported[name] == pytest.approx(float(x), rel=1e-4, abs=1e-6), name
    assert 5.0 <= reported["sequence_age"] < 60.0 + time.time() - batch["created"].mean()
    assert {round(x) for x in (reported["policy_lag"], reported["policy_lag_max"])} <= {
        3,
        4,
        5,
        6,
        7,
    }


def test_the_policy_lag_is_measured_for_every_batch():
    """Also for those between two diagnostics (docs/paper.md 2.5)."""
    learner, batch = probe.learner_and_batch()
    learner.weights.updates = 100
    for version in (90, 80, 95):
        batch["version"][...] = version
        reported = learner.update(batch, diagnose=version == 95)
    assert reported["policy_lag"] == pytest.approx(np.mean([100 - 90, 101 - 80, 102 - 95]))
    assert reported["policy_lag_max"] == 101 - 80
    assert learner.update(batch, diagnose=True)["policy_lag_max"] == 103 - 95


def test_the_policy_lag_is_that_of_new_sequences():
    """A batch holds its new sequences first; replayed ones are old by design."""
    learner, batch = probe.learner_and_batch(**{"collector.replay": 0.5})
    new = batch["version"].shape[1] - learner.config.replayed
    learner.weights.updates = 100
    batch["version"][:, :new], batch["version"][:, new:] = 97, 3
    reported = learner.update(batch, diagnose=True)
    assert (reported["policy_lag"], reported["policy_lag_max"]) == (3.0, 3.0)
