"""Runs as the figures see them: their state, and their metrics, thinned to a fixed size."""

from __future__ import annotations

import stat
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from dicerl.core import family
from dicerl.core.bandit import BanditVote
from dicerl.records import checkpoint, files
from dicerl.records.lock import in_use
from dicerl.records.vocabulary import (
    DRAWN,
    FAVOURED,
    GREEDY,
    LINES,
    NODE_FIELDS,
    NUMBER_NAMES,
    STAGE_FIELDS,
    declared,
    tile_field,
)
from dicerl.report.jsonl import JsonLines, Thinned, known, last_lines, number, stamp, table

NODE_LINES = 100  # train lines whose nodes are kept: what a cluster does at present
LONGEST = 200  # characters of a name: each figure holds it again
TILES = 1000  # of a vote, at most: configs allow 500 (bandit.accuracy)
MAP_LIMIT = 100  # columns of a temperature map: at least, once it had them; at most twice as many

# The fields that figures draw, by kind of line.
EPISODE = declared("episode", "frames", "return", "length", *map(DRAWN.name, NUMBER_NAMES))
EVALUATION = declared(
    "evaluation",
    "frames",
    "mean_return",
    "stderr",
    GREEDY.name("mean_return"),
    GREEDY.name("stderr"),
)
TRAIN = declared(
    "train",
    "frames",
    "entropy",
    *map(FAVOURED.name, NUMBER_NAMES),
    "trainable_inv_temperature",
    "loss_value",
    "loss_q",
    "loss_policy",
    "gradient_norm",
    "value_explained",
    "policy_lag",
    "ratio_mean",
    "rho_clipped",
    "c_clipped",
    "sequence_age",
    "elapsed",
    "frames_per_s",
    "queued_sequences",
    *STAGE_FIELDS,
)


