"""runtime/children.py: whether a child owes a message, and for how long one waits for it."""

from collections import deque
from types import SimpleNamespace

import pytest

from dicerl.envs.patience import EACH
from dicerl.runtime import children
from dicerl.runtime.children import ActorChild, EvaluatorChild, LearnerChild, Sent, by_node
from dicerl.runtime.messages import Batch, Publish


def test_an_actor_owes_a_sign_of_life_unless_it_waits_for_slots():
    actor = ActorChild(number=3, first_env=8, num_envs=4)
    assert actor.owes()
    actor.wanted = 2
    assert not actor.owes()


def test_a_learner_owes_an_answer_to_every_batch_and_request():
    learner = LearnerChild()
    assert not learner.owes()
    assert LearnerChild(batches=deque([Sent(Batch([3, 4], False, 0))])).owes()
    assert LearnerChild(asked=deque([Publish()])).owes()


def test_an_evaluator_owes_a_result_while_it_evaluates():
    assert not EvaluatorChild().owes()
    assert EvaluatorChild(evaluating=True).owes()


def test_an_actor_is_started_with_its_present_incarnation():
    actor = ActorChild(number=3, first_env=8, num_envs=4)
    assert actor.args() == (3, 0, 8, 4)
    actor.incarnation += 1
    assert actor.args() == (3, 1, 8, 4)
    assert LearnerChild().args() == EvaluatorChild().args() == ()


@pytest.mark.parametrize("stuck", [8.0, 1000.0])
def test_an_actor_gets_longer_until_its_first_step(stuck):
    """It imports and builds its environments, which takes longer the more they are."""
    assert ActorChild().patience(stuck) == max(stuck, children.STARTING_SECONDS)
    many = ActorChild(num_envs=256).patience(stuck)
    assert many == max(stuck, children.STARTING_SECONDS) + 256 * EACH
    assert ActorChild(stepped=True, num_envs=256).patience(stuck) == stuck


@pytest.mark.parametrize("child", [LearnerChild(), EvaluatorChild()], ids=lambda child: child.role)
def test_learners_and_the_evaluator_get_longer_than_an_actor(child):
    assert child.patience(1.0) == children.STARTING_SECONDS
    assert child.patience(100.0) == children.PATIENCE * 100.0


def test_actors_do_not_share_what_they_hold():
    one, other = ActorChild(), ActorChild()
    one.lent.append(5)
    one.times["acting"] = 1.0
    assert (other.lent, other.times) == ([], {})


def test_actors_by_node():
    """Two machines; the third actor has no place at present."""

    def actor(place, **more):
        handle = None if place is None else SimpleNamespace(place=place)
        return ActorChild(handle=handle, **more)

    actors = [
        actor("10.0.0.2", steps=30, times={"waiting": 0.5}),
        actor("10.0.0.1", steps=8),
        actor(None, steps=99, times={"waiting": 1.0}),
        actor("10.0.0.2", steps=10, times={"waiting": 0.25}),
    ]
    assert by_node(actors, 2.0) == {
        "nodes": ["10.0.0.1", "10.0.0.2"],
        "node_actors": [1, 2],
        "node_steps_per_s": [4.0, 20.0],
        "node_waiting": [0.0, 0.375],
    }
    assert by_node(actors, 2.0)["node_steps_per_s"] == [0.0, 0.0]  # none since then
    assert by_node([actor("")], 1.0) == {}
