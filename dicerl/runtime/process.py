"""Actor processes, learner processes, and this one: it supervises, keeps the collector's books and
the bandits.

Only slot numbers, temperatures and episode returns cross pipes. When no slot is free actors wait. A
dead or stuck actor is replaced; a dead or stuck learner ends the run with the reason; nothing
outlives this process. A checkpoint holds the learner, the vote and the counters, not the sequences
under way: a resumed run starts new episodes and trains on those.
"""

from __future__ import annotations

import itertools
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.weights import Weights
from dicerl.config import Config
from dicerl.envs import EnvSpec, MakeEnv
from dicerl.errors import DicerlError
from dicerl.parts import collector
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.records import checkpoint
from dicerl.runtime.children import Shared, actor_role, evaluator_role, learner_role, start
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.setup import Plan

BATCHES_AHEAD = 2  # sent to a learner before it asks
LEARNER_PATIENCE = 5.0  # times runtime.stuck_seconds: one update may take a while
STARTING_SECONDS = 120.0  # more patience with an actor that still builds its environments


@dataclass
class Worker:
    """An actor process as the supervisor sees it."""

    number: int
    first_env: int
    num_envs: int
    process: Any = None
    pipe: Connection | None = None
    incarnation: int = -1
    restarts: int = 0
    heard: float = 0.0
    stepped: bool = False
    lent: list[int] = field(default_factory=list)
    wanted: int = 0  # slots it waits for
    last_words: str = ""
    times: dict[str, float] = field(default_factory=dict)  # where its time went lately


@dataclass
class Trainer:
    """A learner process as the supervisor sees it."""

    process: Any
    pipe: Connection
    heard: float
    ahead: int = 0  # batches it has not trained yet


