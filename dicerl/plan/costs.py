"""What the model and the simulation are fed with: the costs of an actor's step and of an update
(measured here, or from a file of ``dicerl bench --json``), and those of a message.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dicerl.bench.costs import Work, costs, measured_sequences
from dicerl.config import Config, flatten, validate
from dicerl.envs import EnvSpec
from dicerl.errors import ConfigError, DicerlError, shortened
from dicerl.plan.machines import Layout
from dicerl.records import files
from dicerl.runtime import precision
from dicerl.runtime.machine import cores, hardware
from dicerl.runtime.messages import SlotsWanted
from dicerl.runtime.setup import is_small

SECONDS = 3.0  # of a quick measurement
MOST = 1e15  # of any number in a file of costs
# What a file's costs depend on: they are of another work where one of these differs.
DEPENDS = ("env", "network", "sequence", "loss", "behaviour")


@dataclass(frozen=True)
class Costs:
    """The seconds of a core that a run's parts take (of a clock, in the runtime serial)."""

    step: float  # an agent step of an actor
    update: float  # an update on the CPU, its threads together
    read: float  # to read its batch, of these
    valid: float = 1.0  # the fraction of an actor's steps that are agent steps
    episode_steps: float = 1000.0  # agent steps of an episode
    actor_bytes: float = 0.0  # of its process
    learner_bytes: float = 0.0


@dataclass(frozen=True)
class Wire:
    """The seconds of a core that a transport takes."""

    call: float  # a message, at either end
    megabyte: float  # of a sequence or of parameters, at either end
    shared: bool  # memory: sequences and parameters do not travel
    frames: float = 0.0  # a megabyte of frames, to compress or decompress it


# Ray 2.60 on two cores of an AMD EPYC, by processor time, beside other work (benchmarks/wire.py; a
# second run had 0.75 to 0.85 ms a call). A megabyte includes what the raylet does.
RAY = Wire(call=6e-4, megabyte=2.5e-3, shared=False, frames=4e-4)
COMPRESSED = 0.05  # of frames; 0.014 to 0.055 in four games (benchmarks/cluster/compress.py)
EXCHANGES = 2000  # of messages through a pipe, to measure it


def pipe() -> Wire:
    """The wire of the runtime process: a pipe of this machine, and shared memory."""
    ours, theirs = multiprocessing.Pipe()
    message = SlotsWanted(100, 8)
    start = time.process_time()
    for _ in range(EXCHANGES):
        ours.send(message)
        theirs.recv()
    return Wire((time.process_time() - start) / EXCHANGES / 2, 0.0, shared=True)


@dataclass(frozen=True)
class Books:
    """The seconds of a core that the supervisor's own work takes."""

    tick: float  # each time it wakes
    child: float  # of these, for each child
    message: float  # one received, with its answer
    episode: float  # one that ended: the vote learns, a line is written, the next is drawn


def of_file(path: str, config: Config, layout: Layout) -> tuple[Costs, dict[str, Any], list[str]]:
    """(costs, the machine they were measured on, assumptions) from what ``dicerl bench --json``
    printed for the same work.
    """
    try:
        result = files.read_json(Path(path))
    except (OSError, ValueError) as error:
        raise DicerlError(
            f"--costs {path} cannot be read: {error}; it must be what dicerl bench --json printed"
        ) from None
    found = result.get("costs") if isinstance(result, Mapping) else None
    if not isinstance(found, Mapping) or not all(
        isinstance(result.get(part), Mapping) for part in ("machine", "config")
    ):
        raise DicerlError(
            f"--costs {path} holds no costs; it must be what dicerl bench --json printed"
        )
    name = "serial" if layout.runtime == "serial" else "process"
    if name not in found:
        raise DicerlError(
            f"--costs {path} was not measured under the runtime {name}: give dicerl bench"
            f" --runtime {name}"
        )
    then, now = flatten(result["config"]), flatten(config.to_dict())
    for field, value in now.items():
        before = then.get(field, value)
        before = tuple(before) if isinstance(before, list) else before
        if field.split(".")[0] in DEPENDS and before != value:
            raise ConfigError(field, value, f"--costs {path} was measured with {before!r}")
    try:
        values, envs = _costs(found[name]), int(_number(found[name], "num_envs"))
    except (KeyError, TypeError, ValueError) as error:
        raise DicerlError(f"--costs {path} is damaged: {error!r}") from None
    assumptions = []
    if envs != layout.envs_per_actor:
        assumptions.append(
            f"they were measured with {envs} environments in an actor, where"
            f" {layout.envs_per_actor} are planned"
        )
    return values, dict(result["machine"]), assumptions


def _costs(found: Mapping[str, Any]) -> Costs:
    values = Costs(
        _number(found, "step_seconds"),
        _number(found, "update_seconds"),
        _number(found, "read_seconds"),
        _number(found, "valid_fraction"),
        _number(found, "episode_steps"),
        _number(found, "actor_bytes"),
        _number(found, "learner_bytes"),
    )
    if not min(values.step, values.update, values.valid, values.episode_steps) > 0:
        raise ValueError("a cost is not above 0")
    return values


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found[name]
    if type(value) not in (int, float) or not 0 <= value <= MOST:
        raise ValueError(f"its {name} is {shortened(value)}")
    return float(value)


def measure(
    config: Config, spec: EnvSpec, layout: Layout, seconds: float, say: Callable[[str], None]
) -> tuple[Costs, dict[str, Any], list[str]]:
    """The same, measured here on the CPU with actors of the layout's size."""
    here, cpu = cores(), torch.device("cpu")
    config = precision.resolved(validate(config), spec, layout.runtime, cpu)
    sequences = measured_sequences(config, is_small(spec), cpu)
    threads = 1 if layout.on_gpu else min(layout.threads, here)
    serial = layout.runtime == "serial"
    work = Work(config, spec, cpu, layout.envs_per_actor, threads, sequences, serial)
    found = _costs(costs(work, seconds, say))
    assumptions = []
    if sequences < config.sequence.batch and not layout.on_gpu:
        assumptions.append(
            f"an update was measured with {sequences} of its {config.sequence.batch} sequences, and"
            " costs in proportion"
        )
    if threads < layout.threads:
        assumptions.append(
            f"the learner's {layout.threads} threads share an update as well as {threads} do here"
        )
    return found, hardware(), assumptions
