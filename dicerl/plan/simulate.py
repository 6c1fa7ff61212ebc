"""A run of simulated children under the real supervisor.

Supervisor, Coordinator, Collector, ParameterServer and the vote are those of every run; only the
children take simulated time (fleet.py).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.plan.costs import Books
from dicerl.plan.fleet import Numbers, SimulatedTransport, Tick, TimeIsUp
from dicerl.plan.model import Load
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.runtime.base import RunContext
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.setup import Plan
from dicerl.runtime.supervisor import Supervisor

TURNOVERS = 2.0  # of the collector's contents that are measured, at least
CYCLES = 50.0  # windows of an actor, or updates, that are measured, at least
# What bounds a simulation: visits of children by the supervisor, each time it wakes (and messages,
# which count as so many visits), and by how many times as many its start.
VISITS, START = 4e6, 10.0
FEW_AND_MANY, ROUNDS = (2, 300), 600  # actors and rounds from which the supervisor is measured


@dataclass(frozen=True)
class Simulated:
    """What a simulation found, between its warm-up and its end."""

    actors: int
    machines: int
    steps_per_s: float
    supervisor: float  # busy fractions
    learner: float
    network: float
    acting: float
    policy_lag: float  # in updates
    messages_per_s: float
    votes_per_s: float
    network_mb_per_s: float  # to the learner's machine
    seconds: float  # simulated
    settled: bool  # whether every sequence was replaced: the lag still grows otherwise


@dataclass
class Enough:
    """Whether a simulation has seen enough, and what it had seen when it was warm."""

    load: Load
    visits: float = VISITS
    warm: tuple[float, Numbers, float, float] | None = None
    settled: bool = False
    _least: float = field(init=False)

    def __post_init__(self) -> None:
        window = self.load.window_steps * self.load.actor_seconds()
        update = self.load.update_time() / self.load.layout.learners
        self._least = CYCLES * max(window, update)

    def __call__(self, transport: SimulatedTransport) -> bool:
        numbers, layout = transport.numbers, self.load.layout
        if self.warm is None:
            begun = numbers.windows >= layout.num_envs and numbers.updates > 0
            if begun or numbers.visits > START * self.visits:
                self.warm = (
                    transport.clock.now,
                    Numbers(**vars(numbers)),
                    transport.inward.busy,
                    transport.inward.carried,
                )
            return False
        since, before, _, _ = self.warm
        fresh = layout.capacity - layout.replay_slots
        replaced = (numbers.trained - before.trained) / self.load.reuse
        self.settled = replaced >= TURNOVERS * fresh
        over = numbers.visits - before.visits > self.visits
        return over or (self.settled and transport.clock.now - since >= self._least)


def simulate(
    config: Config, spec: EnvSpec, model: ActorCritic, load: Load, visits: float = VISITS
) -> Simulated:
    """Run the supervisor over simulated children until the numbers are steady, or for as much work
    as ``visits`` allow.
    """
    enough = Enough(load, visits)
    transport = run(config, spec, model, load, enough)
    assert enough.warm is not None
    since, before, link, carried = enough.warm
    now, numbers, layout = transport.clock.now, transport.numbers, load.layout
    passed = now - since
    sequences = numbers.trained - before.trained
    return Simulated(
        layout.num_actors,
        layout.machines.nodes,
        # what is trained: while the collector fills, more than that is collected
        (numbers.updates - before.updates) / load.updates_per_step / passed,
        (numbers.supervisor - before.supervisor) / passed,
        (numbers.learner - before.learner) / passed / layout.learners,
        (transport.inward.busy - link) / passed,
        (numbers.acting - before.acting) / passed / layout.num_actors,
        (numbers.lags - before.lags) / max(1, sequences),
        (numbers.messages - before.messages) / passed,
        (numbers.episodes - before.episodes) / passed,
        (transport.inward.carried - carried) / passed / 1e6,
        passed,
        enough.settled,
    )


def run(
    config: Config,
    spec: EnvSpec,
    model: ActorCritic,
    load: Load,
    end: Callable[[SimulatedTransport], bool],
) -> SimulatedTransport:
    """The real supervisor over simulated children, until ``end``."""
    layout = load.layout
    with tempfile.TemporaryDirectory() as folder:
        config = config.replace(
            **{
                "run_dir": f"{folder}/run",
                "frames": 10**13,
                "evaluation.every": 0,
                "checkpoint.every": 0,
                "tensorboard": False,
                "runtime.kind": layout.runtime,
                "runtime.num_envs": layout.num_envs,
                "runtime.num_actors": layout.num_actors,
                "runtime.stuck_seconds": 1e6,
            }
        )
        plan = Plan(
            layout.runtime,
            torch.device("cpu"),
            layout.num_actors,
            layout.learners,
            layout.threads,
            layout.capacity,
            layout.kept,
            layout.slot_bytes,
            10**9,
            layout.machines.cpus,
        )
        written = Run.create(config)
        coordinator = Coordinator(config, spec, plan, written, Progress("", quiet=True))
        transport = SimulatedTransport(load, end)
        try:
            supervisor = Supervisor(RunContext(config, spec, plan, model, coordinator), transport)
            with contextlib.suppress(TimeIsUp):
                supervisor.run()
        finally:
            coordinator.close()
            written.unlock()
    return transport


def measure_books(config: Config, spec: EnvSpec, model: ActorCritic, load: Load) -> Books:
    """What the supervisor's own work takes here: processor seconds of its rounds over simulated
    actors, few and many, whose episodes are short.
    """
    rows: list[Tick] = []
    for actors in FEW_AND_MANY:
        layout = replace(
            load.layout,
            machines=replace(load.layout.machines, nodes=1, cpus=actors),
            runtime="process",
            actors=(actors,),
            num_envs=actors * 4,
            learners=1,
            capacity=actors * 4 + config.sequence.batch + load.layout.replay_slots,
        )
        costs = replace(load.costs, step=1e-3, update=1e-3, read=0.0, episode_steps=400.0)
        quick = replace(load, layout=layout, costs=costs, gpu_update=1e-3)
        found = run(config, spec, model, quick, lambda t: len(t.ticks) >= ROUNDS)
        rows += found.ticks[ROUNDS // 4 :]
    work = np.array([[1, t.children, t.messages, t.episodes] for t in rows], np.float64)
    seconds = np.array([t.seconds for t in rows])
    usual = seconds <= np.quantile(seconds, 0.98)  # the rest had other work between
    found, *_ = np.linalg.lstsq(work[usual], seconds[usual], rcond=None)
    return Books(*(max(1e-7, float(x)) for x in found))
