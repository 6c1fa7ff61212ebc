"""Loads with hand-made costs, for the tests of plan/."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dicerl.plan.costs import Books, Costs, Wire
from dicerl.plan.machines import Layout, Machines
from dicerl.plan.model import Load

NOTHING = Books(0.0, 0.0, 0.0, 0.0)


def load(
    *,
    cpus: int = 100,
    actors: tuple[int, ...] = (10,),
    envs: int = 4,
    learners: int = 1,
    threads: int = 1,
    step: float = 1e-3,
    update: float = 0.01,
    capacity: int = 100_000,
    gbits: float = 10.0,
    **changes: Any,
) -> Load:
    """Sequences of 20 steps, batches of 8, each trained once: an update for every 160 agent steps.
    There are more slots than anybody needs, and messages cost nothing.
    """
    runtime = "ray" if len(actors) > 1 else "process"
    machines = Machines(cpus, 0, len(actors), gbits)
    layout = Layout(
        machines, runtime, actors, sum(actors) * envs, learners, threads, capacity, 0, 0, 1000
    )
    wire = Wire(0.0, 0.0, shared=runtime == "process")
    found = Load(
        layout,
        Costs(step, update, 0.0),
        NOTHING,
        wire,
        length=20,
        new_sequences=8,
        reuse=1,
        updates_per_step=1 / 160,
        sequence_bytes=20_000,
        parameter_bytes=1_000_000,
        push_every=1,
        pull_every=20,
    )
    return replace(found, **changes)
