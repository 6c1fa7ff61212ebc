"""Actors, learners and the evaluator as the supervisor sees them: what each owes, for how long."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dicerl.envs import patience
from dicerl.runtime.base import Handle, Role
from dicerl.runtime.messages import Batch

PATIENCE = 5.0  # times runtime.stuck_seconds, for learners and the evaluator: updates take a while
STARTING_SECONDS = 120.0  # at least, for a child that still imports or begins


@dataclass
class Child:
    """Any child as the supervisor sees it."""

    role: ClassVar[Role]
    handle: Handle | None = None
    last_seen: float = 0.0  # when it last sent a message, or stopped owing one
    answered: float = 0.0  # when it was last there, where the transport asks for that
    last_words: str = ""  # why it crashed
    rests_until: float | None = None  # when to start it again, after it died
    useful: bool = True  # its present life: an actor's has a window, a learner's an update

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"the {self.role}"

    def args(self) -> tuple[Any, ...]:
        """The arguments that its role is started with."""
        return ()

    def send(self, message: Any) -> None:
        """Send it a message, if it is there."""
        if self.handle is not None:
            self.handle.send(message)

    def patience(self, stuck_seconds: float) -> float:
        """Seconds to wait for a message it owes; the config's ``runtime.stuck_seconds`` are an
        actor's, between two steps.
        """
        return max(PATIENCE * stuck_seconds, STARTING_SECONDS)

    def absence(self, stuck_seconds: float) -> float:
        """Seconds for which it may give no answer where it owes nothing."""
        return max(self.patience(stuck_seconds), STARTING_SECONDS)

    def owes(self) -> bool:
        """Whether a message from it is expected."""
        raise NotImplementedError


@dataclass
class ActorChild(Child):
    """An actor, over all its incarnations."""

    role = "actor"
    number: int = 0
    first_env: int = 0
    num_envs: int = 0
    incarnation: int = 0  # the present one
    stepped: bool = False  # in its present incarnation
    steps: int = 0  # agent steps since by_node last looked
    lived: int = 0  # agent steps of its present incarnation that it has told of
    lent: list[int] = field(default_factory=list)
    wanted: int = 0  # slots it waits for
    waits_since: float = 0.0
    times: dict[str, float] = field(default_factory=dict)  # where its time went lately

    @property
    def name(self) -> str:
        return f"actor {self.number}"

    def args(self) -> tuple[Any, ...]:
        return self.number, self.incarnation, self.first_env, self.num_envs

    def patience(self, stuck_seconds: float) -> float:
        if self.stepped:
            return stuck_seconds
        return max(stuck_seconds, STARTING_SECONDS) + patience.EACH * self.num_envs

    def owes(self) -> bool:
        return not self.wanted


def by_node(actors: list[ActorChild], seconds: float) -> dict[str, list[Any]]:
    """What the actors of each machine did in the ``seconds`` since the last call: a train line's
    fields of nodes, or nothing where there is one machine only.
    """
    places: dict[str, list[ActorChild]] = {}
    for actor in actors:
        if actor.handle is not None and actor.handle.place:
            places.setdefault(actor.handle.place, []).append(actor)
    order = sorted(places)
    found: dict[str, list[Any]] = {
        "nodes": order,
        "node_actors": [len(places[p]) for p in order],
        "node_steps_per_s": [
            round(sum(a.steps for a in places[p]) / max(seconds, 1e-3), 1) for p in order
        ],
        "node_waiting": [
            round(sum(a.times.get("waiting", 0.0) for a in places[p]) / len(places[p]), 3)
            for p in order
        ],
    }
    for actor in actors:
        actor.steps = 0
    return found if order else {}


@dataclass
class Sent:
    """A batch that a learner has not trained yet."""

    batch: Batch
    uses: int | None = None  # of new sequences, once their slots were given up: it is only there


@dataclass
class LearnerChild(Child):
    """A learner, over all its lives; ``number`` where there are several."""

    role = "learner"
    number: int | None = None
    batches: deque[Sent] = field(default_factory=deque)
    asked: deque[Any] = field(default_factory=deque)  # other requests it has not answered yet

    @property
    def name(self) -> str:
        return "the learner" if self.number is None else f"learner {self.number}"

    @property
    def ahead(self) -> int:
        """The number of batches it has not trained yet."""
        return len(self.batches)

    def owes(self) -> bool:
        return self.ahead + len(self.asked) > 0


@dataclass
class EvaluatorChild(Child):
    """The evaluator."""

    role = "evaluator"
    evaluating: bool = False

    def owes(self) -> bool:
        return self.evaluating
