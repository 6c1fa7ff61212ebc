"""Evaluations during a run: the evaluator is started when it is first needed, plays with the newest
published parameters, and writes those that were the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dicerl.errors import NoRoom
from dicerl.records import checkpoint
from dicerl.records.state import RunState
from dicerl.runtime.children import Child, EvaluatorChild
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.messages import Alive, Evaluate, Evaluated, NotSaved, Play, Pulled, Save, Saved


class Evaluations:
    """The evaluator and what it works on; ``start`` starts a child."""

    def __init__(self, coordinator: Coordinator, start: Callable[[Child], None]) -> None:
        self.evaluator = EvaluatorChild()
        self._coordinator, self._start = coordinator, start
        self._not_before = 0.0  # after it died
        # folder and state of the best evaluated parameters, while the evaluator writes them
        self._best: tuple[Path, RunState] | None = None

    @property
    def under_way(self) -> bool:
        """Whether an evaluation is under way; the best parameters are written before its end."""
        return self.evaluator.evaluating

    @property
    def saving(self) -> bool:
        """Whether the evaluator writes the best parameters now."""
        return self._best is not None

    def possible(self) -> bool:
        """Whether one can begin now: none is under way, and a dead evaluator's pause is over."""
        return not self.under_way and time.monotonic() >= self._not_before

    def begin(self) -> None:
        """Ask for an evaluation of the newest published parameters, if that is possible now."""
        if not self.possible():
            return
        evaluator = self.evaluator
        if evaluator.handle is None:
            try:
                self._start(evaluator)
            except NoRoom:
                return  # it stays due
        self._coordinator.evaluation_requested()
        evaluator.evaluating, evaluator.last_seen = True, time.monotonic()
        self._send(Evaluate())

    def _send(self, message: Any) -> None:
        assert self.evaluator.handle is not None
        self.evaluator.handle.send(message)

    def receive(self, message: Any) -> None:
        """Handle a message from the evaluator."""
        c = self._coordinator
        match message:
            case Pulled(version):
                self._send(Play(c.evaluation_begins(version)))
            case Evaluated(result):
                best = c.evaluated(result)
                if best is None:
                    self.evaluator.evaluating = False
                else:  # the evaluator still has the parameters
                    self._best = checkpoint.begin(c.run.directory, "best"), best
                    self._send(Save(str(self._best[0])))
            case Saved():
                assert self._best is not None
                (folder, state), self._best = self._best, None
                try:
                    checkpoint.finish(folder, state)
                except OSError as error:
                    raise checkpoint.failed(c.run.directory, folder, error) from error
                c.best_kept(state)
                self.evaluator.evaluating = False
            case NotSaved(reason):
                assert self._best is not None
                raise checkpoint.failed(c.run.directory, self._best[0], reason)
            case Alive():
                pass
            case _:
                raise TypeError(f"an evaluator sent {message!r}")

    def died(self, pause: float) -> None:
        """The evaluator is gone, and with it what was under way; the next evaluation starts a new
        one, after ``pause`` seconds at the earliest.
        """
        self.evaluator.evaluating = False
        self._not_before = time.monotonic() + pause
        self.discard()

    def discard(self) -> None:
        """Remove what the evaluator had begun to write."""
        if self._best is not None:
            checkpoint.discard(self._best[0])
            self._best = None
