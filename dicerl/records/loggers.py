"""Callbacks that write a run's lines elsewhere: tables (CSV), Weights & Biases, MLflow.

A run that goes back to its checkpoint, in mid-run or when a killed one is resumed, repeats what
came after it. Tables are cut back as metrics.jsonl is. The two services cannot take back what
they were sent: they get a line only once the run has passed what it had reached before, so no
range is there twice.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from dicerl.config import Config
from dicerl.errors import ConfigError, DicerlError
from dicerl.records import files
from dicerl.records.callbacks import Callback, Line, StopAt
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run
from dicerl.records.vocabulary import LINES

KINDS = ("train", "episode", "evaluation")
SENT = "log.json"  # in a run's directory: what a service has of it
TABLES = {kind: f"{kind}.csv" for kind in KINDS}
# all that these may leave in a run's directory; W&B makes a folder of its own
WRITTEN = (*TABLES.values(), *(f"{name}.new" for name in TABLES.values()), SENT, "wandb")


def numbers(line: Line) -> dict[str, float]:
    """The single numbers of a line besides its counters, by ``kind/name``."""
    return {
        f"{line['kind']}/{name}": value
        for name, value in line.items()
        if isinstance(value, int | float) and name not in ("time", "agent_steps", "frames")
    }


# --- tables


class CsvLog(Callback):
    """A table for each kind of line, in the run's directory: train.csv, episode.csv,
    evaluation.csv. A column for each declared field that is one number.
    """

    def __init__(self) -> None:
        self._tables: dict[str, tuple[Any, csv.DictWriter[str]]] = {}

    def on_start(self, run: Run, frames: int) -> None:
        written: dict[str, Counter[Any]] = {kind: Counter() for kind in KINDS}
        if any((run.directory / name).exists() for name in TABLES.values()):
            for line in read_lines(run.directory / "metrics.jsonl"):  # it is cut back by now
                # a line that no run wrote has no row
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    written[line["kind"]][_identity(line)] += 1
        for kind, name in TABLES.items():
            path = run.directory / name
            before = _rows_kept(path, written[kind], frames if kind == "episode" else 0)
            new = path.with_name(f"{path.name}.new")
            with new.open("w", newline="") as file:
                table = _writer(file, kind)
                table.writeheader()
                table.writerows(before)
            new.replace(path)
            # by lines, or a kill would take rows from before a checkpoint with it
            file = path.open("a", newline="", buffering=1)
            self._tables[kind] = file, _writer(file, kind)

    def on_back(self, run: Run, frames: int) -> None:
        self.on_end(run)
        self.on_start(run, frames)

    def _write(self, line: Line) -> None:
        self._tables[line["kind"]][1].writerow(
            {name: value for name, value in line.items() if not isinstance(value, list | dict)}
        )

    on_train = on_episode = on_evaluation = _write

    def on_end(self, run: Run) -> None:
        for file, _ in self._tables.values():
            file.close()


def _writer(file: Any, kind: str) -> csv.DictWriter[str]:
    return csv.DictWriter(file, list(LINES[kind]), restval="", extrasaction="ignore")


def _identity(line: dict[str, Any]) -> tuple[float, ...]:
    """What tells a line, or a row, from others; of equal ones the first comes first."""
    return tuple(float(line[name]) for name in ("time", "agent_steps", "updates"))


def _rows_kept(path: Path, written: Counter[Any], frames: int) -> list[dict[str, str]]:
    """The rows of a table up to the last whose line is still in metrics.jsonl. Of very many
    episodes only some have a line: those that follow are kept up to ``frames``.
    """
    if not path.exists():
        return []
    rows, kept = [], 0
    # half a row, or what no run wrote, is the end
    with (
        path.open(newline="") as file,
        contextlib.suppress(KeyError, TypeError, ValueError, csv.Error),
    ):
        for row in csv.DictReader(file):
            identity, at = _identity(row), float(row["frames"])
            rows.append(row)
            if written[identity] > 0:
                written[identity] -= 1
                kept = len(rows)
            elif kept == len(rows) - 1 and at < frames:
                kept = len(rows)
    return rows[:kept]


# --- services


class Sent:
    """What a service has of a run: how far it got in each kind of line, and under which name. It is
    on disk before a line is sent, so that a kill makes none be sent twice.
    """

    def __init__(self, path: Path, service: str) -> None:
        self._service = service
        self.id = ""  # the run's name there
        self.lines = 0
        self._reached: dict[str, tuple[int, int]] = {}  # kind -> (frames, updates) of its last line
        if path.exists():
            try:
                known = files.read_json(path)
                if known["log"] == service:
                    self.id, self.lines = str(known["id"]), int(known["lines"])
                    self._reached = {
                        kind: (int(frames), int(updates))
                        for kind, (frames, updates) in known["reached"].items()
                    }
            except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
                raise DicerlError(
                    f"{path} is damaged ({error}); remove it, and what follows is a new run in"
                    f" {service}"
                ) from None
        self.again()
        self._file = path.open("r+b" if path.exists() else "w+b", buffering=0)
        self._width = path.stat().st_size

    def called(self, name: str) -> None:
        """The run is ``name`` in the service. Under a new one nothing has been sent."""
        if name != self.id:
            self.id, self.lines, self._reached = name, 0, {}
            self.again()
        self._write()

    def again(self) -> None:
        """What follows may have been sent before."""
        self._until = dict(self._reached)

    def is_new(self, line: Line) -> bool:
        """Whether to send a line; it counts as sent then."""
        kind, place = line["kind"], (line["frames"], line["updates"])
        if place <= self._until.get(kind, (-1, -1)):
            return False
        self._reached[kind] = max(place, self._reached.get(kind, place))
        self.lines += 1
        self._write()
        return True

    def _write(self) -> None:
        """In place, and at least as long as before: one short write, which a kill does not cut."""
        text = json.dumps(
            {"log": self._service, "id": self.id, "lines": self.lines, "reached": self._reached}
        )
        self._width = max(self._width, len(text))
        self._file.seek(0)
        self._file.write(text.ljust(self._width).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ServiceLog(Callback):
    """What W&B and MLflow have in common. A resumed run goes on as the same run there."""

    package = ""

    def __init__(self) -> None:
        self._api = _imported(self.package)

    def on_start(self, run: Run, frames: int) -> None:
        self._sent = Sent(run.directory / SENT, self.package)
        self._sent.called(self._begin(run, self._sent.id))

    def on_back(self, run: Run, frames: int) -> None:
        self._sent.again()

    def _log(self, line: Line) -> None:
        if self._sent.is_new(line):
            self._send(line)

    on_train = on_episode = on_evaluation = _log

    def on_end(self, run: Run) -> None:
        self._sent.close()
        self._finish(run)

    def _begin(self, run: Run, known: str) -> str:
        """Begin, or go on as ``known``; return the run's name in the service."""
        raise NotImplementedError

    def _send(self, line: Line) -> None:
        raise NotImplementedError

    def _finish(self, run: Run) -> None:
        raise NotImplementedError


