"""runtime/forkserver.py: children that a server forked are the supervisor's own, in every way."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from dicerl.runtime import forkserver
from dicerl.runtime.forkserver import ForkServer

pytestmark = [
    pytest.mark.skipif(not forkserver.available(), reason="only Linux can do it"),
    pytest.mark.own_fork_server,
]
PATIENCE = 120.0  # seconds: a busy machine starts processes slowly


def alive(pid):
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- calls, which a child imports from here


def tells(pipe):
    """What a child knows of itself."""
    import resource

    pipe.send(
        {
            "parent": os.getppid(),
            "environ": dict(os.environ),
            "path": list(sys.path),
            "argv": list(sys.argv),
            "folder": os.getcwd(),
            "mask": os.umask(0),
            "cores": os.sched_getaffinity(0),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "drawn": np.random.random(),  # noqa: NPY002  (as environments do that know no better)
        }
    )


def waits(pipe):
    pipe.send(os.getpid())
    pipe.recv()


def says(text):
    print(text, flush=True)
    print(text.upper(), file=sys.stderr, flush=True)


def ends(how):
    how()


def raises():
    raise ValueError("a bug")


def kills_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_quietly():
    sys.exit(3)


@pytest.fixture(scope="module")
def server():
    server = ForkServer(__name__)
    yield server
    server.close()


@pytest.fixture
def own_server():
    """For a test that ends it."""
    server = ForkServer(__name__)
    yield server
    server.close()


@pytest.fixture
def pipe():
    import torch.multiprocessing as mp

    ours, theirs = mp.get_context("spawn").Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def joined(child):
    child.join(PATIENCE)
    child.close()
    return child.exitcode


def test_a_child_is_ours_and_has_all_that_one_of_ours_has(server, pipe, tmp_path, monkeypatch):
    """As it is now, not as it was when the server was started."""
    import resource

    ours, theirs = pipe
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOMETHING", "new")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr(sys, "argv", ["something", "else"])
    mask, cores = os.umask(0o27), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        child = server.start(tells, theirs)
        told = ours.recv()
    finally:
        os.umask(mask)
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert joined(child) == 0
    told.pop("drawn")
    assert told == {
        "parent": os.getpid(),
        "environ": dict(os.environ),
        "path": sys.path,
        "argv": ["something", "else"],
        "folder": str(tmp_path),
        "mask": 0o27,
        "cores": {min(cores)},
        "files": (soft - 1, hard),
    }


def test_children_draw_different_random_numbers(server, pipe):
    ours, theirs = pipe
    drawn = []
    for _ in range(2):
        child = server.start(tells, theirs)
        drawn.append(ours.recv()["drawn"])
        joined(child)
    assert drawn[0] != drawn[1]


def test_what_a_child_prints_goes_where_our_output_goes(server, capfd):
    assert joined(server.start(says, "hello")) == 0
    assert capfd.readouterr() == ("hello\n", "HELLO\n")


@pytest.mark.parametrize(
    ("how", "code"), [(raises, 1), (kills_itself, -signal.SIGKILL), (leaves_quietly, 3)]
)
def test_how_a_child_ended(server, capfd, how, code):
    assert joined(server.start(ends, how)) == code
    assert ("ValueError: a bug" in capfd.readouterr().err) == (how is raises)


def test_a_child_can_be_waited_for_in_vain_and_killed(server, pipe):
    ours, theirs = pipe
    child = server.start(waits, theirs)
    assert ours.recv() == child.pid
    child.join(0.01)
    assert child.exitcode is None
    child.kill()
    assert joined(child) == -signal.SIGKILL
    child.kill()  # nobody is there any more


def test_somebody_else_may_have_asked_for_its_end(server):
    child = server.start(ends, leaves_quietly)
    os.waitpid(child.pid, 0)
    assert joined(child) == 255


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost_costs_no_child(own_server, pipe, monkeypatch, number):
    ours, theirs = pipe
    child = own_server.start(waits, theirs)
    ours.recv()
    monkeypatch.setattr(forkserver, "ANSWER", 0.3)
    os.kill(own_server.pid, number)
    assert own_server.start(says, "nobody hears this") is None
    assert own_server.closed
    assert own_server.start(says, "nor this") is None
    assert not alive(own_server.pid)
    ours.send("go on")
    assert joined(child) == 0


def test_signals_to_the_whole_group_do_not_end_the_server():
    """It is started with them blocked."""
    from dicerl.runtime import processes  # here: the servers of these tests need no torch

    server = processes._fork_server()
    assert joined(server.start(says, "first")) == 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(server.pid, number)
    assert joined(server.start(says, "second")) == 0
    server.close()


def test_a_child_that_nobody_waited_for_does_nothing(server, pipe, monkeypatch):
    """Its work was given to another meanwhile."""
    ours, theirs = pipe
    forked = []
    monkeypatch.setattr(forkserver, "_is_ours", forked.append)
    assert server.start(tells, theirs) is None
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0
    assert not ours.poll()


@pytest.mark.parametrize("before", [0, 1])
def test_who_adopts_descendants_does_so_still(server, before):
    prctl, after = ctypes.CDLL(None).prctl, ctypes.c_int(-1)
    prctl(forkserver.PR_SET_CHILD_SUBREAPER, before)
    try:
        assert joined(server.start(says, "hello")) == 0
        prctl(forkserver.PR_GET_CHILD_SUBREAPER, ctypes.byref(after))
    finally:
        prctl(forkserver.PR_SET_CHILD_SUBREAPER, 0)
    assert after.value == before


def inherits(pipe):
    """The number of open files that a program started by a child has."""
    script = "import os; print(len(os.listdir('/proc/self/fd')))"
    done = subprocess.run(
        [sys.executable, "-c", script], close_fds=False, stdout=subprocess.PIPE, check=True
    )
    pipe.send(int(done.stdout))


def test_what_an_environment_starts_has_no_files_of_ours(server, pipe):
    ours, theirs = pipe
    child = server.start(inherits, theirs)
    assert ours.recv() == 4  # stdin, stdout, stderr, and the folder that it lists
    assert joined(child) == 0


@pytest.mark.parametrize("stream", [1, 2])
def test_closed_output_is_nowhere(server, tmp_path, stream):
    """And not in a file that we opened since, which has its number now."""
    kept = os.dup(stream)
    os.close(stream)
    try:
        with (tmp_path / "ours").open("w") as ours:
            number = ours.fileno()
            child = server.start(says, "hello")
            code = joined(child)
    finally:
        os.dup2(kept, stream)
        os.close(kept)
    assert (code, number) == (0, stream)
    assert not (tmp_path / "ours").read_text()


def uses_multiprocessing(pipe, proxy, name):
    """A manager of the parent's, a block of its shared memory, and its start method."""
    block = SharedMemory(name=name)
    block.close()
    method = multiprocessing.get_start_method(allow_none=True)
    pipe.send((proxy["x"], method, multiprocessing.current_process().daemon))