class ProcessRuntime:
    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        plan: Plan,
        model: ActorCritic,
        coordinator: Coordinator,
        make_env: MakeEnv | None,
        resume: tuple[Path, dict[str, Any]] | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[..., None] | None = None,
    ) -> None:
        self.config, self.plan, self.coordinator, self._stop = config, plan, coordinator, stop
        weights = Weights(model.flat, shared=True)
        if resume is not None:
            weights.load_optimizer_tensors(checkpoint.read_tensors(resume[0], "optimizer"))
            weights.updates, weights.steps_trained = coordinator.updates, resume[1]["steps_trained"]
        self.shared = Shared(
            config,
            spec,
            plan,
            Store(schema(config, spec), window_length(config), plan.capacity, shared=True),
            ParameterServer(model.flat.vector.numel(), shared=True),
            weights,
            cloudpickle.dumps(make_env),
            cloudpickle.dumps(on_batch),
        )
        self.shared.parameters.push(model.flat.vector, coordinator.updates)
        self.collector = collector.build(config, plan.capacity)
        self._batches = coordinator.updates  # sent to learners
        self._feeding = True
        self._evaluator: tuple[Any, Connection] | None = None
        self._evaluating = False
        self._news: selectors.BaseSelector | None = None
        self._folder: Path | None = None  # of the checkpoint being written
        self._pushed = False
        self.learners: list[Trainer] = []
        self._evaluator_heard = time.monotonic()
        # A resumed run must not repeat the streams of its first life.
        first = 0 if resume is None else resume[1]["incarnation"] + 1
        self._incarnation = first
        self.workers = [
            Worker(i, a, b - a, incarnation=first - 1)
            for i, (a, b) in enumerate(_split(config.runtime.num_envs, plan.num_actors))
        ]
        try:
            for _ in range(plan.num_learners):
                self.learners.append(
                    Trainer(*start(learner_role, self.shared), heard=time.monotonic())
                )
            for worker in self.workers:
                self._start_actor(worker)
        except BaseException:
            self.close()
            raise

    def run(self) -> bool:
        """Train to the end of the run, or to a stop; True where the run is complete."""
        c = self.coordinator
        while not c.collected_all() and not self._stop():
            self._tick()
            if c.evaluation_due():
                self._evaluate()
            if c.checkpoint_due() and self._folder is None:
                self._save()
        complete = c.collected_all()
        for worker in self.workers:
            self._end_actor(worker)
        self._feeding = complete  # a stop trains what the learner has, a complete run all there is
        self._until(lambda: not self._ahead() and not (self._feeding and self.collector.ready()))
        if complete and self.config.evaluation.every:
            self._until(lambda: not self._evaluating)
            self._pushed = False
            self._tell_learner(self.learners[0], "push")
            self._until(lambda: self._pushed)
            self._evaluate()
            self._until(lambda: not self._evaluating)
        self._until(lambda: self._folder is None)
        self._save()
        self._until(lambda: self._folder is None)
        return complete

    def _ahead(self) -> int:
        """Batches that are not trained yet."""
        return sum(learner.ahead for learner in self.learners)

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._tick()

    def _tick(self) -> None:
        """Wait for news from any child, deal with it, keep the learner fed and the actors alive."""
        if self._news is None:
            self._news = self._listen()
        # What a child said before it died comes before its death: pipes first.
        for key, _ in sorted(
            self._news.select(0.2), key=lambda found: isinstance(found[0].fileobj, int)
        ):
            key.data()
        self._feed()
        self._replace_stuck_actors()
        self._check_learners_and_evaluator()
        self.coordinator.show()

    def _listen(self) -> selectors.BaseSelector:
        """Every child's pipe and its end, and what to do then. Made anew only where children come
        or go: that takes as long as a message.
        """
        news = selectors.DefaultSelector()
        for worker in self.workers:
            if worker.pipe is not None:
                news.register(
                    worker.pipe, selectors.EVENT_READ, lambda w=worker: self._hear_actor(w)
                )
                news.register(
                    worker.process.sentinel,
                    selectors.EVENT_READ,
                    lambda w=worker: self._actor_died(w),
                )
        for learner in self.learners:
            news.register(
                learner.pipe, selectors.EVENT_READ, lambda x=learner: self._hear_learner(x)
            )
            news.register(
                learner.process.sentinel,
                selectors.EVENT_READ,
                lambda x=learner: self._learner_died(x),
            )
        if self._evaluator is not None:
            news.register(self._evaluator[1], selectors.EVENT_READ, self._hear_evaluator)
            news.register(self._evaluator[0].sentinel, selectors.EVENT_READ, self._evaluator_died)
        return news

    def _children_changed(self) -> None:
        if self._news is not None:
            self._news.close()
            self._news = None

    def _feed(self) -> None:
        while self._feeding and self._folder is None and self.collector.ready():
            learner = min(self.learners, key=lambda x: x.ahead)
            if learner.ahead == BATCHES_AHEAD:
                break
            learner.ahead += 1
            turn, rest = divmod(self._batches, self.config.log_every)
            # learners that alternate are diagnosed in turn
            diagnose = rest == turn % min(len(self.learners), self.config.log_every)
            self._tell_learner(
                learner, "batch", self.collector.next_batch(), diagnose, self._batches
            )
            self._batches += 1
        for worker in sorted(self.workers, key=lambda w: w.heard):  # who waits longest comes first
            if worker.wanted and self.collector.num_free:
                slots = self.collector.lend(worker.wanted)
                worker.lent, worker.wanted = slots, 0
                worker.heard = time.monotonic()  # its wait was ours: patience starts anew
                self._tell_actor(worker, slots)

    # --- actors

    def _start_actor(self, worker: Worker) -> None:
        self._children_changed()
        worker.incarnation += 1
        self._incarnation = max(self._incarnation, worker.incarnation)
        worker.process, worker.pipe = start(
            actor_role,
            self.shared,
            worker.number,
            worker.incarnation,
            worker.first_env,
            worker.num_envs,
        )
        worker.heard, worker.stepped, worker.wanted, worker.last_words = (
            time.monotonic(),
            False,
            0,
            "",
        )

    def _end_actor(self, worker: Worker) -> None:
        self._children_changed()
        if worker.process is not None:
            worker.process.kill()
            worker.process.join()
            worker.process.close()
        if worker.pipe is not None:
            worker.pipe.close()
        worker.process, worker.pipe, worker.wanted = None, None, 0
        self.collector.give_back(worker.lent)
        worker.lent = []

    def _hear_actor(self, worker: Worker) -> bool:
        """One message; False where there will be no more. The selector tells of the next one:
        asking the pipe takes as long as reading it.
        """
        c = self.coordinator
        try:
            assert worker.pipe is not None
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return False  # its death is told by its sentinel
        worker.heard = time.monotonic()
        kind = message[0]
        if kind in ("alive", "slots", "episodes"):
            c.agent_steps += message[1]
            worker.stepped = worker.stepped or message[1] > 0
        if kind == "slots":
            worker.wanted = message[2]
        elif kind == "times":
            worker.times = message[1]
        elif kind == "sequences":
            self.collector.receive(message[1])
            worker.lent = []
        elif kind == "episodes":
            c.end_episodes(worker.number, message[2])
            drawn = c.next_behaviours(worker.number, message[3])
            if drawn:
                self._tell_actor(worker, drawn)
        elif kind == "failed":
            raise DicerlError(message[1])
        elif kind == "crashed":
            worker.last_words = message[1]
            c.event("actor_crashed", actor=worker.number, traceback=message[2])
        return True

    def _actor_times(self) -> dict[str, float]:
        """The actors' mean."""
        names = {name for worker in self.workers for name in worker.times}
        return {
            f"actor_{name}": sum(w.times.get(name, 0.0) for w in self.workers) / len(self.workers)
            for name in sorted(names)
        }

    def _tell_actor(self, worker: Worker, message: Any) -> None:
        try:
            assert worker.pipe is not None
            worker.pipe.send(message)
        except OSError:
            pass  # it died meanwhile: its sentinel tells

    def _actor_died(self, worker: Worker) -> None:
        if worker.process is None:
            return
        while worker.pipe is not None and worker.pipe.poll() and self._hear_actor(worker):
            pass  # what it said last
        self._replace(worker, worker.last_words or _how_it_ended(worker.process))

    def _replace(self, worker: Worker, reason: str) -> None:
        self._end_actor(worker)
        worker.restarts += 1
        self.coordinator.event(
            "actor_replaced", actor=worker.number, reason=reason, restarts=worker.restarts
        )
        if worker.restarts > self.config.runtime.max_restarts:
            raise DicerlError(
                f"actor {worker.number} had to be replaced {worker.restarts} times"
                f" (runtime.max_restarts is {self.config.runtime.max_restarts}), last because it"
                f" {reason}"
            )
        self.coordinator.progress.say(f"actor {worker.number} {reason}; replaced")
        self._start_actor(worker)

    def _replace_stuck_actors(self) -> None:
        now = time.monotonic()
        for worker in self.workers:
            patience = (
                self.config.runtime.stuck_seconds
                if worker.stepped
                else max(self.config.runtime.stuck_seconds, STARTING_SECONDS)
            )
            if worker.process is not None and not worker.wanted and now - worker.heard > patience:
                self._replace(worker, f"did nothing for {patience:.0f} s")

    # --- learners

    def _tell_learner(self, learner: Trainer, *message: Any) -> None:
        try:
            learner.pipe.send(message)
        except OSError:
            self._learner_died(learner)

    def _hear_learner(self, learner: Trainer) -> bool:
        """One message; False where there will be no more."""
        try:
            message = learner.pipe.recv()
        except (EOFError, OSError):
            return False  # its death is told by its sentinel
        learner.heard = time.monotonic()
        kind = message[0]
        if kind == "progress":
            taken, trained, diagnostics = message[1:]
            self.collector.taken(taken)
            if trained:
                learner.ahead -= 1
                self.coordinator.trained(
                    diagnostics,
                    None if diagnostics is None else self.collector.numbers() | self._actor_times(),
                )
        elif kind == "pushed":
            self._pushed = True
        elif kind == "saved":
            self._finish_checkpoint(message[1])
        elif kind == "not_saved":
            assert self._folder is not None
            raise checkpoint.failed(self.coordinator.run.directory, self._folder, message[1])
        else:
            if kind == "crashed":
                self.coordinator.event("learner_crashed", traceback=message[2])
            raise DicerlError(
                f"the learner failed: {message[1]}" if kind == "crashed" else message[1]
            )
        return True

    def _check_learners_and_evaluator(self) -> None:
        """A learner that owes an answer for long ends the run; an evaluator loses its
        evaluation.
        """
        now = time.monotonic()
        # A child that only imports torch on a busy machine may take a minute for it.
        patience = max(LEARNER_PATIENCE * self.config.runtime.stuck_seconds, STARTING_SECONDS)
        for learner in self.learners:
            if not learner.ahead and (self._folder is None or learner is not self.learners[0]):
                learner.heard = now
            elif now - learner.heard > patience:
                raise DicerlError(
                    f"the learner did nothing for {patience:.0f} s; the run ends here"
                )
        if (
            self._evaluating
            and self._evaluator is not None
            and now - self._evaluator_heard > patience
        ):
            self._evaluator[0].kill()  # its sentinel tells the rest

    def _learner_died(self, learner: Trainer) -> None:
        learner.process.join(1.0)
        while learner.pipe.poll() and self._hear_learner(learner):
            pass  # what it said last may be the reason
        whole = checkpoint.checkpoints_of(self.coordinator.run.directory)
        where = (
            f"from update {whole[-1].name}"
            if whole
            else "from the beginning (there is no checkpoint yet)"
        )
        raise DicerlError(
            f"the learner {_how_it_ended(learner.process)}; go on {where} with: dicerl resume"
            f" {self.coordinator.run.directory}"
        )

    # --- checkpoints and evaluation

    def _save(self) -> None:
        """Nothing is trained meanwhile: a checkpoint is that of an update."""
        feeding, self._feeding = self._feeding, False
        self._until(lambda: not self._ahead())
        self._feeding = feeding
        try:
            self._folder = checkpoint.begin(self.coordinator.run.directory)
        except OSError as error:
            root = self.coordinator.run.directory / "checkpoints"
            raise checkpoint.failed(
                self.coordinator.run.directory, root / "tmp-none", error
            ) from error
        self.coordinator.saved_at = self.coordinator.frames
        self._tell_learner(self.learners[0], "save", str(self._folder))

    def _finish_checkpoint(self, steps_trained: int) -> None:
        c, folder = self.coordinator, self._folder
        assert folder is not None
        try:
            checkpoint.finish(
                folder,
                c.run.directory,
                c.updates,
                c.state() | {"incarnation": self._incarnation, "steps_trained": steps_trained},
            )
        except OSError as error:
            raise checkpoint.failed(c.run.directory, folder, error) from error
        c.saved()
        self._folder = None

    def _evaluate(self) -> None:
        """Ask for an evaluation of the newest pushed parameters, unless one is under way."""
        if self._evaluating:
            return
        if self._evaluator is None:
            self._children_changed()
            self._evaluator = start(evaluator_role, self.shared)
        c = self.coordinator
        c.evaluated_at = c.frames
        self._evaluating = True
        self._evaluator_heard = time.monotonic()
        try:
            self._evaluator[1].send(("evaluate", c.behaviours.evaluation_region()))
        except OSError:
            self._evaluator_died()

    def _hear_evaluator(self) -> None:
        while self._evaluator is not None and self._evaluator[1].poll():
            try:
                message = self._evaluator[1].recv()
            except (EOFError, OSError):
                return
            self._evaluator_heard = time.monotonic()
            if message[0] == "alive":
                continue
            if message[0] == "evaluated":
                self._evaluating = False
                self.coordinator.evaluated(message[1], message[2])
            else:
                raise DicerlError(f"evaluation failed: {message[1]}")

    def _evaluator_died(self) -> None:
        """This evaluation is lost; the next one gets a new process."""
        if self._evaluator is None:
            return
        self._hear_evaluator()
        process, pipe = self._evaluator
        process.join(1.0)
        reason = _how_it_ended(process)
        self._children_changed()
        pipe.close()
        self._evaluator, self._evaluating = None, False
        self.coordinator.event("evaluator_died", reason=reason)
        self.coordinator.progress.say(f"the evaluator {reason}; this evaluation is skipped")

    def close(self) -> None:
        """End every child; what had to be kept was saved before."""
        self._children_changed()
        for worker in getattr(self, "workers", []):
            self._end_actor(worker)
        others = [(x.process, x.pipe) for x in self.learners]
        if self._evaluator is not None:
            others.append(self._evaluator)
        for process, pipe in others:
            process.kill()
            process.join()
            pipe.close()
        self.learners, self._evaluator = [], None
        if self._folder is not None:
            checkpoint.discard(self._folder)


def _split(total: int, parts: int) -> list[tuple[int, int]]:
    """[first, last) environment of each actor."""
    borders = [total * i // parts for i in range(parts + 1)]
    return list(itertools.pairwise(borders))


def _how_it_ended(process: Any) -> str:
    process.join(1.0)
    code = process.exitcode
    if code is None:
        return "stopped answering"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
