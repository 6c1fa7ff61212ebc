"""Between the learner's device and the machine's memory: batches on their way there, weights on
their way back.

On a CPU a batch is trained where it lies, and weights are published from where they lie. A GPU
computes what it was told while the host goes on, so nothing here waits for it but where it must:

    host      read batch 2   copy, train 2       read batch 3   ...
    copying                  [batch 2]                          [batch 3]
    training  [batch 1 .................][batch 2 .................]

All fields of a batch lie in one block of page-locked memory and cross in one copy, on a stream of
its own. There are two blocks, used in turns, so the host is at most two batches ahead. Once batch 2
is on its way the host waits for batch 1, to know what came of it before batch 3 is read over it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dicerl.parts.sequence import Arrays, Schema

NOT_TRAINED_ON = ("stream", "created")  # fields that only record a window's origin
ALIGNED = 64  # bytes: where each field of a block starts


class Block:
    """The memory of one batch, on the host and on the device. ``arrays`` and ``tensors`` are its
    fields.
    """

    def __init__(
        self, fields: Schema, length: int, batch: int, device: torch.device, pinned: bool
    ) -> None:
        places: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        self.arrays: Arrays = {}
        end = 0
        for name, field in fields.items():
            shape = ((length, batch) if field.per_step else (batch,)) + field.shape
            size = int(np.prod(shape, dtype=np.int64)) * field.dtype.itemsize
            if name in NOT_TRAINED_ON:
                self.arrays[name] = np.zeros(shape, field.dtype)
            else:
                places[name] = end, size, shape
                end += -(-size // ALIGNED) * ALIGNED
        self.host = torch.zeros(end, dtype=torch.uint8, pin_memory=pinned)
        self.device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.tensors: dict[str, Tensor] = {}
        for name, (start, size, shape) in places.items():
            kind = fields[name].dtype
            self.arrays[name] = self.host.numpy()[start : start + size].view(kind).reshape(shape)
            like = torch.from_numpy(self.arrays[name])
            self.tensors[name] = self.device[start : start + size].view(like.dtype).view(shape)
        self.copied: Any = None  # events: the copy is over; the device has trained the batch
        self.trained: Any = None
        self.update: int | None = None  # that trained it, until its numbers are read
        self.numbers = torch.zeros(2, pin_memory=pinned)  # its loss and its gradient's norm


class Outcome(NamedTuple):
    """What came of a batch that was trained."""

    update: int
    loss: float
    norm: float  # of the gradient, before the clip
    batch: Arrays  # unchanged until the next one is read


class Staging:
    """Brings batches to the ``device`` of a learner.

    ``buffers`` are what the next batch is best read into (None: anywhere), ``send`` returns its
    tensors on the device, ``trained`` ends its training there. ``outcome`` is what came of a batch:
    on a CPU the last one, on a GPU the one before, which is over or nearly so. ``cuda`` is
    torch.cuda, or what stands for it in a test; None on devices without streams.
    """

    def __init__(
        self, fields: Schema, length: int, batch: int, device: torch.device, cuda: Any = None
    ) -> None:
        self.device, self._fields, self._batch = device, fields, batch
        self._cuda = torch.cuda if cuda is None and device.type == "cuda" else cuda
        self._blocks: list[Block] = []
        self._turn = 0
        self._last: Outcome | None = None
        if device.type != "cpu" or cuda is not None:
            pinned = device.type == "cuda"
            self._blocks = [Block(fields, length, batch, device, pinned) for _ in range(2)]
            self._stream = self._cuda.Stream(device) if self._cuda else None

    def buffers(self, count: int | None = None) -> Arrays | None:
        """The arrays to read the next batch into, once nothing is copied from them any more; for
        ``count`` sequences, if it is not a whole batch.
        """
        if not self._blocks:
            return None
        block = self._blocks[self._turn]
        if block.copied is not None:
            block.copied.synchronize()
        return self._first(count, block.arrays)

    def _first(self, count: int | None, fields: dict[str, Any]) -> dict[str, Any]:
        """The first ``count`` sequences of a block's fields; None: all of them."""
        if count is None or count == self._batch:
            return fields
        return {
            name: x[:, :count] if self._fields[name].per_step else x[:count]
            for name, x in fields.items()
        }

    def send(self, batch: Arrays) -> dict[str, Tensor]:
        """The batch's tensors on the device; on a GPU they are valid in the present stream."""
        if not self._blocks:
            return {n: torch.from_numpy(a) for n, a in batch.items() if n not in NOT_TRAINED_ON}
        count, block = batch["valid"].shape[1], self._blocks[self._turn]
        arrays = self.buffers(count)
        assert arrays is not None
        if batch["valid"].ctypes.data != arrays["valid"].ctypes.data:  # it was read elsewhere
            for name, array in arrays.items():
                array[...] = batch[name]
        if self._cuda is None:
            block.device.copy_(block.host)
            return self._first(count, block.tensors)
        with self._cuda.stream(self._stream):
            if block.trained is not None:
                self._stream.wait_event(block.trained)  # type: ignore[union-attr]
            block.device.copy_(block.host, non_blocking=True)
            block.copied = self._stream.record_event()  # type: ignore[union-attr]
        self._cuda.current_stream(self.device).wait_event(block.copied)
        return self._first(count, block.tensors)

    def trained(self, update: int, batch: Arrays, loss: Tensor, norm: Tensor) -> None:
        """Everything that reads the tensors of the last ``send`` was given to the device."""
        if not self._blocks:
            self._last = Outcome(update, loss.item(), norm.item(), batch)
            return
        block = self._blocks[self._turn]
        self._turn = 1 - self._turn
        if self._cuda is not None:
            block.update = update
            block.numbers.copy_(torch.stack([loss, norm]), non_blocking=True)
            block.trained = self._cuda.current_stream(self.device).record_event()

    def outcome(self) -> Outcome | None:
        """What came of a batch, once; None where the host cannot know without waiting."""
        if not self._blocks:
            last, self._last = self._last, None
            return last
        # The next batch will be read over this one. The device has another to train meanwhile.
        block = self._blocks[self._turn]
        if block.update is None:
            return None
        block.trained.synchronize()
        update, block.update = block.update, None
        loss, norm = block.numbers.tolist()
        return Outcome(update, loss, norm, block.arrays)


class Fetching:
    """Brings a vector of ``size`` weights from the device: ``begin`` copies it as it will be when
    the device has done what it was told so far, ``end`` waits for that and returns it.
    """

    def __init__(self, size: int, cuda: Any = None) -> None:
        self._cuda = torch.cuda if cuda is None else cuda
        self._host = torch.zeros(size, pin_memory=self._cuda is torch.cuda)
        self._copied: Any = None
        self._version = -1

    def begin(self, vector: Tensor, version: int) -> None:
        self._host.copy_(vector.detach(), non_blocking=True)
        self._copied = self._cuda.current_stream(vector.device).record_event()
        self._version = version

    def end(self) -> tuple[Tensor, int] | None:
        """(vector, version) of the last ``begin``; None if that was returned already."""
        if self._copied is None:
            return None
        self._copied.synchronize()
        self._copied = None
        return self._host, self._version
