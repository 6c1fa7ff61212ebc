"""A fork server: a process that has imported what children need, and forks them. A child then
starts in a tenth of a second instead of two, and shares the memory of what was imported.

It forks twice, and the process between the two ends at once: so the child is adopted by the
supervisor, as its own. The supervisor hears of its end, the kernel kills it with the supervisor
(``die_with``), and nothing depends on the server any more: one that is killed or stopped costs
time and no child. Only Linux has what this takes; whoever gets None starts a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from io import BytesIO
from multiprocessing import context, process, resource_tracker, spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from dicerl.runtime.machine import SIGKILL, die_with, name_process

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
IMPORTING = 60.0  # seconds for the first server of a run to import
ANSWER = 5.0  # seconds for one that has: to fork takes milliseconds
MOST_FILES = 250  # that one message may carry (Linux: 253)
HEADER = struct.Struct("qq")  # bytes of the surroundings, and of the call
PID = struct.Struct("i")
READY = b"!"
STREAMS = (1, 2)  # stdout and stderr, which a child has from the supervisor as it is then

_inherited: list[int] = []  # in a child: the open files that came with its call
_adopting_lock = threading.Lock()  # runs in several threads


class ForkServer:
    """A server of this process that imports ``module``. ``patient``: its first child is worth
    waiting for until it has. It ends with ``close``, or with the thread that made it.
    """

    def __init__(self, module: str, patient: bool = True) -> None:
        self._patient, self._imported = patient, False
        self._socket, theirs = socket.socketpair()
        path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
        code = (
            "import json, sys; sys.path[:] = json.load(sys.stdin);"
            " from dicerl.runtime.forkserver import serve;"
            f" sys.exit(serve({theirs.fileno()}, {os.getpid()}, {module!r}))"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs:
            # -P: nothing is imported from the present folder (envs/trust.py)
            self._process = subprocess.Popen(
                [spawn.get_executable(), *flags, "-P", "-c", code],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as stdin:  # it has ended already
            stdin.write(path.encode())

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the server; its children go on."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def start(self, call: Callable[..., None], *args: Any) -> Forked | None:
        """Have ``call(*args)`` done by a child; None if the server does not answer, and is closed,
        or is not ready yet.
        """
        try:
            return self._start(call, args) if self._ready() else None
        except (OSError, EOFError):  # it is stopped, or gone
            self.close()
            return None
        except BaseException:  # its answer may still come
            self.close()
            raise

    def _ready(self) -> bool:
        """Whether it has imported all."""
        if not self._imported:
            self._socket.settimeout(IMPORTING if self._patient else 0.0)
            with contextlib.suppress(BlockingIOError):
                self._imported = bool(_read(self._socket, len(READY)))
        return self._imported

    def _start(self, call: Callable[..., None], args: tuple[Any, ...]) -> Forked | None:
        parcel = _Parcel()
        surroundings, body = parcel.pack(_surroundings(parcel)), parcel.pack((call, args))
        with contextlib.ExitStack() as closing:
            waits, go = os.pipe()
            for end in (waits, go):
                closing.callback(os.close, end)
            files = [*(_open_file(stream, closing) for stream in STREAMS), waits, *parcel.files]
            if len(files) > MOST_FILES:
                return None
            self._socket.settimeout(ANSWER)
            with _adopting():
                header = HEADER.pack(len(surroundings), len(body))
                socket.send_fds(self._socket, [header], files)
                self._socket.sendall(surroundings)
                self._socket.sendall(body)
                (pid,) = PID.unpack(_read(self._socket, PID.size))
            if not pid or not _is_ours(pid):
                return None
            child = Forked(pid)
            os.write(go, READY)
            return child


class Forked:
    """A child, with the part of multiprocessing's ``Process`` that is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sentinel = os.pidfd_open(pid)  # readable when it has ended
        self.exitcode: int | None = None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most ``timeout`` seconds."""
        if self.exitcode is not None:
            return
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            return
        try:
            self.exitcode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else asked for it
            self.exitcode = 255

    def kill(self) -> None:
        if self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, SIGKILL)

    def close(self) -> None:
        os.close(self.sentinel)


def available() -> bool:
    """Whether this system can do it; a frozen program (PyInstaller) would start itself again."""
    if getattr(sys, "frozen", False):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # not Linux, an old one, or a sandbox without it
        return False
    return True


def _open_file(file: int, closing: contextlib.ExitStack) -> int:
    """The file, or one that takes everything if it is closed. Python's own files, which may have
    got its number since, cannot be inherited.
    """
    with contextlib.suppress(OSError):
        if os.get_inheritable(file):
            return file
    file = os.open(os.devnull, os.O_WRONLY)
    closing.callback(os.close, file)
    return file


def _is_ours(pid: int) -> bool:
    """Whether a process is a child of this one."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of descendants whose own parent ends meanwhile."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    with _adopting_lock:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, before.value)  # the user's program may be one itself


