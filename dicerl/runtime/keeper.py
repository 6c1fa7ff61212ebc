"""``--keep-going``: a small process that starts a run's command again when it dies, so that only
the machine can end a run.

The command runs in the same process group, so the terminal's signals (Ctrl-C, Ctrl-Z) reach both. A
signal that reached only the keeper is passed on: the command acknowledges each one through a pipe.
If the keeper dies, the command stops with a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dicerl.config import RuntimeConfig
from dicerl.runtime.machine import STOPPING, die_with, signal_name
from dicerl.runtime.restarts import Restarts

VARIABLE = "DICERL_KEPT"  # for the command: the pipe's number, then why the one before died
GRACE = 0.5  # seconds for the command to acknowledge a signal, before it is passed on
PART = "the supervisor"


class Kept(NamedTuple):
    """What a command learns of its keeper."""

    heard: Callable[[], None] = lambda: None  # to be called for each signal that asks for a stop
    reason: str = ""  # why the command before died, if it did


def kept() -> Kept:
    """What the keeper of this process told it, if it has one. To be asked once."""
    pipe, _, reason = os.environ.pop(VARIABLE, "").partition(" ")
    if not pipe.isdigit():
        return Kept()
    descriptor = int(pipe)
    with contextlib.suppress(OSError):
        os.set_inheritable(descriptor, False)  # not for what an environment may start

    def heard() -> None:
        with contextlib.suppress(OSError):  # the keeper is gone
            os.write(descriptor, b".")

    return Kept(heard, reason)


class Keeper:
    """Runs ``dicerl`` with some arguments until it ends for good."""

    def __init__(self, limits: RuntimeConfig, say: Callable[[str], None]) -> None:
        self._limits, self._say = limits, say
        self._restarts = Restarts()
        self._signals: list[tuple[int, float]] = []  # (number, when) received here

    def run(
        self,
        first: list[str],
        again: Callable[[], list[str] | None],
        saved: Callable[[], list[str]] = list,
    ) -> int:
        """Run ``dicerl <first>``; whenever it dies, what ``again()`` says, or nothing more if that
        is None. A life in which ``saved()``, the run's checkpoints, stayed the same was of no use.
        Return the exit code of the last one.
        """
        arguments, reason = first, ""
        with self._listening():
            while True:
                before = saved()
                code = self._life(arguments, reason)
                if not _died(code) or self._signals:
                    return self._exit_code(code)
                next_ = again()
                if next_ is None:
                    return self._exit_code(code)
                reason = _how(code)
                self._restarts.count(PART, self._limits, useful=saved() != before)
                pause = self._restarts.pause(PART, reason, self._limits)
                self._say(f"{PART} {reason}; started again{f' in {pause:g} s' * (pause > 0)}")
                if not self._rested(pause):
                    return self._exit_code(code)
                arguments = next_

    def _life(self, arguments: list[str], reason: str) -> int:
        """Run the command once; return its return code, negative for a signal."""
        heard, theirs = os.pipe()
        parent = os.getpid()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dicerl", *arguments],
                pass_fds=[theirs],
                preexec_fn=lambda: die_with(parent, signal.SIGTERM),
                env={**os.environ, VARIABLE: f"{theirs} {reason}"},
            )
        finally:
            os.close(theirs)
        before, acknowledged, sent = len(self._signals), 0, 0.0
        try:
            while process.poll() is None:
                if select.select([heard], [], [], GRACE / 2)[0]:
                    found = len(os.read(heard, 64))
                    acknowledged += found
                    if not found:  # it has closed the pipe: it ends
                        return process.wait()
                now = time.monotonic()
                late = [s for s, when in self._signals[before:] if now - when > GRACE]
                if len(late) > acknowledged and now - sent > GRACE:
                    process.send_signal(late[acknowledged])
                    sent = now
            return process.returncode
        finally:
            os.close(heard)

    def _rested(self, seconds: float) -> bool:
        """Wait; return whether no signal came meanwhile."""
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(min(0.1, seconds))
        return not self._signals

    def _exit_code(self, code: int) -> int:
        """The exit code for what the command returned, as shells have it."""
        if code == 1 and self._signals:
            return 128 + self._signals[0][0]
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        def handle(number: int, frame: Any) -> None:
            self._signals.append((number, time.monotonic()))

        heard = [s for s in STOPPING if signal.getsignal(s) is not signal.SIG_IGN]  # else by nohup
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _died(code: int) -> bool:
    """Whether a command is to be started again: it was killed or crashed. Not where it ended (0), a
    person must do something (2), or it was stopped (128 and a signal's number).
    """
    return -code not in STOPPING if code < 0 else code not in (0, 2) and code < 128


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal_name(-code)}"
