"""Torsos: convolutions of images, alone or beside other numbers of an observation."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from dicerl.envs.base import EnvSpec


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
        layers += [
            nn.Conv2d(channels, out, 3, padding=1),
            nn.MaxPool2d(3, 2, padding=1),
            Residual(out),
            Residual(out),
        ]
        channels = out
    return nn.Sequential(*layers, nn.ReLU())


def impala_shallow(channels: int) -> nn.Sequential:
    """IMPALA's shallow torso: conv 8x8/4 with 16 channels, conv 4x4/2 with 32."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()
    )


def minatar(channels: int) -> nn.Sequential:
    """MinAtar's own torso: one 3x3 convolution with 16 channels."""
    return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU())


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
            found.append(convolution(image).flatten(1))
        return torch.cat(found, 1)


def image_shape(spec: EnvSpec) -> tuple[int, int, int]:
    """(C, H, W) of an image."""
    shape = spec.observation_shape
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if spec.channels_last:
        return shape[2], shape[0], shape[1]
    return shape[0], shape[1], shape[2]
