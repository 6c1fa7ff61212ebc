"""The reward the learner sees (docs/paper.md 2.6): returns for the bandits and for every report
stay raw.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
