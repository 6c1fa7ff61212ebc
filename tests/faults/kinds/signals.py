"""Signals: to one process of a run, or to all of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from faults.kinds.base import ALL, PARALLEL, STARTING, Strike, kind
from faults.life import processes
from faults.story import STUCK, Story

# --- signals to one process

HEALED = {
    "actor": ("actor_replaced",),
    "evaluator": ("evaluator_died",),
    "learner": ("learner", "rolled_back", "healed"),
}


def _kill(role: str) -> Callable[[Story], Strike]:
    def strike(story: Story) -> Strike:
        os.kill(story.role(role), signal.SIGKILL)
        if role == "supervisor":
            return Strike(role, killed_by=signal.SIGKILL, ends=True)
        return Strike(role, HEALED[role], goes_on=True)

    return strike


def _pause(role: str) -> Callable[[Story], Strike]:
    """Stopped for less time than counts as stuck."""

    def strike(story: Story) -> Strike:
        pid, seconds = story.role(role), story.rng.uniform(0.05, 0.6 * STUCK)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return Strike(f"{role} for {seconds:.1f} s", over=story.now(), goes_on=True)

    return strike


def _freeze(role: str, patience: float) -> Callable[[Story], Strike]:
    """Stopped for ever, as in a driver or on a dead network disk."""

    def strike(story: Story) -> Strike:
        if role == "evaluator":
            story.wait(lambda: _evaluates(story), "an evaluation", 60)
        pid = story.role(role)
        os.kill(pid, signal.SIGSTOP)
        bound = patience + 60.0
        # an evaluator that owes nothing is missed when it is next asked
        return Strike(role, HEALED[role], bound=bound, goes_on=True)

    return strike


def _evaluates(story: Story) -> bool:
    return any(line["kind"] == "evaluation" for line in story.lines())


for _role in ("supervisor", "actor", "learner", "evaluator"):
    _runtimes = ALL if _role == "supervisor" else PARALLEL
    kind(f"{_role} killed", _runtimes, 2.0)(_kill(_role))
    kind(f"{_role} paused", _runtimes, 0.6)(_pause(_role))
kind("actor frozen", PARALLEL)(_freeze("actor", STUCK))
# these two take STARTING seconds each
kind("learner frozen", PARALLEL, 0.12)(_freeze("learner", STARTING))
kind("evaluator frozen", PARALLEL, 0.12)(_freeze("evaluator", STARTING))


@kind("fork server lost", ("process",), 0.6)
def lose_fork_server(story: Story) -> Strike:
    """Killed, or stopped for ever; and an actor dies that it would have replaced."""
    number = story.rng.choice([signal.SIGKILL, signal.SIGSTOP])
    os.kill(story.role("fork server"), number)
    os.kill(story.role("actor"), signal.SIGKILL)
    return Strike(f"{number.name}, an actor killed", HEALED["actor"], goes_on=True)


# without those of other kinds: kill, stop, Ctrl-C
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHERS = tuple(
    set(signal.Signals)
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


@kind("any signal", ALL, 2.0)
def any_signal(story: Story) -> Strike:
    """Of all there are, real-time ones among them, to any process."""
    rng = story.rng
    role = rng.choice(["supervisor", "actor", "learner", "evaluator"])
    number = rng.choice([*sorted(OTHERS), *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)])
    pid = story.role(role)
    ignored = int(_status(pid, "SigIgn"), 16) >> (number - 1) & 1
    os.kill(pid, number)
    harmless = bool(ignored) or number in HARMLESS
    if pid == story.life.process.pid:
        if number in STOPPING:
            return Strike(f"{number} to the supervisor", ends=True, bound=40.0)
        return Strike(f"{number} to the supervisor", killed_by=number, over=story.now())
    return Strike(
        f"{number} to the {role}",
        () if harmless else HEALED[role],
        over=story.now(),
        # Ray's workers handle some of them in ways of their own
        goes_on=story.runtime != "ray",
    )


def _status(pid: int, field: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return text.split(f"{field}:")[1].split()[0]


# --- signals to all of them


@kind("Ctrl-C")
def interrupt(story: Story) -> Strike:
    number = story.rng.choice(STOPPING)
    os.killpg(story.life.process.pid, number)
    return Strike(f"{number} to all", ends=True, bound=40.0)


@kind("Ctrl-C twice")
def interrupt_twice(story: Story) -> Strike:
    pause = story.rng.uniform(0.0, 1.0)
    os.killpg(story.life.process.pid, signal.SIGINT)
    time.sleep(pause)
    if story.life.process.poll() is None:
        os.killpg(story.life.process.pid, signal.SIGINT)
    # the second may come when the run is over and Python ends: 130 for a shell, either way
    return Strike(f"{pause:.2f} s apart", ends=True, bound=40.0, killed_by=signal.SIGINT)


@kind("suspended")
def suspend(story: Story) -> Strike:
    """All of it, for longer than a child may be silent."""
    story.remember()
    own = [pid for pid in story.family if pid in processes(story.life.process.pid)]
    seconds = story.rng.uniform(0.2, 1.6) * STUCK
    for pid in own:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in reversed(own):
        os.kill(pid, signal.SIGCONT)
    return Strike(f"{seconds:.1f} s", over=story.now(), goes_on=True)
