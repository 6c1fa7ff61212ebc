"""A run on disk: its directory and its configuration."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dicerl import __version__
from dicerl.config import Config, from_dict, validate
from dicerl.errors import ConfigError, DicerlError
from dicerl.records import checkpoint, files
from dicerl.records.lock import Lock, hold

# in a run that is only an agent to pass on (export/package.py); package.json would be npm's
PACKAGE = "dicerl.json"
UNFINISHED = "config.json.new"


class Run:
    """A run's directory, ``runs/<name>/``, and its config. Made by ``create`` (new) or ``open``
    (existing); ``lock`` it before writing.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory, self.config = directory, config
        self.summary: dict[str, Any] = {}  # results of the training that just ended
        self.signal = 0  # the number of the one that stopped it
        self._lock: Lock | None = None

    @classmethod
    def create(cls, config: Config) -> Run:
        """Make a new, locked directory with config.json; never write into an existing run."""
        if config.run_dir:
            directory = Path(config.run_dir)
            _require_vacant(directory)
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DicerlError(f"run_dir {directory} cannot be made: {error.strerror}") from None
        else:
            directory = fresh_directory(config)
        run = cls(directory, config)
        run.lock()
        with run.unlocked_if_this_fails():
            run.write_config()
        return run

    @classmethod
    def planned(cls, config: Config) -> Run:
        """The run that ``create`` would make now; nothing is written."""
        if config.run_dir:
            _require_vacant(Path(config.run_dir))
            return cls(Path(config.run_dir), config)
        return cls(next(path for path in _names(config) if not path.exists()), config)

    def write_config(self) -> None:
        """Write config.json, whole or not at all: half of one would be a run that can be neither
        resumed nor trained.
        """
        path = self.directory / "config.json"
        new = path.with_name(UNFINISHED)
        try:
            new.write_text(json.dumps(self.config.to_dict(), indent=1) + "\n")
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise DicerlError(f"{path} could not be written: {error.strerror}") from None

    @classmethod
    def open(cls, directory: str | Path) -> Run:
        """Open an existing run, not locked; its config is read and validated."""
        directory = Path(directory)
        path = directory / "config.json"
        if not path.is_file():
            raise DicerlError(f"{directory} holds no run (no config.json)")
        try:
            config = validate(from_dict(files.read_json(path)))
        except (OSError, ValueError, DicerlError) as error:
            raise DicerlError(f"{path} is damaged: {error}") from None
        return cls(directory, config)

    def lock(self) -> None:
        """Take the run's lock. It is held until ``unlock`` or the end of this process, however it
        ends. A run whose files are links to elsewhere is refused: they would be written through.
        """
        for path in self.directory.iterdir():
            require_own(path, self.directory, "run")
        self._lock = hold(self.directory / "run.lock")
        if self._lock is None:
            raise DicerlError(
                f"{self.directory} is in use by another process; wait for it or name another"
                " run_dir"
            )
        checkpoint.put_back(self.directory)

    @contextlib.contextmanager
    def unlocked_if_this_fails(self) -> Iterator[None]:
        """Release the lock where what is done inside raises: an exception that somebody keeps (a
        notebook does) would keep the run, and with it the lock.
        """
        try:
            yield
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Release the run's lock, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def newest_checkpoint(self, say: Any = lambda line: None) -> checkpoint.Checkpoint:
        """The newest intact checkpoint; damaged ones are reported through ``say(line)``."""
        return checkpoint.newest(self.directory, say)

    def checkpoint(self, which: str = "newest", say: Any = lambda line: None) -> Path:
        """The folder of a checkpoint: ``which`` is newest (the newest intact one), best (exactly
        what had the best evaluation), or a number of updates.
        """
        best = checkpoint.best_of(self.directory)
        if which == "best" and best is not None:
            return best
        newest, state = self.newest_checkpoint(say)
        if which == "newest":
            return newest
        if which == "best":
            if state.best_checkpoint is None:
                raise ConfigError(
                    "checkpoint",
                    which,
                    f"{self.directory} had no evaluation yet; it can be newest or a number",
                )
            which = str(state.best_checkpoint)  # of a run from before there was best/
        there = {path.name: path for path in checkpoint.checkpoints_of(self.directory)}
        if which not in there:
            raise ConfigError(
                "checkpoint",
                which,
                f"{self.directory} has {', '.join(there)}; it can be best, newest or one of these",
            )
        return there[which]


def require_own(path: Path, directory: Path, what: str) -> None:
    """Refuse to write to what is not in ``directory``, a run's or a suite's (``what``), or is no
    file: nobody may ever read from a FIFO.
    """
    if path.is_symlink() and not files.is_inside(path, directory):
        raise DicerlError(
            f"{path} is a link out of the {what}'s directory, and a {what} writes only inside it;"
            " put there what it leads to"
        )
    if os.path.lexists(path) and not path.is_file() and not path.is_dir():
        raise DicerlError(f"{path} is neither a file nor a directory; remove it")


def run_name(config: Config, setting: str = "") -> str:
    """The name of a run's directory: <env>-<variant>-<seed>, or with a setting before the seed."""
    words = (
        re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_") or "run"
        for word in (config.env.id, config.variant)
    )
    return "-".join([*words, *filter(None, [setting]), str(config.seed)])


def software() -> dict[str, str]:
    """The code a run was made with: the version, and the commit if the package lies in its own git
    repository.
    """
    package = Path(__file__).resolve().parents[1]

    def git(*args: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(package), *args]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != package.parent:
            return {"version": __version__}  # installed inside somebody else's repository
        changed = "+changes" if git("status", "--porcelain", "--", ".") else ""
        return {"version": __version__, "commit": git("rev-parse", "--short=12", "HEAD") + changed}
    except (OSError, subprocess.SubprocessError):
        return {"version": __version__}


def fresh_directory(config: Config) -> Path:
    """Make runs/<env>-<variant>-<seed>, with -2, -3, ... if that is taken; mkdir decides, so two
    runs never share one.
    """
    for directory in _names(config):
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            continue
        except OSError as error:
            raise DicerlError(
                f"{directory} cannot be made: {error.strerror}; name another place with --run-dir"
            ) from None
    raise AssertionError("the names do not end")


def _names(config: Config) -> Iterator[Path]:
    for attempt in range(1, 10_000):
        yield Path("runs") / (run_name(config) + (f"-{attempt}" if attempt > 1 else ""))
    raise DicerlError("runs/ holds ten thousand runs of that name; name one with --run-dir")


def _require_vacant(directory: Path) -> None:
    """Refuse a directory that a new run cannot be written to."""
    if (directory / "config.json").exists():
        raise DicerlError(
            f"run_dir {directory} already holds a run; continue it with: dicerl resume"
            f" {directory}, or name another"
        )
    if directory.exists() and not directory.is_dir():
        raise DicerlError(f"run_dir {directory} is a file; it must be a directory")
    # these alone are left by a start that failed, or was killed
    begun = {"run.lock", UNFINISHED}
    if directory.exists() and any(p.name not in begun for p in directory.iterdir()):
        raise DicerlError(
            f"run_dir {directory} is not empty and holds no run; name another directory"
        )
