"""parts/spikes.py: running quartiles of the gradient's norm, and what lies far outside."""

import math

import numpy as np
import pytest

import probe
from dicerl.parts.spikes import SETTLED, Spikes


def filled(norms):
    spikes = Spikes()
    for norm in norms:
        spikes.add(float(norm))
    return spikes


@pytest.mark.parametrize(("middle", "spread"), [(0.0, 0.1), (5.0, 0.5), (-3.0, 1.0)])
def test_quartiles_follow_and_ordinary_norms_are_no_spikes(middle, spread):
    x = middle + spread * np.random.default_rng(0).normal(size=5000)
    spikes = filled(np.exp(x))
    np.testing.assert_allclose(
        spikes.quartiles, np.quantile(x, (0.25, 0.5, 0.75)), atol=0.25 * spread
    )
    assert spikes.found <= 1


def test_what_lies_far_out_is_found_and_counted_until_it_is_taken():
    norms = np.exp(0.3 * np.random.default_rng(0).normal(size=1000))
    norms[[500, 900]] *= 50
    spikes = filled(norms)
    fields = spikes.take()
    assert fields["gradient_spikes"] == 2
    assert fields["gradient_norm_median"] == pytest.approx(1.0, rel=0.15)
    assert spikes.take()["gradient_spikes"] == 0


def test_nothing_is_said_before_the_quartiles_are_known():
    assert filled([1.0] * (SETTLED - 1) + [1e6]).found == 0


@pytest.mark.parametrize("slope", [-0.002, 0.002])
def test_a_norm_that_drifts_is_no_spike(slope):
    noise = 0.3 * np.random.default_rng(0).normal(size=4000)
    assert filled(np.exp(slope * np.arange(4000) + noise)).found == 0


def test_norms_that_are_not_finite_say_nothing():
    plain, other = filled([1.0, 2.0, 1.5]), filled([1.0, math.nan, 2.0, math.inf, 0.0, 1.5])
    assert plain.state() == other.state()


def test_its_state_can_be_saved():
    norms = np.exp(np.random.default_rng(0).normal(size=300))
    whole, first = filled(norms), filled(norms[:150])
    again = Spikes()
    again.restore(first.state())
    for norm in norms[150:]:
        again.add(float(norm))
    assert again.state() == whole.state()


def test_a_learner_looks_at_every_update(single_threaded):
    learner, batch = probe.learner_and_batch(**{"optimizer.learning_rate": 1e-5})
    for _ in range(SETTLED + 20):
        batch["reward"] *= np.random.default_rng(learner.updates).choice([0.99, 1.01])
        learner.update(batch)
    batch["reward"] *= 1e4
    learner.update(batch)
    batch["reward"] /= 1e4
    assert learner.update(batch, diagnose=True)["gradient_spikes"] == 1
