"""Your own code at the moments of a run, and loggers made of that.

Callbacks run in the process that called ``train``, under every runtime. Lines are those of
metrics.jsonl (docs/metrics.md). A method that returns True stops the run with a checkpoint; one
that raises does so too, and the run then ends with the reason.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dicerl.config import Config
from dicerl.errors import ConfigError, DicerlError
from dicerl.records.run import Run
from dicerl.records.vocabulary import LINES

Line = dict[str, Any]


class Callback:
    """Override what you need."""

    def on_start(self, run: Run, frames: int) -> bool | None:
        """Training begins or, where ``frames`` is not 0, goes on from there."""

    def on_train(self, line: Line) -> bool | None:
        """An update was diagnosed: every ``log_every``-th is."""

    def on_episode(self, line: Line) -> bool | None:
        """A training episode ended; called for each, also where metrics.jsonl has no line of it."""

    def on_evaluation(self, line: Line) -> bool | None:
        """An evaluation ended."""

    def on_checkpoint(self, path: Path) -> bool | None:
        """A checkpoint is complete."""

    def on_end(self, run: Run) -> bool | None:
        """Training ended, with ``run.summary``; the last checkpoint is written."""


class Callbacks:
    """The callbacks of a run; ``say`` tells why one stopped it."""

    def __init__(self, callbacks: Sequence[Callback], say: Callable[[str], None]) -> None:
        self._callbacks, self._say = callbacks, say
        self.stop = False  # whether one wants the run to stop
        self.failure = ""  # what one of them raised

    def __call__(self, moment: str, *args: Any) -> None:
        """Call ``on_<moment>`` of each, unless one has failed before."""
        for callback in () if self.failure else self._callbacks:
            name = type(callback).__name__
            try:
                stop = getattr(callback, f"on_{moment}")(*args)
            except Exception as error:
                reason = str(error) if isinstance(error, DicerlError) else repr(error)
                self.failure = f"the callback {name} raised in on_{moment}: {reason}"
                self.stop = True
                return
            if stop and not self.stop:
                self.stop = True
                self._say(f"{name} stops the run")


class StopAt(Callback):
    """Stops a run whose evaluation, the mean at the best region, reaches ``score``."""

    def __init__(self, score: float) -> None:
        self.score = score

    def on_evaluation(self, line: Line) -> bool:
        return bool(line["mean_return"] >= self.score)


# --- loggers


def numbers(line: Line) -> dict[str, float]:
    """The single numbers of a line besides its counters, by ``kind/name``."""
    return {
        f"{line['kind']}/{name}": value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in ("time", "agent_steps", "frames")
    }


class CsvLog(Callback):
    """A table for each kind of line, in the run's directory: train.csv, episode.csv,
    evaluation.csv. A column for each declared field that is one number.
    """

    def on_start(self, run: Run, frames: int) -> None:
        self._tables = {}
        for kind in ("train", "episode", "evaluation"):
            path, columns = run.directory / f"{kind}.csv", list(LINES[kind])
            before = []
            if frames and path.exists():  # what follows the checkpoint is trained again
                with path.open(newline="") as file:
                    before = [row for row in csv.DictReader(file) if float(row["frames"]) <= frames]
            file = path.open("w", newline="")
            table = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            table.writeheader()
            table.writerows(before)
            self._tables[kind] = file, table

    def _write(self, line: Line) -> None:
        self._tables[line["kind"]][1].writerow(
            {name: value for name, value in line.items() if not isinstance(value, list | dict)}
        )

    on_train = on_episode = on_evaluation = _write

    def on_checkpoint(self, path: Path) -> None:
        for file, _ in self._tables.values():
            file.flush()

    def on_end(self, run: Run) -> None:
        for file, _ in self._tables.values():
            file.close()


class WandbLog(Callback):
    """Weights & Biases: settings are the environment's variables (WANDB_PROJECT, WANDB_MODE)."""

    def __init__(self) -> None:
        self._wandb = _imported("wandb")

    def on_start(self, run: Run, frames: int) -> None:
        self._run = self._wandb.init(
            name=run.directory.name,
            dir=str(run.directory),
            config=run.config.to_dict(),
            resume="allow",
            id=run.config.hash() + f"-{run.config.seed}",
        )

    def _log(self, line: Line) -> None:
        self._run.log({**numbers(line), "frames": line["frames"]})

    on_train = on_episode = on_evaluation = _log

    def on_end(self, run: Run) -> None:
        self._run.finish()


class MlflowLog(Callback):
    """MLflow: settings are the environment's variables (MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME).
    """

    def __init__(self) -> None:
        self._mlflow = _imported("mlflow")

    def on_start(self, run: Run, frames: int) -> None:
        self._mlflow.start_run(run_name=run.directory.name)
        for section, values in run.config.to_dict().items():
            fields = values if isinstance(values, dict) else {"": values}
            self._mlflow.log_params(
                {f"{section}.{name}".rstrip("."): value for name, value in fields.items()}
            )

    def _log(self, line: Line) -> None:
        self._mlflow.log_metrics(numbers(line), step=line["frames"])

    on_train = on_episode = on_evaluation = _log

    def on_end(self, run: Run) -> None:
        self._mlflow.end_run()


LOGGERS: dict[str, type[Callback]] = {"csv": CsvLog, "wandb": WandbLog, "mlflow": MlflowLog}


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ConfigError("log", package, f"it needs a package: pip install {package}") from None


def configured(config: Config) -> list[Callback]:
    """The callbacks that a config asks for."""
    found: list[Callback] = []
    if config.log != "none":
        found.append(LOGGERS[config.log]())
    if config.evaluation.stop_at:
        found.append(StopAt(float(config.evaluation.stop_at)))
    return found
