"""Runs as the figures see them: metrics.jsonl in pieces, damaged lines passed over, long runs thinned to a fixed size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dicerl import checkpoint
from dicerl.core.bandit import BanditVote
from dicerl.run import in_use

LIMIT = 1000  # rows a table keeps at least, once it had them; twice as many at most
MAP_LIMIT = 150  # the same for the temperature map's columns
BLOCK = 1 << 23  # bytes read at a time
BUDGET = 1 << 23  # bytes parsed of a long history, so that any run opens in a moment: every second, third, ... line of it
COMMON = ('{"kind": "episode"', '{"kind": "train"')  # lines there are so many of that some may be left out
TAIL = 1 << 16  # bytes that tell how a run stands

EPISODE = ("frames", "return", "length", "inv_temperature")
EVALUATION = ("frames", "mean_return", "stderr", "greedy_mean_return", "greedy_stderr")
TRAIN = (
    "frames", "updates", "elapsed", "recent_return", "entropy", "favoured_inv_temperature", "loss_value", "loss_q", "loss_policy", "gradient_norm",
    "policy_lag", "policy_lag_max", "ratio_mean", "ratio_max", "rho_clipped", "c_clipped", "value_explained", "advantage_std", "dead_units",
    "learning_rate", "frames_per_s", "learner_starved", "queued_sequences", "sequence_age",
)


class JsonLines:
    """What was appended to a .jsonl file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.damaged = path, 0
        self._offset, self._mark = 0, b""  # bytes read so far, and the last of them

    def rewritten(self) -> bool:
        """Whether what was read is no longer there: a resumed run cuts its file back and goes on from there."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                return file.read(len(self._mark)) != self._mark
        except OSError:
            return self._offset > 0

    def blocks(self, everything: bool = True) -> Iterator[list[dict[str, Any]]]:
        """The new complete lines, or enough of them where they are very many; a half-written last one waits for its end."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        with file:
            every = 1 if everything else 1 + (file.seek(0, os.SEEK_END) - self._offset) // BUDGET
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(BLOCK):
                data = rest + chunk
                end = data.rfind(b"\n") + 1
                whole, rest = data[:end], data[end:]
                self._offset += end
                self._mark = whole[-64:] or self._mark
                lines, damaged = parse_lines(whole, every)
                self.damaged += damaged
                yield lines


