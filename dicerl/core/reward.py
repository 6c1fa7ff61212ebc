"""The reward the learner sees (docs/paper.md 2.6): returns for the bandits and for every report
stay raw.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def window_returns(reward: np.ndarray, discount: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The returns of a window without what lies beyond it: G_t = r_t + gamma_t G_{t+1}, G_T = 0;
    0 where not ``valid``.    [T, B] each
    """
    returns = np.where(valid, reward, np.zeros((), reward.dtype))
    weight = np.where(valid, discount, np.zeros((), discount.dtype))
    rows, weights = list(returns), list(weight)
    for t in range(len(rows) - 2, -1, -1):
        rows[t] += weights[t] * rows[t + 1]
    return returns


def shape_reward(reward: Tensor, shape: str = "log", scale: float = 1.0) -> Tensor:
    """log(|r| + 1) * (2 if r >= 0 else -1), printed; ``"none"`` leaves r as it is. r is the reward
    times ``scale``.
    """
    if scale != 1.0:
        reward = reward * scale
    if shape == "none":
        return reward
    if shape != "log":
        raise ValueError(f"reward_shape is {shape!r}; it can be 'log' or 'none'")
    return torch.log1p(reward.abs()) * torch.where(reward >= 0, 2.0, -1.0).to(reward.dtype)
