"""agent/weights.py: a network as one vector, its copies, a lock for processes, and AdamW's
state in a checkpoint.
"""

import copy
import math
import os
import pickle
import signal
import time

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.networks import Network
from dicerl.agent.weights import ALIGNED, Flat, PipeLock
from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("single_threaded")

# --- the vector -----------------------------------------------------------------------------------


def make(**changes):
    """Convolutions, which lie channels last, an LSTM, parameters and several buffers."""
    changes = {"network.normalise": "statistics", "behaviour.source": "trainable", **changes}
    return ActorCritic(
        preset("debug", **changes), EnvSpec("test", (10, 10, 4), np.dtype(np.bool_), probe.ACTIONS)
    )


def tensors_of(network):
    return dict(network.named_parameters()) | dict(network.named_buffers())


@torch.no_grad()
def test_a_vector_and_its_network_share_memory_both_ways():
    model = make()
    vector, layout = model.flat.vector, model.flat.layout
    tensors = tensors_of(model.network)
    assert set(layout) == set(tensors)
    assert model.flat.num_trained % 16 == 0
    seen = 0
    for number, (name, x) in enumerate(tensors.items()):
        trained = name in dict(model.network.named_parameters())
        assert (layout[name].offset < model.flat.num_trained) is trained
        x.fill_(number + 1.0)
        here = vector[layout[name].offset : layout[name].offset + x.numel()]
        assert (here == number + 1.0).all()
        seen += x.numel()
    assert int((vector != 0).sum()) == seen  # nothing overlaps
    vector.copy_(torch.arange(len(vector)))
    for name, x in tensors.items():
        values = torch.arange(layout[name].offset, layout[name].offset + x.numel())
        assert sorted(x.flatten().tolist()) == values.tolist(), name
        assert torch.equal(x, model.flat[name])


@pytest.mark.parametrize("moved", ["", "cast", "copied"])
def test_flat_state_and_back(moved):
    network = make().network
    original = Flat(network)
    if moved == "cast":  # which takes a module's tensors apart
        network.to(memory_format=torch.channels_last).double().float()
    if moved == "copied":  # so does this
        network = copy.deepcopy(network)
    whole = Flat(network) if moved else original
    if moved:
        assert torch.equal(whole.vector, original.vector)
        assert whole.vector.data_ptr() != original.vector.data_ptr()
    with torch.no_grad():
        for x in network.state_dict().values():
            x.normal_()
    flat = whole.vector.detach().clone()
    assert flat.dtype == torch.float32
    assert flat.shape == (
        sum(math.ceil(x.numel() / ALIGNED) * ALIGNED for x in network.state_dict().values()),
    )
    # and zeros between them
    assert flat.sum().item() == pytest.approx(
        sum(x.sum().item() for x in network.state_dict().values()), abs=1e-2
    )
    assert len(flat) > network.num_parameters()  # buffers are in it
    other = make().network
    Flat(other).vector.copy_(flat)
    for name, x in network.state_dict().items():
        assert torch.equal(x, other.state_dict()[name]), name
    flat.zero_()
    assert any(x.any() for x in other.state_dict().values())  # a copy
    assert any(x.any() for x in network.state_dict().values())


def test_a_model_on_another_device_has_its_vector_there():
    """``meta`` is the one other device of every machine: it has no memory, but storages."""
    model = make()
    assert model.to("cpu") is model
    vector = model.flat.vector
    assert model.to(torch.device("cpu")).flat.vector is vector  # it was there already
    moved = model.to("meta")
    assert moved is model
    assert moved.device == moved.flat.vector.device == torch.device("meta")
    assert moved.flat.vector.shape == vector.shape
    whole = moved.flat.vector.untyped_storage()._cdata
    for name, x in tensors_of(moved.network).items():
        assert x.untyped_storage()._cdata == whole, name
        assert x.storage_offset() == moved.flat.layout[name].offset


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))],
    ids=["deepcopy", "pickle"],
)
@torch.no_grad()
def test_copies_of_a_network_are_plain_and_independent(duplicate):
    """Of its values, not of the vector it lies in; each can be given a vector of its own."""
    model = make()
    vector = probe.flat_state(model)
    other = duplicate(model.network)
    assert type(other) is Network
    assert set(vars(other)) == set(vars(Network(model.config, model.spec)))
    before = {name: x.clone() for name, x in model.network.state_dict().items()}
    for name, x in other.state_dict().items():
        assert torch.equal(x, before[name]), name
    for x in other.state_dict().values():
        x.fill_(7.0)
    assert torch.equal(model.flat.vector, vector)
    for name, x in model.network.state_dict().items():
        assert torch.equal(x, before[name]), name
    model.flat.vector.fill_(3.0)
    assert all((x == 7.0).all() for x in other.state_dict().values())
    flat = Flat(other)
    flat.vector.fill_(5.0)
    assert all((x == 5.0).all() for x in other.state_dict().values())
    assert (model.flat.vector == 3.0).all()


# --- what training keeps --------------------------------------------------------------------------


def add_one_often(lock, both, total, times):
    both.wait(120)
    for _ in range(times):
        with lock:
            value = int(total[0])
            time.sleep(1e-4)
            total[0] = value + 1


def die_with(lock):
    with lock:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_lock_that_a_process_died_with_is_known():
    lock = PipeLock()
    assert lock.intact(0.0)
    with lock:
        assert not lock.intact(0.01)
    assert lock.intact(0.0)
    process = torch.multiprocessing.get_context("spawn").Process(target=die_with, args=(lock,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not lock.intact(0.01)


def test_only_one_process_holds_the_lock():
    context = torch.multiprocessing.get_context("spawn")
    lock, total, both = (
        PipeLock(),
        torch.zeros(1, dtype=torch.int64).share_memory_(),
        context.Barrier(2),
    )
    processes = [
        context.Process(target=add_one_often, args=(lock, both, total, 500), daemon=True)
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert total.item() == 1000


def test_optimizer_state_goes_through_a_checkpoint():
    """Two learners with the same parameters and AdamW state go on alike; without the state they do
    not.
    """
    a, batch = probe.learner_and_batch()
    for _ in range(3):
        a.update(batch)
    saved = {n: t.clone() for n, t in a.weights.optimizer_tensors().items()}
    b, _ = probe.learner_and_batch(seed=1)
    c, _ = probe.learner_and_batch(seed=2)
    for other in (b, c):
        other.network.load_state_dict(a.network.state_dict())
        other.weights.updates, other.weights.steps_trained = (
            a.weights.updates,
            a.weights.steps_trained,
        )
    b.weights.load_optimizer_tensors(saved)
    for learner in (a, b, c):
        learner.update(batch)
    assert torch.equal(probe.flat_state(a.model), probe.flat_state(b.model))
    assert not torch.equal(probe.flat_state(a.model), probe.flat_state(c.model))
    with pytest.raises(CheckpointError, match="it is not of this network"):
        b.weights.load_optimizer_tensors({n: x for n, x in saved.items() if "value_head" not in n})
    with pytest.raises(CheckpointError, match=r"no value_head.bias/exp_avg of shape \(1,\)"):
        b.weights.load_optimizer_tensors(saved | {"value_head.bias/exp_avg": torch.zeros(2)})
    assert set(saved) == {
        f"{n}/{k}"
        for n, _ in a.network.named_parameters()
        for k in ("step", "exp_avg", "exp_avg_sq")
    }
