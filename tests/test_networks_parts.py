"""agent/networks.py: images that go through the torso in parts."""

import numpy as np
import pytest
import torch

import dicerl
from dicerl.agent import networks
from dicerl.agent.networks import Network
from dicerl.bench.stages import random_batch
from dicerl.config.presets import preset
from dicerl.envs import env_spec, make_vector_env
from dicerl.envs.base import EnvSpec
from dicerl.parts.learner import Learner
from dicerl.runtime.setup import build_model
from in_threads import run_in_threads

IMAGES = EnvSpec("images", (2, 40, 40), np.dtype(np.uint8), 3, frame_stack=2)
BYTES = 4 * 2 * 40 * 40  # of one image as float32


def make(torso="impala_deep", precision="float32", **changes):
    torch.manual_seed(0)
    values = {"env.id": "pong", "network.torso": torso, "runtime.precision": precision, **changes}
    return Network(preset("laptop", **values), IMAGES)


def seen(count):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 255, (count, 2, 40, 40), generator=generator, dtype=torch.uint8)


def sizes(network, monkeypatch):
    """The numbers of images in each call of the convolutions from now on."""
    found, forward = [], network.convolutions.forward
    monkeypatch.setattr(
        network.convolutions, "forward", lambda x: found.append(len(x)) or forward(x)
    )
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("torso", ["impala_deep", "impala_shallow"])
def test_parts_have_the_features_of_the_whole(torso, precision, monkeypatch):
    network = make(torso, precision)
    calls = sizes(network, monkeypatch)
    with torch.no_grad():
        whole = network.torso(seen(23))
        monkeypatch.setattr(networks, "CACHED", 5 * BYTES)
        parts = network.torso(seen(23))
    assert calls == [23, 5, 5, 5, 5, 3]
    assert torch.equal(parts, whole)


def test_an_image_larger_than_the_cache_goes_alone(monkeypatch):
    network = make()
    monkeypatch.setattr(networks, "CACHED", BYTES - 1)
    calls = sizes(network, monkeypatch)
    with torch.no_grad():
        assert network.torso(seen(3)).shape[0] == 3
    assert calls == [1, 1, 1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_gradient_of_parts_is_that_of_the_whole(precision, monkeypatch):
    monkeypatch.setattr(networks, "CACHED", 4 * BYTES)
    found = []
    for allowed in (False, True):
        network = make(precision=precision)
        if allowed:
            network.allow_gradient_in_parts()
        calls = sizes(network, monkeypatch)
        loss = network.torso(seen(10)).square().mean()
        assert calls == ([4, 4, 2] if allowed else [10])
        convolutions = list(network.convolutions.parameters())
        gradients = torch.autograd.grad(loss, convolutions)
        assert all(x.dtype == torch.float32 for x in gradients)
        found.append(torch.cat([x.flatten() for x in gradients]))
    assert not torch.equal(*found)
    if precision == "float32":
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    else:
        assert torch.nn.functional.cosine_similarity(*found, 0) > 0.999


@pytest.mark.parametrize(
    ("torso", "precision", "expected"),
    [
        ("impala_deep", "float32", [4, 4]),
        ("impala_deep", "bfloat16", [4, 4]),
        ("impala_shallow", "float32", [4, 4]),
        ("impala_shallow", "bfloat16", [8]),
    ],
)
def test_the_gradient_is_in_parts_where_that_is_faster(torso, precision, expected, monkeypatch):
    monkeypatch.setattr(networks, "CACHED", 4 * BYTES)
    network = make(torso, precision)
    network.allow_gradient_in_parts()
    calls = sizes(network, monkeypatch)
    network.torso(seen(8))
    assert calls == expected


class Together(torch.nn.Module):
    """A torso that looks at its batch as one, as batch normalisation does."""

    def __init__(self, shape):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = self.scale * x.float().flatten(1)
        return (x - x.mean(0))[:, :8]


def test_an_own_torso_sees_whole_batches(monkeypatch):
    monkeypatch.setattr(networks, "CACHED", 4 * BYTES)
    network = make(f"{__name__}:Together")
    network.allow_gradient_in_parts()
    calls = sizes(network, monkeypatch)
    network.torso(seen(10))
    with torch.no_grad():
        network.torso(seen(10))
    assert calls == [10, 10]


@pytest.mark.usefixtures("single_threaded")
def test_a_learner_computes_the_same_gradient_in_parts(monkeypatch):
    """With burn-in, resets and an LSTM: what a learner process does, against what serial does."""
    config = preset(
        "debug", **{"env.id": "pong", "network.torso": "impala_shallow", "sequence.batch": 4}
    )
    spec = env_spec(config)
    env = make_vector_env(config, 4, num_threads=1)
    env.reset(0)
    batch, _ = random_batch(config, spec, env, np.random.default_rng(0), 0.9)
    env.close()
    height, width = spec.observation_shape[-2:]
    monkeypatch.setattr(networks, "CACHED", 5 * 4 * spec.frame_stack * height * width)
    found = []
    for in_parts in (False, True):
        torch.manual_seed(0)
        learner = Learner(build_model(config, spec), 100, in_parts=in_parts)
        calls = sizes(learner.network, monkeypatch)
        learner.update({name: x.copy() for name, x in batch.items()})
        assert (max(calls[1:]) == 5) is in_parts
        found.append(learner.gradient.clone())
    assert found[0].abs().max() > 0
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["process", "serial"])
def test_learner_processes_compute_it_in_parts_and_serial_runs_do_not(tmp_path, kind):
    noted = tmp_path / "noted"

    def note(learner, batch):
        noted.write_text(str(learner.network.gradient_in_parts))

    if kind == "process":
        run_in_threads(tmp_path, on_batch=note, frames=200)
    else:
        where = {"run_dir": tmp_path / "run", "quiet": True, "on_batch": note}
        dicerl.train("CartPole-v1", preset="debug", frames=200, **where)
    assert noted.read_text() == str(kind == "process")
