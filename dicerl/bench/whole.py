"""Throughput of a real run, and where its time goes: who waits for whom."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dicerl.bench.memory import Watch
from dicerl.bench.stages import uses
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.records.metrics import read_lines
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.records.vocabulary import STAGE_FIELDS, declared
from dicerl.runtime.launch import run_to_end
from dicerl.runtime.setup import Plan, prepare_model

# From train lines: fractions of the actors' and the learner's time, and how far apart they are.
MEASURED = declared(
    "train", *STAGE_FIELDS, "queued_sequences", "policy_lag", "policy_lag_max", "valid_fraction"
)

STEPS_PER_LINE = 3200  # trained steps between two train lines
WARM_UP_UPDATES, WARM_UP = 3, 0.2  # at least; a fraction of the requested time
# how often the collector's contents are replaced; by what factor that may exceed the requested time
TURNOVERS, PATIENCE = 2.0, 15.0


def updates_per_line(config: Config) -> int:
    """Few enough that even slow updates report several times who waits for whom, many enough that
    reporting does not slow quick ones down.
    """
    return max(
        1, min(config.log_every, STEPS_PER_LINE // (config.sequence.batch * config.sequence.length))
    )


class Stopwatch(Progress):
    """Times learner updates, from one to another: from when it is warm, for long enough that what
    waits in the collector hardly matters. Agent steps would be coarser: actors take them a whole
    window at a time and then wait, so those between two of a few slow updates say little.
    """

    def __init__(self, seconds: float, repeat: int, held: int) -> None:
        super().__init__("", quiet=True)
        self._seconds, self._repeat, self._held = seconds, repeat, held  # steps the collector holds
        self._first: float | None = None
        self._start: tuple[float, int, int] | None = None  # time, updates, agent steps
        self._end: tuple[float, int] | None = None  # time, updates
        self._updates = 0
        self.started = 0.0  # time of day

    def update(self, values: dict[str, Any], force: bool = False) -> None:
        if values["updates"] == self._updates:
            return
        self._updates = values["updates"]
        now, steps = time.perf_counter(), values["frames"] // self._repeat
        self._first = now if self._first is None else self._first
        if self._start is None:
            if self._updates >= WARM_UP_UPDATES and now - self._first >= WARM_UP * self._seconds:
                self._start, self.started = (now, self._updates, steps), time.time()
        elif self._end is None:
            passed = now - self._start[0]
            steady = steps - self._start[2] >= TURNOVERS * self._held
            if passed >= self._seconds and (steady or passed >= PATIENCE * self._seconds):
                self._end = (now, self._updates)

    def done(self) -> bool:
        return self._end is not None

    def updates_per_s(self) -> float:
        if self._start is None or self._end is None:
            return 0.0
        return (self._end[1] - self._start[1]) / (self._end[0] - self._start[0])


def whole(
    config: Config, spec: EnvSpec, machine: Plan, seconds: float, watch: Stopwatch | None = None
) -> dict[str, float]:
    """{"steps_per_s" (agent steps that were trained), "memory_bytes" (the peak), and those of
    MEASURED that the runtime writes} of a real run, without evaluation and checkpoints.
    """
    waiting = machine.capacity - machine.kept  # of the slots: what is kept for replay stays
    watch = watch or Stopwatch(seconds, spec.action_repeat, waiting * config.sequence.length)
    with tempfile.TemporaryDirectory() as folder:
        long = config.replace(
            **{
                "run_dir": f"{folder}/run",
                "frames": 10**12,
                "evaluation.every": 0,
                "checkpoint.every": 0,
                "tensorboard": False,
                "optimizer.warmup": 1000.0,
                "log_every": updates_per_line(config),
            }
        )
        with Watch(every=min(5.0, max(0.5, seconds / 4))) as memory:
            run_to_end(
                Run.create(long),
                spec,
                machine,
                prepare_model(long, spec, None),
                quiet=True,
                progress=watch,
                stop_when=watch.done,
            )
        # Ctrl-C: a run stops with a checkpoint then; here there is nothing to save or to continue
        if not watch.done():
            raise KeyboardInterrupt
        lines = [
            x
            for x in read_lines(Path(folder) / "run" / "metrics.jsonl")
            if x["kind"] == "train" and x["time"] > watch.started
        ]
    means = {
        name: statistics.fmean(x[name] for x in lines if name in x)
        for name in MEASURED
        if any(name in x for x in lines)
    }
    trained = config.sequence.batch * config.sequence.length * means.get("valid_fraction", 1.0)
    steps_per_s = watch.updates_per_s() * trained / uses(config)
    return {"steps_per_s": steps_per_s, "memory_bytes": memory.most, **means}
