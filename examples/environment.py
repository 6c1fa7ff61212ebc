"""An environment of your own: write it, train on it, play with the agent.

    python examples/environment.py

A thermostat keeps a room near 20 degrees. It sees the temperature and the hour of the day, and
chooses to cool, to wait or to heat. About ten seconds. More: docs/howto/environment.md
"""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import dicerl


class Thermostat(gymnasium.Env):
    """A day of 24 steps, one an hour; the reward of a step is minus its distance from 20 degrees.

    Nights are cold and days are hot, and a room follows slowly: who waits until it is cold is late.
    """

    action_space = Discrete(3)  # cool, wait, heat
    observation_space = Box(-np.inf, np.inf, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Begin a day at midnight, between 10 and 30 degrees. Gymnasium's own reset seeds
        ``np_random``: take random numbers from nowhere else, and runs can be repeated.
        """
        super().reset(seed=seed)
        self._hour, self._inside = 0, self.np_random.uniform(10, 30)
        return self._observe(), {}

    def step(self, action):
        """One hour; return (observation, reward, terminated, truncated, info)."""
        outside = 20 - 15 * np.cos(2 * np.pi * self._hour / 24)
        self._inside += 0.2 * (outside - self._inside) + 4 * (action - 1)
        self._hour += 1
        reward = -abs(self._inside - 20)
        # A day ends by its length, not because anything failed: that is a truncation, and what
        # would have followed still counts in the targets. `terminated` means there is no future.
        return self._observe(), reward, False, self._hour == 24, {}

    def _observe(self):
        """Numbers of about the size 1 are learned fastest."""
        angle = 2 * np.pi * self._hour / 24
        inside = (self._inside - 20) / 10
        return np.array([inside, np.sin(angle), np.cos(angle)], np.float32)


def play(choose, days=20):
    """The mean return of ``days``, with ``choose(observation)`` as the policy."""
    env, returns = Thermostat(), []
    for day in range(days):
        observation, _ = env.reset(seed=day)
        over, total = False, 0.0
        while not over:
            observation, reward, terminated, truncated, _ = env.step(choose(observation))
            over = terminated or truncated
            total += reward
        returns.append(total)
    return float(np.mean(returns))


def main(frames=50_000):
    """Train; return the mean returns of the agent, and of a policy that always waits."""
    run = dicerl.train(Thermostat, frames=frames)
    agent = dicerl.load_agent(run, make_env=Thermostat)
    return play(lambda observation: agent.act(observation, greedy=True)[0]), play(lambda _: 1)


if __name__ == "__main__":
    trained, waiting = main()
    print(f"mean return of a day: {trained:.1f} trained, {waiting:.1f} if one always waits")
