"""The work every contender does, the game as the peers play it, and the stopwatch. Imported in
every virtual environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

NUM_ENVS = 32
LENGTH = 80  # steps of a trained sequence
BATCH = 16  # sequences of an update
REUSE = 2  # times each step is trained
STEPS = LENGTH * BATCH  # of an update
CHANNELS = ((16, 8, 4), (32, 4, 2))  # impala_shallow: (filters, kernel, stride), then a dense layer
HIDDEN = LSTM = 256
SECTIONS = (16, 32, 32)  # impala_deep: filters of each section with two residual blocks
WARM = 10  # updates before the clock starts
WARM_DEEP = 4  # they take seconds each


def make_game(*_: Any, **__: Any) -> Any:
    """Pong as dicerl plays it: 18 actions, frame skip 4 with the maximum of two, 84 x 84 gray, 4
    stacked; no-ops, no clipping, no lives.
    """
    import ale_py
    import gymnasium as gym

    if hasattr(gym, "register_envs"):  # Gymnasium 1; before, the import alone did it
        gym.register_envs(ale_py)
    env = gym.make(
        "ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=True
    )
    env = gym.wrappers.AtariPreprocessing(
        env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True
    )
    if hasattr(gym.wrappers, "FrameStackObservation"):
        return gym.wrappers.FrameStackObservation(env, 4)
    return gym.wrappers.FrameStack(env, 4)


def torso(deep: bool) -> Any:
    """impala_shallow or impala_deep over [N, 4, 84, 84] values in 0..1, for the peers that take a
    module.
    """
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, filters: int) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
            )

        def forward(self, x: Any) -> Any:
            return x + self.layers(x)

    layers: list[Any] = []
    channels, side = 4, 84
    if deep:
        for filters in SECTIONS:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            layers += [Residual(filters), Residual(filters)]
            channels, side = filters, (side + 1) // 2
        layers += [nn.ReLU()]
    for filters, kernel, stride in () if deep else CHANNELS:
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        channels, side = filters, (side - kernel) // stride + 1
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(channels * side * side, HIDDEN), nn.ReLU()
    )


def cpu_seconds() -> float:
    """Processor time of this process and its descendants so far."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(entry.parent.name)
        parents[pid] = int(fields[1])
        # with the children it has waited for
        used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def below(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return sum(seconds for pid, seconds in used.items() if below(pid))


class Stopwatch:
    """Agent steps over a stretch that begins after the first updates and ends with an update."""

    def __init__(self, seconds: float, deep: bool) -> None:
        self._seconds, self._warm = seconds, WARM_DEEP if deep else WARM
        self._updates = 0
        self._start: tuple[float, float, int, int] | None = None
        self.result: dict[str, float] = {}

    def tell(self, steps: int, updates: int) -> bool:
        """Call it with what was trained so far (each step once), as often as you like: only new
        updates count. True when the time is up.
        """
        if updates == self._updates:
            return bool(self.result)
        self._updates = updates
        if self._start is None:
            if updates >= self._warm:
                self._start = (time.perf_counter(), cpu_seconds(), steps, updates)
            return False
        elapsed = time.perf_counter() - self._start[0]
        if elapsed >= self._seconds and not self.result:
            used, stepped, updated = (
                cpu_seconds() - self._start[1],
                steps - self._start[2],
                updates - self._start[3],
            )
            self.result = {
                "steps_per_s": round(stepped / elapsed, 1),
                "seconds": round(elapsed, 1),
                "agent_steps": stepped,
                "updates": updated,
                "trained_per_step": round(updated * STEPS / max(stepped, 1), 2),
                "cores_busy": round(used / elapsed, 2),
                "steps_per_cpu_s": round(stepped / used, 1),
            }
        return bool(self.result)


def arguments(description: str, **settings: int) -> argparse.Namespace:
    """--seconds, --deep, and one option for each setting worth trying."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="to measure, after the first updates"
    )
    parser.add_argument("--deep", action="store_true", help="the paper's deep torso")
    parser.add_argument("--show", action="store_true", help="print the network to standard error")
    for name, value in settings.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=value, help=f"default: {value}"
        )
    return parser.parse_args()


def report(result: dict[str, Any]) -> None:
    """The last line of standard output is the result."""
    print("\n" + json.dumps(result), flush=True)
