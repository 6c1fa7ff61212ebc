"""A torso of your own: a network that knows something about its observation.

    python examples/torso.py

A ferry sees the clock, in hours since it was last wound, and says how the tide stands: high,
falling, low or rising. Tides repeat every 12.4 hours. Sines and cosines of that period say it all;
an MLP has to find every turn of the tide by itself. About ten seconds. More: docs/network.md
"""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

import dicerl
from dicerl.evaluate.evaluate import evaluate

PERIOD = 12.4  # hours
LOOKS = 20  # in an episode


class Ferry(gymnasium.Env):
    """The clock shows any hour of a month; the reward is 1 whenever the tide is named rightly."""

    action_space = Discrete(4)  # high, falling, low, rising
    observation_space = Box(0, 720, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """The first look at the clock."""
        super().reset(seed=seed)
        self._looks = 0
        return self._look(), {}

    def step(self, action):
        """Name the tide, then look again later."""
        right = action == int(4 * self._hour / PERIOD) % 4
        self._looks += 1
        return self._look(), float(right), self._looks == LOOKS, False, {}

    def _look(self):
        self._hour = self.np_random.uniform(0, 720)
        return np.array([self._hour], np.float32)


class Waves(nn.Module):
    """Sine and cosine of the tide, then a layer. A torso is made with the shape of one input, and
    makes features [N, F] of inputs [N, ...]. What is not to be trained is a buffer.
    """

    def __init__(self, shape):
        super().__init__()
        self.register_buffer("speed", torch.tensor(2 * np.pi / PERIOD, dtype=torch.float32))
        self.layer = nn.Linear(2 * shape[0], 32)

    def forward(self, x):
        """[N, 1] -> [N, 32]"""
        angle = self.speed * x
        return torch.relu(self.layer(torch.cat([angle.sin(), angle.cos()], -1)))


def main(torso=Waves, frames=30_000):
    """Train; return the share of tides named rightly, in 64 episodes."""
    run = dicerl.train(Ferry, torso=torso, frames=frames, loss__discount=0.0)
    return evaluate(run.directory, Ferry, episodes=64).result["mean_return"] / LOOKS


if __name__ == "__main__":
    print(f"right: {main():.0%} with the torso Waves, {main(torso=None):.0%} with an MLP")