def parse_lines(whole: bytes, every: int = 1) -> tuple[list[dict[str, Any]], int]:
    """(objects, number of lines that are none); of episodes and of train lines only every ``every``-th."""
    raw = [line for line in whole.decode(errors="replace").split("\n") if line]
    if every > 1:
        common = [[line for line in raw if line.startswith(kind)][::every] for kind in COMMON]
        raw = [line for line in raw if not line.startswith(COMMON)] + common[0] + common[1]
    found: list[Any] = []
    for start in range(0, len(raw), 500):
        some = raw[start : start + 500]
        together = _loads(f"[{','.join(some)}]")  # one call instead of hundreds; one by one where a line is damaged
        found += together if together is not None and len(together) == len(some) else map(_loads, some)
    lines = [line for line in found if isinstance(line, dict)]
    return lines, len(raw) - len(lines)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def number(value: Any) -> float:
    """NaN for whatever is no finite number."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else np.nan


def table(lines: list[dict[str, Any]], columns: tuple[str, ...]) -> np.ndarray:
    """One row a line; lines that do not say at which frame they stand are left out.    [N, C]"""
    rows = np.empty((len(lines), len(columns)))
    for i, name in enumerate(columns):
        values = [line.get(name) for line in lines]
        try:
            rows[:, i] = values
        except (TypeError, ValueError, OverflowError):
            rows[:, i] = [number(v) for v in values]
    rows[~(np.abs(rows) < 1e300)] = np.nan
    return rows[np.isfinite(rows[:, 0])]


class Thinned:
    """Rows of numbers in constant memory: at 2 * limit rows, neighbours become one (their mean, or the last of them)."""

    def __init__(self, width: int, limit: int = LIMIT, keep: str = "mean") -> None:
        self._limit, self._keep = limit, keep
        self._stride = 1  # lines behind a row
        self._rows, self._open = np.empty((0, width)), np.empty((0, width))  # _open: lines that do not fill a row yet

    def add(self, lines: np.ndarray) -> None:
        waiting = np.concatenate([self._open, lines])
        whole = len(waiting) // self._stride * self._stride
        self._rows = np.concatenate([self._rows, self._merge(waiting[:whole], self._stride)])
        self._open = waiting[whole:]
        while len(self._rows) >= 2 * self._limit:
            self._rows = self._merge(self._rows, 2)
            self._stride *= 2

    def rows(self) -> np.ndarray:
        """Oldest first; the newest line always counts.    [N, C]"""
        return np.concatenate([self._rows, self._merge(self._open, self._stride)])

    def _merge(self, rows: np.ndarray, size: int) -> np.ndarray:
        if size == 1 or not len(rows):
            return rows
        starts = np.arange(0, len(rows), size)
        if self._keep == "last":
            return rows[np.minimum(starts + size, len(rows)) - 1]
        known = np.isfinite(rows)
        count = np.add.reduceat(known, starts, axis=0, dtype=float)
        total = np.add.reduceat(np.where(known, rows, 0.0), starts, axis=0)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)


class RunData:
    """A run directory, read while it may be written. ``overview`` looks at the end only, ``refresh`` reads what is new."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self.directory, self.name = directory, name or directory.name
        self._metrics = directory / "metrics.jsonl"
        self._config_seen: tuple[int, int] | None = None
        self._state_seen: tuple[str, int] | None = None
        self._checkpoint: dict[str, Any] = {}
        self._tail_seen: tuple[int, int] | None = None
        self._tail: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self._reset()

    def _reset(self) -> None:
        self._lines = JsonLines(self._metrics)
        self._train, self._episodes = Thinned(len(TRAIN)), Thinned(len(EPISODE))
        self._chosen = Thinned(len(EPISODE), limit=300, keep="last")
        self._evaluations = Thinned(len(EVALUATION))
        self._maps: dict[int, tuple[int, Thinned]] = {}  # by dimension of the vote: number of tiles, rows of frames, values, visits
        self.events: list[dict[str, Any]] = []

    # --- the configuration

    def _read_config(self) -> None:
        path = self.directory / "config.json"
        seen = _stamp(path)
        if seen != self._config_seen:
            self._config_seen = seen
            try:
                config = json.loads(path.read_text())
            except (OSError, ValueError, RecursionError):
                config = {}
            self.config = config if isinstance(config, dict) else {}

    def setting(self, name: str, default: Any = None) -> Any:
        """A field of config.json by dotted name."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    @property
    def env(self) -> str:
        return str(self.setting("env.id", "unknown environment"))

    @property
    def variant(self) -> str:
        return str(self.setting("variant", "unknown variant"))

    # --- how it stands

    def overview(self) -> dict[str, Any]:
        """State, progress and score, from the files' ends."""
        self._read_config()
        self._read_tail()
        tail, total = self._tail, number(self.setting("frames"))
        frames = tail.get("frames", 0)
        return {
            "id": self.name, "name": self.name, "env": self.env, "variant": self.variant, "seed": self.setting("seed"),
            "state": self._state(frames, total), "frames": frames, "total_frames": total if total > 0 else None,
            "score": tail.get("score"), "stderr": tail.get("stderr"), "score_of": tail.get("score_of"),
            "updated": tail.get("time"), "problem": "" if self.config else "config.json is missing or damaged",
        }

    def _read_tail(self) -> None:
        evaluations = self.directory / "evaluations.jsonl"
        seen = (_stamp(self._metrics)[1], _stamp(evaluations)[1])
        if seen == self._tail_seen:
            return
        self._tail_seen = seen
        lines, evaluated = _last_lines(self._metrics), _last_lines(evaluations)
        returns = [g for g in (number(line.get("return")) for line in lines if line.get("kind") == "episode") if np.isfinite(g)][-100:]
        counted = [line for line in lines if np.isfinite(number(line.get("frames")))]
        self._tail = {"event": lines[-1].get("event") if lines else None}
        if counted:
            self._tail |= {"frames": counted[-1]["frames"], "time": counted[-1].get("time")}
        if evaluated and np.isfinite(number(evaluated[-1].get("mean_return"))):
            last = evaluated[-1]
            self._tail |= {"score": last["mean_return"], "stderr": last.get("stderr"), "score_of": "evaluation"}
        elif returns:
            self._tail |= {"score": float(np.mean(returns)), "score_of": "recent episodes"}

    def _state(self, frames: float, total: float) -> str:
        if in_use(self.directory):
            return "running"
        if self._tail.get("event") == "failed":
            return "failed"
        if frames >= total:
            return "finished"
        # A stop ends with a checkpoint, and nothing is written after it.
        if self.checkpoint().get("metrics_offset") == _stamp(self._metrics)[1]:
            return "stopped"
        return "dead"

    def checkpoint(self) -> dict[str, Any]:
        """state.json of the newest checkpoint (its tensors are not looked at), or {}."""
        try:
            found = checkpoint.checkpoints_of(self.directory)
        except OSError:
            found = []
        for path in reversed(found):
            seen = (path.name, _stamp(path / "state.json")[0])
            if seen != self._state_seen:
                try:
                    state = json.loads((path / "state.json").read_text())
                except (OSError, ValueError, RecursionError):
                    continue
                self._state_seen, self._checkpoint = seen, state if isinstance(state, dict) else {}
            return self._checkpoint
        return {}

    def vote(self) -> BanditVote | None:
        """The bandits of the newest checkpoint."""
        vote = BanditVote(num_bandits=1)
        try:
            vote.load_state_dict(self.checkpoint()["temperatures"]["votes"][0])
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        return vote

    def newest_video(self) -> Path | None:
        try:
            return max((self.directory / "videos").glob("*.mp4"), key=lambda p: p.stat().st_mtime, default=None)
        except OSError:
            return None

    def stamp(self) -> tuple[Any, ...]:
        """Changes whenever something of the run does."""
        parts = ("config.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints", "videos")
        return self.name, *(_stamp(self.directory / part) for part in parts)

    # --- its metrics

    def refresh(self, everything: bool = True) -> None:
        """Read what is new; not everything: at most about BUDGET bytes of it."""
        self._read_config()
        if self._lines.rewritten():
            self._reset()
        for lines in self._lines.blocks(everything):
            self._add(lines)

    @property
    def damaged(self) -> int:
        """Lines that were passed over."""
        return self._lines.damaged

    def _add(self, lines: list[dict[str, Any]]) -> None:
        kinds: dict[Any, list[dict[str, Any]]] = {"train": [], "episode": [], "evaluation": [], "event": []}
        for line in lines:
            kind = line.get("kind")
            if isinstance(kind, str) and kind in kinds:
                kinds[kind].append(line)
        self._train.add(table(kinds["train"], TRAIN))
        episodes = table(kinds["episode"], EPISODE)
        self._episodes.add(episodes)
        self._chosen.add(episodes)
        self._evaluations.add(table(kinds["evaluation"], EVALUATION))
        self.events += kinds["event"]
        if len(self.events) > 200:
            self.events = self.events[:1] + self.events[-199:]
        self._add_tiles(kinds["train"])

    def _add_tiles(self, lines: list[dict[str, Any]]) -> None:
        rows: dict[int, list[np.ndarray]] = {}
        for line in lines:
            frames, values, visits = line.get("frames"), line.get("tile_values"), line.get("tile_visits")
            if not isinstance(values, list) or not isinstance(visits, list) or not values:
                continue
            nested = isinstance(values[0], list)  # one list for each dimension of the vote
            pairs = zip(values, visits, strict=False) if nested else [(values, visits)]
            for dimension, (v, n) in enumerate(pairs):
                try:
                    row = np.array([frames, *v, *n], float)
                except (TypeError, ValueError, OverflowError):
                    continue
                tiles = len(v)
                if len(n) != tiles or not np.isfinite(row[0]):
                    continue
                if dimension not in self._maps:
                    self._maps[dimension] = tiles, Thinned(len(row), MAP_LIMIT, keep="last")
                if self._maps[dimension][0] == tiles:
                    rows.setdefault(dimension, []).append(row)
        for dimension, found in rows.items():
            self._maps[dimension][1].add(np.stack(found))

    def train(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(frames, values) of one field of the train lines."""
        return _pair(self._train.rows(), TRAIN.index(name))

    def episodes(self, name: str, thinned: str = "mean") -> tuple[np.ndarray, np.ndarray]:
        """(frames, values) of the episodes: means over neighbours, or single ones ("last")."""
        return _pair((self._episodes if thinned == "mean" else self._chosen).rows(), EPISODE.index(name))

    def evaluations(self) -> dict[str, np.ndarray]:
        rows = self._evaluations.rows()
        return {name: rows[:, i] for i, name in enumerate(EVALUATION)}

    def tile_maps(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each dimension of the vote: frames [N], values [N, K], visits so far [N, K]."""
        maps = []
        for _, (tiles, rows) in sorted(self._maps.items()):
            data = rows.rows()
            maps.append((data[:, 0], data[:, 1 : 1 + tiles], data[:, 1 + tiles :]))
        return maps

    def software(self) -> dict[str, str]:
        """Version and commit of the run's first start."""
        first = next((e for e in self.events if e.get("event") == "start"), {})
        return {k: str(first[k]) for k in ("version", "commit") if first.get(k)}


def _pair(rows: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
    known = np.isfinite(rows[:, column])
    return rows[known, 0], rows[known, column]


def _stamp(path: Path) -> tuple[int, int]:
    """(time of the last change, size); (0, 0) where there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines in a file's last bytes."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            data = file.read()
    except OSError:
        return []
    start = data.find(b"\n") + 1 if size > TAIL else 0
    return parse_lines(data[start : data.rfind(b"\n") + 1])[0]


def find_runs(root: Path, depth: int = 3) -> list[Path]:
    """Directories with a config.json, at most ``depth`` levels down; newest last."""
    if (root / "config.json").is_file():
        return [root]
    try:
        inside = [p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")] if depth else []
    except OSError:
        return []
    return sorted((run for p in inside for run in find_runs(p, depth - 1)), key=lambda p: (_stamp(p / "config.json")[0], p.name))
