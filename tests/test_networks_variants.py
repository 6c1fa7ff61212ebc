"""agent/networks.py: what single variants add to the network (docs/paper.md 2.7)."""

import math

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.networks import Network
from dicerl.agent.weights import Flat
from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from probe import observations

ACTIONS = probe.ACTIONS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def variant(shape, dtype="float32", **changes):
    config = preset("debug", **{"network.hidden": 12, "network.lstm": 7, **changes})
    return Network(config, EnvSpec("test", shape, np.dtype(dtype), ACTIONS))


CONDITIONED = {"behaviour.family": "conditioned"}


@pytest.mark.parametrize(("shape", "dtype"), [((5,), "float32"), ((10, 10, 4), "bool")])
@pytest.mark.parametrize("lstm", [0, 7])
def test_a_conditioned_network_is_told_the_temperature(shape, dtype, lstm):
    """The same observation at another 1/tau: other V, other A. Each step and sequence has
    its own.
    """
    network = variant(shape, dtype, **CONDITIONED, **{"network.lstm": lstm})
    observation = observations(shape, dtype, 1, 1).expand(3, 2, *shape)
    inv = torch.tensor([[0.0, 50.0], [1.0, 3.0], [0.0, 50.0]])
    with torch.no_grad():
        out = network.unroll(
            observation,
            network.initial_state(2),
            torch.ones(3, 2, dtype=torch.bool),
            inv_temperature=inv,
        )
    assert len({round(v, 5) for v in out.value.flatten().tolist()}) == 4  # each 1/tau its own V
    torch.testing.assert_close(out.value[0], out.value[2])
    assert not torch.allclose(out.advantage[0, 0], out.advantage[0, 1], atol=1e-3)


@pytest.mark.parametrize("most", [5.0, 50.0, 1000.0])
def test_a_conditioned_network_tells_all_temperatures_of_the_search_range_apart(most):
    """cos(pi k x) repeats itself beyond x = 1: x is scaled by the range that is searched."""
    network = variant((5,), **CONDITIONED, **{"bandit.max_inv_temperature": most})
    got = []
    network.dense[0].register_forward_pre_hook(lambda module, args: got.append(args[0].detach()))
    x = torch.linspace(0, math.log1p(most), 200)
    network.torso(torch.zeros(200, 5), torch.expm1(x))
    encoding = got[0][:, 5:]
    expected = torch.stack(
        [torch.cos(math.pi * k * torch.linspace(0, 1, 200)) for k in range(1, 9)], 1
    )
    torch.testing.assert_close(encoding, expected, rtol=0, atol=1e-4)
    distance = torch.cdist(encoding, encoding) + 10 * torch.eye(200)
    assert distance.min() > 1e-3


def test_only_a_conditioned_network_is_told_anything():
    network = variant((5,))
    observation, inv = observations((5,), "float32", 2, 3), torch.full((2, 3), 7.0)
    with torch.no_grad():
        given, not_given = (
            network.unroll(observation, network.initial_state(3), None, inv_temperature=x)
            for x in (inv, None)
        )
    assert torch.equal(given.value, not_given.value)
    assert variant((5,), **CONDITIONED).num_parameters() == network.num_parameters() + 8 * 12


def test_a_variant_s_parts_are_there_only_where_they_are_asked_for():
    assert not [
        n for n, _ in variant((5,)).named_parameters() if "model" in n or "temperature" in n
    ]
    network = variant(
        (5,),
        **{
            "loss.auxiliary": 0.1,
            "behaviour.source": "trainable",
            "behaviour.inv_temperature": 4.0,
        },
    )
    names = {n.split(".")[0] for n, _ in network.named_parameters()}
    assert {"forward_model", "inverse_model", "log_inv_temperature"} <= names
    assert network.log_inv_temperature.exp().item() == pytest.approx(4.0)
    assert network.log_inv_temperature.requires_grad
    other = variant((5,), **{"loss.auxiliary": 0.1, "behaviour.source": "trainable"})
    # tau is pushed to the actors with the rest
    Flat(other).vector.copy_(Flat(network).vector)
    assert other.log_inv_temperature.exp().item() == pytest.approx(4.0)


@pytest.mark.parametrize("skip", [False, True])
def test_dynamics_see_this_step_and_foretell_the_next(skip):
    network = variant((5,), **{"loss.auxiliary": 0.1, "network.skip": skip})
    out = network.unroll(observations((5,), "float32", 4, 2), network.initial_state(2), None)
    action = torch.tensor([[0, 1], [2, 0], [1, 1]])
    predicted, guessed = network.dynamics(out.hidden, out.features, action)
    assert predicted.shape == (3, 2, 12)
    assert guessed.shape == (3, 2, ACTIONS)
    for t in range(3):
        (to_hidden,) = torch.autograd.grad(predicted[t].sum(), out.hidden, retain_graph=True)
        assert [bool(g.any()) for g in to_hidden] == [i == t for i in range(4)]
        (to_features,) = torch.autograd.grad(guessed[t].sum(), out.features, retain_graph=True)
        assert [bool(g.any()) for g in to_features] == [i in (t, t + 1) for i in range(4)]
    other, _ = network.dynamics(out.hidden, out.features, (action + 1) % ACTIONS)
    assert not torch.allclose(other, predicted)
