"""agent/networks.py: torsos, the LSTM with resets, input statistics. What variants add is in
test_networks_variants.py.
"""

import math

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.networks import Network
from dicerl.agent.weights import Flat
from dicerl.config import Config, NetworkConfig
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError
from dicerl.runtime.setup import moments
from probe import observations, step_by_step

ACTIONS = probe.ACTIONS


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def make(shape, dtype="float32", **config):
    options = {"hidden": 12, "lstm": 7, **config}
    return Network(
        Config(network=NetworkConfig(**options)), EnvSpec("test", shape, np.dtype(dtype), ACTIONS)
    )


# --- LSTM -----------------------------------------------------------------------------------------

RESETS = {
    "none": [],
    "at the start": [(0, 1)],
    "at the end": [(8, 0)],
    "in the middle, together and apart": [(2, 0), (2, 2), (5, 1), (6, 2)],
    "one after the other": [(3, 1), (4, 1), (5, 1)],
    "everywhere": [(t, b) for t in range(9) for b in range(3)],
}


@pytest.mark.parametrize("resets", RESETS.values(), ids=RESETS.keys())
def test_unroll_is_the_step_by_step_loop(resets):
    network, observation = make((5,), hidden=8), observations((5,), "float32", 9, 3)
    first = torch.zeros(9, 3, dtype=torch.bool)
    for t, b in resets:
        first[t, b] = True
    state = torch.randn(2, 3, 7)
    with torch.no_grad():
        out = network.unroll(observation, state, first)
        value, advantage, final = step_by_step(network, observation, state, first)
    torch.testing.assert_close(out.value, value, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.advantage, advantage, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.state, final, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("lstm", "skip"), [(7, False), (7, True), (0, False), (0, True)])
def test_last_action_and_reward_reach_the_network(lstm, skip):
    network, observation = (
        make((5,), lstm=lstm, skip=skip, last_action_reward=True),
        observations((5,), "float32", 6, 2),
    )
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[3, 1] = True
    last_action, last_reward = (
        torch.tensor([[-1, 0], [1, 2], [2, 1], [0, -1], [1, 1], [2, 0]]),
        torch.randn(6, 2),
    )
    state = torch.randn(2, 2, lstm)
    with torch.no_grad():
        out = network.unroll(observation, state, first, last_action, last_reward)
        value, advantage, _ = step_by_step(
            network, observation, state, first, last_action, last_reward
        )
    torch.testing.assert_close(out.value, value, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.advantage, advantage, rtol=0, atol=1e-6)


def test_without_an_lstm_the_state_passes_through():
    network = make((5,), lstm=0)
    state = network.initial_state(2)
    assert state.shape == (2, 2, 0)
    assert network.unroll(observations((5,), "float32", 3, 2), state, None).state is state


def test_the_state_of_one_sequence_stays_out_of_the_others():
    network, observation = make((5,)), observations((5,), "float32", 6, 3)
    first = torch.zeros(6, 3, dtype=torch.bool)
    first[2, 0] = True
    state = torch.randn(2, 3, 7)
    with torch.no_grad():
        whole = network.unroll(observation, state, first)
        for b in range(3):
            alone = network.unroll(
                observation[:, b : b + 1], state[:, b : b + 1], first[:, b : b + 1]
            )
            torch.testing.assert_close(whole.value[:, b : b + 1], alone.value)


# --- torsos ---------------------------------------------------------------------------------------

SHAPES = [
    ("impala_deep", (4, 84, 84), "uint8"),
    ("impala_deep", (84, 84, 3), "uint8"),
    ("impala_deep", (8, 8), "float32"),
    ("impala_shallow", (4, 84, 84), "uint8"),
    ("impala_shallow", (20, 20), "uint8"),
    ("minatar", (10, 10, 4), "bool"),
    ("minatar", (10, 10, 7), "uint8"),
    ("minatar", (3, 3), "float32"),
    ("mlp", (5,), "float32"),
    ("mlp", (10, 10, 4), "bool"),
    ("mlp", (6, 4), "uint8"),
]


