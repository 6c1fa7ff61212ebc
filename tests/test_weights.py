"""agent/weights.py: a network as one vector, learners that share one set of weights, and AdamW's
state in a checkpoint.
"""

import copy
import pickle
import time

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.networks import Network
from dicerl.agent.weights import Flat, PipeLock, Weights
from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.errors import CheckpointError
from dicerl.parts.learner import Learner

TRAINABLE = {"loss.critic": "casa", "loss.estimator": "drtrace", "behaviour.source": "trainable"}


@pytest.fixture(autouse=True)
def _single_threaded():
    torch.set_num_threads(1)


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


# --- learners of the same weights -----------------------------------------------------------------


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
    told = [
        learner.update(batch, diagnose=True, number=number) for learner, number in ((a, 6), (b, 7))
    ]
    assert told[0]["alpha_mean"] != told[1]["alpha_mean"]
    again, _, _ = sharing(1, **{"loss.scaling": "random"})
    assert again[0].update(batch, diagnose=True, number=6)["alpha_mean"] == told[0]["alpha_mean"]


def test_learners_publish_what_all_of_them_trained():
    (a, b), batch, pushed = sharing(2, **{"runtime.push_every": 2})
    for learner in (a, b, a, b):
        learner.update(batch)
    assert [version for version, _ in pushed] == [2, 4]
    assert torch.equal(pushed[-1][1], b.weights.vector)


def add_one_often(lock, both, total, times):
    both.wait(120)
    for _ in range(times):
        with lock:
            value = int(total[0])
            time.sleep(1e-4)
            total[0] = value + 1


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
