"""The actors of a run: who acts, who waits for slots, and who waits for a place on some machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from dicerl.errors import DicerlError, NoRoom
from dicerl.parts.collector import Collector
from dicerl.records.vocabulary import stage_fields
from dicerl.runtime.base import RunContext, Transport
from dicerl.runtime.children import ActorChild, Child, by_node
from dicerl.runtime.feeder import Feeder
from dicerl.runtime.messages import (
    Alive,
    Drawn,
    EpisodesEnded,
    Slots,
    SlotsWanted,
    TimesSpent,
    Written,
)


class Fleet:
    """The actors, from first to last; ``start`` starts a child. ``incarnation`` is the latest of
    any of them.
    """

    def __init__(
        self,
        context: RunContext,
        transport: Transport,
        collector: Collector,
        feeder: Feeder,
        start: Callable[[Child], None],
    ) -> None:
        self._config, self._coordinator = context.config.runtime, context.coordinator
        self._transport, self._collector, self._feeder = transport, collector, feeder
        self._start_child = start
        # A resumed run must not repeat earlier random streams.
        self.incarnation = context.incarnation
        if context.start is not None:
            self.incarnation = max(self.incarnation, context.start.state.incarnation + 1)
        self.actors = [
            ActorChild(number=i, first_env=a, num_envs=b - a, incarnation=self.incarnation)
            for i, (a, b) in enumerate(_split(self._config.num_envs, context.plan.num_actors))
        ]
        self._acted_at = time.monotonic()  # when there was an actor last
        self._counted_at = self._acted_at  # when steps by machine were last reported

    def start(self) -> None:
        """Start the first actor, which needs a place, and the others where there is one."""
        self._start_child(self.actors[0])
        for actor in self.actors[1:]:
            self.start_where_possible(actor)

    def end(self) -> None:
        """Ask all of them to end."""
        for actor in self.actors:
            if actor.handle is not None:
                actor.handle.end()

    def was_absent(self, seconds: float) -> None:
        """The supervisor was suspended for that long."""
        self._acted_at += seconds

    def receive(self, actor: ActorChild, message: Any) -> None:
        """Handle a message from an actor."""
        match message:
            case Alive(steps):
                self._stepped(actor, steps)
            case SlotsWanted(steps, count):
                self._stepped(actor, steps)
                actor.wanted, actor.waits_since = count, time.monotonic()
                actor.useful = True  # it asks when a window is complete, and may wait for long
            case Written(slots, learner):
                self._feeder.written(slots, learner)
                actor.lent = [slot for slot in actor.lent if slot not in slots]
            case EpisodesEnded(steps, episodes, wanted):
                self._stepped(actor, steps)
                self._coordinator.end_episodes(actor.number, episodes)
                if wanted:
                    drawn = self._coordinator.next_behaviours(actor.number, wanted)
                    actor.send(Drawn(drawn))
            case TimesSpent(fractions):
                actor.times = fractions
            case _:
                raise TypeError(f"an actor sent {message!r}")

    def _stepped(self, actor: ActorChild, steps: int) -> None:
        self._coordinator.stepped(steps)
        actor.steps += steps
        actor.lived += steps
        actor.stepped = actor.stepped or steps > 0

    def lend_slots(self) -> None:
        """Lend slots to the actors that wait for some, the longest wait first."""
        for actor in sorted(self.actors, key=lambda a: a.waits_since):
            if actor.wanted and self._collector.room:
                slots, actor.wanted = self._collector.lend(actor.wanted), 0
                actor.lent += slots
                actor.send(Slots(slots))

    def replace(self, actor: ActorChild, pause: float) -> str:
        """Start a dead actor's next incarnation, with fresh random streams, after a pause; return
        what became of it, in words.
        """
        actor.incarnation += 1
        self.incarnation = max(self.incarnation, actor.incarnation)
        if pause:
            actor.rests_until = time.monotonic() + pause
            return f"replaced in {pause:g} s"
        return "replaced" if self.start_where_possible(actor) else "no place for another"

    def start_where_possible(self, actor: ActorChild) -> bool:
        """Start an actor if there is a place for it; otherwise it waits for one."""
        try:
            self._start_child(actor)
        except NoRoom:
            return False
        return True

    def fill_places(self) -> None:
        """Start actors where there is a place: those that wait for one, then, where their number
        was left to the machines, more of them.
        """
        room, stuck = self._transport.room(), self._config.stuck_seconds
        vacant = [a for a in self.actors if a.handle is None and a.rests_until is None]
        if len(vacant) < len(self.actors):
            self._acted_at = time.monotonic()
        elif time.monotonic() - self._acted_at > stuck:
            raise DicerlError(
                f"for {stuck:.0f} s there was no place for any actor;"
                f" continue with: dicerl resume {self._coordinator.run.directory}"
            )
        for _ in range(room):
            if not vacant and self._config.num_actors:
                return
            new = not vacant
            actor = self._additional() if new else vacant.pop(0)
            if not self.start_where_possible(actor):
                return
            if new:
                self.actors.append(actor)
            c = self._coordinator
            c.event("actor_added", actor=actor.number, incarnation=actor.incarnation)
            c.progress.say(f"there is room: actor {actor.number} was started")

    def _additional(self) -> ActorChild:
        last = self.actors[-1]
        return ActorChild(
            number=last.number + 1,
            first_env=last.first_env + last.num_envs,
            num_envs=self.actors[0].num_envs,
            incarnation=self.incarnation,
        )

    def numbers(self) -> dict[str, Any]:
        """What a train line says of the actors: the mean of their times, and their nodes."""
        acting = [actor for actor in self.actors if actor.handle is not None]
        names = {name for actor in acting for name in actor.times}
        means = {
            name: sum(a.times.get(name, 0.0) for a in acting) / len(acting)
            for name in sorted(names)
        }
        now, since = time.monotonic(), self._counted_at
        self._counted_at = now
        return stage_fields("actor", means) | by_node(self.actors, now - since)


def _split(total: int, parts: int) -> list[tuple[int, int]]:
    """The environments [first, last) of each actor."""
    borders = [total * i // parts for i in range(parts + 1)]
    return list(pairwise(borders))
