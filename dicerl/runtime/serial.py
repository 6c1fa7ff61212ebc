"""One process: actor and learner take turns. Bit-for-bit reproducible from a seed and, with
``checkpoint.exact``, from a checkpoint.

An environment's inner state cannot be saved in general, so an exact checkpoint is also a restart:
right after a window of every environment was sent, the checkpoint is written and all
environments are reset with seeds derived from the update count. Nothing is lost (every step taken
is in a sent window), and unfinished episodes are not reported. A run that is killed and resumed
from such a checkpoint does exactly what it would have done anyway; a stop by Ctrl-C writes one more
checkpoint, and so restarts the episodes once more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dicerl.agent.behaviour import Behaviour
from dicerl.config import seeding
from dicerl.envs import VectorEnv, make_vector_env
from dicerl.envs.patience import CLOSING, STARTING, Patience, starting
from dicerl.errors import EnvironmentFailed
from dicerl.parts import collector
from dicerl.parts.actor import Actor
from dicerl.parts.diagnostics import Lag
from dicerl.parts.evaluator import Evaluator
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Arrays, Store, schema, window_length, with_single_frames
from dicerl.records import checkpoint
from dicerl.records.books import Books
from dicerl.records.checkpoint import Checkpoint
from dicerl.records.state import SerialState
from dicerl.records.timing import Times
from dicerl.records.vocabulary import stage_fields
from dicerl.runtime.base import RunContext
from dicerl.runtime.machine import keep_freed_memory, threads_here
from dicerl.runtime.setup import build_model, restore_weights

EVALUATING = 5.0  # times runtime.stuck_seconds, between two signs of life (children.py: as there)


class _Stopped(Exception):
    """A stop was requested during an evaluation."""


class SerialRuntime:
    """A Runtime in one process."""

    def __init__(self, context: RunContext) -> None:
        config, spec, plan = context.config, context.spec, context.plan
        keep_freed_memory()
        torch.set_num_threads(threads_here(plan.learner_threads))
        self.config, self.coordinator, self._context = config, context.coordinator, context
        self.times = Times()  # the learner's; the actor has its own
        self.store = Store(schema(config, spec), window_length(config), plan.capacity)
        self.collector = collector.build(config, plan.capacity, plan.kept)
        self.parameters = ParameterServer(context.model.flat.vector.numel())
        self.learner = Learner(
            context.model,
            plan.total_updates,
            plan.device,
            plan.learner_threads,
            publish=self._publish,
            skipped=lambda outcome: self.coordinator.skipped(*outcome),
        )
        self._evaluator: Evaluator | None = None
        saved, incarnation = None, context.incarnation
        if context.start is not None:
            saved = context.start.state.serial
            incarnation = max(incarnation, context.start.state.incarnation + 1)
            with checkpoint.fitting(context.start.path):
                self._restore(context.start)
        self.learner.publish()
        self._complete: Arrays | None = None  # windows of every environment, for the collector
        self._stuck = config.runtime.stuck_seconds
        self._patience = Patience(spec.name, self._stuck)
        self._patience.start()
        bound = starting(self._stuck, config.runtime.num_envs)
        self._env: VectorEnv | None = None
        try:
            with self._patience.within(bound, "being made"):
                self._env = make_vector_env(config, config.runtime.num_envs, context.make_env)
            with self._patience.within(bound, "reset"):
                self._begin(self._env, saved, incarnation)
            context.stop()  # it takes back the signals that an environment took
        except BaseException:
            self.close()
            raise

    def _begin(self, env: VectorEnv, saved: SerialState | None, incarnation: int) -> None:
        """Reset the environments; continue the actor's random stream where one was ``saved``."""
        config = self.config
        self.actor = Actor(
            build_model(config, self._context.spec),
            env,
            rng=np.random.default_rng(seeding.stream(config.seed, "actor", 0, incarnation)),
            env_seed=self._env_seed(),
            get_parameters=self.parameters.pull,
            send_sequences=self._keep,
            end_episodes=lambda episodes: self.coordinator.end_episodes(0, episodes),
            next_behaviours=self._next_behaviours,
            incarnation=incarnation,
        )
        start = self._context.start
        if start is not None and saved is not None:
            with checkpoint.fitting(start.path):
                self.actor.load_state_dict(saved.actor)

    @property
    def incarnation(self) -> int:
        return self.actor.incarnation

    def run(self) -> bool:
        """Train to the end of the run or until stopped; return whether the run is complete."""
        c = self.coordinator
        if not c.collected_all() and not self._train_to_the_end():
            return False
        if not c.complete():
            self._evaluate()
            self._save()
        return c.complete()

    def _train_to_the_end(self) -> bool:
        """Train until the run has all its frames or is stopped; save it, and return which."""
        c = self.coordinator
        while True:
            while not self.actor.act():
                self._advance()
            self._collect()
            self._train()
            if c.collected_all():
                self._save()  # before the last evaluation: that may take long, or be stopped
                return True
            if c.evaluation_due():
                self._evaluate()
            if self._context.stop():
                self._save()
                return False
            due = c.checkpoint_due()
            if due:
                self._save()
            if due and self.config.checkpoint.exact:
                self.actor.incarnation += 1
                with self._patience.within(self._stuck, "reset"):
                    self.actor.restart(self._env_seed())
            else:
                self._advance()
            c.show()

    def close(self) -> None:
        for opened in (self._env, self._evaluator):
            try:
                if opened is not None:
                    with self._patience.within(CLOSING, "close"):
                        opened.close()
            except EnvironmentFailed as error:  # what was trained is saved
                self.coordinator.progress.say(f"note: {error}")
        self._patience.stop()

    # --- the actor's turn

    def _env_seed(self) -> int:
        return seeding.integer(
            seeding.stream(self.config.seed, "environment", 0, self.learner.updates)
        )

    def _next_behaviours(self, wanted: int) -> Callable[[], list[Behaviour]]:
        drawn = self.coordinator.next_behaviours(0, wanted)
        return lambda: drawn

    def _keep(self, windows: Arrays) -> None:
        self._complete = windows

    def _advance(self) -> None:
        before = self.actor.agent_steps
        with self._patience.within(self._stuck, "step"):
            self.actor.advance()
        self.coordinator.stepped(self.actor.agent_steps - before)

    def _collect(self) -> None:
        """Move the actor's windows into the collector; while it is full, train."""
        assert self._complete is not None
        columns = list(range(self.config.runtime.num_envs))
        while columns:
            slots = self.collector.lend(len(columns))
            with self.actor.times("copying"):
                self.store.write(slots, self._complete, columns[: len(slots)])
            self.collector.receive(slots)
            columns = columns[len(slots) :]
            if columns:
                self._train_batch()
        self._complete = None

    # --- the learner's turn

    def _train(self) -> None:
        """Train every batch that is ready."""
        while self.collector.ready():
            self._train_batch()
        self.learner.settle()

    def _train_batch(self) -> None:
        slots = self.collector.next_batch()
        with self.times("copying"):
            batch = self.store.read(slots, self.learner.buffers())
        self.collector.taken(slots)
        if self._context.on_batch is not None:
            self._context.on_batch(self.learner, batch)
        with self.times("training"):
            diagnose = self.learner.updates % self.config.log_every == 0
            diagnostics = self.learner.update(batch, diagnose)
        if diagnostics is not None:
            diagnostics |= stage_fields("learner", self.times.take())
            diagnostics |= stage_fields("actor", self.actor.times.take())
        extra = None if diagnostics is None else self.collector.numbers()
        self.coordinator.trained(diagnostics, extra)

    def _publish(self, vector: torch.Tensor, version: int) -> None:
        with self.times("pushing"):
            self.parameters.push(vector, version)

    # --- evaluation and checkpoints

    def _evaluate(self) -> None:
        """Evaluate the present parameters; a stop abandons it."""
        c = self.coordinator
        if self._evaluator is None:
            bound = starting(self._stuck, self.config.evaluation.episodes)
            with self._patience.within(bound, "being made"):
                self._evaluator = Evaluator(self.learner.model, self._context.make_env)
            self._context.stop()  # as above
        version = self.learner.updates
        seed = seeding.stream(self.config.seed, "evaluation", version)
        c.evaluation_requested()
        try:
            with self._patience.within(max(EVALUATING * self._stuck, STARTING), "evaluation"):
                result = self._evaluator.evaluate(c.evaluation_begins(version), seed, self._look_up)
        except _Stopped:
            c.evaluation_abandoned()
            return
        best = c.evaluated(result)
        if best is not None:
            tensors = {"model": self.learner.network.state_dict()}
            checkpoint.save_best(c.run.directory, tensors, best)
            c.best_kept(best)

    def _look_up(self) -> None:
        """Called now and then during an evaluation."""
        self._patience.again()
        if self._context.stop():
            raise _Stopped

    def _save(self) -> None:
        """Write a checkpoint between two windows: what the learner, the vote and the queued
        sequences need to continue; sequences kept for replay, by far the most of it, only if
        exactly.
        """
        self.learner.publish()  # the restart that follows pulls these parameters
        pending = self.collector.pending()
        kept = self.collector.kept() if self.config.checkpoint.exact else []
        sequences = self.store.read([slot for slot, _ in pending] + kept) if pending or kept else {}
        serial = SerialState(
            actor=self.actor.state_dict(),
            uses=[used for _, used in pending],
            kept=len(kept),
            replay_rng=dict(self.collector.rng.bit_generator.state),
            lags=[(lag.mean, lag.largest) for lag in self.learner.lags],
            spikes=self.learner.spikes.state(),
            received=self.collector.received,
            served=self.collector.served,
            served_again=self.collector.served_again,
            retired=self.collector.retired,
        )
        weights = self.learner.weights
        self.coordinator.checkpoint_begins()
        state = self.coordinator.synced_state(
            weights.steps_trained, self.actor.incarnation, serial, self.collector.books()
        )
        tensors = {
            "model": self.learner.network.state_dict(),
            "optimizer": weights.optimizer_tensors(),
            "sequences": {name: torch.from_numpy(array) for name, array in sequences.items()},
        }
        self.coordinator.saved(checkpoint.save(self.coordinator.run.directory, tensors, state))

    def _restore(self, start: Checkpoint) -> None:
        """Restore the learner and the collector from a checkpoint."""
        restore_weights(self.learner.weights, start)
        saved, books = start.state.serial, start.state.books
        if saved is None:  # from another runtime: new streams, no sequences
            self.collector.go_on(books or Books())
            return
        self.learner.lags = [Lag(mean, largest) for mean, largest in saved.lags]
        if saved.spikes:
            self.learner.spikes.restore(saved.spikes)
        slots = self.collector.restore(saved.uses, saved.kept)
        waiting = self.collector.books().waiting
        # a checkpoint from before there were books has these counts
        self.collector.go_on(
            books
            or Books(
                saved.received,
                saved.served + waiting,
                saved.served,
                saved.served_again,
                waiting=waiting,
            )
        )
        self.collector.retired = saved.retired
        self.collector.rng.bit_generator.state = saved.replay_rng
        if slots:
            stored = checkpoint.read_tensors(start.path, "sequences")
            sequences = with_single_frames(
                self.store.fields, {name: tensor.numpy() for name, tensor in stored.items()}
            )
            self.store.write(slots, sequences, list(range(len(slots))))
