"""What every runtime keeps in one place: the counters of the run, the vote, metrics and progress,
and when to evaluate, save or stop.

Only the coordinator changes a counter; a runtime reports what happened.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from dicerl.agent.behaviour import Behaviour, Behaviours, Region
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.errors import Diverged
from dicerl.parts.actor import Episode
from dicerl.parts.evaluator import summary_line
from dicerl.parts.sequence import Arrays
from dicerl.records import checkpoint
from dicerl.records.books import Books
from dicerl.records.callbacks import Callbacks
from dicerl.records.metrics import Metrics, has_line
from dicerl.records.progress import Progress
from dicerl.records.run import Run, software
from dicerl.records.state import RunState, SerialState
from dicerl.records.vocabulary import FAVOURED, tile_field
from dicerl.runtime.setup import Plan

RECENT = 100  # episodes behind "recent return"
BAD_IN_A_ROW = 10  # updates that may be skipped one after the other
BAD_BATCHES = 3  # of those, kept in a run's directory


class Coordinator:
    """Counters, vote, metrics and progress of a run; ``start`` is the state of the checkpoint that
    it continues from, ``vote`` that of the vote that a new run begins with.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        plan: Plan,
        run: Run,
        progress: Progress,
        start: RunState | None = None,
        vote: dict[str, Any] | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.callbacks = callbacks or Callbacks([], progress.say)
        self.config, self.spec, self.run, self.progress = config, spec, run, progress
        self._state = dataclasses.replace(
            start or RunState(),
            total_updates=plan.total_updates,
            config_hash=config.hash(),
            precision=config.precision,
            serial=None,
        )
        self._forget_lost_best()
        self.behaviours = Behaviours(config, plan.num_actors)
        if start is not None:
            vote = start.temperatures
        if vote is not None:
            with checkpoint.fitting(run.directory):
                self.behaviours.load_state_dict(vote)
        self._recent: deque[float] = deque(self._state.recent, maxlen=RECENT)
        self._latest: dict[str, Any] = {}  # of the last train line
        self._last_evaluation: dict[str, Any] = {}
        self._evaluated_before = self._state.evaluated_at  # at the last request but one
        # (counters, state) of the evaluation under way
        self._evaluating: tuple[dict[str, int], RunState] | None = None
        self._bad: set[int] = set()  # the last updates that were skipped
        self._started = time.monotonic()
        self._logged: tuple[float, int] | None = None  # (time, agent steps) of the last train line
        self.metrics = Metrics(
            run.directory, config.tensorboard, self._state.metrics_offset, self.frames
        )
        if start is not None:
            self._last_evaluation = self.metrics.last_evaluation()
        made_by = {**software(), "precision": config.precision}
        if start is not None:
            self.event("resume", **made_by, updates=self.updates)
        else:
            votes = [vote for joint in self.behaviours.votes for vote in joint.votes]
            self.event("start", **made_by, bandits=[vote.describe() for vote in votes])

    @property
    def agent_steps(self) -> int:
        return self._state.agent_steps

    @property
    def frames(self) -> int:
        return self._state.agent_steps * self.spec.action_repeat

    @property
    def updates(self) -> int:
        return self._state.updates

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, including before a resume."""
        return self._state.elapsed + time.monotonic() - self._started

    def counters(self) -> dict[str, int]:
        """The counters that every line of the metrics holds."""
        return {"agent_steps": self.agent_steps, "frames": self.frames, "updates": self.updates}

    def event(self, name: str, **values: Any) -> None:
        """Write an event line to the metrics."""
        self.metrics.write("event", self.counters(), {"event": name, **values})

    def healed(self, name: str, **values: Any) -> None:
        """Count something that was mended, and write its event."""
        self._state.healed += 1
        self.event(name, **values)

    def went_back(self, before: Coordinator, reason: str, **values: Any) -> None:
        """Record that the run went back to this state from the one ``before``. What does not go
        back: the numbers of skipped updates and of what was healed.
        """
        self._state.skipped, self._state.healed = before._state.skipped, before._state.healed
        redone = before.agent_steps - self.agent_steps
        self.healed("rolled_back", reason=reason, redone=redone, **values)

    # --- what actors did

    def stepped(self, count: int) -> None:
        """Count agent steps that were taken."""
        self._state.agent_steps += count
        self._state.frames = self.frames

    def collected_all(self) -> bool:
        """Whether the run has all its frames."""
        return self.frames >= self.config.frames

    @property
    def updates_skipped(self) -> int:
        return self._state.skipped

    def complete(self) -> bool:
        """Whether the run has all its frames and, where it is evaluated, was so since the last."""
        return self._state.complete(self.config)

    def end_episodes(self, actor: int, episodes: list[Episode]) -> None:
        """Teach the vote the returns of ended episodes, count them and write their lines; of very
        many, only some have one.
        """
        for e in episodes:
            self.behaviours.update(e.behaviour, e.episode_return, actor)
            self._state.episodes += 1
            self._recent.append(e.episode_return)
            drawn = zip(self.behaviours.names, e.behaviour.values, strict=True)
            line = self.metrics.write(
                "episode",
                self.counters(),
                {"return": e.episode_return, "length": e.length, **dict(drawn), "actor": actor},
                append=has_line(self._state.episodes),
            )
            self.callbacks("episode", line)

    def next_behaviours(self, actor: int, wanted: int) -> list[Behaviour]:
        """Draw ``wanted`` behaviours for an actor's next episodes."""
        return [self.behaviours.next(actor) for _ in range(wanted)]

    # --- what learners did

    def trained(
        self, diagnostics: dict[str, float] | None, extra: dict[str, Any] | None = None
    ) -> None:
        """Count one learner update; its diagnostics, if any, make a train line with ``extra``."""
        self._state.updates += 1
        if diagnostics is None:
            return
        now, steps_per_s = time.monotonic(), 0.0
        if self._logged is not None and now > self._logged[0]:
            steps_per_s = (self.agent_steps - self._logged[1]) / (now - self._logged[0])
        self._logged = (now, self.agent_steps)
        self._latest = {
            **diagnostics,
            **(extra or {}),
            "frames_per_s": steps_per_s * self.spec.action_repeat,
            "elapsed": self.elapsed,
            "episodes": self._state.episodes,
            "updates_skipped": self._state.skipped,
            **self._favoured(),
            "favoured_at_end": float(bool(self.behaviours.at_end())),
        }
        recent = self._recent_return()
        if recent is not None:
            self._latest["recent_return"] = recent
        line = self.metrics.write("train", self.counters(), {**self._latest, **self._tiles()})
        if diagnostics:  # else they went with a learner
            self.callbacks("train", line)

    def skipped(self, update: int, loss: float, norm: float, batch: Arrays | None) -> None:
        """Count an update that changed nothing, since its loss or its gradient is not finite, and
        keep some of their batches. BAD_IN_A_ROW of them end this life of the run.
        """
        self._state.skipped += 1
        self._bad = {n for n in self._bad if n > update - 2 * BAD_IN_A_ROW} | {update}
        row = {update}  # learners may report out of order
        for step in (-1, 1):
            following = update + step
            while following in self._bad:
                row.add(following)
                following += step
        file = None if batch is None else self._keep_bad_batch(update, batch)
        if file is not None or len(row) == 1:
            self.event("update_skipped", reason=f"loss {loss}, gradient norm {norm}", batch=file)
            where = "" if file is None else f"; its batch is {self.run.directory / file}"
            self.progress.say(
                f"update {update:,} was skipped: loss {loss}, gradient norm {norm}{where}"
            )
        if len(row) >= BAD_IN_A_ROW:
            kept = ", ".join(path.name for path in self._bad_batches())
            raise Diverged(
                f"{len(row)} updates in a row had a loss or a gradient that is not finite (update"
                f" {update:,}: loss {loss}, gradient norm {norm}; batches to look at in"
                f" {self.run.directory}: {kept or 'none'})",
                min(row),
            )

    def _bad_batches(self) -> list[Path]:
        return sorted(self.run.directory.glob("bad_batch-*.safetensors"))

    def _keep_bad_batch(self, update: int, batch: Arrays) -> str | None:
        """Write a batch for a person to look at; return the file's name, or None if there are
        enough of them or it could not be written.
        """
        import safetensors.numpy

        file = self.run.directory / f"bad_batch-{update}.safetensors"
        if len(self._bad_batches()) >= BAD_BATCHES:
            return None
        whole = {name: np.ascontiguousarray(array) for name, array in batch.items()}
        try:
            safetensors.numpy.save_file(whole, file)
        except (OSError, safetensors.SafetensorError):
            file.unlink(missing_ok=True)
            return None
        return file.name

    def _recent_return(self) -> float | None:
        return sum(self._recent) / len(self._recent) if self._recent else None

    def _favoured(self) -> dict[str, float]:
        """The middle of the vote's best region."""
        return {
            FAVOURED.name(name): (low + high) / 2
            for name, (low, high) in self.behaviours.favoured().items()
        }

    def _tiles(self) -> dict[str, list[float]]:
        """Value and visits of every tile of the first vote; by name of the number if the family has
        several.
        """
        tiles: dict[str, list[float]] = {}
        names = self.behaviours.names
        for name, vote in zip(names, self.behaviours.votes[0].votes, strict=True):
            values, visits = (
                tile_field(what, name, len(names) > 1) for what in ("tile_values", "tile_visits")
            )
            tiles[values] = [round(float(v), 4) for v in vote.values()]
            tiles[visits] = vote.counts().tolist()
        return tiles

    # --- evaluation

    def evaluation_due(self) -> bool:
        """Whether it is time for an evaluation."""
        every = self.config.evaluation.every
        return every > 0 and self.frames - self._state.evaluated_at >= every

    def evaluation_requested(self) -> None:
        """Record the request of an evaluation: the next is due in ``evaluation.every`` frames."""
        self._evaluated_before = self._state.evaluated_at
        self._state.evaluated_at = self.frames

    def evaluation_abandoned(self) -> None:
        """Take the last request back: it was not evaluated, and is due again."""
        self._state.evaluated_at = self._evaluated_before
        self._evaluating = None

    def evaluation_begins(self, version: int) -> Region:
        """Record the moment of an evaluation of the parameters after ``version`` updates: its line
        and, if it is the best, what is kept of it are of this moment. Return the region to draw
        behaviours from.
        """
        self._evaluating = (
            self.counters(),
            dataclasses.replace(
                self._state,
                frames=self.frames,
                updates=version,
                recent=list(self._recent),
                elapsed=self.elapsed,
                temperatures=self.behaviours.state_dict(),
            ),
        )
        return self.behaviours.evaluation_region()

    def evaluated(self, result: dict[str, Any]) -> RunState | None:
        """Record the result of the evaluation that began. If it is the best so far, return the
        state to keep with the parameters evaluated; report with ``best_kept``.
        """
        assert self._evaluating is not None
        (counters, state), self._evaluating = self._evaluating, None
        self._last_evaluation = result
        line = self.metrics.write("evaluation", counters, {**result, "version": state.updates})
        self.progress.say(f"evaluation at {counters['frames']:,} frames: {summary_line(result)}")
        self.callbacks("evaluation", line)
        best, score = self._state.best_evaluation, result["mean_return"]
        if best is not None and score <= best:
            return None
        return dataclasses.replace(state, best_evaluation=score, best_checkpoint=state.updates)

    def best_kept(self, state: RunState) -> None:
        """Record that ``state`` and its parameters are kept as the best. So is what the last
        checkpoint knows as that: a run that dies now goes back to it.
        """
        self._state.best_evaluation = state.best_evaluation
        self._state.best_checkpoint = state.best_checkpoint
        checkpoint.forget_best(self.run.directory, state.best_checkpoint, self._saved_best)

    def _forget_lost_best(self) -> None:
        """Remove a best that was kept after the checkpoint this run continues from: the line of its
        evaluation is cut from the metrics, too.
        """
        directory, known = self.run.directory, self._state.best_checkpoint
        there = checkpoint.best_of(directory) is not None
        checkpoint.forget_best(directory, known)
        # there is none in a run from before there was best/
        if known is None or (there and checkpoint.best_of(directory) is None):
            self._state.best_evaluation = self._state.best_checkpoint = None
        self._saved_best = self._state.best_checkpoint  # as the last checkpoint knows it

    # --- checkpoints

    def checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        every = self.config.checkpoint.every
        return every > 0 and self.frames - self._state.saved_at >= every

    def checkpoint_begins(self) -> None:
        """Record the start of a checkpoint of the current weights: the next is due in
        ``checkpoint.every`` frames.
        """
        self._state.saved_at = self.frames

    def synced_state(
        self,
        steps_trained: int,
        incarnation: int,
        serial: SerialState | None = None,
        books: Books | None = None,
    ) -> RunState:
        """Sync the metrics to disk; return the state of the run for a checkpoint that includes
        them. The arguments are what only the runtime knows.
        """
        self._state.books = books or self._state.books
        return dataclasses.replace(
            self._state,
            frames=self.frames,
            steps_trained=steps_trained,
            incarnation=incarnation,
            serial=serial,
            recent=list(self._recent),
            elapsed=self.elapsed,
            temperatures=self.behaviours.state_dict(),
            metrics_offset=self.metrics.sync(),
        )

    def saved(self, path: Path) -> None:
        """Remove older checkpoints, and what they knew as the best, now that a new one is
        complete.
        """
        directory, best = self.run.directory, self._state.best_checkpoint
        self._saved_best = best
        checkpoint.forget_best(directory, best)
        if checkpoint.best_of(directory) is not None:
            best = None  # it is kept there; in a run from before there was best/, here
        checkpoint.prune(directory, self.config.checkpoint.keep, best)
        self.callbacks("checkpoint", path)

    # --- what the user sees

    def show(self, force: bool = False) -> None:
        """Refresh the progress display, even if it is too early with ``force``."""
        values = {
            **self._latest,
            "frames": self.frames,
            "total_frames": self.config.frames,
            "updates": self.updates,
            "episodes": self._state.episodes,
            "recent_return": self._recent_return(),
            "best_evaluation": self._state.best_evaluation,
            # passed as a callable: it takes longer than everything else here
            "favoured": self.behaviours.favoured,
            "at_end": self.behaviours.at_end,
        }
        self.progress.update(values, force)

    def close(self) -> None:
        """Close the metrics; put the results into the run's summary."""
        self.run.summary = {
            **self.counters(),
            "episodes": self._state.episodes,
            "elapsed": self.elapsed,
            "recent_return": self._recent_return(),
            **self._favoured(),
            "evaluation": self._last_evaluation,
            "healed": self._state.healed,
            "books": self._state.books and self._state.books.to_dict(),
        }
        self.metrics.close()
