"""``state.json`` of a checkpoint: all of a run's state that is not a tensor, as one value."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from dicerl.config import Config
from dicerl.errors import CheckpointError, shortened
from dicerl.records.books import Books

FORMAT = 2  # 2: a vote for each number of the behaviour family
LARGEST = 2**62  # of a count: what int64 holds, with room to add to it


@dataclass
class SerialState:
    """What the serial runtime also needs to continue exactly; its sequences are tensors."""

    actor: dict[str, Any]  # random state and step count
    uses: list[int]  # so far, of each queued sequence
    kept: int  # sequences kept for replay
    replay_rng: dict[str, Any]
    lags: list[tuple[float, float]]  # (mean, largest) of batches since the last diagnostics
    spikes: list[float]  # of the gradient's norm (parts/spikes.py)
    # counts of the collector
    received: int
    served: int
    served_again: int
    retired: int


@dataclass
class RunState:
    """The state of a run, as a checkpoint stores it."""

    agent_steps: int = 0
    frames: int = 0  # agent steps times action repeat
    updates: int = 0
    skipped: int = 0  # of those: changed nothing, since a loss or a gradient was not finite
    healed: int = 0  # parts that were replaced, and returns to a checkpoint
    episodes: int = 0
    steps_trained: int = 0  # valid ones, counted once per use; the schedules follow this
    elapsed: float = 0.0  # seconds
    recent: list[float] = field(default_factory=list)  # returns of the last episodes
    evaluated_at: int = 0  # frames
    saved_at: int = 0  # frames
    best_evaluation: float | None = None
    best_checkpoint: int | None = None  # updates behind the parameters with the best evaluation
    incarnation: int = 0  # the highest of any actor: the next ones get new random streams
    temperatures: dict[str, Any] = field(default_factory=dict)  # the votes (agent/behaviour.py)
    total_updates: int = 0  # of the whole run
    metrics_offset: int = 0  # bytes of metrics.jsonl that belong to this checkpoint
    config_hash: str = ""
    precision: str = "float32"  # of the torso (runtime.precision)
    books: Books | None = None  # None: from before there were any
    serial: SerialState | None = None  # None: from another runtime, which saves no sequences
    format: int = FORMAT

    def complete(self, config: Config) -> bool:
        """Whether nothing is left to do: all frames of ``config``, and their evaluation."""
        evaluated = not config.evaluation.every or self.evaluated_at >= self.frames
        return self.frames >= config.frames and evaluated

    def to_dict(self) -> dict[str, Any]:
        """The state as nested dicts; ``from_dict`` reads them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunState:
        """Read what ``to_dict`` returned; a CheckpointError names a wrong format, and a field that
        is missing or has a value no run wrote.
        """
        if data.get("format") != FORMAT:
            raise CheckpointError(f"format {data.get('format')!r}; this version reads {FORMAT}")
        # what checkpoints from before there was such a field lack
        added = {"serial": None, "books": None, "precision": "float32", "skipped": 0, "healed": 0}
        values = {**added, **data}
        if isinstance(values["serial"], dict):
            values["serial"] = {"spikes": [], **values["serial"]}
        state: RunState = _build(cls, values)
        return state


def _build(kind: Any, data: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    missing = [name for name in hints if name not in data]
    if missing:
        raise CheckpointError(f"no {missing[0]} in it")
    return kind(**{name: _value(name, hint, data[name]) for name, hint in hints.items()})


def _value(name: str, hint: Any, value: Any) -> Any:
    """``value`` if it is of the type ``hint``; whole numbers are counts. Comes from JSON without
    NaN (files.py).
    """
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is types.UnionType:  # X | None
        return None if value is None else _value(name, inner[0], value)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _build(hint, value)
    if kind is list and isinstance(value, list):
        return [_value(name, inner[0], item) for item in value]
    if kind is tuple and isinstance(value, list | tuple) and len(value) == len(inner):
        return tuple(_value(name, one, item) for one, item in zip(inner, value, strict=True))
    if hint is int and type(value) is int and 0 <= value <= LARGEST:
        return value
    if hint is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return value
    if (hint is str and isinstance(value, str)) or (kind is dict and isinstance(value, dict)):
        return value
    raise CheckpointError(f"a {name} that no run wrote: {shortened(value)}")
