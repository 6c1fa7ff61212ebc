"""The trajectory schema, defined once: what an actor records, a collector holds and a learner
reads.

A window holds L = burn_in + T + 1 steps of one environment's stream; its last step is the bootstrap
(observation and action only), which is step T's successor. Windows follow each other with stride T,
so each step is trained in exactly one window and is burn-in for the next. Before a stream's first
step the window is padded with invalid steps.

Episode ends are encoded in ``discount`` (0 where the step terminated) and ``valid`` (0 on the reset
step after an episode's last step). The first observation of an episode follows an invalid step:
there the recurrent state is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dicerl.config import Config
from dicerl.core.family import NUMBERS
from dicerl.envs.base import EnvSpec


@dataclass(frozen=True)
class Field:
    """One field of a window: the shape and dtype of one value."""

    shape: tuple[int, ...]
    dtype: np.dtype
    per_step: bool = True  # [L, ...] in a window; otherwise one value a window


Schema = dict[str, Field]
Arrays = dict[str, np.ndarray]


def schema(config: Config, spec: EnvSpec) -> Schema:
    """The fields of a window for this config and environment."""
    f32, i64, flag = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
    seen: Schema = {"observation": Field(spec.observation_shape, spec.observation_dtype)}
    if spec.frame_stack > 1:  # each frame once (agent/frames.py)
        _, *frame = spec.observation_shape
        seen = {
            "observation": Field(tuple(frame), spec.observation_dtype),  # the newest frame
            "history": Field(
                (spec.frame_stack - 1, *frame), spec.observation_dtype, per_step=False
            ),  # the frames before the window's first step
        }
    return {
        **seen,
        # where actions are allowed
        **({"action_mask": Field((spec.num_actions,), flag)} if spec.masked else {}),
        "action": Field((), i64),
        "reward": Field((), f32),  # raw; the learner shapes it
        "discount": Field((), f32),  # gamma, or 0 where the step terminated the episode
        "valid": Field((), flag),  # 0: a reset step or padding, no data
        "log_prob": Field((), f32),  # log mu(a_t|s_t) of the policy that acted
        # the episode's behaviour: inv_temperature (1/tau), or the numbers of its family
        **{name: Field((), f32) for name in NUMBERS[config.behaviour.family]},
        "scale": Field((), f32),  # A is measured in units of this (1 where behaviour.scale is raw)
        "version": Field((), i64),  # learner updates behind the parameters that acted
        # (h, c) before the window's first step
        "state": Field((2, config.network.lstm), f32, per_step=False),
        # before the window's first step; -1 at an episode's start
        "last_action": Field((), i64, per_step=False),
        "last_reward": Field((), f32, per_step=False),
        # actor incarnation, environment, number of the window in its stream
        "stream": Field((3,), i64, per_step=False),
        "created": Field((), np.dtype(np.float64), per_step=False),  # time the window was complete
    }


def is_frames(field: Field) -> bool:
    """Whether a field holds images, of bytes or truth values."""
    return bool(field.shape) and field.dtype.itemsize == 1


def window_length(config: Config) -> int:
    """L, the number of steps in a window."""
    return config.sequence.burn_in + config.sequence.length + 1


def allocate(fields: Schema, length: int, count: int) -> Arrays:
    """Zero arrays for ``count`` windows side by side, time-major: [L, count, ...], or [count, ...]
    for fields that are not per step.
    """
    return {
        n: np.zeros(((length, count) if f.per_step else (count,)) + f.shape, f.dtype)
        for n, f in fields.items()
    }


def with_single_frames(fields: Schema, windows: Arrays) -> Arrays:
    """Windows [L, N, ...] as ``fields`` has them, of a checkpoint that may hold whole stacks."""
    if "history" not in fields or "history" in windows:
        return windows
    stack = windows["observation"]  # [L, N, k, H, W]
    return {**windows, "observation": stack[:, :, -1], "history": stack[0, :, :-1]}


def window_bytes(fields: Schema, length: int) -> int:
    """The memory of one window, in bytes."""
    return sum(
        int(np.prod(f.shape, dtype=np.int64)) * f.dtype.itemsize * (length if f.per_step else 1)
        for f in fields.values()
    )


def episode_starts(valid: np.ndarray) -> frozenset[int]:
    """The steps at which an episode starts in any of the windows ``valid`` [L, B] belongs to: those
    after an invalid one.
    """
    return frozenset((np.flatnonzero(~valid[:-1].all(1)) + 1).tolist())


class Store:
    """Slots for ``count`` sequences, time-major, in memory that processes can share."""

    def __init__(self, fields: Schema, length: int, count: int, shared: bool = False) -> None:
        self.fields = fields
        self._tensors = {n: torch.from_numpy(a) for n, a in allocate(fields, length, count).items()}
        if shared:
            for tensor in self._tensors.values():
                tensor.share_memory_()
        self._view()

    def _view(self) -> None:
        self.arrays: Arrays = {n: t.numpy() for n, t in self._tensors.items()}

    def __getstate__(self) -> dict[str, object]:
        return {"fields": self.fields, "_tensors": self._tensors}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._view()

    def write(self, slots: list[int], windows: Arrays, columns: list[int]) -> None:
        """Copy ``columns`` of a block of windows [L, N, ...] into ``slots``."""
        for name, field in self.fields.items():
            to, source = self.arrays[name], windows[name]
            if not field.per_step:
                to[slots] = source[columns]
            elif field.shape:  # observations: one copy, where indexing by lists would make two
                for slot, column in zip(slots, columns, strict=True):
                    to[:, slot] = source[:, column]
            else:
                to[:, slots] = source[:, columns]

    def read(self, slots: list[int], into: Arrays | None = None) -> Arrays:
        """Copy a batch out of ``slots``: [L, B, ...], or [B, ...] for fields not per step. Return
        ``into``, if given, or new arrays.
        """
        found: Arrays = {} if into is None else into
        numbers = np.asarray(slots, np.intp)
        for name, field in self.fields.items():
            # "clip": with an ``out``, numpy would else make a copy of its own first
            found[name] = np.take(
                self.arrays[name], numbers, 1 if field.per_step else 0, found.get(name), "clip"
            )
        return found
