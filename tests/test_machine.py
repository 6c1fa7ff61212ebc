"""runtime/machine.py: cores, time slices, and processes that end together with their parent."""

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dicerl.runtime.machine import cores

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for it")

# The parent prints the pid of its child, which lives for five minutes unless it is ended.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
input()
"""
CHILD = """
import os, sys, time
from dicerl.runtime.machine import die_with
{call}
print("ready", flush=True)
time.sleep(300)
"""


@linux
def test_cores_are_those_this_process_may_use():
    """In a process of its own: the tests' own cores stay as they are."""
    assert cores() == len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{one}]); from dicerl.runtime import machine;"
        " print(machine.cores())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "1\n"


def alive(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@linux
@pytest.mark.parametrize(
    ("call", "survives"), [("die_with(os.getppid())", False), ("pass", True)], ids=["asked", "not"]
)
def test_a_process_ends_with_its_parent_if_it_asked_for_that(call, survives):
    """Even where the parent is killed and can do nothing about it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD.format(call=call)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.communicate()
        end = time.monotonic() + (0.5 if survives else 30)
        while alive(child) and time.monotonic() < end:
            time.sleep(0.02)
        assert alive(child) == survives
    finally:
        if alive(child):
            os.kill(child, 9)


@linux
def test_a_process_whose_parent_has_ended_already_exits_at_once():
    code = "import os; from dicerl.runtime.machine import die_with; die_with(os.getppid() + 1)"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('here')"], capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")


LONG_SLICES = """
import ctypes, os, struct
from dicerl.runtime.machine import TIME_SLICE, take_long_time_slices
os.nice(3)
take_long_time_slices()
found = ctypes.create_string_buffer(48)
assert ctypes.CDLL(None).syscall(NUMBER, 0, found, 48, 0) == 0  # sched_getattr
_, policy, _, nice, _, runtime, _, _ = struct.unpack("IIQiIQQQ", found.raw)
print(policy == os.SCHED_OTHER, nice, os.nice(0), runtime / 1e9 == TIME_SLICE)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="not asked for here",
)
def test_long_time_slices_are_requested_and_nothing_else_is_changed():
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    done = subprocess.run(
        [sys.executable, "-c", LONG_SLICES.replace("NUMBER", str(number))],
        capture_output=True,
        text=True,
        check=False,
    )
    listens = tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups())) >= (6, 12)
    nice = str(min(19, os.nice(0) + 3))  # the tests themselves may run under `nice`
    assert done.stdout.split()[:3] == ["True", nice, nice], done.stderr
    assert not listens or done.stdout.split()[3] == "True"


@linux
def test_more_files_may_be_opened_up_to_the_hard_limit():
    """In a process of its own."""
    code = """
import resource
from dicerl.runtime.machine import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 100))
print(allow_open_files(10), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(allow_open_files(50) >= 50, resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 60)
print(allow_open_files(500) < 100, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, third = (line.split() for line in done.stdout.splitlines())
    assert int(first[0]) < 30
    assert first[1] == "30"  # enough as it was
    assert second == ["True", "True"]
    assert third == ["True", "100"]