class RunData:
    """A run directory, which may be written meanwhile. ``overview`` reads only the files' ends,
    ``refresh`` what is new. Files that links put outside ``within``, by default the directory
    itself, are not read.
    """

    def __init__(
        self, directory: Path, name: str | None = None, within: Path | None = None
    ) -> None:
        self.directory, self.name = directory, name or directory.name
        self._within = within or directory
        self._metrics = directory / "metrics.jsonl"
        self._config_seen: tuple[int, int] | None = None
        self._state_seen: tuple[str, int] | None = None
        self._checkpoint: dict[str, Any] = {}
        self._tail_seen: tuple[int, int] | None = None
        self._tail: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.problem = ""  # with config.json
        self._reset()

    def _reset(self) -> None:
        self._lines = JsonLines(self._metrics, self._within)
        self._train, self._episodes = Thinned(len(TRAIN)), Thinned(len(EPISODE))
        self._chosen = Thinned(len(EPISODE), limit=300, keep="last")
        self._evaluations = Thinned(len(EVALUATION))
        # by name: number of tiles, rows of frames, values, visits
        self._maps: dict[str, tuple[int, Thinned]] = {}
        self._nodes: deque[dict[str, tuple[float, ...]]] = deque(maxlen=NODE_LINES)
        self.events: list[dict[str, Any]] = []

    # --- the configuration

    def _read_config(self) -> None:
        path = self.directory / "config.json"
        seen = stamp(path)
        if seen != self._config_seen:
            self._config_seen = seen
            try:
                config = files.read_json(path, self._within)
                self.problem = "" if isinstance(config, dict) else "it is no JSON object"
            except (OSError, ValueError) as error:
                config, self.problem = {}, getattr(error, "strerror", None) or str(error)
            self.config = config if isinstance(config, dict) else {}

    def setting(self, name: str, default: Any = None) -> Any:
        """A text, number or truth value of config.json by dotted name."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        usable = isinstance(value, str) or np.isfinite(number(value)) or isinstance(value, bool)
        return value if usable else default

    @property
    def env(self) -> str:
        """The environment's id, from config.json."""
        return str(self.setting("env.id", "unknown environment"))[:LONGEST]

    @property
    def variant(self) -> str:
        """The variant's name, from config.json."""
        return str(self.setting("variant", "unknown variant"))[:LONGEST]

    # --- its state

    def overview(self) -> dict[str, Any]:
        """State, progress and score, from the files' ends."""
        self._read_config()
        self._read_tail()
        tail, total = self._tail, number(self.setting("frames"))
        frames = tail.get("frames", 0)
        return {
            "id": self.name,
            "name": self.name,
            "env": self.env,
            "variant": self.variant,
            "seed": self.setting("seed"),
            "state": self._state(frames, total),
            "frames": frames,
            "total_frames": total if total > 0 else None,
            "score": tail.get("score"),
            "stderr": tail.get("stderr"),
            "score_of": tail.get("score_of"),
            "updated": tail.get("time"),
            "problem": self.problem and f"config.json is missing or damaged: {self.problem}",
        }

    def _read_tail(self) -> None:
        evaluations = self.directory / "evaluations.jsonl"
        seen = (stamp(self._metrics)[1], stamp(evaluations)[1])
        if seen == self._tail_seen:
            return
        self._tail_seen = seen
        lines = last_lines(self._metrics, self._within)
        evaluated = last_lines(evaluations, self._within)
        returns = [
            g
            for g in (number(line.get("return")) for line in lines if line.get("kind") == "episode")
            if np.isfinite(g)
        ][-100:]
        counted = [line for line in lines if np.isfinite(number(line.get("frames")))]
        self._tail = {"event": lines[-1].get("event") if lines else None}
        if counted:
            # an evaluation's frames are those at its beginning, some lines before
            frames = max(line["frames"] for line in counted)
            self._tail |= {"frames": frames, "time": known(counted[-1].get("time"))}
        if evaluated and np.isfinite(number(evaluated[-1].get("mean_return"))):
            last = evaluated[-1]
            self._tail |= {
                "score": last["mean_return"],
                "stderr": known(last.get("stderr")),
                "score_of": "evaluation",
            }
        elif returns:
            self._tail |= {"score": float(np.mean(returns)), "score_of": "recent episodes"}

    def _state(self, frames: float, total: float) -> str:
        if in_use(self.directory):
            return "running"
        if self._tail.get("event") == "failed":
            return "failed"
        if frames >= total:
            return "finished"
        # A stop ends with a checkpoint; nothing is written after it.
        if self.checkpoint().get("metrics_offset") == stamp(self._metrics)[1]:
            return "stopped"
        return "dead"

    def checkpoint(self) -> dict[str, Any]:
        """state.json of the newest checkpoint (its tensors are not read), or {}."""
        try:
            found = checkpoint.checkpoints_of(self.directory)
        except OSError:
            found = []
        for path in reversed(found):
            seen = (path.name, stamp(path / "state.json")[0])
            if seen != self._state_seen:
                try:
                    state = files.read_json(path / "state.json", self._within)
                except (OSError, ValueError):
                    continue
                self._state_seen, self._checkpoint = seen, state if isinstance(state, dict) else {}
            return self._checkpoint
        return {}

    @property
    def numbers(self) -> tuple[str, ...]:
        """What an episode of this run draws: inv_temperature, or its family's numbers."""
        name = self.setting("behaviour.family", "boltzmann")
        return family.NUMBERS.get(name, ()) if isinstance(name, str) else ()

    def votes(self) -> dict[str, BanditVote]:
        """The newest checkpoint's bandits that have seen an episode, by the number they search."""
        votes = {}
        try:
            for name, saved in zip(
                self.numbers, self.checkpoint()["temperatures"]["votes"][0], strict=False
            ):
                votes[name] = BanditVote(num_bandits=1)
                votes[name].load_state_dict(saved)
        except checkpoint.UNFIT:
            return {}
        return {name: vote for name, vote in votes.items() if vote.counts().any()}

    def newest_video(self) -> Path | None:
        """The last written .mp4 of the run's videos; None if there is none. A hidden one is not yet
        complete, or never was.
        """
        try:
            return max(
                (p for p in (self.directory / "videos").glob("*.mp4") if self._shows(p)),
                key=lambda p: p.stat().st_mtime,
                default=None,
            )
        except OSError:
            return None

    def _shows(self, path: Path) -> bool:
        """Whether a file is this run's own: a link may lead to any file of the reader's."""
        try:
            return (
                not path.name.startswith(".")
                and files.is_inside(path, self._within)
                and stat.S_ISREG(path.stat().st_mode)
            )
        except OSError:
            return False

    def version(self) -> tuple[Any, ...]:
        """Changes whenever the run does."""
        parts = ("config.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints", "videos")
        return self.name, *(stamp(self.directory / part) for part in parts)

    # --- its metrics

    def refresh(self, everything: bool = True) -> None:
        """Read what is new; unless ``everything``, parse at most about BUDGET bytes of it."""
        self._read_config()
        if self._lines.rewritten():
            self._reset()
        for lines in self._lines.blocks(everything):
            try:
                self._add(lines)
            except Exception:  # nothing in a stranger's file may end a page of many runs
                self._lines.damaged += len(lines)

    @property
    def damaged(self) -> int:
        """Lines that were skipped."""
        return self._lines.damaged

    def _add(self, lines: list[dict[str, Any]]) -> None:
        kinds: dict[Any, list[dict[str, Any]]] = {kind: [] for kind in LINES}
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
        self._nodes += filter(None, map(_nodes_of, kinds["train"][-NODE_LINES:]))

    def _add_tiles(self, lines: list[dict[str, Any]]) -> None:
        for name in self.numbers:
            several = len(self.numbers) > 1
            of_values = tile_field("tile_values", name, several)
            of_visits = tile_field("tile_visits", name, several)
            rows = []
            for line in lines:
                values, visits = line.get(of_values), line.get(of_visits)
                if (
                    not isinstance(values, list)
                    or not isinstance(visits, list)
                    or not 0 < len(values) <= TILES
                    or len(values) != len(visits)
                ):
                    continue
                try:
                    row = np.array([line.get("frames"), *values, *visits], float)
                except (TypeError, ValueError, OverflowError):
                    continue
                if name not in self._maps:
                    self._maps[name] = len(values), Thinned(len(row), MAP_LIMIT, keep="last")
                if np.isfinite(row[0]) and self._maps[name][0] == len(values):
                    rows.append(row)
            if rows:
                self._maps[name][1].add(np.stack(rows))

    def train(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(frames, values) of one field of the train lines."""
        return _pair(self._train.rows(), TRAIN.index(name))

    def seconds(self, frames: np.ndarray) -> np.ndarray:
        """Training time at these frames, pauses before a resume aside; NaN if no line tells.

        Only train lines tell. Before the first and after the last one the run is taken to be as
        fast as it was on average.
        """
        x, elapsed = self.train("elapsed")
        if not len(x) or x[-1] <= 0:
            return np.full(len(frames), np.nan)
        beyond = np.maximum(frames - x[-1], 0.0) * elapsed[-1] / x[-1]
        known = np.interp(frames, np.append(0.0, x), np.append(0.0, elapsed))
        return np.asarray(known + beyond)

    def episodes(self, name: str, thinned: str = "mean") -> tuple[np.ndarray, np.ndarray]:
        """(frames, values) of the episodes: means over neighbours, or single ones ("last")."""
        return _pair(
            (self._episodes if thinned == "mean" else self._chosen).rows(), EPISODE.index(name)
        )

    def evaluations(self) -> dict[str, np.ndarray]:
        """The evaluations by field, NaN where one has no such number.    {name: [N]}"""
        rows = self._evaluations.rows()
        return {name: rows[:, i] for i, name in enumerate(EVALUATION)}

    def tile_map(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The vote over one number: frames [N], values [N, K], visits so far [N, K]."""
        if name not in self._maps:
            return None
        tiles, table = self._maps[name]
        rows = table.rows()
        return (rows[:, 0], rows[:, 1 : 1 + tiles], rows[:, 1 + tiles :]) if len(rows) else None

    def nodes(self) -> dict[str, tuple[float, ...]]:
        """Of each machine that the newest line names: its actors then; their steps/s and the share
        of time they wait, means over the last lines.
        """
        found = {}
        for name, (actors, *_) in self._nodes[-1].items() if self._nodes else ():
            known = np.array([line[name] for line in self._nodes if name in line])
            found[name] = (actors, *known.mean(0)[1:].tolist())
        return found

    def software(self) -> dict[str, str]:
        """Version and commit of the run's first start."""
        first = next((e for e in self.events if e.get("event") == "start"), {})
        return {k: str(first[k]) for k in ("version", "commit") if first.get(k)}


def _nodes_of(line: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """The node fields of a train line by node: actors, steps/s, share of time waiting."""
    names, *lists = (line.get(field) for field in NODE_FIELDS)
    if not isinstance(names, list) or not all(isinstance(x, list) for x in lists):
        return {}
    table = np.array([[number(x) for x in own] for own in zip(*lists, strict=False)])
    rows = zip(names, table.tolist(), strict=False)
    return {str(name)[:80]: tuple(row) for name, row in rows if np.isfinite(row).all()}


def _pair(rows: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
    known = np.isfinite(rows[:, column])
    return rows[known, 0], rows[known, column]


def find_runs(root: Path, depth: int = 3, outside: bool = True) -> list[Path]:
    """Directories with a config.json, whatever it is, at most ``depth`` levels down; newest
    last. With ``outside`` false, links that lead out of ``root`` are not followed.
    """
    return sorted(
        files.folders_with("config.json", root, depth, outside),
        key=lambda p: (stamp(p / "config.json")[0], p.name),
    )
