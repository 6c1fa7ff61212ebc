"""runtime/feeder.py: what a dead learner leaves behind. Feeding itself is in test_supervisor.py."""

import pytest

from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.parts.collector import Collector
from dicerl.runtime import setup
from dicerl.runtime.feeder import BATCHES_AHEAD, Feeder
from dicerl.runtime.messages import BatchProgress

BATCH, REUSE = 2, 2


class Heard:
    """A learner's handle that keeps what it is sent."""

    def __init__(self):
        self.messages = []
        self.send = self.messages.append


@pytest.fixture
def fed(request):
    """(feeder, learner, collector) with two batches under way; ``request.param``: whether cores are
    shared.
    """
    config = preset("debug", **{"env.id": "CartPole-v1", "runtime.kind": "process"})
    plan = setup.plan(config.replace(**{"runtime.num_learners": 1}), env_spec(config))
    object.__setattr__(plan, "shared_cores", request.param)
    collector = Collector(8, BATCH, REUSE)
    feeder = Feeder(config, plan, collector, 0)
    (learner,) = feeder.learners
    learner.handle = Heard()
    feeder.written(collector.lend(6), 0)
    feeder.feed()
    assert learner.ahead == BATCHES_AHEAD == len(learner.handle.messages)
    return feeder, learner, collector


# it copies a batch before it trains it
@pytest.mark.parametrize(("made", "copied"), [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)])
@pytest.mark.parametrize("fed", [True, False], indirect=True, ids=["shared", "own"])
def test_every_use_is_trained_dropped_or_done_by_the_next_one(request, fed, made, copied):
    feeder, learner, collector = fed
    shared = "shared" in request.node.name
    sent = [message.slots for message in learner.handle.messages]
    for slots in sent[:copied]:
        assert not feeder.progress(learner, BatchProgress(slots, False, None))
    batches, dropped = feeder.settle(learner, made)
    assert [batch.slots for batch in batches] == sent[:made]
    # only where their slots were given up is what it copied and did not train gone
    gone = 0 if shared else copied - made
    assert dropped == gone * BATCH
    assert [s.batch.slots for s in learner.batches] == sent[made + gone :]
    books = collector.books()
    assert (books.produced, books.due, books.dropped) == (6, 12, dropped)
    assert books.trained == made * BATCH
    assert books.missing == 0


@pytest.mark.parametrize("fed", [True], indirect=True)
def test_nothing_is_sent_while_a_learner_is_missing(fed):
    feeder, learner, _ = fed
    learner.batches.clear()
    handle, learner.handle = learner.handle, None
    feeder.feed()
    assert len(handle.messages) == BATCHES_AHEAD
    assert not feeder.under_way()
