"""``state.json`` of a checkpoint: all of a run's state that is not a tensor, as one value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dicerl.errors import CheckpointError

FORMAT = 2  # 2: a vote for each number of the behaviour family


@dataclass
class SerialState:
    """What the serial runtime also needs to continue exactly; its sequences are tensors."""

    actor: dict[str, Any]  # random state and step count
    uses: list[int]  # so far, of each queued sequence
    kept: int  # sequences kept for replay
    replay_rng: dict[str, Any]
    lags: list[tuple[float, float]]  # (mean, largest) of batches since the last diagnostics
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
    serial: SerialState | None = None  # None: from another runtime, which saves no sequences
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """The state as nested dicts; ``from_dict`` reads them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunState:
        """Read what ``to_dict`` returned; a CheckpointError names a wrong format or a missing
        field.
        """
        if data.get("format") != FORMAT:
            raise CheckpointError(f"format {data.get('format')!r}; this version reads {FORMAT}")
        serial = data.get("serial")
        # precision: missing in checkpoints from before there was a choice
        values = {"serial": None, "precision": "float32", **data}
        if serial is not None:
            values["serial"] = _build(SerialState, serial)
        state: RunState = _build(cls, values)
        return state


def _build(kind: Any, data: dict[str, Any]) -> Any:
    names = [f.name for f in dataclasses.fields(kind)]
    missing = [name for name in names if name not in data]
    if missing:
        raise CheckpointError(f"no {missing[0]} in it")
    return kind(**{name: data[name] for name in names})
