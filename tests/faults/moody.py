"""The environment of the campaign: Catch that misbehaves on request, in mid-run.

It imports nothing of the tests, so that actors start as fast as with any other environment. A file
``mood-<where>`` in the folder that the variable FAULTS names makes the next call of step, reset or
close, in whichever process, do what its text says, once. A file ``clock`` shifts the clock. Files
``role-<pid>`` tell the campaign who is who.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dicerl.envs.toy import Catch

FOLDER = Path(os.environ.get("FAULTS", "."))
HUGE = 3e38  # a reward that is finite in float32, and whose square is not
ROLES = {"actor_role": "actor", "evaluator_role": "evaluator"}
_now = time.time


def shifted_time() -> float:
    """The time, plus the seconds in the file ``clock``."""
    try:
        return _now() + float((FOLDER / "clock").read_text() or 0)
    except (OSError, ValueError):
        return _now()


time.time = shifted_time


def made_by(names: Collection[str]) -> str:
    """Which of these functions makes this environment; "" if none does."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in names:
            return frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class Moody(Catch):
    """About 1,000 steps a second in all, on any machine: 8 environments of 1 ms."""

    def __init__(self) -> None:
        super().__init__()
        self._huge = 0  # further steps with a HUGE reward
        self._evaluates = bool(made_by(["make_evaluation_env"]))
        # none of them in the process that was started
        role = ROLES.get(made_by(ROLES), "supervisor")
        (FOLDER / f"role-{os.getpid()}").write_text(role)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._mood("reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(0.001)
        mood = self._mood("step")
        observation, reward, *rest = super().step(action)
        changed: Any = {
            "wrong shape": observation[:-1],
            "wrong kind": "north",
            "nothing": None,
            "NaN": np.full_like(observation, np.nan),
        }.get(mood, observation)
        if mood == "NaN reward":
            reward = float("nan")
        elif mood == "text as reward":
            reward = "much"  # type: ignore[assignment]
        elif self._huge:
            self._huge, reward = self._huge - 1, HUGE
        if mood == "four values":
            return changed, reward, *rest[1:]  # type: ignore[return-value]
        return changed, reward, *rest

    def close(self) -> None:
        self._mood("close")

    def _mood(self, where: str) -> str:
        """What is asked for here, if anything; done already, where it is the same everywhere."""
        path = FOLDER / f"mood-{where}"
        if not os.path.exists(path):
            return ""
        try:
            mood = path.read_text()
            if self._evaluates and mood.startswith("huge"):
                return ""  # no loss has what is played in an evaluation
            path.rename(FOLDER / "taken")  # one of them gets it
        except OSError:
            return ""
        what, _, number = mood.partition(" x ")
        match what:
            case "raise":
                raise RuntimeError("the engine\nis on fire")
            case "system exit":
                sys.exit(f"{where} gives up")
            case "exit":
                os._exit(3)
            case "hang":
                while True:
                    time.sleep(1)
            case "sleep":
                time.sleep(float(number))
            case "fork":
                if os.fork() == 0:
                    time.sleep(float(number))
                    os._exit(0)
            case "print":
                for _ in range(int(number)):
                    print("an environment that talks", "x" * 900)
                    os.write(2, b"noise " * 150 + b"\n")
            case "huge":
                self._huge = int(number)
        return what


gymnasium.register("Moody-v0", Moody)
