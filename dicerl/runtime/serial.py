"""One process: actor and learner take turns. Bit-for-bit reproducible from a seed, and from a
checkpoint.

An environment's inner state cannot be saved in general, so in this runtime a checkpoint is also a
restart: right after a window of every environment was sent, the checkpoint is written and all
environments are reset with seeds derived from the update count. Nothing is lost (every step taken
stands in a sent window), and unfinished episodes are not reported. A run that is killed and resumed
from such a checkpoint does exactly what it would have done anyway; a stop by Ctrl-C writes one
checkpoint more, and so restarts the episodes once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.behaviour import Behaviour
from dicerl.config import Config, seeding
from dicerl.envs import EnvSpec, MakeEnv, make_vector_env
from dicerl.parts import collector
from dicerl.parts.actor import Actor
from dicerl.parts.diagnostics import Lag
from dicerl.parts.evaluator import Evaluator
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Arrays, Store, schema, window_length
from dicerl.records import checkpoint
from dicerl.records.timing import Times
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.setup import Plan, build_model, keep_freed_memory

COUNTS = ("received", "served", "served_again", "retired")  # of the collector


class SerialRuntime:
    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        plan: Plan,
        model: ActorCritic,
        coordinator: Coordinator,
        make_env: MakeEnv | None,
        resume: tuple[Any, dict[str, Any]] | None = None,
        stop: Callable[[], bool] = lambda: False,
        on_batch: Callable[..., None] | None = None,
    ) -> None:
        keep_freed_memory()
        torch.set_num_threads(plan.learner_threads)
        self.config, self.plan, self.coordinator, self._stop = config, plan, coordinator, stop
        self._on_batch = on_batch
        self._make_env, self._spec = make_env, spec
        self.times = Times()
        fields = schema(config, spec)
        self.store = Store(fields, window_length(config), plan.capacity)
        self.collector = collector.build(config, plan.capacity)
        self.parameters = ParameterServer(model.flat.vector.numel())
        self.learner = Learner(
            model, plan.total_updates, plan.device, plan.learner_threads, publish=self._push
        )
        self._evaluator: Evaluator | None = None
        saved: dict[str, Any] = {}
        incarnation = 0
        if resume is not None:
            path, state = resume
            # a checkpoint of the process runtime has none: new streams, no sequences
            saved = state.get("serial", {})
            self.learner.weights.load_optimizer_tensors(checkpoint.read_tensors(path, "optimizer"))
            self.learner.weights.updates, self.learner.weights.steps_trained = (
                coordinator.updates,
                state["steps_trained"],
            )
            self.learner.lags = [Lag(*lag) for lag in saved.get("lags", [])]
            incarnation = state["incarnation"] + 1
            slots = self.collector.restore(saved.get("uses", []), saved.get("kept", 0))
            for name in COUNTS:
                setattr(self.collector, name, saved.get(name, 0))
            if "replay_rng" in saved:
                self.collector.rng.bit_generator.state = saved["replay_rng"]
            if slots:
                sequences = {
                    n: t.numpy() for n, t in checkpoint.read_tensors(path, "sequences").items()
                }
                self.store.write(slots, sequences, list(range(len(slots))))
        self.learner.publish()
        self.actor = Actor(
            build_model(config, spec),
            make_vector_env(config, config.runtime.num_envs, make_env),
            rng=np.random.default_rng(seeding.stream(config.seed, "actor", 0, incarnation)),
            env_seed=self._env_seed(),
            get_parameters=self.parameters.pull,
            send_sequences=self._send,
            end_episodes=lambda episodes: coordinator.end_episodes(0, episodes),
            next_behaviours=self._next_behaviours,
            incarnation=incarnation,
        )
        if saved:
            self.actor.load_state_dict(saved["actor"])

    def _env_seed(self) -> int:
        return seeding.integer(
            seeding.stream(self.config.seed, "environment", 0, self.learner.updates)
        )

    def _next_behaviours(self, wanted: int) -> Callable[[], list[Behaviour]]:
        drawn = self.coordinator.next_behaviours(0, wanted)
        return lambda: drawn

    def _send(self, windows: Arrays) -> None:
        columns = list(range(self.config.runtime.num_envs))
        while True:
            slots = self.collector.lend(len(columns))
            with self.times("actor_copying"):
                self.store.write(slots, windows, columns[: len(slots)])
            self.collector.receive(slots)
            columns = columns[len(slots) :]
            if not columns:
                return
            self._train_batch()  # full: the actor waits for the learner to free a slot

    def run(self) -> bool:
        """Train to the end of the run, or to a stop; True where the run is complete."""
        c = self.coordinator
        while True:
            while not self.actor.act():
                self._advance()
            self._train()
            complete = c.collected_all()
            if c.evaluation_due() or (complete and self.config.evaluation.every):
                self.evaluate()
            if complete or self._stop():
                self.save()
                return complete
            if c.checkpoint_due():
                self.save()
                self.actor.incarnation += 1
                self.actor.restart(self._env_seed())
            else:
                self._advance()
            c.show()

    def _advance(self) -> None:
        before = self.actor.agent_steps
        self.actor.advance()
        self.coordinator.agent_steps += self.actor.agent_steps - before

    def _train(self) -> None:
        """All the batches there are."""
        while self.collector.ready():
            self._train_batch()

    def _train_batch(self) -> None:
        slots = self.collector.next_batch()
        with self.times("learner_copying"):
            batch = self.store.read(slots)
        self.collector.taken(slots)
        if self._on_batch is not None:
            self._on_batch(self.learner, batch)
        with self.times("learner_training"):
            diagnostics = self.learner.update(
                batch, diagnose=self.learner.updates % self.config.log_every == 0
            )
        if diagnostics is not None:
            diagnostics |= self.times.take() | {
                f"actor_{name}": part for name, part in self.actor.times.take().items()
            }
        self.coordinator.trained(diagnostics, self.collector.numbers())

    def _push(self, flat: torch.Tensor, version: int) -> None:
        with self.times("learner_pushing"):
            self.parameters.push(flat, version)

    def evaluate(self) -> None:
        c = self.coordinator
        if self._evaluator is None:
            self._evaluator = Evaluator(self.learner.model, self._make_env)
        seed = seeding.stream(self.config.seed, "evaluation", self.learner.updates)
        c.evaluated_at = c.frames
        c.evaluated(
            self._evaluator.evaluate(c.behaviours.evaluation_region(), seed), self.learner.updates
        )

    def save(self) -> None:
        """A checkpoint between two windows: what the learner, the vote and the waiting sequences
        need to go on exactly.
        """
        self.learner.publish()  # the restart that follows pulls these
        pending, kept = self.collector.pending(), self.collector.kept()
        sequences = self.store.read([slot for slot, _ in pending] + kept) if pending or kept else {}
        state = self.coordinator.state() | {
            "steps_trained": self.learner.weights.steps_trained,
            "incarnation": self.actor.incarnation,
            "serial": {
                "actor": self.actor.state_dict(),
                "uses": [used for _, used in pending],
                "kept": len(kept),
                "replay_rng": self.collector.rng.bit_generator.state,
                "lags": self.learner.lags,
                **{name: getattr(self.collector, name) for name in COUNTS},
            },
        }
        checkpoint.save(
            self.coordinator.run.directory,
            self.learner.updates,
            {
                "model": self.learner.network.state_dict(),
                "optimizer": self.learner.weights.optimizer_tensors(),
                "sequences": {n: torch.from_numpy(a) for n, a in sequences.items()},
            },
            state,
        )
        self.coordinator.saved()

    def close(self) -> None:
        self.actor.env.close()
        if self._evaluator is not None:
            self._evaluator.close()
