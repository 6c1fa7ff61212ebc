"""parts/parameter_server.py: a reader gets the newest parameters once, never a torn set
(docs/paper.md 2.5).
"""

import threading
import time

import pytest
import torch
import torch.multiprocessing as mp

from dicerl.parts.parameter_server import ParameterServer


def test_a_reader_gets_the_newest_version_once():
    server = ParameterServer(3)
    mine = torch.zeros(3)
    assert server.pull(mine) is None  # nothing was pushed yet
    server.push(torch.full((3,), 1.0), 0)
    assert server.pull(mine, known=0) is None
    assert not mine.any()
    assert (server.pull(mine), mine.tolist()) == (0, [1.0, 1.0, 1.0])
    server.push(torch.full((3,), 2.0), 25)
    server.push(torch.full((3,), 3.0), 50)
    assert mine.tolist() == [1.0, 1.0, 1.0]  # what a reader holds is its own
    assert (server.pull(mine, known=0), mine.tolist()) == (50, [3.0, 3.0, 3.0])
    assert server.pull(mine, known=50) is None


def push_constantly(server, size, stop, first=1):
    torch.set_num_threads(1)
    version = first
    while not stop.is_set():
        server.push(torch.full((size,), float(version)), version)
        version += 1
        time.sleep(0)


def read_while_it_is_pushed(server, size, seconds):
    """Versions pulled; each set must be whole and of its version."""
    seen, version, flat = [], 0, torch.empty(size)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(seen) < 5:
        newest = server.pull(flat, version)
        if newest is None:
            continue
        before, version = version, newest
        low, high = float(flat.min()), float(flat.max())
        assert low == high == version, f"torn: version {version} holds {low} to {high}"
        assert version > before
        seen.append(version)
        assert time.monotonic() < end + 60, "the reader starves"
    return seen


# Small sets are pushed faster than read, large ones overlap for long.
@pytest.mark.parametrize("size", [64, 300_000])
def test_a_reader_never_sees_a_torn_set_beside_a_thread_that_pushes(size):
    server, stop = ParameterServer(size), threading.Event()
    server.push(torch.zeros(size), 0)
    writer = threading.Thread(target=push_constantly, args=(server, size, stop))
    writer.start()
    try:
        seen = read_while_it_is_pushed(server, size, 0.7)
    finally:
        stop.set()
        writer.join()
    assert len(set(seen)) >= 5


def test_a_reader_never_sees_a_torn_set_beside_a_process_that_pushes():
    size, context = 300_000, mp.get_context("spawn")
    server, stop = ParameterServer(size, shared=True), context.Event()
    server.push(torch.zeros(size), 0)
    writer = context.Process(target=push_constantly, args=(server, size, stop), daemon=True)
    writer.start()
    try:
        end = time.monotonic() + 60
        while server.pull(torch.empty(size), 0) is None and time.monotonic() < end:
            time.sleep(0.01)
        seen = read_while_it_is_pushed(server, size, 1.5)
    finally:
        stop.set()
        writer.join(10)
        writer.kill()
    assert len(set(seen)) >= 5
