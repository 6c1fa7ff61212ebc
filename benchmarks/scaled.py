"""CartPole, Catch and MinAtar Breakout with all rewards times a factor, for `learn.py scales` and
`minatar_scales`:

dicerl train scaled:CartPole_x0.01-v0      (in this folder)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from dicerl.envs.gym import register_plugins
from dicerl.envs.toy import Catch

FACTORS = ("0.001", "0.01", "0.1", "1", "10", "100", "1000")


def scaled(make: Callable[[], gymnasium.Env], factor: float, **_: Any) -> gymnasium.Env:
    register_plugins()  # MinAtar
    return gymnasium.wrappers.TransformReward(make(), lambda reward: factor * float(reward))


MAKE = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "Catch": Catch,
    "Breakout": partial(gymnasium.make, "MinAtar/Breakout-v1"),
}
for text in FACTORS:
    for name, make in MAKE.items():
        gymnasium.register(f"{name}_x{text}-v0", partial(scaled, make, float(text)))
