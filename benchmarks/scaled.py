"""CartPole and Catch with all rewards times a factor, for `learn.py scales`:

dicerl train scaled:CartPole_x0.01-v0      (in this folder)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from dicerl.envs.toy import Catch

FACTORS = ("0.001", "0.01", "0.1", "1", "10", "100", "1000")


def scaled(make: Callable[[], gymnasium.Env], factor: float, **_: Any) -> gymnasium.Env:
    return gymnasium.wrappers.TransformReward(make(), lambda reward: factor * float(reward))


for text in FACTORS:
    for name, make in (("CartPole", partial(gymnasium.make, "CartPole-v1")), ("Catch", Catch)):
        gymnasium.register(f"{name}_x{text}-v0", partial(scaled, make, float(text)))
