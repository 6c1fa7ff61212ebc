"""Would compressed frames be worth it? Bytes and processor time a step, for the frames of real
windows as an actor sends them, with every codec that is installed. Prints, writes nothing.

    python benchmarks/cluster/compress.py [GAME ...]         some seconds a game
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from dicerl.config.presets import preset
from dicerl.envs import make_vector_env

ENVS, LENGTH = 8, 20  # an actor's of the preset laptop
WINDOWS, WARM, ROUNDS = 6, 100, 5
Step = Callable[[np.ndarray], np.ndarray]
Codec = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def codecs() -> Iterator[tuple[str, Codec]]:
    yield "zlib 1", (lambda x: zlib.compress(x, 1), zlib.decompress)
    if importlib.util.find_spec("lz4"):
        import lz4.block

        yield "lz4", (lz4.block.compress, lz4.block.decompress)
    if importlib.util.find_spec("zstandard"):
        import zstandard

        yield "zstd 1", (lambda x: zstandard.compress(x, 1), zstandard.decompress)


def windows(game: str) -> list[np.ndarray]:
    """Frames [N, T, H, W] of random play, the newest of each stack: each environment's together,
    as they are sent.
    """
    env = make_vector_env(preset("laptop", **{"env.id": game}), ENVS, None, num_threads=1)
    rng, frames = np.random.default_rng(0), []
    env.reset(0)
    for _ in range(WARM + WINDOWS * LENGTH):
        seen, *_ = env.step(rng.integers(env.spec.num_actions, size=ENVS))
        frames.append(seen[:, -1].copy())
    env.close()
    kept = np.stack(frames[WARM:], axis=1)
    return [kept[:, i : i + LENGTH].copy() for i in range(0, kept.shape[1], LENGTH)]


def changes(frames: np.ndarray) -> np.ndarray:
    """Every frame but the first as what changed since the one before."""
    return np.concatenate([frames[:, :1], frames[:, 1:] ^ frames[:, :-1]], axis=1)


def same(frames: np.ndarray) -> np.ndarray:
    return frames


WAYS: list[tuple[str, Step, Step]] = [
    ("frames", same, same),
    ("changes", changes, lambda x: np.bitwise_xor.accumulate(x, axis=1)),
]


def packed(played: list[np.ndarray], prepare: Step, press: Callable[[bytes], bytes]) -> list[bytes]:
    return [press(prepare(w).tobytes()) for w in played]


def unpacked(
    found: list[bytes], shape: tuple[int, ...], restore: Step, expand: Callable[[bytes], bytes]
) -> list[np.ndarray]:
    return [restore(np.frombuffer(expand(x), np.uint8).reshape(shape)) for x in found]


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds, the least of some rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    print("| game | codec | bytes a step | to compress, µs a step | to decompress, µs a step |")
    print("| --- | --- | --- | --- | --- |")
    for game in sys.argv[1:] or ["pong"]:
        played = windows(game)
        steps = sum(w.shape[0] * w.shape[1] for w in played)
        print(f"| {game} | none | {sum(w.nbytes for w in played) / steps:,.0f} | 0 | 0 |")
        for name, (press, expand) in codecs():
            for what, prepare, restore in WAYS:
                pack = functools.partial(packed, played, prepare, press)
                unpack = functools.partial(unpacked, pack(), played[0].shape, restore, expand)
                assert all((a == b).all() for a, b in zip(unpack(), played, strict=True))
                size = sum(map(len, pack())) / steps
                times = [1e6 * seconds(f) / steps for f in (pack, unpack)]
                print(f"| | {name}, {what} | {size:,.0f} | {times[0]:.1f} | {times[1]:.1f} |")


if __name__ == "__main__":
    main()
