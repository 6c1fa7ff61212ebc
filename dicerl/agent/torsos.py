"""Torsos: convolutions of images, alone or beside other numbers of an observation.

    image [N, C, H, W] -> features [N, F]

Small ones end with Flatten, then ReLU: the other way round, the ReLU's gradient would have to be
brought into the axes of its output, which takes longer than the ReLU (docs/architecture.md).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from dicerl.envs.base import EnvSpec


class MaxPool(nn.Module):
    """The maximum of 3x3 pixels around every second one, [N, C, H, W] -> [N, C, H/2, W/2].

    torch also looks up where each maximum was. Without a gradient, where nobody asks, the maxima of
    rows and then of columns take less than half as long; they are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if plain or x.device.type != "cpu" or min(x.shape[2:]) < 2:
            return nn.functional.max_pool2d(x, 3, 2, padding=1)
        return _halved(_halved(x, 2), 3)


def _halved(x: Tensor, axis: int) -> Tensor:
    """The maximum of each even place of ``axis`` and its two neighbours."""
    size = x.shape[axis]
    even, odd = (x[(slice(None),) * axis + (slice(i, None, 2),)] for i in (0, 1))
    after = torch.maximum(even.narrow(axis, 0, size // 2), odd)
    if size % 2:  # the last one has nothing after it
        after = torch.cat([after, even.narrow(axis, size // 2, 1)], axis)
    rest = after.narrow(axis, 1, after.shape[axis] - 1)
    torch.maximum(rest, odd.narrow(axis, 0, rest.shape[axis]), out=rest)
    return after


class Residual(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(torch.relu(self.conv1(torch.relu(x))))
        return x + y


def impala_deep(channels: int) -> nn.Sequential:
    """The paper's torso: 16, 32, 32 channels; each conv 3x3, max-pool 3x3/2, two residual blocks.
    ``channels`` are the input's.
    """
    layers: list[nn.Module] = []
    for out in (16, 32, 32):
        layers += [nn.Conv2d(channels, out, 3, padding=1), MaxPool(), Residual(out), Residual(out)]
        channels = out
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


def impala_shallow(channels: int) -> nn.Sequential:
    """IMPALA's shallow torso: conv 8x8/4 with 16 channels, conv 4x4/2 with 32."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.Flatten(), nn.ReLU()
    )


def minatar(channels: int) -> nn.Sequential:
    """MinAtar's own torso: one 3x3 convolution with 16 channels."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.Flatten(), nn.ReLU())


CONVOLUTIONS = {"impala_deep": impala_deep, "impala_shallow": impala_shallow, "minatar": minatar}
SMALLEST_IMAGE = {"impala_deep": 8, "impala_shallow": 20, "minatar": 3}
LARGE = 24  # pixels a side from which an image gets a large torso


class Encoders(nn.Module):
    """A convolution for each image in a flat observation, beside its other numbers.
    [N, F] -> [N, size]
    """

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        others = torch.ones(spec.observation_shape[0], dtype=torch.bool)
        self._images: list[tuple[slice, tuple[int, ...], bool]] = []
        convolutions: list[nn.Module] = []
        size = 0
        for offset, shape in spec.images:
            image = EnvSpec("", shape, np.dtype(np.float32), 1)
            part, planes = slice(offset, offset + math.prod(shape)), image_shape(image)
            self._images.append((part, shape, image.channels_last))
            torso = "impala_shallow" if min(planes[1:]) >= LARGE else "minatar"
            convolutions.append(CONVOLUTIONS[torso](planes[0]))
            with torch.no_grad():
                size += convolutions[-1](torch.zeros(1, *planes)).numel()
            others[part] = False
        self.convolutions = nn.ModuleList(convolutions)
        self._others = others.nonzero().squeeze(1).tolist()
        self.size = size + len(self._others)

    def forward(self, x: Tensor) -> Tensor:
        found = [x[:, self._others]]
        for (part, shape, last), convolution in zip(self._images, self.convolutions, strict=True):
            image = x[:, part].unflatten(1, shape)
            if len(shape) == 2:
                image = image.unsqueeze(1)
            elif last:
                image = image.permute(0, 3, 1, 2)
            found.append(convolution(image))
        return torch.cat(found, 1)


def image_shape(spec: EnvSpec) -> tuple[int, int, int]:
    """(C, H, W) of an image."""
    shape = spec.observation_shape
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if spec.channels_last:
        return shape[2], shape[0], shape[1]
    return shape[0], shape[1], shape[2]
