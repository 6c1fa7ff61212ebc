"""What every runtime keeps in one place: counters, temperatures, metrics, and when to evaluate,
save or stop.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from dicerl.agent.behaviour import Behaviour, Behaviours
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.parts.actor import Episode
from dicerl.records import checkpoint
from dicerl.records.metrics import Metrics
from dicerl.records.progress import Progress
from dicerl.records.run import Run, software

RECENT = 100  # episodes behind "recent return"


class Coordinator:
    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        run: Run,
        num_actors: int,
        total_updates: int,
        progress: Progress,
        state: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.spec, self.run, self.progress = config, spec, run, progress
        self.total_updates = total_updates
        self.behaviours = Behaviours(config, num_actors)
        self.agent_steps = self.updates = self.episodes = 0
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.best_evaluation: float | None = None
        self.best_checkpoint: int | None = None
        self.evaluated_at = self.saved_at = 0  # frames
        self.latest: dict[str, float] = {}
        self.last_evaluation: dict[str, Any] = {}
        self._elapsed_before = 0.0
        self._started = time.monotonic()
        self._logged: tuple[float, int] | None = None  # (time, agent steps) of the last train line
        offset = 0
        if state is not None:
            for name in (
                "agent_steps",
                "updates",
                "episodes",
                "best_evaluation",
                "best_checkpoint",
                "evaluated_at",
                "saved_at",
            ):
                setattr(self, name, state[name])
            self.recent.extend(state["recent"])
            self._elapsed_before = state["elapsed"]
            self.behaviours.load_state_dict(state["temperatures"])
            offset = state["metrics_offset"]
        self.metrics = Metrics(run.directory, config.tensorboard, offset, self.frames)
        self._first_steps = self.agent_steps
        if state is None:
            self.event(
                "start",
                **software(),
                bandits=[
                    vote.describe() for joint in self.behaviours.votes for vote in joint.votes
                ],
            )
        else:
            self.event("resume", **software(), updates=self.updates)

    @property
    def frames(self) -> int:
        return self.agent_steps * self.spec.action_repeat

    @property
    def elapsed(self) -> float:
        return self._elapsed_before + time.monotonic() - self._started

    def counters(self) -> dict[str, int]:
        return {"agent_steps": self.agent_steps, "frames": self.frames, "updates": self.updates}

    def event(self, name: str, **values: Any) -> None:
        self.metrics.write("event", self.counters(), {"event": name, **values})

    def collected_all(self) -> bool:
        return self.frames >= self.config.frames

    def end_episodes(self, actor: int, episodes: list[Episode]) -> None:
        """Episodes that ended teach the vote."""
        for e in episodes:
            self.behaviours.update(e.behaviour, e.episode_return, actor)
            self.episodes += 1
            self.recent.append(e.episode_return)
            drawn = zip(self.behaviours.names, e.behaviour.values, strict=True)
            self.metrics.write(
                "episode",
                self.counters(),
                {"return": e.episode_return, "length": e.length, **dict(drawn), "actor": actor},
            )

    def next_behaviours(self, actor: int, wanted: int) -> list[Behaviour]:
        """Of an actor's next episodes."""
        return [self.behaviours.next(actor) for _ in range(wanted)]

    def trained(
        self, diagnostics: dict[str, float] | None, extra: dict[str, float] | None = None
    ) -> None:
        """One learner update was made."""
        self.updates += 1
        if diagnostics is not None:
            now = time.monotonic()
            steps_per_s = 0.0
            if self._logged is not None and now > self._logged[0]:
                steps_per_s = (self.agent_steps - self._logged[1]) / (now - self._logged[0])
            self._logged = (now, self.agent_steps)
            self.latest = {
                **diagnostics,
                **(extra or {}),
                "frames_per_s": steps_per_s * self.spec.action_repeat,
                "elapsed": self.elapsed,
                "episodes": self.episodes,
                **self._favoured(),
            }
            if self.recent:
                self.latest["recent_return"] = sum(self.recent) / len(self.recent)
            self.metrics.write("train", self.counters(), {**self.latest, **self._tiles()})

    def _favoured(self) -> dict[str, float]:
        """The middle of the vote's best region."""
        return {
            f"favoured_{name}": (low + high) / 2
            for name, (low, high) in self.behaviours.favoured().items()
        }

    def _tiles(self) -> dict[str, list[float]]:
        """Value and visits of every tile of the first vote; of each parameter by name where the
        family has several.
        """
        tiles: dict[str, list[float]] = {}
        for name, vote in zip(self.behaviours.names, self.behaviours.votes[0].votes, strict=True):
            end = f"_{name}" if len(self.behaviours.names) > 1 else ""
            tiles |= {
                f"tile_values{end}": [round(float(v), 4) for v in vote.values()],
                f"tile_visits{end}": vote.counts().tolist(),
            }
        return tiles

    def evaluation_due(self) -> bool:
        every = self.config.evaluation.every
        return every > 0 and self.frames - self.evaluated_at >= every

    def evaluated(self, result: dict[str, Any], updates: int) -> None:
        self.last_evaluation = result
        self.metrics.write("evaluation", self.counters(), {**result, "version": updates})
        score = result["mean_return"]
        if self.best_evaluation is None or score > self.best_evaluation:
            self.best_evaluation = score
            self.best_checkpoint = None  # the next checkpoint is the one to keep
        self.progress.say(
            f"evaluation at {self.frames:,} frames: {score:.2f} ± {result['stderr']:.2f} (best"
            f" region), {result['greedy_mean_return']:.2f} ± {result['greedy_stderr']:.2f} (greedy)"
        )

    def checkpoint_due(self) -> bool:
        every = self.config.checkpoint.every
        return every > 0 and self.frames - self.saved_at >= every

    def state(self) -> dict[str, Any]:
        """The part of state.json that every runtime has."""
        self.saved_at = self.frames
        if self.best_evaluation is not None and self.best_checkpoint is None:
            self.best_checkpoint = self.updates
        return {
            **self.counters(),
            "episodes": self.episodes,
            "recent": list(self.recent),
            "best_evaluation": self.best_evaluation,
            "best_checkpoint": self.best_checkpoint,
            "evaluated_at": self.evaluated_at,
            "saved_at": self.saved_at,
            "elapsed": self.elapsed,
            "total_updates": self.total_updates,
            "temperatures": self.behaviours.state_dict(),
            "metrics_offset": self.metrics.offset(),
            "config_hash": self.config.hash(),
        }

    def saved(self) -> None:
        checkpoint.prune(self.run.directory, self.config.checkpoint.keep, self.best_checkpoint)

    def show(self, force: bool = False) -> None:
        """Refresh the progress line."""
        self.progress.update(
            {
                **self.latest,
                "frames": self.frames,
                "total_frames": self.config.frames,
                "updates": self.updates,
                "episodes": self.episodes,
                "recent_return": sum(self.recent) / len(self.recent) if self.recent else None,
                # to be called: it takes longer than all else here
                "best_evaluation": self.best_evaluation,
                "favoured": self.behaviours.favoured,
            },
            force,
        )

    def close(self) -> None:
        self.run.summary = {
            **self.counters(),
            "episodes": self.episodes,
            "elapsed": self.elapsed,
            "recent_return": sum(self.recent) / len(self.recent) if self.recent else None,
            **self._favoured(),
            "evaluation": self.last_evaluation,
        }
        self.metrics.close()
