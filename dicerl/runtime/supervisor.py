"""The supervisor of actors, learners and an evaluator: it keeps the collector's books, feeds the
learners, watches over all of them, heals what can be healed, and decides when to save and to
evaluate.

It knows no transport: it starts children and exchanges messages with them through ``Transport``
(base.py). When no slot is free, actors wait; where they share cores with the learner, until a batch
is trained and not only copied: they lose no time by that, and act on newer parameters. A checkpoint
holds the learner, the vote and the counters, not the sequences under way: a resumed run starts new
episodes and trains on those.

Whatever is dead or stuck is replaced, as often as ``Restarts`` allows. An actor loses the sequences
it had begun, the evaluator its evaluation. A learner loses nothing where the weights outlived it
whole; else the run must go back to its last checkpoint (``LearnerLost``), which launch.py does.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError, GoBack, LearnerLost
from dicerl.parts import collector
from dicerl.records import checkpoint
from dicerl.runtime.base import Handle, RunContext, Transport
from dicerl.runtime.children import ActorChild, Child, LearnerChild
from dicerl.runtime.evaluations import Evaluations
from dicerl.runtime.feeder import Feeder
from dicerl.runtime.fleet import Fleet
from dicerl.runtime.messages import (
    Answered,
    BatchProgress,
    Crashed,
    Ended,
    Failed,
    NotSaved,
    Publish,
    Published,
    Save,
    Saved,
    Skipped,
)

WAIT = 0.2  # seconds for messages before the supervisor does its other work
LEAVING = 5.0  # seconds for a last checkpoint of a transport that fails


class _TooLate(Exception):
    """A transport that fails did not last for a checkpoint."""


class Supervisor:
    """A Runtime over any transport."""

    def __init__(self, context: RunContext, transport: Transport) -> None:
        config, plan = context.config, context.plan
        self.config, self.coordinator, self._stop = config, context.coordinator, context.stop
        self._transport, self._env = transport, context.spec.name
        self._children: dict[Handle, Child] = {}
        self._restarts = context.restarts
        self.collector = collector.build(config, plan.capacity, plan.kept)
        self._feeder = Feeder(config, plan, self.collector, self.coordinator.updates)
        self.learners = self._feeder.learners
        self._feeding = True
        self._checked_at = time.monotonic()  # when silent children were last looked for
        self._folder: Path | None = None  # of the checkpoint being written
        self._leave_by = math.inf  # until when a transport that fails may be used
        if context.start is not None and context.start.state.books is not None:
            self.collector.go_on(context.start.state.books)
        self._fleet = Fleet(context, transport, self.collector, self._feeder, self._start)
        self._evaluations = Evaluations(self.coordinator, self._start)
        try:
            for learner in self.learners:
                self._start(learner)
            if not self.coordinator.collected_all():  # else only its last evaluation is missing
                self._fleet.start()
        except BaseException:
            self.close()
            raise

    @property
    def incarnation(self) -> int:
        """The latest of any actor."""
        return self._fleet.incarnation

    def run(self) -> bool:
        """Train to the end of the run or until stopped; return whether the run is complete."""
        c = self.coordinator
        while not c.collected_all() and not self._stop():
            self._tick()
            self._fleet.fill_places()
            if c.evaluation_due() and not c.collected_all():  # the last one follows below
                self._evaluations.begin()
            if c.checkpoint_due() and self._folder is None:
                self._save()
        self._fleet.end()
        for actor in self._fleet.actors:
            self._end(actor)
        # after a stop, learners train only the batches they have; in a complete run, all there are
        self._feeding = c.collected_all()
        self._until(
            lambda: not self._feeder.under_way() and not (self._feeding and self.collector.ready())
        )
        if c.collected_all() and not c.complete():
            self._save_now()  # before the last evaluation: that may take long, or be stopped
            self._until(lambda: self._evaluations.possible() or self._stop())
            self._evaluate_the_end()
        self._until(lambda: not self._evaluations.saving)
        evaluator = self._evaluations.evaluator
        if evaluator.handle is not None:
            evaluator.handle.end()
        self._end(evaluator)  # nothing is evaluated that the last checkpoint does not know
        if self._evaluations.under_way:
            c.evaluation_abandoned()
        self._save_now()
        return c.complete()

    def _evaluate_the_end(self) -> None:
        """Evaluate the last parameters, unless a stop is requested."""
        if self._stop():
            return
        self._ask(self.learners[0], Publish())
        self._until(lambda: not self.learners[0].asked)
        self._evaluations.begin()
        self._until(lambda: not self._evaluations.under_way or self._stop())

    def close(self) -> None:
        """End every child; nothing is saved here."""
        self._transport.close()
        if self._folder is not None:
            checkpoint.discard(self._folder)
        self._evaluations.discard()

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
        self._wake_resting()
        if self._feeding and self._folder is None:
            self._feeder.feed()
        self._fleet.lend_slots()
        self._check_silent()
        self.coordinator.show()
        if self._leave_by == math.inf:
            if reason := self._transport.failing():
                self._leave(reason)
        elif time.monotonic() > self._leave_by:
            raise _TooLate

    def _leave(self, reason: str) -> None:
        """Save what all children have done while they can still be reached, then have the run go
        back to that with another transport, or end.
        """
        limits, directory = self.config.runtime, self.coordinator.run.directory
        self.coordinator.progress.say(f"{reason}; saving what there is")
        self._leave_by = time.monotonic() + LEAVING
        with contextlib.suppress(_TooLate, LearnerLost):  # else the checkpoint before it stands
            self._save_now()
        if not self._transport.renewable:
            raise DicerlError(f"{reason}; continue with: dicerl resume {directory}")
        self._restarts.count("the cluster", limits)
        pause = self._restarts.pause("the cluster", f"failed: {reason}", limits)
        raise GoBack(reason, pause=pause)

    # --- any child

    def _start(self, child: Child) -> None:
        child.handle = self._transport.start(child.role, *child.args())
        child.last_seen = child.answered = time.monotonic()
        child.last_words, child.useful = "", child.role == "evaluator"
        self._children[child.handle] = child
        if isinstance(child, ActorChild):
            child.lived = 0

    def _end(self, child: Child, died: bool = False) -> None:
        """End a child; the slots lent to an actor are given back unwritten."""
        child.rests_until = None
        if child.handle is not None:
            child.handle.kill()
            del self._children[child.handle]
            child.handle = None
        if isinstance(child, ActorChild):
            self.collector.give_back(child.lent, child.number if died else None)
            child.lent, child.wanted, child.stepped = [], 0, False

    def _ask(self, learner: LearnerChild, message: Any) -> None:
        """Send a request other than a batch, which the learner must answer."""
        learner.asked.append(message)
        learner.send(message)

    def _receive(self, child: Child, message: Any) -> None:
        """Handle one message from a child."""
        child.answered = time.monotonic()
        if isinstance(message, Answered):
            return
        child.last_seen = child.answered
        match message:
            case Failed(reason):
                what = "evaluation failed: " if child.role == "evaluator" else ""
                raise DicerlError(what + reason)
            case Crashed(reason, traceback):
                child.last_words = reason
                self._crashed(child, traceback)
            case Ended(how, place_lost):
                raised = child.last_words and f"raised {child.last_words}"
                self._died(child, raised or how, place_lost)
            case _ if isinstance(child, ActorChild):
                self._fleet.receive(child, message)
            case _ if isinstance(child, LearnerChild):
                self._receive_from_learner(child, message)
            case _:
                self._evaluations.receive(message)

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
        """Replace a child that ended or was silent for too long, or whose machine was lost: that
        does not count as a restart.
        """
        lost = len(child.lent) if isinstance(child, ActorChild) else 0
        self._end(child, died=True)
        limits = self.config.runtime
        if place_lost:
            restarts = self._restarts.of(child.name, limits)
        else:
            restarts = self._restarts.count(child.name, limits, child.useful)
        match child:
            case ActorChild():
                self.coordinator.healed(
                    "actor_replaced",
                    actor=child.number,
                    reason=reason,
                    restarts=restarts,
                    lost=lost,
                )
                # of such an end the environment is the likeliest cause
                where = f"{reason}, in {self._env} after {child.lived:,} steps or a few more"
                how = self._fleet.replace(child, self._restarts.pause(child.name, where, limits))
                self.coordinator.progress.say(f"{child.name} {reason}; {how}")
            case LearnerChild():
                self._replace_learner(child, reason)
            case _:
                self.coordinator.healed("evaluator_died", reason=reason, restarts=restarts)
                self._evaluations.died(self._restarts.pause(child.name, reason, limits))
                self.coordinator.progress.say(f"the evaluator {reason}; this evaluation is skipped")

    def _wake_resting(self) -> None:
        """Start children that died, when their pause is over; a learner at once where the run is to
        stop, since it is saved by that.
        """
        now = time.monotonic()
        for learner in self.learners:
            if learner.rests_until is not None and (now >= learner.rests_until or self._stop()):
                self._go_on_with(learner)
        for actor in self._fleet.actors:
            if actor.rests_until is not None and now >= actor.rests_until:
                actor.rests_until = None
                self._fleet.start_where_possible(actor)

    def _check_silent(self) -> None:
        """Treat a child as dead if an expected message is overdue. One that owes nothing may still
        be what others wait for (actors send a learner of another machine their sequences): where
        the transport asks whether it is there, that is expected, too.
        """
        now, stuck = time.monotonic(), self.config.runtime.stuck_seconds
        # While this process was suspended (Ctrl-Z, a batch system) or kept from its core, children
        # may have been so, too, or have sent what is not read yet.
        absent = max(0.0, now - self._checked_at - 2 * WAIT)
        self._checked_at = now
        self._fleet.was_absent(absent)
        for child in list(self._children.values()):
            patience = child.patience(stuck)
            child.last_seen = min(now, child.last_seen + absent)
            child.answered = min(now, child.answered + absent)
            since = child.last_seen
            if not child.owes():
                child.last_seen, patience = now, child.absence(stuck)
                since = child.answered if self._transport.asks else now
            if now - since > patience:
                self._died(child, f"did nothing for {patience:.0f} s")

    # --- learners

    def _receive_from_learner(self, learner: LearnerChild, message: Any) -> None:
        match message:
            case BatchProgress():
                learner.useful = learner.useful or message.trained
                if self._feeder.progress(learner, message):
                    self._trained(message.diagnostics)
            case Skipped(update, loss, norm, batch):
                self.coordinator.skipped(update, loss, norm, batch)
            case Published():
                learner.asked.popleft()
            case Saved(steps_trained):
                learner.asked.popleft()
                self._finish_checkpoint(steps_trained)
            case NotSaved(reason):
                assert self._folder is not None
                raise checkpoint.failed(self.coordinator.run.directory, self._folder, reason)
            case _:
                raise TypeError(f"a learner sent {message!r}")

    def _trained(self, diagnostics: dict[str, float] | None) -> None:
        extra = None
        if diagnostics is not None:
            extra = self.collector.numbers() | self._fleet.numbers()
        self.coordinator.trained(diagnostics, extra)

    def _replace_learner(self, learner: LearnerChild, reason: str) -> None:
        """Have a learner go on from the weights that a dead one left, or the run go back."""
        c, directory = self.coordinator, self.coordinator.run.directory
        try:
            pause = self._restarts.pause(learner.name, reason, self.config.runtime)
        except DicerlError as error:
            whole = checkpoint.checkpoints_of(directory)
            where = (
                f"from update {whole[-1].name}"
                if whole
                else "from the beginning (there is no checkpoint yet)"
            )
            raise DicerlError(
                f"{error}; continue {where} with: dicerl resume {directory}"
            ) from None
        # several that died at once: nobody knows which of them made which updates
        several = sum(one.handle is None for one in self.learners) > 1
        if several or self._transport.weights_left() is None:
            raise LearnerLost(f"{learner.name} {reason}", pause=pause)
        c.progress.say(f"{learner.name} {reason}; replaced{f' in {pause:g} s' * (pause > 0)}")
        learner.last_words = reason
        learner.rests_until = time.monotonic() + pause

    def _go_on_with(self, learner: LearnerChild) -> None:
        """Start a learner that died, once the others have said what they did: the updates that
        nobody spoke of are its own. The next one gets what it has not trained or answered.
        """
        if any(one.ahead for one in self.learners if one is not learner):
            return
        made = self._transport.weights_left()
        unsaid = -1 if made is None else made - self.coordinator.updates
        if not 0 <= unsaid <= learner.ahead:
            raise LearnerLost(f"{learner.name} left weights that nobody knows")
        learner.rests_until = None
        batches, dropped = self._feeder.settle(learner, unsaid)
        for batch in batches:  # the line of such an update has no diagnostics
            self._trained({} if batch.diagnose else None)
        self.coordinator.healed(
            "learner_replaced",
            learner=learner.number or 0,
            reason=learner.last_words,
            restarts=self._restarts.of(learner.name, self.config.runtime),
            dropped=dropped,
        )
        self._start(learner)
        for message in (*(sent.batch for sent in learner.batches), *learner.asked):
            learner.send(message)

    # --- checkpoints

    def _save(self) -> None:
        """Begin a checkpoint. Nothing is trained meanwhile: a checkpoint is of one update."""
        feeding, self._feeding = self._feeding, False
        self._until(lambda: not self._feeder.under_way())
        self._feeding = feeding
        self._folder = checkpoint.begin(self.coordinator.run.directory)
        self.coordinator.checkpoint_begins()
        self._ask(self.learners[0], Save(str(self._folder)))

    def _save_now(self) -> None:
        """Write a checkpoint, and wait until it is complete."""
        self._until(lambda: self._folder is None)
        self._save()
        self._until(lambda: self._folder is None)

    def _finish_checkpoint(self, steps_trained: int) -> None:
        c, folder = self.coordinator, self._folder
        assert folder is not None
        books = self.collector.books()
        c.event("checkpoint", books=books.to_dict())
        try:
            state = c.synced_state(steps_trained, self.incarnation, books=books)
            path = checkpoint.finish(folder, state)
        except OSError as error:
            raise checkpoint.failed(c.run.directory, folder, error) from error
        self._folder = None
        c.saved(path)
