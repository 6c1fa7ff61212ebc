"""Gymnasium's spaces as what an agent has: an observation is one array, an action one number.

Box of 1 to 3 axes            as it is: a vector or an image
Box of other shapes           flattened; frames of images (K, H, W, C) become channels
Discrete, MultiDiscrete       one-hot
MultiBinary                   as numbers
Dict, Tuple                   their entries one after the other; images in them get an encoder
                              each (agent/networks.py)

Discrete actions              numbered from 0
MultiDiscrete, MultiBinary    every combination is an action. A is the sum of an A for each
                              branch, so pi_tau is the product of a Boltzmann policy for each:
                              exp(sum_k A_k / tau) = prod_k exp(A_k / tau)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from dicerl.errors import DicerlError

SUPPORTED = (
    "supported are Discrete, MultiDiscrete and MultiBinary actions, and observations of Box,"
    " Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
)
MOST_ACTIONS = 4096  # combinations of a MultiDiscrete
LONGEST = 2**20  # numbers in a flattened observation
CONTINUOUS = (
    "continuous actions have no closed-form pi_tau: divide each into steps (a wrapper with a"
    " MultiDiscrete action space)"
)

Encode = Callable[[Any], np.ndarray]
Write = Callable[[np.ndarray, Any], None]  # (part of the flat vector, observation)


@dataclass(frozen=True)
class Observations:
    """How observations of a space are kept."""

    shape: tuple[int, ...]
    dtype: np.dtype
    # makes an array of that shape of an observation, or raises; None: observations are as they are
    encode: Encode | None = None
    images: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (offset, shape) inside the vector


@dataclass(frozen=True)
class Actions:
    """The numbers of a space's actions."""

    count: int
    first: int = 0  # the environment's own number of action 0
    branches: tuple[int, ...] = ()  # of a MultiDiscrete: the size of each
    starts: tuple[int, ...] = ()  # the environment's own first number of each
    shape: tuple[int, ...] = ()


def in_line(space: Space[Any]) -> str:
    """A space for a message of one line."""
    return " ".join(str(space).split())


def observations_of(space: Space[Any], name: str) -> Observations:
    """How observations of a space are kept; an unsupported space is an error. ``name`` is the
    environment's, for the message.
    """
    if isinstance(space, spaces.Box) and len(space.shape) in (1, 2, 3) and 0 not in space.shape:
        kept = len(space.shape) > 1 and space.dtype in (np.uint8, np.bool_)
        return Observations(space.shape, np.dtype(space.dtype) if kept else np.dtype(np.float32))
    if isinstance(space, spaces.Box) and len(space.shape) == 4 and 0 not in space.shape:
        frames, rows, columns, channels = space.shape
        kept = space.dtype in (np.uint8, np.bool_)
        return Observations(
            (rows, columns, frames * channels),
            np.dtype(space.dtype) if kept else np.dtype(np.float32),
            lambda seen: np.moveaxis(_shaped(seen, space), 0, 2).reshape(rows, columns, -1),
        )
    write, size, images = _flattened(space, name, 0)
    if not 0 < size <= LONGEST:
        raise DicerlError(
            f"{name} observes {in_line(space)}, {size:,} numbers; it must be 1 to {LONGEST:,}:"
            " encode it in a wrapper"
        )

    def encode(seen: Any) -> np.ndarray:
        vector = np.zeros(size, np.float32)
        write(vector, seen)
        return vector

    return Observations((size,), np.dtype(np.float32), encode, tuple(images))


def _flattened(
    space: Space[Any], name: str, offset: int
) -> tuple[Write, int, list[tuple[int, tuple[int, ...]]]]:
    """What writes an observation into a flat vector, the length of that, and the images in it;
    ``offset`` is where it lies in the whole.
    """
    match space:
        case spaces.Box():
            size = math.prod(space.shape)
            image = len(space.shape) in (2, 3) and min(space.shape[:2]) > 2
            unit = 1 / 255 if image and space.dtype == np.uint8 else 1.0

            def box(vector: np.ndarray, seen: Any) -> None:
                vector[:] = _shaped(seen, space).reshape(-1)
                if unit != 1.0:
                    vector *= unit

            return box, size, [(offset, space.shape)] if image else []
        case spaces.Discrete():
            first = int(space.start)

            def discrete(vector: np.ndarray, seen: Any) -> None:
                number = np.asarray(seen).item() - first
                vector[_inside(number, len(vector), seen, space)] = 1.0

            return discrete, int(space.n), []
        case spaces.MultiDiscrete():
            sizes = [int(n) for n in np.ravel(space.nvec)]
            starts = np.ravel(space.start)
            borders = np.cumsum([0, *sizes[:-1]])

            def several(vector: np.ndarray, seen: Any) -> None:
                numbers = _shaped(seen, space).reshape(-1) - starts
                for number, border, n in zip(numbers, borders, sizes, strict=True):
                    vector[border + _inside(number, n, seen, space)] = 1.0

            return several, sum(sizes), []
        case spaces.MultiBinary():

            def binary(vector: np.ndarray, seen: Any) -> None:
                vector[:] = _shaped(seen, space).reshape(-1)

            return binary, math.prod(space.shape), []
        case spaces.Dict() | spaces.Tuple():
            inner = space.spaces
            items = inner.items() if isinstance(inner, dict) else enumerate(inner)
            parts, size, images = [], 0, []
            for key, entry in items:
                write, length, found = _flattened(entry, name, offset + size)
                parts.append((key, slice(size, size + length), write))
                images += found
                size += length

            def entries(vector: np.ndarray, seen: Any) -> None:
                if len(seen) != len(parts):
                    raise ValueError(f"it has {len(seen)} entries, its space has {len(parts)}")
                for key, part, write in parts:
                    write(vector[part], seen[key])

            return entries, size, images
        case _:
            raise DicerlError(f"{name} observes {in_line(space)}; {SUPPORTED}")


def _shaped(seen: Any, space: Space[Any]) -> np.ndarray:
    array = np.asarray(seen)
    if array.shape != space.shape or array.dtype.kind not in "biuf":
        raise ValueError(
            f"it has shape {array.shape} and dtype {array.dtype}, its space is {in_line(space)}"
        )
    kept = space.dtype
    if kept is not None and kept.kind in "ub" and array.dtype != kept:
        lost = array[array.astype(kept) != array]
        if lost.size:
            raise ValueError(f"{lost.flat[0]} ({array.dtype}) is not in {in_line(space)}")
    return array


def _inside(number: Any, count: int, seen: Any, space: Space[Any]) -> int:
    if not 0 <= number < count or number != int(number):
        raise ValueError(f"{seen} is not in {in_line(space)}")
    return int(number)


def actions_of(space: Space[Any], name: str) -> Actions:
    """The numbers of a space's actions; an unsupported space is an error."""
    match space:
        case spaces.Discrete():
            return Actions(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            branches = tuple(int(n) for n in np.ravel(space.nvec))
            starts = tuple(int(n) for n in np.ravel(space.start))
        case spaces.MultiBinary():
            branches = (2,) * math.prod(space.shape)
            starts = (0,) * len(branches)
        case _:
            why = CONTINUOUS if isinstance(space, spaces.Box) else SUPPORTED
            raise DicerlError(f"{name} acts in {in_line(space)}; {why}")
    if math.prod(branches) > MOST_ACTIONS:
        raise DicerlError(
            f"{name} acts in {in_line(space)}, {math.prod(branches):,} combinations; there can be"
            f" {MOST_ACTIONS:,}: use fewer or coarser branches"
        )
    return Actions(math.prod(branches), 0, branches, starts, space.shape)
