"""parts/replicas.py: learners that train each batch together, as real processes."""

import socket

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp

import probe
from dicerl.parts.learner import Learner
from dicerl.parts.replicas import LostReplica, Meeting, Replicas

UPDATES = 50
SHARES = [[0, 2], [1], []]  # the columns of each learner; one has nothing to train
CHANGES = {
    "lstm": {"loss.entropy": 0.01},
    "units": {"behaviour.scale": "normalised", "env.reward_unit": "returns"},
    "casa": probe.CASA
    | {"loss.auxiliary": 0.1, "loss.scaling": "random", "behaviour.source": "trainable"},
}


def batches(batch):
    """The same batch with other rewards each time, for 50 updates that differ."""
    rng = np.random.default_rng(3)
    for _ in range(UPDATES):
        yield batch | {"reward": rng.normal(size=batch["reward"].shape).astype(np.float32)}


def share_of(learner, batch, columns):
    return {
        name: x[:, columns] if name in learner._per_step else x[columns]
        for name, x in batch.items()
    }


def replica(meeting, listening, answers, orders):
    """A learner in a process of its own: trains every kind of CHANGES, then what is ordered."""
    torch.set_num_threads(1)
    replicas = Replicas(meeting, 30.0, listening)
    for name, changes in CHANGES.items():
        learner, batch = probe.learner_and_batch(**changes)
        pushed = []
        learner = Learner(
            learner.model, UPDATES, publish=lambda _, v, to=pushed: to.append(v), replicas=replicas
        )
        columns, reported = SHARES[meeting.rank], None
        for i, whole in enumerate(batches(batch)):
            reported = learner.update(
                share_of(learner, whole, columns), i == UPDATES - 1, i, columns
            )
        state = learner.model.flat.vector.detach().numpy()
        answers.put((name, meeting.rank, state, reported, learner.weights.steps_trained))
    orders.get()
    if meeting.rank == 1:
        return  # the others have lost it
    try:
        learner.update(share_of(learner, batch, SHARES[meeting.rank]))
    except LostReplica as error:
        answers.put(("lost", meeting.rank, None, str(error), 0))


@pytest.fixture(scope="module")
def together():
    """By kind: the weights, diagnostics and steps of each of three learners; "lost": what the
    others say when one is gone.
    """
    context = mp.get_context("spawn")
    answers, orders = context.Queue(), context.Queue()
    listening = socket.create_server(("127.0.0.1", 0))
    host, port = listening.getsockname()
    processes = [
        context.Process(
            target=replica,
            args=(Meeting(host, port, 3, rank), None if rank else listening, answers, orders),
            daemon=True,
        )
        for rank in range(3)
    ]
    for process in processes:
        process.start()
    found = {name: {} for name in (*CHANGES, "lost")}
    for count in (3 * len(CHANGES), 2):
        for _ in range(count):
            name, rank, *rest = answers.get(timeout=120)
            found[name][rank] = rest
        for _ in processes:
            orders.put("go on")
    yield found
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.parametrize("name", CHANGES)
def test_several_learners_end_with_the_weights_of_one(together, name):
    alone, batch = probe.learner_and_batch(**CHANGES[name])
    alone = Learner(alone.model, UPDATES)
    before = alone.model.flat.vector.detach().clone()
    for i, whole in enumerate(batches(batch)):
        reported = alone.update(whole, i == UPDATES - 1, i)
    (first, told, steps), *others = (together[name][rank] for rank in range(3))
    one = alone.model.flat.vector.detach()
    assert (one - before).abs().max() > 1e-3
    np.testing.assert_allclose(first, one.numpy(), rtol=0, atol=1e-5)
    for vector, _, count in others:
        assert np.array_equal(vector, first)
        assert count == steps == alone.weights.steps_trained
    for loss in ("loss", "loss_value", "loss_q", "loss_policy", "gradient_norm", "learning_rate"):
        assert told[loss] == pytest.approx(reported[loss], rel=1e-3, abs=1e-6)


def test_a_lost_learner_is_noticed_at_once(together):
    assert set(together["lost"]) == {0, 2}
