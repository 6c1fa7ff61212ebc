"""runtime/processes.py: pipes, signals and shared memory of children. What the supervisor does
about lost ones is in test_supervisor.py, and with real processes in test_faults.py.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import probe
from dicerl.envs.toy import Catch
from dicerl.errors import DicerlError
from dicerl.runtime import forkserver, processes
from dicerl.runtime.forkserver import Forked, ForkServer
from dicerl.runtime.messages import Crashed, Ended, Failed
from dicerl.runtime.processes import ROLES, ProcessTransport

PATIENCE = 120.0  # seconds: a busy machine starts processes slowly


# --- roles, which a child imports from here


def speaks_and_exits(channel, shared, code):
    for word in ("one", "two", "three"):
        channel.send(word)
    os._exit(code)


def fails(channel, shared):
    raise DicerlError("the config is wrong")


def crashes(channel, shared):
    raise ValueError("a bug")


def answers(channel, shared):
    """Repeat every message and say whether another waits; write to shared memory where asked to."""
    channel.send(("waits", channel.waits()))
    while True:
        message = channel.receive()
        if message == "write":
            shared.store.arrays["reward"][2, 1] = 5.0
            shared.parameters.push(shared.weights.vector + 1.0, version=8)
            shared.weights.updates = 9
        channel.send((message, channel.waits()))


@pytest.fixture(params=["forked", "spawned"])
def transport(tmp_path, monkeypatch, request):
    """One with a fork server, and one as on systems that cannot have one."""
    if request.param == "spawned":
        monkeypatch.setattr(forkserver, "available", lambda: False)
    context = probe.context_of(tmp_path / "run", Catch, **{"runtime.kind": "process"})
    transport = ProcessTransport(context)
    for role in (speaks_and_exits, fails, crashes, answers):
        monkeypatch.setitem(ROLES, role.__name__, role)
    yield transport
    transport.close()
    context.coordinator.close()
    context.coordinator.run.unlock()


def messages(transport, count, seconds=PATIENCE):
    """The next messages, with the children they are from."""
    found, end = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < end:
        found += transport.receive(0.1)
    assert len(found) == count, found
    return found


def test_the_messages_of_a_child_come_before_its_end(transport):
    child = transport.start("speaks_and_exits", 3)
    child.process.join(PATIENCE)  # what it said waits in the pipe
    assert messages(transport, 4) == [
        (child, "one"),
        (child, "two"),
        (child, "three"),
        (child, Ended("ended with exit code 3")),
    ]


def test_an_error_of_the_user_s_and_a_bug_are_told_apart(transport):
    user, bug = transport.start("fails"), transport.start("crashes")
    found = messages(transport, 4)
    ended = Ended("ended with exit code 0")
    assert [m for child, m in found if child is user] == [Failed("the config is wrong"), ended]
    crashed, end = (m for child, m in found if child is bug)
    assert isinstance(crashed, Crashed)
    assert crashed.reason == "ValueError: a bug"
    assert "in crashes" in crashed.traceback
    assert end == ended


def test_memory_is_shared_and_messages_go_both_ways(transport):
    shared = transport.shared
    child = transport.start("answers")
    assert messages(transport, 1) == [(child, ("waits", False))]
    before, seen = shared.weights.vector.clone(), torch.zeros_like(shared.weights.vector)
    child.send("write")
    assert messages(transport, 1) == [(child, ("write", False))]
    assert shared.store.arrays["reward"][2, 1] == 5.0
    assert shared.store.arrays["reward"].sum() == 5.0
    assert shared.parameters.pull(seen) == 8
    assert torch.equal(seen, before + 1.0)
    assert shared.weights.updates == 9
    # It cannot answer the first before the second is there.
    os.kill(child.process.pid, signal.SIGSTOP)
    child.send("first")
    child.send("second")
    os.kill(child.process.pid, signal.SIGCONT)
    assert messages(transport, 2) == [(child, ("first", True)), (child, ("second", False))]


def test_signals_of_the_terminal_are_for_the_supervisor_and_a_kill_is_reported(transport):
    child = transport.start("answers")
    messages(transport, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.process.pid, number)
    child.send("still here")
    assert messages(transport, 1) == [(child, ("still here", False))]
    os.kill(child.process.pid, signal.SIGKILL)
    assert messages(transport, 1) == [(child, Ended("was killed by SIGKILL"))]
    child.send("nobody reads this")  # and nothing is raised
    assert list(transport.receive(0.1)) == []


def test_a_signal_without_a_name_is_reported_by_its_number(transport):
    child = transport.start("answers")
    messages(transport, 1)
    os.kill(child.process.pid, signal.SIGRTMIN + 6)
    number = int(signal.SIGRTMIN) + 6
    assert messages(transport, 1) == [(child, Ended(f"was killed by signal {number}"))]


def owns_a_process(channel, shared, seconds):
    """A child with something to close, which takes a while."""
    with subprocess.Popen(["sleep", "600"]) as owned:
        try:
            channel.send(owned.pid)
            channel.receive()
        finally:
            time.sleep(seconds)
            owned.kill()


def test_a_child_that_is_asked_to_end_may_close_what_it_opened(transport, monkeypatch):
    monkeypatch.setitem(ROLES, "owns_a_process", owns_a_process)
    monkeypatch.setattr(processes, "CLOSING", 60.0)
    child = transport.start("owns_a_process", 0.3)
    ((_, owned),) = messages(transport, 1)
    child.end()
    child.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(owned, 0)


def test_but_not_for_ever(transport, monkeypatch):
    monkeypatch.setitem(ROLES, "owns_a_process", owns_a_process)
    monkeypatch.setattr(processes, "CLOSING", 0.2)
    child = transport.start("owns_a_process", 600)
    ((_, owned),) = messages(transport, 1)
    pid = child.process.pid
    child.end()
    began = time.monotonic()
    child.kill()
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    os.kill(owned, signal.SIGKILL)


def test_a_child_that_was_killed_on_purpose_says_nothing_more(transport):
    child, other = transport.start("answers"), transport.start("answers")
    messages(transport, 2)
    child.send("unread")
    pids = [one.process.pid for one in (child, other)]
    child.kill()
    child.kill()  # once is enough
    assert list(transport.receive(0.5)) == []
    transport.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.own_fork_server
def test_a_fork_server_that_was_lost_is_replaced(transport):
    if transport._server is None:
        pytest.skip("there is none")
    os.kill(transport._server.pid, signal.SIGKILL)
    first = transport.start("answers")
    assert messages(transport, 1) == [(first, ("waits", False))]
    assert not isinstance(first.process, Forked)  # spawned, since nobody answered
    end = time.monotonic() + PATIENCE
    while not isinstance(transport.start("answers").process, Forked):  # the new one imports
        messages(transport, 1)
        assert time.monotonic() < end


@pytest.mark.own_fork_server
def test_no_fork_server_is_left_where_a_run_cannot_begin(tmp_path, monkeypatch):
    servers = []
    monkeypatch.setattr(
        ForkServer,
        "close",
        lambda self, close=ForkServer.close: (servers.append(self), close(self)),
    )
    lock = threading.Lock()  # cannot be pickled

    def make_env():
        with lock:
            return Catch()

    context = probe.context_of(tmp_path / "run", make_env, **{"runtime.kind": "process"})
    with pytest.raises(DicerlError, match="make_env cannot be sent"):
        ProcessTransport(context)
    assert len(servers) == 1
    context.coordinator.close()
    context.coordinator.run.unlock()


# --- before a child has imported anything

FIRST_CHILD = """
import os, signal
from dicerl.runtime import forkserver, processes
from dicerl.runtime.forkserver import Forked, ForkServer

if __name__ == "__main__":
    from role import role
    process, pipe = processes.start_process(role, None)
    os.kill(process.pid, signal.SIGTERM)  # long before it has imported anything
    print(pipe.recv() if pipe.poll(120) else "silent")
    process.kill()
"""


def test_even_the_first_child_starts_with_signals_held(tmp_path):
    (tmp_path / "role.py").write_text(
        "def role(channel, shared):\n    channel.send('alive')\n    channel.receive()\n"
    )
    (tmp_path / "first.py").write_text(FIRST_CHILD)
    done = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "alive", done.stderr