def _surroundings(parcel: _Parcel) -> dict[str, Any]:
    """What a child has from its parent at the moment it starts; a server has it from earlier."""
    import resource

    folder = "/"
    with contextlib.suppress(OSError):  # it was removed
        folder = os.getcwd()
    tracker = resource_tracker._resource_tracker._fd  # type: ignore[attr-defined]
    return {
        "environ": dict(os.environ),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "folder": folder,
        "mask": int(Path("/proc/self/status").read_text().split("Umask:")[1].split()[0], 8),
        "cores": os.sched_getaffinity(0),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "key": bytes(process.current_process().authkey),
        "method": multiprocessing.get_start_method(allow_none=True),
        "tracker": None if tracker is None else parcel.duplicate_for_child(tracker),
    }


class _Inherited:
    """An open file among those that came with a child's call: what multiprocessing puts in the
    place of each when it pickles.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return _inherited[self._index]


class _Parcel:
    """Pickles for a child, and collects the open files that go with it."""

    DupFd = _Inherited

    def __init__(self) -> None:
        self.files: list[int] = []

    def duplicate_for_child(self, file: int) -> int:
        self.files.append(file)
        return len(self.files) - 1

    def pack(self, value: Any) -> bytes:
        buffer = BytesIO()
        context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            ForkingPickler(buffer).dump(value)
        finally:
            context.set_spawning_popen(None)
        return buffer.getvalue()


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


# --- in the server


def serve(file: int, parent: int, module: str) -> int:
    """Import ``module``, then fork a child for each message, until there will be no more. In a
    child: return its exit code when its call has ended.
    """
    die_with(parent)
    name_process("fork server")
    importlib.import_module(module)
    gc.freeze()  # a collection in a child would touch, and so copy, all that is shared
    connection = socket.socket(fileno=file)
    connection.sendall(READY)
    while True:
        header, files, flags, _ = socket.recv_fds(connection, HEADER.size, MOST_FILES)
        for one in files:
            os.set_inheritable(one, False)  # not for what an environment may start
        if not header:
            return 0
        try:
            header += _read(connection, HEADER.size - len(header))
            parts = [_read(connection, size) for size in HEADER.unpack(header)]
        except EOFError:
            return 0
        ours, theirs = os.pipe()
        # not where some files were left out: too many are open here
        between = -1 if flags & socket.MSG_CTRUNC else _fork()
        if between == 0:
            child = _fork()
            if child != 0:
                os.write(theirs, PID.pack(max(child, 0)))
                os._exit(0)
            for unused in (ours, theirs, connection.detach()):
                os.close(unused)
            return _be_child(files, *parts)
        os.close(theirs)
        told, parts = b"", []
        if between > 0:
            with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
                os.waitpid(between, 0)  # the child has a new parent
            told = os.read(ours, PID.size)
        for unused in (ours, *files):
            os.close(unused)
        connection.sendall(told or PID.pack(0))


def _fork() -> int:
    """As os.fork, but -1 where there is no room for another process."""
    try:
        return os.fork()
    except OSError:
        return -1


def _be_child(files: list[int], surroundings: bytes, body: bytes) -> int:
    *streams, waits = files[: len(STREAMS) + 1]
    if not os.read(waits, 1):  # nobody waited for us: another does the work
        return 0
    try:
        for stream, file in zip(STREAMS, streams, strict=True):
            os.dup2(file, stream)
            os.close(file)
        os.close(waits)
        _inherited[:] = files[len(STREAMS) + 1 :]
        _move_to(**pickle.loads(surroundings))
        call, args = pickle.loads(body)
        call(*args)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _move_to(
    environ: dict[str, str],
    path: list[str],
    argv: list[str],
    folder: str,
    mask: int,
    cores: set[int],
    files: tuple[int, int],
    key: bytes,
    method: str | None,
    tracker: int | None,
) -> None:
    import resource

    import numpy as np

    os.environ.clear()
    os.environ.update(environ)
    sys.path[:], sys.argv[:] = path, argv
    os.chdir(folder)
    os.umask(mask)
    os.sched_setaffinity(0, cores)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    np.random.seed()  # noqa: NPY002  (or all children of a server would draw the same)
    # as multiprocessing does for those that it spawns
    me = process.current_process()
    me.authkey = key
    me._config["daemon"] = True  # type: ignore[attr-defined]
    multiprocessing.set_start_method(method, force=True)
    if tracker is not None:
        resource_tracker._resource_tracker._fd = _inherited[tracker]  # type: ignore[attr-defined]
