"""Runs of a suite as subprocesses: ``jobs`` at a time, each with its share of the cores. What is on
disk alone decides what is left to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dicerl.config import as_text
from dicerl.envs import trust
from dicerl.errors import DicerlError
from dicerl.records.lock import in_use
from dicerl.runtime import machine
from dicerl.suite import state
from dicerl.suite.plan import Plan, SuiteRun

POLL = 0.2  # seconds
ATTEMPTS = 2  # a run killed by a signal (out of memory, by hand) is resumed once in the same call


@dataclass
class Job:
    """A run in progress."""

    run: SuiteRun
    process: subprocess.Popen[bytes]
    slot: int


class Scheduler:
    """``changed`` is called when a run's state changes, ``tick`` several times a second."""

    def __init__(
        self,
        runs: list[SuiteRun],
        jobs: int,
        changed: Callable[[SuiteRun], None],
        tick: Callable[[], None],
    ) -> None:
        self.runs, self.jobs = runs, jobs
        self._changed, self._tick = changed, tick
        self._running: list[Job] = []
        self._attempts: dict[str, int] = {}
        self.stops = 0  # signals received
        self.signal = 0  # the number of the first

    def run(self) -> bool:
        """Run until every run has finished or failed: True. False if a signal ended it earlier."""
        with self._signals():
            handled = 0  # of self.stops
            try:
                while self._open() or self._running:
                    if self.stops > handled:
                        handled = self.stops
                        self._stop(handled)
                    if not self.stops:
                        self._start()
                    elif not self._running:
                        break
                    for job in [job for job in self._running if job.process.poll() is not None]:
                        self._ended(job)
                    self._tick()
                    time.sleep(POLL)
            except BaseException:
                self._stop(1)
                for job in self._running:
                    job.process.wait()
                raise
        return all(run.state in ("finished", "failed") for run in self.runs)

    def _open(self) -> list[SuiteRun]:
        return [run for run in self.runs if run.state in ("queued", "waiting")]

    def _start(self) -> None:
        """Fill the free slots. A run that another process still writes to (one that outlived a
        killed suite) waits for it.
        """
        for run in self._open():
            free = sorted(set(range(self.jobs)) - {job.slot for job in self._running})
            if not free:
                return
            if in_use(run.directory):
                self._set(run, "waiting")
                continue
            state.look(run)  # a run it waited for may have finished
            if run.state == "finished":
                self._changed(run)
                continue
            try:
                process = self._launch(run, free[0])
            except DicerlError as error:
                self._set(run, "failed", str(error))
                continue
            self._attempts[run.name] = self._attempts.get(run.name, 0) + 1
            self._running.append(Job(run, process, free[0]))
            self._set(run, "running")

    def _launch(self, run: SuiteRun, slot: int) -> subprocess.Popen[bytes]:
        command = ["resume", str(run.directory)]
        if not state.has_checkpoint(run):
            state.make_room(run)
            fields = run.changes | {"seed": run.seed, "run_dir": str(run.directory)}
            command = [
                "train",
                run.game,
                f"--preset={run.config.preset}",
                f"--variant={run.variant}",
                *(f"--{name}={as_text(value)}" for name, value in fields.items()),
            ]
        run.log.parent.mkdir(parents=True, exist_ok=True)
        names = trust.named_in(run.config)
        with run.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches only the suite, which passes it on once.
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "dicerl", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_in_child(machine.share_of_cores(slot, self.jobs)),
                # whoever started the suite named these modules, or trusts its file
                env={**os.environ, trust.VARIABLE: trust.listed_with(*names)},
            )

    def _ended(self, job: Job) -> None:
        self._running.remove(job)
        run, code = job.run, job.process.returncode
        run.state = "ended"
        state.look(run)
        if run.state == "finished":
            self._changed(run)
        elif self.stops:
            self._set(run, "stopped")
        elif code < 0 and self._attempts[run.name] < ATTEMPTS:
            self._set(run, "queued", f"was killed by {machine.signal_name(-code)}")
        else:
            killed = f"was killed by {machine.signal_name(-code)}"
            self._set(run, "failed", killed if code < 0 else state.last_words(run))

    def _set(self, run: SuiteRun, name: str, reason: str = "") -> None:
        if (run.state, run.reason) != (name, reason):
            run.state, run.reason = name, reason
            self._changed(run)

    def _stop(self, times: int) -> None:
        """Stop all runs: the first time with a checkpoint, the second at once, then by SIGKILL."""
        for job in self._running:
            with contextlib.suppress(ProcessLookupError):
                job.process.send_signal(signal.SIGTERM if times < 3 else machine.SIGKILL)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(number: int, frame: Any) -> None:
            self.stops += 1
            self.signal = self.signal or number

        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def default_jobs(plan: Plan) -> int:
    """One run per core; a run of several processes gets all the cores."""
    if any(run.config.runtime.kind in ("process", "ray") for run in plan.runs):
        return 1
    return machine.cores()


def _in_child(cores: set[int]) -> Callable[[], None] | None:
    """What a child does before it becomes `dicerl`: it will stop with a checkpoint when the suite
    ends, for whatever reason. Nothing on Windows.
    """
    if os.name != "posix":
        return None
    parent = os.getpid()

    def prepare() -> None:
        machine.die_with(parent, signal.SIGTERM)
        machine.use_cores(cores)

    return prepare
