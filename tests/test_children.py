"""runtime/children.py: whether a child owes a message, and for how long one waits for it."""

from collections import deque

import pytest

from dicerl.runtime import children
from dicerl.runtime.children import ActorChild, EvaluatorChild, LearnerChild, Sent
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
    """It imports and builds its environments."""
    assert ActorChild().patience(stuck) == max(stuck, children.STARTING_SECONDS)
    assert ActorChild(stepped=True).patience(stuck) == stuck


@pytest.mark.parametrize("child", [LearnerChild(), EvaluatorChild()], ids=lambda child: child.role)
def test_learners_and_the_evaluator_get_longer_than_an_actor(child):
    assert child.patience(1.0) == children.STARTING_SECONDS
    assert child.patience(100.0) == children.PATIENCE * 100.0


def test_actors_do_not_share_what_they_hold():
    one, other = ActorChild(), ActorChild()
    one.lent.append(5)
    one.times["acting"] = 1.0
    assert (other.lent, other.times) == ([], {})
