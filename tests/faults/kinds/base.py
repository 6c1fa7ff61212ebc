"""What a kind of fault is, and the list of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.life import Life
from faults.story import Broken, Story

ALL, PARALLEL = ("serial", "process", "ray"), ("process", "ray")
STARTING = 120.0  # seconds that learners and evaluators have at least (runtime/children.py)


@dataclass
class Strike:
    """A fault that was made."""

    detail: str
    awaits: tuple[str, ...] = ()  # parts of the names of events; one of them must follow
    over: float = 0.0  # by the clock of the run: only training after it shows that the run goes on
    beyond: int = 0  # the same in agent steps, where the clock cannot tell
    calm: str = ""  # a field of the train lines that must have stopped growing
    bound: float = 60.0  # seconds for the run to go on or to end
    killed_by: int = 0  # the signal that may have ended the supervisor
    goes_on: bool = False  # it may not end the run
    ends: bool = False  # it must
    undo: Callable[[], None] = lambda: None  # before a resume
    # of faults that strike while no life trains: it was seen to do right, in so many seconds
    outcome: tuple[str, float] | None = None


@dataclass
class Kind:
    """A kind of fault, the runtimes it is for, and how often it is drawn."""

    name: str
    strike: Callable[[Story], Strike]
    runtimes: tuple[str, ...]
    weight: float


KINDS: list[Kind] = []


def kind(name: str, runtimes: tuple[str, ...] = ALL, weight: float = 1.0) -> Any:
    """Make a function a kind of fault."""

    def register(strike: Callable[[Story], Strike]) -> Callable[[Story], Strike]:
        KINDS.append(Kind(name, strike, runtimes, weight))
        return strike

    return register


def try_life(story: Story, what: str, start: Callable[[], Life], run: Path) -> Strike:
    """Start a life that may train ("healed"), or end with a reason and exit code 2 or 0."""
    began = time.monotonic()
    before, story.life = story.life, start()
    life = story.life

    def decided() -> bool:
        # a damaged config may log no updates
        goes_on = story.trained_since(life) or story.trained_since(life, "episode")
        return life.process.poll() is not None or bool(goes_on)

    try:
        story.wait(decided, f"{what}: it trains or ends")
        seconds = time.monotonic() - began
        if life.process.poll() is None:
            life.process.send_signal(signal.SIGTERM)
            story.ended(life, 40.0)
            story.check_end(life)
            return Strike(what, outcome=("healed", seconds))
        story.ended(life, 1.0)
        if life.code == 0:  # a run of fewer frames than it has is complete
            return Strike(what, outcome=("healed", seconds))
        said = story.check_end(life)
        return Strike(f"{what}: {said}", outcome=("ended", seconds))
    except Broken as error:
        raise Broken(f"{what}: {error}") from None
    finally:
        story.life = before
