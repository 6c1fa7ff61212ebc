"""A network's parameters and buffers as one vector, and what training keeps beside it.

Copying, publishing and training a network are then one operation each instead of one for every
tensor, which for a small network costs more than the arithmetic. Several learners may train one set
of weights in memory that they share.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import Connection
from types import TracebackType

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from dicerl.errors import CheckpointError

ALIGNED = 16  # floats: every tensor starts at a multiple of 64 bytes

Layout = dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]]  # name: (offset, shape, strides)


def layout(network: nn.Module) -> tuple[Layout, int, int]:
    """Where each tensor lies in the vector, parameters first; how many entries the parameters take,
    and how many there are.

    Kernels of convolutions lie channels last, as they are used.
    """
    places: Layout = {}
    end = 0

    def place(name: str, x: Tensor) -> None:
        nonlocal end
        like = torch.empty(
            x.shape,
            device="meta",
            memory_format=torch.channels_last if x.dim() == 4 else torch.contiguous_format,
        )
        places[name] = end, tuple(x.shape), like.stride()
        end += -(-x.numel() // ALIGNED) * ALIGNED

    for name, parameter in network.named_parameters():
        place(name, parameter)
    trained = end
    for name, buffer in network.named_buffers():
        place(name, buffer)
    return places, trained, end


def flatten(network: nn.Module) -> tuple[Tensor, Layout, int]:
    """Move parameters and buffers into one new vector: (the vector, its layout, how many of its
    entries are parameters).
    """
    places, trained, size = layout(network)
    flat = torch.zeros(size, device=next(network.parameters()).device)
    adopt(network, flat, places)
    return flat, places, trained


@torch.no_grad()
def adopt(network: nn.Module, flat: Tensor, places: Layout) -> None:
    """Move parameters and buffers into ``flat``."""
    for name, x in (*network.named_parameters(), *network.named_buffers()):
        home = view(flat, places, name)
        home.copy_(x)
        x.data = home


def view(flat: Tensor, places: Layout, name: str) -> Tensor:
    """The tensor of this name inside a vector."""
    offset, shape, strides = places[name]
    return flat.as_strided(shape, strides, flat.storage_offset() + offset)


class Turn:
    """A lock for processes, without a name that could outlive them: a byte in a pipe, which whoever
    has read it holds.
    """

    def __init__(self) -> None:
        self._get: Connection
        self._put: Connection
        self._get, self._put = mp.get_context("spawn").Pipe(duplex=False)
        os.write(self._put.fileno(), b".")

    def __enter__(self) -> None:
        os.read(self._get.fileno(), 1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._put.fileno(), b".")


class Weights:
    """What training changes: the vector of a network, AdamW's moments of its parameters and its
    steps, and how far training has come.
    """

    def __init__(self, flat: Tensor, places: Layout, trained: int, shared: bool = False) -> None:
        self.flat, self.places = flat, places
        self.moments = torch.zeros(2, trained, device=flat.device)
        self.adam_steps = torch.zeros((), device=flat.device)
        self._counts = torch.zeros(2, dtype=torch.int64)
        self.turn: AbstractContextManager[None] = Turn() if shared else nullcontext()
        if shared:
            self.flat = flat.detach().clone()
            for x in (self.flat, self.moments, self.adam_steps, self._counts):
                x.share_memory_()

    @property
    def updates(self) -> int:
        return int(self._counts[0])

    @updates.setter
    def updates(self, count: int) -> None:
        self._counts[0] = count

    @property
    def steps_trained(self) -> int:
        """Valid ones, each as often as it was trained."""
        return int(self._counts[1])

    @steps_trained.setter
    def steps_trained(self, count: int) -> None:
        self._counts[1] = count

    def __getitem__(self, name: str) -> Tensor:
        return view(self.flat, self.places, name)

    def on(self, device: torch.device) -> Weights:
        """These, or a copy where they are on another device."""
        if self.flat.device.type == device.type:
            return self
        copy = Weights(self.flat.to(device), self.places, self.moments.shape[1])
        copy.moments.copy_(self.moments)
        copy.adam_steps.copy_(self.adam_steps)
        copy._counts.copy_(self._counts)
        return copy

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's state by parameter name, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, (offset, _, _) in self.places.items():
            if offset < self.moments.shape[1]:
                tensors |= {
                    f"{name}/step": self.adam_steps,
                    f"{name}/exp_avg": view(self.moments[0], self.places, name),
                    f"{name}/exp_avg_sq": view(self.moments[1], self.places, name),
                }
        return tensors

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse; a checkpoint from before the first update may hold none."""
        for name, x in self.optimizer_tensors().items() if tensors else ():
            if name not in tensors or tensors[name].shape != x.shape:
                raise CheckpointError(
                    f"the checkpoint's optimizer has no {name} of shape {tuple(x.shape)}: it is not"
                    " of this network"
                )
            x.copy_(tensors[name])
