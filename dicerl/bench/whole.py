"""Throughput of a real run, and where its time goes: who waits for whom."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dicerl.api import run_to_end
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.metrics import read_lines
from dicerl.progress import Progress
from dicerl.run import Run
from dicerl.runtime.setup import Plan, prepare_network

# Of a train line: fractions of the actors' and of the learner's time, and how far the two are apart.
TOLD = ("actor_environment", "actor_inference", "actor_copying", "actor_waiting", "learner_training", "learner_copying", "learner_pushing",
        "learner_starved", "queued_sequences", "policy_lag", "policy_lag_max")


class Stopwatch(Progress):
    """Counts agent steps over a stretch that begins when the learner has made its first updates."""

    def __init__(self, seconds: float, repeat: int) -> None:
        super().__init__("", quiet=True)
        self._seconds, self._repeat = seconds, repeat
        self._start: tuple[float, int] | None = None
        self._end: tuple[float, int] | None = None
        self.started = 0.0  # time of day

    def update(self, values: dict[str, Any], force: bool = False) -> None:
        now = (time.perf_counter(), values["frames"])
        if self._start is None and values["updates"] >= 10:
            self._start, self.started = now, time.time()
        elif self._start is not None and now[0] - self._start[0] >= self._seconds:
            self._end = self._end or now

    def done(self) -> bool:
        return self._end is not None

    def steps_per_s(self) -> float:
        if self._start is None or self._end is None:
            return 0.0
        return (self._end[1] - self._start[1]) / self._repeat / (self._end[0] - self._start[0])


def whole(config: Config, spec: EnvSpec, machine: Plan, seconds: float) -> dict[str, float]:
    """{"steps_per_s", and what of TOLD the runtime tells} of a real run, evaluation and checkpoints aside."""
    watch = Stopwatch(seconds, spec.action_repeat)
    with tempfile.TemporaryDirectory() as folder:
        long = config.replace(**{
            "run_dir": f"{folder}/run", "frames": 10**12, "evaluation.every": 0, "checkpoint.every": 0, "tensorboard": False,
            "optimizer.warmup": 1000.0, "log_every": min(config.log_every, 20)})
        run_to_end(Run.create(long), spec, machine, prepare_network(long, spec, None), None, None, True, progress=watch, stop_when=watch.done)
        lines = [x for x in read_lines(Path(folder) / "run" / "metrics.jsonl") if x["kind"] == "train" and x["time"] > watch.started]
    means = {name: statistics.fmean(x[name] for x in lines if name in x) for name in TOLD if any(name in x for x in lines)}
    return {"steps_per_s": watch.steps_per_s(), **means}
