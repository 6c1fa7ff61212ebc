"""Your own code at the moments of a run.

Callbacks run in the process that called ``train``, under every runtime. Lines are those of
metrics.jsonl (docs/metrics.md). A method that returns True stops the run with a checkpoint; one
that raises does so too, and the run then ends with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dicerl.errors import DicerlError
from dicerl.records.run import Run

Line = dict[str, Any]


class Callback:
    """Override what you need."""

    def on_start(self, run: Run, frames: int) -> bool | None:
        """Training begins or, where ``frames`` is not 0, goes on from there."""

    def on_back(self, run: Run, frames: int) -> bool | None:
        """The run went back to its checkpoint at ``frames`` (a learner was lost, or it diverged):
        lines of what was done since then come again. It has begun before, and goes on.
        """

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
                stop = bool(getattr(callback, f"on_{moment}")(*args))
            except (Exception, SystemExit) as error:
                reason = str(error) if isinstance(error, DicerlError) else repr(error)
                self.failed(f"the callback {name} raised in on_{moment}: {reason}")
                return
            if stop and not self.stop:
                self.stop = True
                self._say(f"{name} stops the run")

    def asks(self, stop: Callable[[], bool]) -> bool:
        """Whether the run is to stop, by ``stop`` (``train(..., stop=...)``) or one of these."""
        if not self.stop:
            try:
                return bool(stop())
            except (Exception, SystemExit) as error:
                self.failed(f"stop raised {error!r}")
        return True

    def failed(self, failure: str) -> None:
        """Stop the run, which ends with this reason."""
        self.failure, self.stop = failure, True


class StopAt(Callback):
    """Stops a run whose evaluation, the mean at the best region, reaches ``score``."""

    def __init__(self, score: float) -> None:
        self.score = score

    def on_evaluation(self, line: Line) -> bool:
        return bool(line["mean_return"] >= self.score)
