"""runtime/forkserver.py: children that a server forked are the supervisor's own, in every way."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dicerl.runtime import forkserver, processes
from dicerl.runtime.forkserver import ForkServer

pytestmark = pytest.mark.skipif(not forkserver.available(), reason="only Linux can do it")
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
def test_closed_output(own_server, pipe, stream):
    ours, theirs = pipe
    kept = os.dup(stream)
    os.close(stream)
    try:
        child = own_server.start(tells, theirs)
    finally:
        os.dup2(kept, stream)
        os.close(kept)
    assert ours.recv()["parent"] == os.getpid()
    assert joined(child) == 0


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
