"""``state.json`` of a checkpoint: everything of a run that is not a tensor, as one value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from dicerl.errors import CheckpointError

FORMAT = 2  # 2: a vote for each number of the behaviour family


@dataclass
class SerialState:
    """What the serial runtime needs beside it to go on exactly; its sequences are tensors."""

    actor: dict[str, Any]  # random state and count of its steps
    uses: list[int]  # so far, of each sequence that waits for its next one
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
    """Where a run stands."""

    agent_steps: int = 0
    frames: int = 0  # agent steps times action repeat
    updates: int = 0
    episodes: int = 0
    steps_trained: int = 0  # valid ones, each as often as it was trained: how far the schedules are
    elapsed: float = 0.0  # seconds
    recent: list[float] = field(default_factory=list)  # returns of the last episodes
    evaluated_at: int = 0  # frames
    saved_at: int = 0  # frames
    best_evaluation: float | None = None
    best_checkpoint: int | None = None  # updates of the first checkpoint after it
    incarnation: int = 0  # the highest of any actor: the next lives get new random streams
    temperatures: dict[str, Any] = field(default_factory=dict)  # the votes (agent/behaviour.py)
    total_updates: int = 0  # of the whole run
    metrics_offset: int = 0  # bytes of metrics.jsonl that belong to this checkpoint
    config_hash: str = ""
    serial: SerialState | None = None  # None: of another runtime, whose sequences are not saved
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunState:
        """From what ``to_dict`` gave; a CheckpointError names the format or the missing field."""
        if data.get("format") != FORMAT:
            raise CheckpointError(f"format {data.get('format')!r}; this version reads {FORMAT}")
        serial = data.get("serial")
        values = {"serial": None, **data}
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
