"""The supervisor of actors, learners and an evaluator: it keeps the collector's books, feeds the
learners, watches over all of them, and decides when to save and to evaluate.

It knows no transport: it starts children and exchanges messages with them through ``Transport``
(base.py). When no slot is free, actors wait; where they share cores with the learner, until a batch
is trained and not only copied: they lose no time by that, and act on newer parameters. A dead or
stuck actor is replaced; a dead or stuck learner ends the run with the reason; a dead evaluator
loses its evaluation. A checkpoint holds the learner, the vote and the counters, not the sequences
under way: a resumed run starts new episodes and trains on those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError, NoRoom
from dicerl.parts import collector
from dicerl.records import checkpoint
from dicerl.records.state import RunState
from dicerl.records.vocabulary import stage_fields
from dicerl.runtime.base import Handle, RunContext, Transport
from dicerl.runtime.children import ActorChild, Child, EvaluatorChild, LearnerChild, by_node
from dicerl.runtime.messages import (
    Alive,
    Batch,
    BatchProgress,
    Crashed,
    Drawn,
    Ended,
    EpisodesEnded,
    Evaluate,
    Evaluated,
    Failed,
    NotSaved,
    Play,
    Publish,
    Published,
    Pulled,
    Save,
    Saved,
    Skipped,
    Slots,
    SlotsWanted,
    TimesSpent,
    Written,
)

WAIT = 0.2  # seconds for messages before the supervisor does its other work
BATCHES_AHEAD = 2  # at most, sent to a learner and not trained yet


class Supervisor:
    """A Runtime over any transport."""

    def __init__(self, context: RunContext, transport: Transport) -> None:
        config, plan = context.config, context.plan
        self.config, self.coordinator, self._stop = config, context.coordinator, context.stop
        self._transport = transport
        self._children: dict[Handle, Child] = {}
        self.collector = collector.build(config, plan.capacity, plan.kept)
        self._batches = self.coordinator.updates  # sent to learners
        self._feeding = True
        self._acted_at = time.monotonic()  # when there was an actor last
        self._checked_at = self._acted_at  # when silent children were last looked for
        self._counted_at = self._acted_at  # when steps by machine were last reported
        self._folder: Path | None = None  # of the checkpoint being written
        # folder and state of the best evaluated parameters, while an evaluator writes them
        self._best: tuple[Path, RunState] | None = None
        # A resumed run must not repeat earlier random streams.
        self._incarnation = 0 if context.start is None else context.start.state.incarnation + 1
        self.learners = [LearnerChild() for _ in range(plan.num_learners)]
        # whether learners train every batch together, and which of them holds a slot's sequence
        self._together = plan.runtime == "ray" and len(self.learners) > 1
        self._holder: dict[int, int] = {}
        self._fresh = plan.shared_cores
        self.actors = [
            ActorChild(number=i, first_env=a, num_envs=b - a, incarnation=self._incarnation)
            for i, (a, b) in enumerate(_split(config.runtime.num_envs, plan.num_actors))
        ]
        self._evaluator = EvaluatorChild()  # started when it is first needed
        try:
            for learner in self.learners:
                self._start(learner)
            if not self.coordinator.collected_all():  # else only its last evaluation is missing
                self._start(self.actors[0])
                for actor in self.actors[1:]:
                    self._start_where_possible(actor)
        except BaseException:
            self.close()
            raise

    def run(self) -> bool:
        """Train to the end of the run or until stopped; return whether the run is complete."""
        c = self.coordinator
        while not c.collected_all() and not self._stop():
            self._tick()
            self._fill_places()
            if c.evaluation_due() and not c.collected_all():  # the last one follows below
                self._evaluate()
            if c.checkpoint_due() and self._folder is None:
                self._save()
        for actor in self.actors:
            if actor.handle is not None:
                actor.handle.end()
        for actor in self.actors:
            self._end(actor)
        # after a stop, learners train only the batches they have; in a complete run, all there are
        self._feeding = c.collected_all()
        self._until(
            lambda: not self._under_way() and not (self._feeding and self.collector.ready())
        )
        if c.collected_all() and not c.complete():
            self._save_now()  # before the last evaluation: that may take long, or be stopped
            self._until(lambda: not self._evaluator.evaluating or self._stop())
            self._evaluate_the_end()
        self._until(lambda: self._best is None)
        if self._evaluator.handle is not None:
            self._evaluator.handle.end()
        self._end(self._evaluator)  # nothing is evaluated that the last checkpoint does not know
        if self._evaluator.evaluating:
            c.evaluation_abandoned()
        self._save_now()
        return c.complete()

    def _evaluate_the_end(self) -> None:
        """Evaluate the last parameters, unless a stop is requested."""
        if self._stop():
            return
        self._ask(self.learners[0], Publish())
        self._until(lambda: not self.learners[0].asked)
        self._evaluate()
        self._until(lambda: not self._evaluator.evaluating or self._stop())

    def close(self) -> None:
        """End every child; nothing is saved here."""
        self._transport.close()
        if self._folder is not None:
            checkpoint.discard(self._folder)
        self._discard_best()

    def _discard_best(self) -> None:
        """Remove what an evaluator had begun to write."""
        if self._best is not None:
            checkpoint.discard(self._best[0])
            self._best = None

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._tick()
            self._stop()  # says so, where one was requested

    def _tick(self) -> None:
        """Handle messages from the children, feed learners, lend slots, and replace or end what is
        stuck.
        """
        for handle, message in self._transport.receive(WAIT):
            self._receive(self._children[handle], message)
        self._feed_learners()
        self._lend_slots()
        self._check_silent()
        self.coordinator.show()

    # --- any child

    def _start(self, child: Child) -> None:
        child.handle = self._transport.start(child.role, *child.args())
        child.last_seen, child.last_words = time.monotonic(), ""
        self._children[child.handle] = child

    def _end(self, child: Child) -> None:
        """End a child; the slots lent to an actor are given back unwritten."""
        if child.handle is not None:
            child.handle.kill()
            del self._children[child.handle]
            child.handle = None
        if isinstance(child, ActorChild):
            self.collector.give_back(child.lent)
            child.lent, child.wanted, child.stepped = [], 0, False

    def _send(self, child: Child, message: Any) -> None:
        if child.handle is not None:
            child.handle.send(message)

    def _ask(self, learner: LearnerChild, message: Any) -> None:
        """Send a request other than a batch, which the learner must answer."""
        learner.asked += 1
        self._send(learner, message)

    def _receive(self, child: Child, message: Any) -> None:
        """Handle one message from a child."""
        child.last_seen = time.monotonic()
        match message:
            case Failed(reason):
                what = "evaluation failed: " if child.role == "evaluator" else ""
                raise DicerlError(what + reason)
            case Crashed(reason, traceback):
                child.last_words = reason
                self._crashed(child, traceback)
            case Ended(how, place_lost):
                self._died(child, child.last_words or how, place_lost)
            case _ if isinstance(child, ActorChild):
                self._receive_from_actor(child, message)
            case _ if isinstance(child, LearnerChild):
                self._receive_from_learner(child, message)
            case _:
                self._receive_from_evaluator(self._evaluator, message)

    def _crashed(self, child: Child, traceback: str) -> None:
        """Handle a bug. An actor's may be in its environment, and a new actor may do better; any
        other ends the run.
        """
        c = self.coordinator
        match child:
            case ActorChild():
                c.event("actor_crashed", actor=child.number, traceback=traceback)
            case LearnerChild():
                c.event("learner_crashed", traceback=traceback)
                raise DicerlError(f"the learner failed: {child.last_words}")
            case _:
                raise DicerlError(f"evaluation failed: {child.last_words}")

    def _died(self, child: Child, reason: str, place_lost: bool = False) -> None:
        """Handle a child that ended or was silent for too long, or whose machine was lost."""
        self._end(child)
        match child:
            case ActorChild():
                self._replace(child, reason, place_lost)
            case LearnerChild():
                directory = self.coordinator.run.directory
                whole = checkpoint.checkpoints_of(directory)
                where = (
                    f"from update {whole[-1].name}"
                    if whole
                    else "from the beginning (there is no checkpoint yet)"
                )
                raise DicerlError(
                    f"the learner {reason}; continue {where} with: dicerl resume {directory}"
                )
            case _:
                self._evaluator.evaluating = False  # the next evaluation starts a new one
                self._discard_best()
                self.coordinator.event("evaluator_died", reason=reason)
                self.coordinator.progress.say(f"the evaluator {reason}; this evaluation is skipped")

    def _check_silent(self) -> None:
        """Treat a child as dead if an expected message is overdue."""
        now, stuck = time.monotonic(), self.config.runtime.stuck_seconds
        # While this process was suspended (Ctrl-Z, a batch system) or kept from its core, children
        # may have been so, too, or have sent what is not read yet.
        absent = max(0.0, now - self._checked_at - 2 * WAIT)
        self._checked_at = now
        self._acted_at += absent
        for child in list(self._children.values()):
            patience = child.patience(stuck)
            child.last_seen = min(now, child.last_seen + absent)
            if not child.owes():
                child.last_seen = now
            elif now - child.last_seen > patience:
                self._died(child, f"did nothing for {patience:.0f} s")

    # --- actors

    def _receive_from_actor(self, actor: ActorChild, message: Any) -> None:
        match message:
            case Alive(steps):
                self._stepped(actor, steps)
            case SlotsWanted(steps, count):
                self._stepped(actor, steps)
                actor.wanted, actor.waits_since = count, time.monotonic()
            case Written(slots, learner):
                self.collector.receive(slots)
                if self._together:
                    self._holder |= dict.fromkeys(slots, learner)
                actor.lent = [slot for slot in actor.lent if slot not in slots]
            case EpisodesEnded(steps, episodes, wanted):
                self._stepped(actor, steps)
                self.coordinator.end_episodes(actor.number, episodes)
                if wanted:
                    drawn = self.coordinator.next_behaviours(actor.number, wanted)
                    self._send(actor, Drawn(drawn))
            case TimesSpent(fractions):
                actor.times = fractions
            case _:
                raise TypeError(f"an actor sent {message!r}")

    def _stepped(self, actor: ActorChild, steps: int) -> None:
        self.coordinator.stepped(steps)
        actor.steps += steps
        actor.stepped = actor.stepped or steps > 0

    def _replace(self, actor: ActorChild, reason: str, place_lost: bool) -> None:
        """Start the actor's next incarnation, with fresh random streams, up to
        runtime.max_restarts times; a machine that was lost does not count.
        """
        actor.restarts += not place_lost
        self.coordinator.event(
            "actor_replaced", actor=actor.number, reason=reason, restarts=actor.restarts
        )
        most = self.config.runtime.max_restarts
        if actor.restarts > most:
            raise DicerlError(
                f"actor {actor.number} had to be replaced {actor.restarts} times"
                f" (runtime.max_restarts is {most}), last because it {reason}"
            )
        actor.incarnation += 1
        self._incarnation = max(self._incarnation, actor.incarnation)
        started = self._start_where_possible(actor)
        self.coordinator.progress.say(
            f"actor {actor.number} {reason}; {'replaced' if started else 'no place for another'}"
        )

    def _start_where_possible(self, actor: ActorChild) -> bool:
        """Start an actor if there is a place for it; otherwise it waits for one."""
        try:
            self._start(actor)
        except NoRoom:
            return False
        return True

    def _fill_places(self) -> None:
        """Start actors where there is a place: those that wait for one, then, where their number
        was left to the machines, more of them.
        """
        room = self._transport.room()
        vacant = [a for a in self.actors if a.handle is None]
        if len(vacant) < len(self.actors):
            self._acted_at = time.monotonic()
        elif time.monotonic() - self._acted_at > self.config.runtime.stuck_seconds:
            raise DicerlError(
                f"for {self.config.runtime.stuck_seconds:.0f} s there was no place for any actor;"
                f" continue with: dicerl resume {self.coordinator.run.directory}"
            )
        for _ in range(room):
            if not vacant and self.config.runtime.num_actors:
                return
            new = not vacant
            actor = self._additional() if new else vacant.pop(0)
            if not self._start_where_possible(actor):
                return
            if new:
                self.actors.append(actor)
            self.coordinator.event("actor_added", actor=actor.number, incarnation=actor.incarnation)
            self.coordinator.progress.say(f"there is room: actor {actor.number} was started")

    def _additional(self) -> ActorChild:
        last = self.actors[-1]
        return ActorChild(
            number=last.number + 1,
            first_env=last.first_env + last.num_envs,
            num_envs=self.actors[0].num_envs,
            incarnation=self._incarnation,
        )

    def _lend_slots(self) -> None:
        for actor in sorted(self.actors, key=lambda a: a.waits_since):  # longest wait first
            if actor.wanted and self.collector.room:
                slots, actor.wanted = self.collector.lend(actor.wanted), 0
                actor.lent += slots
                self._send(actor, Slots(slots))

    def _of_actors(self) -> dict[str, Any]:
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

    # --- learners

    def _receive_from_learner(self, learner: LearnerChild, message: Any) -> None:
        match message:
            case BatchProgress(copied, trained, diagnostics):
                if not self._fresh:
                    self.collector.taken(copied)
                if trained:
                    slots = learner.batches.popleft()
                    if self._fresh:
                        self.collector.taken(slots)
                    if self._together and learner is not self.learners[0]:
                        return  # the first one's word is for all
                    extra = None
                    if diagnostics is not None:
                        extra = self.collector.numbers() | self._of_actors()
                    self.coordinator.trained(diagnostics, extra)
            case Skipped(update, loss, norm, batch):
                self.coordinator.skipped(update, loss, norm, batch)
            case Published():
                learner.asked -= 1
            case Saved(steps_trained):
                learner.asked -= 1
                self._finish_checkpoint(steps_trained)
            case NotSaved(reason):
                assert self._folder is not None
                raise checkpoint.failed(self.coordinator.run.directory, self._folder, reason)
            case _:
                raise TypeError(f"a learner sent {message!r}")

    def _under_way(self) -> bool:
        """Whether learners have batches that they have not trained yet."""
        return any(map(_ahead, self.learners))

    def _feed_learners(self) -> None:
        alternate = 1 if self._together else len(self.learners)
        while self._feeding and self._folder is None and self.collector.ready():
            takers = self.learners if self._together else [min(self.learners, key=_ahead)]
            if max(map(_ahead, takers)) == BATCHES_AHEAD:
                break
            slots, number = self.collector.next_batch(), self._batches
            round_, rest = divmod(number, self.config.log_every)
            # learners that alternate take turns with diagnostics
            diagnose = rest == round_ % min(alternate, self.config.log_every)
            for learner in takers:
                batch = Batch(slots, diagnose, number)
                if self._together:
                    batch = self._share(learner, slots, diagnose, number)
                learner.batches.append(batch.slots)
                self._send(learner, batch)
            self._batches += 1

    def _share(self, learner: LearnerChild, slots: list[int], diagnose: bool, number: int) -> Batch:
        """A learner's part of a batch: the sequences that it holds, be they many or few. Every
        actor sends to one of the learners, so their shares are even on average.
        """
        place = self.learners.index(learner)
        columns = [i for i, slot in enumerate(slots) if self._holder[slot] == place]
        return Batch([slots[i] for i in columns], diagnose and place == 0, number, columns)

    # --- checkpoints and evaluation

    def _save(self) -> None:
        """Begin a checkpoint. Nothing is trained meanwhile: a checkpoint is of one update."""
        feeding, self._feeding = self._feeding, False
        self._until(lambda: not self._under_way())
        self._feeding = feeding
        self._folder = self._begin("checkpoints")
        self.coordinator.checkpoint_begins()
        self._ask(self.learners[0], Save(str(self._folder)))

    def _save_now(self) -> None:
        """Write a checkpoint, and wait until it is complete."""
        self._until(lambda: self._folder is None)
        self._save()
        self._until(lambda: self._folder is None)

    def _begin(self, place: str) -> Path:
        """A temporary folder for tensors."""
        directory = self.coordinator.run.directory
        try:
            return checkpoint.begin(directory, place)
        except OSError as error:
            raise checkpoint.failed(directory, None, error) from error

    def _finish_checkpoint(self, steps_trained: int) -> None:
        c, folder = self.coordinator, self._folder
        assert folder is not None
        try:
            path = checkpoint.finish(folder, c.synced_state(steps_trained, self._incarnation))
        except OSError as error:
            raise checkpoint.failed(c.run.directory, folder, error) from error
        self._folder = None
        c.saved(path)

    def _evaluate(self) -> None:
        """Ask for an evaluation of the newest published parameters, unless one is under way."""
        evaluator = self._evaluator
        if evaluator.evaluating:
            return
        if evaluator.handle is None:
            self._start(evaluator)
        self.coordinator.evaluation_requested()
        evaluator.evaluating, evaluator.last_seen = True, time.monotonic()
        self._send(evaluator, Evaluate())

    def _receive_from_evaluator(self, evaluator: EvaluatorChild, message: Any) -> None:
        c = self.coordinator
        match message:
            case Pulled(version):
                self._send(evaluator, Play(c.evaluation_begins(version)))
            case Evaluated(result):
                best = c.evaluated(result)
                if best is None:
                    evaluator.evaluating = False
                else:  # the evaluator still has the parameters
                    self._best = self._begin("best"), best
                    self._send(evaluator, Save(str(self._best[0])))
            case Saved():
                assert self._best is not None
                (folder, state), self._best = self._best, None
                try:
                    checkpoint.remove_others(checkpoint.finish(folder, state))
                except OSError as error:
                    raise checkpoint.failed(c.run.directory, folder, error) from error
                c.best_kept(state)
                evaluator.evaluating = False
            case NotSaved(reason):
                assert self._best is not None
                raise checkpoint.failed(c.run.directory, self._best[0], reason)
            case Alive():
                pass
            case _:
                raise TypeError(f"an evaluator sent {message!r}")


def _ahead(learner: LearnerChild) -> int:
    return learner.ahead


def _split(total: int, parts: int) -> list[tuple[int, int]]:
    """The environments [first, last) of each actor."""
    borders = [total * i // parts for i in range(parts + 1)]
    return list(pairwise(borders))
