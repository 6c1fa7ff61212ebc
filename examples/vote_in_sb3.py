"""Only the vote, inside another library: Stable-Baselines3's PPO explores at temperatures that a
BanditVote chooses, without an entropy bonus.

    pip install stable-baselines3
    python examples/vote_in_sb3.py

Each environment plays its episodes at a temperature of its own: logits / tau. The vote draws it
when an episode begins, and learns from its return. PPO stores the log-probability of the policy
that acted and trains that of tau = 1, so its ratio corrects for the temperature, up to its clip;
keep 1/tau near 1 for that. About ten seconds. More: docs/howto/vote.md
"""

import sys

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy

from dicerl.core import BanditVote, inv_temperature_from_x, x_from_inv_temperature


class Tempered(ActorCriticPolicy):
    """Acts with logits × 1/tau, a number for each environment; is trained with tau = 1."""

    inv_temperature = None  # [N, 1]; None: 1

    def _get_action_dist_from_latent(self, latent_pi):
        logits = self.action_net(latent_pi)  # [N, A]
        if self.inv_temperature is not None:
            logits = logits * self.inv_temperature
        return self.action_dist.proba_distribution(action_logits=logits)


class Vote(BaseCallback):
    """Draws a temperature for each episode, and reports its return to the vote."""

    def __init__(self, vote):
        super().__init__()
        self.vote, self.returns = vote, []

    def _on_training_start(self):
        self.x = np.array([self.vote.sample() for _ in range(self.training_env.num_envs)])

    def _on_rollout_start(self):
        self._set()

    def _set(self):
        found = inv_temperature_from_x(self.x)[:, None]
        self.model.policy.inv_temperature = torch.as_tensor(found, dtype=torch.float32)

    def _on_step(self):
        for number, info in enumerate(self.locals["infos"]):
            if "episode" in info:  # of SB3's Monitor: this environment's episode has ended
                self.vote.update(self.x[number], info["episode"]["r"])
                self.returns.append(info["episode"]["r"])
                self.x[number] = self.vote.sample()
        self._set()
        return True

    def _on_rollout_end(self):
        self.model.policy.inv_temperature = None
        low, high = (inv_temperature_from_x(x) for x in self.vote.best_region())
        text = f"{self.num_timesteps:>7,} steps  return {np.mean(self.returns[-50:] or [0]):6.1f}"
        print(f"{text}  best 1/tau {low:.2f} to {high:.2f}", file=sys.stderr)


def main(steps=20_000, seed=0):
    """Train; return the mean return of the last 50 episodes, and the vote."""
    torch.set_num_threads(1)  # a small network: threads would only wait for each other
    left, right = x_from_inv_temperature(0.5), x_from_inv_temperature(2.0)
    # `memory`: learn deviations from a running mean, since PPO's returns rise as it learns
    vote = BanditVote(left=left, right=right, accuracy=0.05, memory=50, seed=seed)
    env = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    model = PPO(Tempered, env, n_steps=128, batch_size=256, ent_coef=0.0, seed=seed, device="cpu")
    callback = Vote(vote)
    model.learn(steps, callback=callback)
    return float(np.mean(callback.returns[-50:])), vote


if __name__ == "__main__":
    print(f"mean return of the last 50 episodes: {main()[0]:.1f}")
