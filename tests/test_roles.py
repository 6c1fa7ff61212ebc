"""runtime/roles.py: behaviours that an actor requests ahead of need; how a role ends."""

import threading
from types import SimpleNamespace

import cloudpickle
import pytest

import dicerl
from dicerl.envs.toy import Catch
from dicerl.errors import DicerlError
from dicerl.runtime import roles
from dicerl.runtime.messages import Crashed, Failed
from runs import debug


@pytest.fixture
def asked(monkeypatch):
    """An actor's requests: (episodes reported, behaviours wanted), answered with consecutive
    numbers; and a clock.
    """
    seen = SimpleNamespace(questions=[], now=100.0, drawn=0, waiting=[])

    def ask(episodes, wanted):
        seen.questions.append((list(episodes), wanted))
        seen.waiting += [(float(seen.drawn + i),) for i in range(wanted)]
        seen.drawn += wanted

    def receive():
        answer, seen.waiting = seen.waiting, []
        return answer

    monkeypatch.setattr(roles.time, "monotonic", lambda: seen.now)
    seen.stock = roles.BehaviourStock(ask, receive)
    return seen


def test_where_episodes_are_long_each_end_asks_once(asked):
    for turn in range(5):
        asked.now += 1.0
        asked.stock.end_episodes([f"episode {turn}"])
        assert asked.stock.next_behaviours(1)() == [(float(turn),)]
    assert asked.questions == [([f"episode {turn}"], 1) for turn in range(5)]


def test_where_episodes_are_short_one_question_is_for_many_and_every_episode_is_told_once(asked):
    given = []
    for turn in range(1000):
        asked.now += 0.001
        asked.stock.end_episodes([turn])
        given += asked.stock.next_behaviours(1)()
    asked.stock.flush()
    asked.stock.flush()
    assert len(asked.questions) < 150
    assert [e for episodes, _ in asked.questions for e in episodes] == list(range(1000))
    assert len(set(given)) == 1000  # nothing is used twice
    assert asked.drawn < 1.3 * 1000  # and few of the drawn ones stay unused


def test_what_was_drawn_ahead_is_not_used_later(asked):
    for _ in range(50):
        asked.now += 0.001
        asked.stock.next_behaviours(1)()
    drawn, questions = asked.drawn, len(asked.questions)
    asked.now += 1.0
    assert asked.stock.next_behaviours(1)() == [(float(drawn),)]
    assert len(asked.questions) == questions + 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DicerlError("env.id is wrong"), Failed("env.id is wrong")),
        (ZeroDivisionError("by 0"), Crashed("ZeroDivisionError: by 0", "")),
        (EOFError(), None),
        (BrokenPipeError(), None),
    ],
)
def test_a_role_that_raises_sends_the_reason_unless_its_channel_is_closed(error, expected):
    def role(channel, shared):
        raise error

    channel = Recorder()
    if expected is None:
        with pytest.raises(type(error)):
            roles.run_role(role, channel, None)
        assert not channel.sent
        return
    roles.run_role(role, channel, None)
    (message,) = channel.sent
    if isinstance(message, Crashed):
        assert "raise error" in message.traceback
        message = message._replace(traceback="")
    assert message == expected


def test_what_on_batch_raises_is_not_taken_for_the_channel_s(tmp_path):
    """A logger whose socket has gone."""

    def on_batch(learner, batch):
        raise BrokenPipeError(32, "Broken pipe")

    settings = debug(tmp_path / "run", "", runtime__kind="process", frames=5_000)
    with pytest.raises(DicerlError, match=r"learner failed: .*on_batch raised BrokenPipeError"):
        dicerl.train(settings, Catch, quiet=True, on_batch=on_batch)


def test_a_callable_that_cannot_be_sent_is_named():
    lock = threading.Lock()
    assert cloudpickle.loads(roles.pickled("on_batch", None)) is None
    with pytest.raises(
        DicerlError, match=r"^make_env cannot be sent to another process: TypeError"
    ):
        roles.pickled("make_env", lambda: lock)


class Recorder:
    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)
