"""What crosses the network in the runtime ``ray``, and how it gets there whole.

    messages      Mailbox              numbered in both directions
    sequences     Sender -> Receiver   parcels; each step crosses once, its frame compressed
    parameters    Newest -> Pulled     an object that each node fetches once a version
    weights       dump -> load         to the learner, at its start

Sequences go straight to the process that trains them. The steps that two windows of a stream share
(burn-in, and the frames before them) are sent with the first only: the store's side remembers the
end of each stream. Lent slots are the credits: no more is ever under way than there are slots.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import ray
import torch
from ray.exceptions import ActorUnavailableError
from torch import Tensor

from dicerl.agent.frames import history_at
from dicerl.agent.weights import Weights
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.parts.sequence import Arrays, Schema, Store, is_frames, schema
from dicerl.runtime.messages import TimesSpent, Written

AGAIN = 0.5  # seconds until a call is made again that did not get through
AT_HAND = 0.002  # seconds in which an object that is on this node can be had


# --- messages


class Collected(NamedTuple):
    """What a mailbox gave the supervisor: its messages from number ``first`` on, and how many of
    the supervisor's it has.
    """

    first: int
    messages: list[Any]
    delivered: int


class Mailbox:
    """A Channel (roles.py) whose other end is called by the supervisor: ``deliver`` and
    ``collect``.

    Where a connection is cut for a while, a call may be made twice, or its answer be lost. So
    messages have numbers in both directions: what was delivered before is ignored, and what was
    collected stays here until the next call says that it has arrived.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._early: dict[int, Any] = {}  # delivered before their turn
        self._next = 0
        self._outbox: list[Any] = []
        self._first = 0  # the number of the outbox's first message
        self._due = False  # whether the outbox has a message that somebody waits for
        self._closed = False
        self._changed = threading.Condition()

    def send(self, message: Any) -> None:
        with self._changed:
            if self._closed:
                raise BrokenPipeError("the supervisor has closed this mailbox")
            self._outbox.append(message)
            if not isinstance(message, TimesSpent):  # that goes along with the next
                self._due = True
                self._changed.notify()

    def receive(self) -> Any:
        message = self._inbox.get()
        if self._closed:
            raise EOFError
        return message

    def close(self) -> None:
        """As a closed pipe: whoever sends or receives next is told so by an exception."""
        with self._changed:
            self._closed = True
            self._inbox.put(None)

    def waits(self) -> bool:
        return not self._inbox.empty()

    def deliver(self, number: int, message: Any) -> None:
        """Take the supervisor's message; calls may come in another order than they were made."""
        with self._changed:
            if number >= self._next:
                self._early[number] = message
            while self._next in self._early:
                self._inbox.put(self._early.pop(self._next))
                self._next += 1

    def collect(self, arrived: int, seconds: float) -> Collected:
        """All messages from number ``arrived`` on, as soon as there is one that somebody waits for,
        or after ``seconds``; those before have arrived.
        """
        with self._changed:
            del self._outbox[: max(0, arrived - self._first)]
            self._first = max(self._first, arrived)
            self._due = any(not isinstance(m, TimesSpent) for m in self._outbox)
            self._changed.wait_for(lambda: self._due, seconds)
            return Collected(self._first, list(self._outbox), self._next)


# --- sequences


def patiently(method: Any, *args: Any, seconds: float | None = None) -> Any:
    """What a method of a Ray actor returns, called again while the connection is cut: for what may
    be done twice. GetTimeoutError if a call takes longer than ``seconds``.
    """
    while True:
        try:
            return ray.get(method.remote(*args), timeout=seconds)
        except ActorUnavailableError:
            time.sleep(AGAIN)