class WandbLog(ServiceLog):
    """Weights & Biases: settings are the environment's variables (WANDB_PROJECT, WANDB_MODE)."""

    package = "wandb"

    def _begin(self, run: Run, known: str) -> str:
        name = known or uuid.uuid4().hex[:12]
        self._run = self._api.init(
            name=run.directory.name,
            dir=str(run.directory),
            config=run.config.to_dict(),
            resume="allow",
            id=name,
        )
        self._run.define_metric("*", step_metric="frames")
        return name

    def _send(self, line: Line) -> None:
        # Its own step must grow, and lines of one step are merged: so it counts lines, also those
        # of earlier lives, which W&B does not know of while it is offline.
        self._run.log({**numbers(line), "frames": line["frames"]}, step=self._sent.lines - 1)

    def _finish(self, run: Run) -> None:
        self._run.finish()


class MlflowLog(ServiceLog):
    """MLflow: settings are the environment's variables (MLFLOW_TRACKING_URI,
    MLFLOW_EXPERIMENT_NAME).
    """

    package = "mlflow"

    def _begin(self, run: Run, known: str) -> str:
        began = None
        if known:
            try:
                began = self._api.start_run(run_id=known)
            except Exception:  # another server, or deleted there; if none answers, the next says so
                known = ""
        if began is None:
            began = self._api.start_run(run_name=run.directory.name)
        had = self._api.get_run(known).data.params if known else {}
        for section, values in run.config.to_dict().items():
            fields = values if isinstance(values, dict) else {"": values}
            now = {f"{section}.{name}".rstrip("."): value for name, value in fields.items()}
            self._api.log_params({k: v for k, v in now.items() if k not in had})
            other = {f"resumed.{k}": v for k, v in now.items() if k in had and had[k] != str(v)}
            if other:  # a parameter cannot change there
                self._api.set_tags(other)
        return str(began.info.run_id)

    def _send(self, line: Line) -> None:
        self._api.log_metrics(numbers(line), step=line["frames"])

    def _finish(self, run: Run) -> None:
        self._api.end_run("FINISHED" if run.summary.get("complete") else "KILLED")


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
