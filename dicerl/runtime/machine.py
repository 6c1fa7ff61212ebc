"""The machine, for processes: cores and memory, signals, what is asked of malloc and the scheduler,
and how to end together with their parent. What a system lacks (macOS, Windows) is left out here,
so that nobody else has to ask.

It imports no torch, so that the suite's processes can use it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import signal
import struct
import sys
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Looked up here and not in `die_with`: between fork and exec a child must not load libraries.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
SIGKILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows any signal ends a process at once
SIGHUP: int | None = getattr(signal, "SIGHUP", None)
# what asks a process to stop: Ctrl-C, a service manager, a terminal that closes
STOPPING = [n for n in (signal.SIGINT, signal.SIGTERM, SIGHUP) if n is not None]
TIME_SLICE = 0.02  # seconds a child process computes before another may have its core


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def signal_name(number: int) -> str:
    """What a signal is called; a real-time one has only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def has_process_runtime() -> bool:
    """Whether this system can do what processes.py needs: wait for pipes and processes together,
    and start a process with signals blocked. Windows cannot.
    """
    return hasattr(select, "poll") and hasattr(signal, "pthread_sigmask")


def share_of_cores(slot: int, slots: int) -> set[int]:
    """The cores of one of ``slots`` processes that share this one's; empty where the system lets
    nobody choose.
    """
    if not hasattr(os, "sched_getaffinity"):
        return set()
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[slot::slots]) or {cores[slot % len(cores)]}


def use_cores(cores: set[int]) -> None:
    """Let this process use these cores only; all of them if ``cores`` is empty."""
    if cores:
        os.sched_setaffinity(0, cores)


def hardware() -> dict[str, object]:
    """What a measurement was made on: processor, cores, Python."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (
                line.split(":")[1].strip()
                for line in cpuinfo.read_text().splitlines()
                if line.startswith("model name")
            ),
            model,
        )
    return {"cpu": model, "cores": cores(), "python": platform.python_version()}


def available_memory() -> int:
    """Bytes this process may still use: the machine's free memory, within a container's limit. All
    of the machine's memory on macOS, and no limit on Windows: they do not say what is free.
    """
    try:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        free = sys.maxsize
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            free = min(free, int(limit) - used)
    except (OSError, ValueError):
        pass
    return free


def allow_open_files(needed: int) -> int:
    """Raise this process's limit of open files to ``needed`` beside those it has open, as far as
    it may; return for how many more there is room then.
    """
    if resource is None:
        return sys.maxsize
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = Path("/proc/self/fd")
    already = len(list(folder.iterdir())) if folder.is_dir() else 0
    if soft != resource.RLIM_INFINITY and soft < already + needed:
        wanted = already + needed
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - already


def open_standard_streams() -> None:
    """Where standard input, output or error was closed (``2>&-``), put /dev/null in its place: the
    run's own files would get these numbers, and what a library writes to stderr would go there.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            with contextlib.suppress(OSError):
                found = os.open(os.devnull, os.O_RDWR)
                if found != number:
                    os.dup2(found, number)
                    os.close(found)


def hear_children() -> None:
    """Learn how children end, also where this process was started with SIGCHLD ignored: then all
    would seem to have ended well. To be called in the main thread.
    """
    number = getattr(signal, "SIGCHLD", None)  # Windows has no such signal
    if number is not None and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


# whether the command ends without what libraries do at the end of a process (ray_cluster.py)
leave_at_once = False
_trains = False  # whether torch was used for a run in this process
_is_copy = False  # whether this process is a fork of one for which that holds


def trains_here() -> None:
    """A run uses torch in this process, perhaps with several threads. These do not survive a fork,
    and in a copy whatever is divided among them waits for ever: there torch has one.
    """
    global _trains
    if not _trains and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one_thread)
    _trains = True


def _one_thread() -> None:
    global _is_copy
    _is_copy = True
    sys.modules["torch"].set_num_threads(1)


def threads_here(wanted: int) -> int:
    """How many threads torch may have in this process."""
    return 1 if _is_copy else wanted


def die_with(parent: int, number: int = SIGKILL) -> None:
    """Have the kernel send this process the signal ``number`` when its ``parent`` ends, however
    it ends (Linux only); if the parent has ended already, exit now. On Windows a launcher may stand
    between the two, so the parent is not looked at.
    """
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, number)
    if os.name == "posix" and os.getppid() != parent:
        os._exit(1)


def name_process(what: str) -> None:
    """What `ps -e` and `top` call this process, instead of python (Linux only; of 15 letters)."""
    if _prctl is not None:
        _prctl(PR_SET_NAME, f"dicerl {what}".encode()[:15])


def keep_freed_memory() -> None:
    """Have malloc keep freed memory instead of returning it to the system with every tensor.

    A learner frees and allocates the same hundred megabytes in each update; page faults on fresh
    pages made normalising a batch of frames six times slower than it is with this (measured:
    docs/architecture.md).
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # glibc
            m_trim_threshold, m_top_pad, m_mmap_max, m_arena_max = -1, -2, -4, -8
            # another thread's own arena could not hold a block above 64 MiB, and would map it again
            # each time
            libc.mallopt(m_arena_max, 1)
            libc.mallopt(m_mmap_max, 0)
            libc.mallopt(m_trim_threshold, 2**31 - 1)
            libc.mallopt(m_top_pad, 64 << 20)


def take_long_time_slices() -> None:
    """Ask the scheduler for time slices of TIME_SLICE seconds instead of about 3 ms; kernels
    before 6.12 ignore it.

    There are more actors and learners than cores. A slice of 3 ms is one step of an actor or a
    fraction of an update, and each one starts with the caches full of another's weights (measured:
    docs/architecture.md). The supervisor keeps its short slices and so comes first.
    """
    # the system call sched_setattr, which Python does not have
    number = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
    if (
        sys.platform == "linux"
        and number is not None
        and os.sched_getscheduler(0) == os.SCHED_OTHER
    ):
        # size, policy, flags, nice, priority, runtime in ns, deadline, period
        attr = struct.pack(
            "IIQiIQQQ", 48, os.SCHED_OTHER, 0, os.nice(0), 0, int(TIME_SLICE * 1e9), 0, 0
        )
        ctypes.CDLL(None).syscall(number, 0, attr, 0)


def amount(size: float) -> str:
    """A number of bytes as text, in KiB, MiB or GiB."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if size >= 2 ** (power - 2):
            return f"{size / 2**power:.2f} {unit}"
    return f"{size / 2**10:.1f} KiB"