class Frames(NamedTuple):
    """Frames [N, ...], compressed. That takes 2 to 6 microseconds of a core for an Atari frame at
    both ends together, where Ray would take 35 to carry it (benchmarks/README.md).
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    data: bytes

    @classmethod
    def pressed(cls, array: np.ndarray) -> Frames:
        return cls(array.shape, array.dtype, lz4.block.compress(np.ascontiguousarray(array)))

    def unpressed(self) -> np.ndarray:
        found = np.frombuffer(lz4.block.decompress(self.data), self.dtype)
        return found.reshape(self.shape)


class Parcel(NamedTuple):
    """Windows on their way to the store: all their steps, or from the first on that the window
    before did not have.
    """

    child: int
    number: int  # of the child's parcel
    slots: list[int]
    columns: list[int]  # the child's environments
    whole: bool
    arrays: Arrays
    frames: dict[str, Frames]  # each environment's together, so that they are like those before

    def unpacked(self, fields: Schema) -> Arrays:
        """All arrays, time-major."""
        found = {name: frames.unpressed() for name, frames in self.frames.items()}
        return self.arrays | {
            name: array.swapaxes(0, 1) if fields[name].per_step else array
            for name, array in found.items()
        }


def pack(
    fields: Schema,
    burn_in: int,
    child: int,
    number: int,
    slots: list[int],
    windows: Arrays,
    columns: list[int],
) -> Parcel:
    """A parcel of ``columns`` of a block of windows [L, N, ...], for ``slots``. The bootstrap step
    is sent again: when the window before was complete, its reward was not known yet.
    """
    whole = int(windows["stream"][columns[0], 2]) == 0  # the first of its stream
    start = 0 if whole else burn_in
    arrays, frames = {}, {}
    for name, field in fields.items():
        window = windows[name]
        if is_frames(field):
            if whole or name != "history":
                own = window.swapaxes(0, 1)[columns, start:] if field.per_step else window[columns]
                frames[name] = Frames.pressed(own)
        else:
            arrays[name] = window[start:, columns] if field.per_step else window[columns]
    return Parcel(child, number, slots, columns, whole, arrays, frames)


class Sender:
    """An actor's ``store``: sends windows to a learner's, always the same one of ``learners``.
    ``Written`` follows once they are there, so that no slot is named before it is complete.
    """

    def __init__(
        self,
        child: int,
        config: Config,
        spec: EnvSpec,
        learners: list[Any],
        actor: int,
        mailbox: Mailbox,
    ):
        """``actor`` is the actor's number in the run."""
        self._child, self._mailbox = child, mailbox
        self._holder = actor % len(learners)
        self._learner = learners[self._holder]
        self._fields, self._burn_in = schema(config, spec), config.sequence.burn_in
        self._parcels: queue.SimpleQueue[Parcel] = queue.SimpleQueue()
        self._packed = 0
        threading.Thread(target=self._deliver, daemon=True).start()

    def write(self, slots: list[int], windows: Arrays, columns: list[int]) -> None:
        """Send ``columns`` of a block of windows [L, N, ...] to ``slots``."""
        self._packed += 1
        self._parcels.put(
            pack(self._fields, self._burn_in, self._child, self._packed, slots, windows, columns)
        )

    def _deliver(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the actor is asked to end
            while True:
                parcel = self._parcels.get()
                if patiently(self._learner.receive, parcel):
                    self._mailbox.send(Written(parcel.slots, self._holder))


class SlowWritten:
    """A child's channel that leaves ``Written`` to its Sender."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.receive, self.waits = mailbox.receive, mailbox.waits

    def send(self, message: Any) -> None:
        if not isinstance(message, Written):
            self._mailbox.send(message)


class Receiver:
    """Unpacks parcels into a store, each once. A child that was ended is refused: its slots may be
    another's by now.
    """

    def __init__(self, config: Config, store: Store) -> None:
        self._store, self._length = store, config.sequence.length
        self._burn_in = config.sequence.burn_in
        self._ends: dict[tuple[int, int], Arrays] = {}  # of each child's environments' last windows
        self._refused: set[int] = set()
        self._last: dict[int, int] = {}  # each child's last parcel
        self._lock = threading.Lock()

    def refuse(self, child: int) -> None:
        """Accept nothing more from ``child``."""
        with self._lock:
            self._refused.add(child)
            self._ends = {key: end for key, end in self._ends.items() if key[0] != child}

    def receive(self, parcel: Parcel) -> bool:
        """Write a parcel into its slots; return whether it was accepted."""
        arrays = parcel.unpacked(self._store.fields)
        with self._lock:
            if parcel.child in self._refused:
                return False
            if parcel.number <= self._last.get(parcel.child, 0):
                return True  # sent again: the answer was lost
            self._last[parcel.child] = parcel.number
            for i, (slot, column) in enumerate(zip(parcel.slots, parcel.columns, strict=True)):
                found = {
                    name: array[:, i] if self._store.fields[name].per_step else array[i]
                    for name, array in arrays.items()
                }
                self._write(found, parcel.whole, slot, (parcel.child, column))
            return True

    def _write(self, found: Arrays, whole: bool, slot: int, key: tuple[int, int]) -> None:
        """Write one window, behind the end of the one before unless it is ``whole``."""
        end = {} if whole else self._ends[key]
        start, arrays = 0 if whole else self._burn_in, self._store.arrays
        for name, field in self._store.fields.items():
            if not field.per_step:
                arrays[name][slot] = found[name] if name in found else end[name]
                continue
            arrays[name][:start, slot] = end.get(name, 0)
            arrays[name][start:, slot] = found[name]
        last = slice(self._length, self._length + self._burn_in)
        self._ends[key] = {
            name: arrays[name][last, slot].copy()
            for name, field in self._store.fields.items()
            if field.per_step
        }
        if "history" in arrays:
            one = slice(slot, slot + 1)
            before, seen = arrays["history"][one], arrays["observation"][:, one]
            last_frames = history_at(self._length, before, seen, arrays["valid"][:, one])
            self._ends[key]["history"] = last_frames[0]


# --- parameters


class Newest:
    """The learner's side of the parameters: the newest version, as an object in its node's store.
    The one before stays alive while somebody may still fetch it.
    """

    def __init__(self) -> None:
        self._objects: list[tuple[int, Any]] = []

    def push(self, vector: Tensor, version: int) -> None:
        found = ray.put(vector.detach().numpy())
        self._objects = [*self._objects[-1:], (version, found)]

    def newer_than(self, known: int) -> tuple[int, list[Any]] | None:
        """(version, [object]) of the newest, unless that is ``known``."""
        version, found = self._objects[-1] if self._objects else (known, None)
        return None if version == known else (version, [found])


class Pulled:
    """The others' side: asks the learner for newer parameters and fetches them. An actor acts on
    while its question, then the object, is on its way: a pull takes what has arrived since the one
    before, and asks for the next. One that is ``patient`` waits for the newest.
    """

    def __init__(self, learner: Any, patient: bool) -> None:
        self._learner, self._patient = learner, patient
        self._question: Any = None
        self._answer: tuple[int, list[Any]] | None = None

    @torch.no_grad()
    def pull(self, into: Tensor, known: int = -1) -> int | None:
        """As ParameterServer.pull; the first parameters are waited for."""
        patient = self._patient or known < 0
        if patient:
            self._answer = patiently(self._learner.newer_than, known)
        elif self._question is not None and ray.wait([self._question], timeout=0)[0]:
            question, self._question = self._question, None
            with contextlib.suppress(ActorUnavailableError):  # cut off: it will be asked again
                self._answer = ray.get(question)
        version = None
        if self._answer is not None:
            newest, [found] = self._answer
            # at hand on this node, or on its way here
            if ray.wait([found], timeout=None if patient else AT_HAND, fetch_local=True)[0]:
                np.copyto(into.detach().numpy(), ray.get(found))  # one copy: it is read-only
                version, self._answer = newest, None
        if not patient and self._question is None and self._answer is None:
            self._question = self._learner.newer_than.remote(known if version is None else version)
        return version


# --- weights


def dump(weights: Weights) -> Arrays:
    """The weights as arrays, for another machine."""
    return {
        "vector": weights.vector.detach().numpy(),
        "moments": weights.moments.numpy(),
        "adam_steps": weights.adam_steps.numpy(),
        "counts": np.array([weights.updates, weights.steps_trained]),
    }


@torch.no_grad()
def load(weights: Weights, arrays: Arrays) -> Weights:
    """Become the weights that ``dump`` took the arrays of."""
    for name in ("vector", "moments", "adam_steps"):
        getattr(weights, name).copy_(torch.from_numpy(np.array(arrays[name])))
    weights.updates, weights.steps_trained = arrays["counts"].tolist()
    return weights
