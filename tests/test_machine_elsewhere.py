"""What other systems lack is taken away from this one. This shows that nothing asks for what is not
there; it is no test on macOS or Windows.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dicerl.records import checkpoint
from dicerl.runtime import machine
from dicerl.suite import scheduler

# Libraries are imported before anything is taken away: they are built for each system.
WINDOWS = """
import json, importlib, multiprocessing.resource_tracker, os, pkgutil, select, shutil, signal, \
    subprocess, sys, tempfile
import ale_py, cloudpickle, gymnasium, minatar, numpy, plotly, rich.live, safetensors.torch, torch
import torch.multiprocessing

def without(module, *names):
    for name in names:
        delattr(module, name)

sys.platform = "win32"
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
without(os, *[name for name in vars(os) if name.startswith("sched_")])
without(os, "sysconf", "statvfs", "O_NOFOLLOW", "O_NONBLOCK", "getuid", "geteuid", "fork", "nice")
without(signal, "SIGHUP", "SIGKILL", "SIGPIPE", "SIGCONT", "SIGSTOP", "pthread_sigmask")
without(select, "poll", "epoll")
shutil._use_fd_functions = False  # as it finds there; with them, that of 3.13 asks for O_NONBLOCK

import dicerl
from dicerl.errors import DicerlError

config = dicerl.preset(
    "debug", env__id="CartPole-v1", frames=200, run_dir="run", tensorboard=False,
    runtime__kind="auto", evaluation__every=200, evaluation__max_steps=20,
)
frames = dicerl.train(config, quiet=True).summary["frames"]
try:
    dicerl.train(config.replace(run_dir="other", **{"runtime.kind": "process"}), quiet=True)
except DicerlError as error:
    refusal = str(error)
failed = []
for found in pkgutil.walk_packages(dicerl.__path__, "dicerl."):
    if found.name != "dicerl.__main__" and "ray" not in found.name:
        try:
            importlib.import_module(found.name)
        except Exception as error:
            failed.append(f"{found.name}: {error!r}")
print(json.dumps([frames, refusal, failed]))
"""


@pytest.mark.timeout(400)
def test_a_serial_run_as_on_windows(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    frames, refusal, failed = json.loads(done.stdout.splitlines()[-1])
    assert frames >= 200
    assert refusal == "runtime.kind is 'process'; it needs what win32 does not have; use serial"
    assert failed == []  # every module can be imported


MACOS = """
import os, sys
sys.platform = "darwin"
for name in [name for name in vars(os) if name.startswith("sched_") and name != "sched_yield"]:
    delattr(os, name)
from dicerl.runtime import machine
machine.die_with(os.getppid())
machine.take_long_time_slices()
machine.keep_freed_memory()
machine.use_cores(machine.share_of_cores(0, 2))
print(machine.cores(), machine.has_process_runtime())
"""


def test_the_machine_as_on_macos():
    done = subprocess.run(
        [sys.executable, "-c", MACOS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [str(os.cpu_count()), "True"]


def test_memory_where_the_system_does_not_say_what_is_free(tmp_path, monkeypatch):
    known = machine.available_memory()
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(machine, "Path", lambda *_: tmp_path / "nothing")
    assert 0 < known <= machine.available_memory() == whole
    monkeypatch.delattr(os, "sysconf")
    assert machine.available_memory() == sys.maxsize


def test_what_posix_alone_has_is_not_asked_for_elsewhere(tmp_path, monkeypatch):
    assert scheduler._in_child({0}) is not None
    with pytest.raises(FileNotFoundError):
        checkpoint._sync(tmp_path / "nothing")
    for module in (scheduler, checkpoint, machine):
        monkeypatch.setattr(module, "os", SimpleNamespace(**vars(os) | {"name": "nt"}))
    assert scheduler._in_child({0}) is None
    checkpoint._sync(tmp_path / "nothing")
    machine.die_with(parent=-1)  # a launcher may stand between the two: it does not exit
