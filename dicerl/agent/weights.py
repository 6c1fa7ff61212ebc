"""A network's parameters and buffers as one vector, and the state of its training.

Copying, publishing and training a network then take one operation each. One for every tensor would
cost a small network more than the arithmetic. Several learners may train one set of weights in
shared memory.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from types import TracebackType
from typing import NamedTuple

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from dicerl.errors import CheckpointError

ALIGNED = 16  # floats: every tensor starts at a multiple of 64 bytes


class Place(NamedTuple):
    """The place of a tensor in the vector."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Layout = dict[str, Place]  # by name, parameters first


class Flat:
    """A network as one vector: its parameters and buffers become views into it.

    ``vector`` holds ``num_trained`` entries of parameters, then the buffers. Moving the network to
    another device breaks the views; make a new Flat then.
    """

    def __init__(self, network: nn.Module) -> None:
        self.layout, self.num_trained, size = _layout(network)
        self.vector = torch.zeros(size, device=next(network.parameters()).device)
        with torch.no_grad():
            for name, x in (*network.named_parameters(), *network.named_buffers()):
                home = self[name]
                home.copy_(x)
                x.data = home

    def __getitem__(self, name: str) -> Tensor:
        return view(self.vector, self.layout, name)


def _layout(network: nn.Module) -> tuple[Layout, int, int]:
    """(layout, number of entries of the parameters, number of all entries).

    Convolution kernels are stored channels last, as they are used.
    """
    layout: Layout = {}
    end = 0

    def place(name: str, x: Tensor) -> None:
        nonlocal end
        order = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        like = torch.empty(x.shape, device="meta", memory_format=order)
        layout[name] = Place(end, tuple(x.shape), like.stride())
        end += -(-x.numel() // ALIGNED) * ALIGNED

    for name, parameter in network.named_parameters():
        place(name, parameter)
    trained = end
    for name, buffer in network.named_buffers():
        place(name, buffer)
    return layout, trained, end


def view(vector: Tensor, layout: Layout, name: str) -> Tensor:
    """The tensor ``name`` inside a vector of this layout: of weights, gradients or moments."""
    offset, shape, strides = layout[name]
    return vector.as_strided(shape, strides, vector.storage_offset() + offset)


class PipeLock:
    """A lock between processes, without a name that could outlive them: one byte in a pipe. The
    process that has read the byte holds the lock.
    """

    def __init__(self) -> None:
        self._get: Connection
        self._put: Connection
        self._get, self._put = mp.get_context("spawn").Pipe(duplex=False)
        os.write(self._put.fileno(), b".")

    def __enter__(self) -> None:
        os.read(self._get.fileno(), 1)

    def intact(self, seconds: float) -> bool:
        """Whether no process died with the lock: it is free, or will be within ``seconds``."""
        return self._get.poll(seconds)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._put.fileno(), b".")


class Weights:
    """What training changes: a network's vector, AdamW's moments and step count, and the numbers of
    updates and trained steps.

    With ``shared``, processes can share it: the vector is then a copy, to be changed only while
    holding ``lock``.
    """

    def __init__(self, flat: Flat, shared: bool = False) -> None:
        self.vector, self.layout = flat.vector, flat.layout
        self.moments = torch.zeros(2, flat.num_trained, device=flat.vector.device)
        self.adam_steps = torch.zeros((), device=flat.vector.device)
        self._counts = torch.zeros(2, dtype=torch.int64)
        self.lock: AbstractContextManager[None] = PipeLock() if shared else nullcontext()
        if shared:
            self.vector = flat.vector.detach().clone()
            for x in (self.vector, self.moments, self.adam_steps, self._counts):
                x.share_memory_()

    @property
    def num_trained(self) -> int:
        """The number of the vector's entries that are parameters."""
        return self.moments.shape[1]

    @property
    def updates(self) -> int:
        return int(self._counts[0])

    @updates.setter
    def updates(self, count: int) -> None:
        self._counts[0] = count

    @property
    def steps_trained(self) -> int:
        """Valid steps trained so far, each counted as often as it was trained."""
        return int(self._counts[1])

    @steps_trained.setter
    def steps_trained(self, count: int) -> None:
        self._counts[1] = count

    def __getitem__(self, name: str) -> Tensor:
        return view(self.vector, self.layout, name)

    def on(self, device: torch.device) -> Weights:
        """These weights, or a copy on ``device`` if they are on another kind of device."""
        if self.vector.device.type == device.type:  # several GPUs are not used at once
            return self
        copied = Weights.__new__(Weights)
        copied.vector, copied.layout = self.vector.to(device), self.layout
        copied.moments, copied.adam_steps = self.moments.to(device), self.adam_steps.to(device)
        copied._counts, copied.lock = self._counts.clone(), nullcontext()
        return copied

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's state by parameter name, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, place in self.layout.items():
            if place.offset < self.num_trained:
                tensors |= {
                    f"{name}/step": self.adam_steps,
                    f"{name}/exp_avg": view(self.moments[0], self.layout, name),
                    f"{name}/exp_avg_sq": view(self.moments[1], self.layout, name),
                }
        return tensors

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load what ``optimizer_tensors`` returned; a checkpoint from before the first update may
        hold none.
        """
        for name, x in self.optimizer_tensors().items() if tensors else ():
            if name not in tensors or tensors[name].shape != x.shape:
                raise CheckpointError(
                    f"the checkpoint's optimizer has no {name} of shape {tuple(x.shape)}: it is not"
                    " of this network"
                )
            x.copy_(tensors[name])