@pytest.mark.parametrize(("torso", "shape", "dtype"), SHAPES)
@pytest.mark.parametrize("normalise", ["auto", "statistics"])
def test_every_torso_takes_what_fits_it(torso, shape, dtype, normalise):
    network = make(shape, dtype, torso=torso, normalise=normalise, layer_norm=True)
    observation = observations(shape, dtype, 2, 2)
    if normalise == "statistics":
        network.set_statistics(*moments(observation.numpy()))
    before = observation.clone()
    out = network.unroll(observation, network.initial_state(2), torch.zeros(2, 2, dtype=torch.bool))
    assert out.value.shape == (2, 2)
    assert out.advantage.shape == (2, 2, ACTIONS)
    assert out.features.shape == (2, 2, 12)
    assert out.state.shape == (2, 2, 7)
    assert torch.isfinite(out.advantage).all()
    assert out.features.std() > 0
    assert torch.equal(observation, before)  # nothing is normalised in place
    assert network.torso_name == torso


@pytest.mark.parametrize(
    ("shape", "dtype", "expected", "normalise"),
    [
        ((4, 84, 84), "uint8", "impala_deep", "scale"),
        ((24, 24, 3), "uint8", "impala_deep", "scale"),
        ((10, 10, 4), "bool", "minatar", "none"),
        ((23, 23), "float32", "minatar", "none"),
        ((17,), "float32", "mlp", "none"),
    ],
)
def test_auto_picks_by_observation(shape, dtype, expected, normalise):
    network = make(shape, dtype)
    assert (network.torso_name, network.normalise) == (expected, normalise)
    light = {"impala_deep": "impala_shallow"}.get(expected, expected)
    assert make(shape, dtype, torso="light").torso_name == light


@pytest.mark.parametrize(
    ("torso", "smallest"), [("impala_deep", 8), ("impala_shallow", 20), ("minatar", 3)]
)
def test_too_small_an_image_is_refused_with_what_would_be_right(torso, smallest):
    make((smallest, smallest, 2), "uint8", torso=torso)
    with pytest.raises(
        ConfigError,
        match=(
            rf"network.torso is '{torso}'; it takes images from {smallest} pixels a side; test"
            r" observes"
        ),
    ):
        make((smallest - 1, smallest + 5), "uint8", torso=torso)
    with pytest.raises(ConfigError, match=r"observes \(5,\)"):
        make((5,), torso=torso)


def test_axes_are_moved_not_mixed():
    """(H, W, C), (C, H, W) and, with one channel, (H, W) of the same picture give the same
    features.
    """
    picture = observations((12, 11, 3), "uint8", 2)
    last, first = (
        make((12, 11, 3), "uint8", torso="minatar"),
        make((3, 12, 11), "uint8", torso="minatar"),
    )
    first.load_state_dict(last.state_dict())
    assert last.spec.channels_last
    assert not first.spec.channels_last
    torch.testing.assert_close(
        last.torso(picture), first.torso(picture.permute(0, 3, 1, 2).contiguous())
    )
    flat, single = (
        make((12, 11), "uint8", torso="minatar"),
        make((1, 12, 11), "uint8", torso="minatar"),
    )
    single.load_state_dict(flat.state_dict())
    torch.testing.assert_close(
        flat.torso(picture[..., 0]), single.torso(picture[..., 0].unsqueeze(1))
    )


@pytest.mark.parametrize(
    ("shape", "torso"),
    [((6, 5, 3), "minatar"), ((3, 5, 6), "minatar"), ((5, 6), "minatar"), ((6,), "mlp")],
)
def test_inputs_reach_the_first_layer_in_their_own_place(shape, torso):
    """One element lights up: of the network's input, exactly that one must."""
    network = make(shape, torso=torso)
    rng = np.random.default_rng(0)
    for _ in range(5):
        where = tuple(int(rng.integers(n)) for n in shape)
        observation = torch.zeros(1, *shape)
        observation[(0, *where)] = 1.0
        if len(shape) == 1:
            expected = where
        elif len(shape) == 2:
            expected = (0, *where)
        else:
            expected = (where[2], where[0], where[1]) if shape[2] == 3 else where
        assert [tuple(i[1:]) for i in network.inputs(observation).nonzero().tolist()] == [expected]