def test_multiprocessing_works_in_a_child_as_in_one_of_its_own(server, pipe):
    ours, theirs = pipe
    block = SharedMemory(create=True, size=100)
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with multiprocessing.Manager() as manager:
            proxy = manager.dict(x=5)
            for _ in range(2):  # the first must not take the block with it
                child = server.start(uses_multiprocessing, theirs, proxy, block.name)
                assert ours.recv() == (5, "spawn", True)
                assert joined(child) == 0
    finally:
        multiprocessing.set_start_method(before, force=True)
        block.close()
        block.unlink()


def test_a_child_that_cannot_be_adopted_is_none(server, pipe, monkeypatch):
    monkeypatch.setattr(forkserver, "_adopting", contextlib.nullcontext)
    assert server.start(tells, pipe[1]) is None
    assert not pipe[0].poll(0.2)
    monkeypatch.undo()
    assert joined(server.start(says, "hello")) == 0


def test_a_server_that_still_imports_is_not_waited_for_in_mid_run():
    server = ForkServer(__name__, patient=False)
    os.kill(server.pid, signal.SIGSTOP)
    assert server.start(says, "nobody hears this") is None
    assert not server.closed
    os.kill(server.pid, signal.SIGCONT)
    until(lambda: (child := server.start(says, "hello")) and joined(child) == 0)
    server.close()


def test_runs_in_several_threads(server):
    """Each adopts its own children, and nobody adopts any afterwards."""
    own = ForkServer(__name__)

    def work(server):
        children = [server.start(says, "hello") for _ in range(15)]
        return [joined(child) for child in children]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [server, own])) == [[0] * 15] * 2
    own.close()
    after = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(forkserver.PR_GET_CHILD_SUBREAPER, ctypes.byref(after))
    assert after.value == 0


def test_entries_of_the_path_that_are_no_text(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    server = ForkServer(__name__)
    assert joined(server.start(says, "hello")) == 0
    server.close()


def test_a_frozen_program_has_none(monkeypatch):
    """It would start itself again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not forkserver.available()


def test_more_open_files_than_a_message_can_carry(server, pipe, monkeypatch):
    monkeypatch.setattr(forkserver, "MOST_FILES", 2)
    assert server.start(tells, pipe[1]) is None
    assert not server.closed


SUPERVISOR = """
import json, os, signal, sys
import torch.multiprocessing as mp
from dicerl.runtime.forkserver import ForkServer
from dicerl.runtime.machine import die_with

def child(pipe, parent):
    die_with(parent)
    pipe.send(os.getpid())
    signal.pause()

if __name__ == "__main__":
    sys.modules["supervised"] = sys.modules["__main__"]
    child.__module__ = "supervised"
    server = ForkServer("dicerl.runtime.machine")
    ours, theirs = mp.get_context("spawn").Pipe()
    server.start(child, theirs, os.getpid())
    print(json.dumps([server.pid, ours.recv()]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_outlives_the_supervisor(tmp_path):
    (tmp_path / "supervised.py").write_text(SUPERVISOR)
    done = subprocess.run(
        [sys.executable, "supervised.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    for pid in json.loads(done.stdout):
        until(lambda pid=pid: not alive(pid))


def test_a_server_that_cannot_import_is_one_that_does_not_answer(capfd):
    server = ForkServer("no_such_module")
    assert server.start(says, "nobody hears this") is None
    assert server.closed
    assert "no_such_module" in capfd.readouterr().err
