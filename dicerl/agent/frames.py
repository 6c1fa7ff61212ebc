"""Stacks of frames, kept as single frames: a window holds each frame once, and the network's input
is rebuilt where it is needed.

The stack at step t holds the frames of steps t - k + 1 to t, newest last; those from before the
episode's first step are zero.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor


def stacks(history: Tensor, frames: Tensor, first: Tensor) -> Tensor:
    """The stacks of all steps, channels last in memory, from the k - 1 ``history`` frames before
    step 0, the ``frames`` of each step, and where an episode is ``first`` observed (at step 0 the
    history is correct already).    [B, k - 1, H, W], [L, B, H, W], [L, B] -> [L, B, k, H, W]
    """
    before, length = history.shape[1], len(frames)
    rows = torch.cat([history.transpose(0, 1), frames])  # [k - 1 + L, B, H, W]
    if before == 3 and sys.byteorder == "little":  # two frames as the bytes of one number
        two = rows.to(torch.int16)
        pairs = torch.add(two[:-1], two[1:], alpha=256)
        out = torch.stack([pairs[:length], pairs[2:]], -1).view(torch.uint8)  # 2/3 of the time
    else:
        out = torch.stack([rows[i : i + length] for i in range(before + 1)], -1)
    (_blank_few if first.device.type == "cpu" else _blank)(out, first)
    return out.movedim(-1, 2)


def _blank_few(out: Tensor, first: Tensor) -> None:
    """Zero what other episodes left in stacks [L, B, H, W, k], episode by episode."""
    before, length = out.shape[-1] - 1, len(out)
    for t, column in first.nonzero().tolist():
        for age in range(min(before, length - t)):
            out[t + age, column, ..., : before - age] = 0


def _blank(out: Tensor, first: Tensor) -> None:
    """The same in a pass over all: no waiting until the device says where episodes start."""
    other = torch.zeros_like(first)  # whether the frame ``age`` steps ago is of another episode
    for age in range(1, out.shape[-1]):
        other = first | torch.cat([torch.zeros_like(first[:1]), other[:-1]])
        out[..., -1 - age].masked_fill_(other[..., None, None], 0)


def history_at(step: int, history: np.ndarray, frames: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """The k - 1 frames before ``step`` of windows: the history of those that begin there.
    [N, k - 1, H, W], [L, N, H, W], [L, N] -> [N, k - 1, H, W]
    """
    result, before = np.zeros_like(history), history.shape[1]
    same = np.ones(valid.shape[1], np.bool_)  # whether the episode is that of ``step``
    for age in range(1, before + 1):
        t = step - age
        if t >= 0:
            same &= valid[t]  # an invalid step is the last before another episode
        source = frames[t] if t >= 0 else history[:, before + t]
        result[same, before - age] = source[same]
    return result