# --- normalisation --------------------------------------------------------------------------------


def seen_by_the_first_layer(network, observation):
    """What the torso's first layer is given."""
    got = []
    layer = network.convolutions[0] if network.convolutions is not None else network.dense[0]
    handle = layer.register_forward_pre_hook(
        lambda module, args: got.append(args[0].detach().clone())
    )
    network.torso(observation)
    handle.remove()
    return got[0]


@pytest.mark.parametrize(
    ("shape", "dtype", "reach"),
    [
        ((10, 9, 3), "uint8", 255.0),
        ((3, 10, 12), "uint8", 255.0),
        ((6, 7), "uint8", 255.0),
        ((10, 10, 4), "bool", 1.0),
        ((5,), "float32", 1.0),
    ],
)
def test_statistics_are_x_minus_mean_over_deviation_plus_floor(shape, dtype, reach):
    """(x - mean) / (deviation + floor * range), clipped, for every element with its own mean and
    deviation.
    """
    network = make(shape, dtype, normalise="statistics", statistics_floor=0.05, statistics_clip=1.0)
    observation = observations(shape, dtype, 40)
    observation[:, 0] = observation[:1, 0]  # some elements never change: deviation 0
    x = observation.to(torch.float64)
    mean, deviation = x.mean(0), x.std(0, correction=0)
    network.set_statistics(mean.float(), deviation.float())
    expected = ((x - mean) / (deviation + 0.05 * reach)).clamp(-1.0, 1.0)
    assert (expected.abs() == 1.0).any()
    assert (expected.abs() < 1.0).any()
    if len(shape) == 2:
        expected = expected.unsqueeze(1)
    elif len(shape) == 3 and network.spec.channels_last:
        expected = expected.permute(0, 3, 1, 2)
    got = seen_by_the_first_layer(network, observation)
    torch.testing.assert_close(got.double(), expected.reshape(got.shape), rtol=0, atol=2e-5)


def test_scale_divides_bytes_by_255_and_leaves_the_rest():
    picture = observations((6, 6), "uint8", 3)
    torch.testing.assert_close(
        seen_by_the_first_layer(make((6, 6), "uint8", normalise="scale"), picture)[:, 0],
        picture.float() / 255,
    )
    board = observations((6, 6), "bool", 3)
    torch.testing.assert_close(
        seen_by_the_first_layer(make((6, 6), "bool", normalise="scale"), board)[:, 0], board.float()
    )
    torch.testing.assert_close(
        seen_by_the_first_layer(make((6, 6), "uint8", normalise="none"), picture)[:, 0],
        picture.float(),
    )


def test_statistics_travel_with_the_parameters():
    network, other = make((5,), normalise="statistics"), make((5,), normalise="statistics")
    network.set_statistics(torch.arange(5.0), torch.ones(5) * 3)
    network.advantage_scale.fill_(0.25)
    Flat(other).vector.copy_(Flat(network).vector)
    observation = observations((5,), "float32", 4)
    assert torch.equal(network.torso(observation), other.torso(observation))
    assert float(other.advantage_scale) == 0.25


# --- parameters -----------------------------------------------------------------------------------


def test_orthogonal_initialisation():
    network = make((10, 10, 4), "bool", initialisation="orthogonal", torso="impala_deep", hidden=24)
    gains = {"value_head": 1.0, "advantage_head": 0.01}
    seen = 0
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            weight = module.weight.detach().flatten(1).double()
            square = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
            expected = gains.get(name, math.sqrt(2)) ** 2 * torch.eye(
                len(square), dtype=torch.float64
            )
            torch.testing.assert_close(square, expected, rtol=0, atol=1e-5)
            assert not module.bias.any()
            seen += 1
    assert seen == 15 + 1 + 2
