"""Where the campaign plays: namespaces of its own for mounts and the network, so that disks can be
full, /dev/shm small and the network cut without privileges and without anyone else noticing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

INSIDE = "DICERL_FAULTS_INSIDE"  # a variable: this process has namespaces of its own
# on a machine where a user may not make them, the second needs no rights
WAYS = (("--mount", "--net"), ("--map-root-user", "--mount", "--net"))
OWN = ("/dev/shm", "/tmp/ray")  # what others leave there is not found, nor the other way round
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # of a network interface (ioctl)


def enter(command: Sequence[str]) -> None:
    """Start ``command`` again in namespaces of its own, in place of this process, if that can be
    done; then make what it needs there: a loopback, shared memory, a place for Ray.
    """
    if INSIDE in os.environ:
        if isolated():
            loopback(True)
            for folder in OWN:
                Path(folder).mkdir(exist_ok=True)
                subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        return
    for way in WAYS if shutil.which("unshare") else ():
        if subprocess.run(["unshare", *way, "true"], capture_output=True, check=False).returncode:
            continue
        os.environ[INSIDE] = "yes"
        os.execvp("unshare", ["unshare", *way, sys.executable, *command])
    os.environ[INSIDE] = ""


def isolated() -> bool:
    """Whether mounts and the network are this process's own."""
    return os.environ.get(INSIDE) == "yes"


def loopback(up: bool) -> None:
    """Bring the loopback up, or cut it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, GET_FLAGS, request))[1]
        flags = flags | UP if up else flags & ~UP
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", flags))


@contextlib.contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A disk of this size at ``folder``, if one can be mounted here; yields whether."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    mounted = isolated() and subprocess.run(command, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            # in a session of its own: Ctrl-C at the terminal is not for it
            subprocess.run(["umount", "--lazy", folder], check=False, start_new_session=True)


def fill(folder: Path) -> Path:
    """Fill the disk at ``folder`` to the last byte; return the file that does."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return ballast


def with_limit(**limits: int) -> list[str] | None:
    """Words before a command that limit it as ``ulimit`` does: nofile, as (bytes)."""
    if not shutil.which("prlimit"):
        return None
    return ["prlimit", *(f"--{name}={value}:{value}" for name, value in limits.items())]


def with_shared_memory(kibibytes: int) -> list[str] | None:
    """Words before a command that give it a /dev/shm of its own, of this size."""
    if not isolated():
        return None
    mount = f"mount -t tmpfs -o size={kibibytes}k none /dev/shm"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"']


def obeying_modes() -> list[str] | None:
    """Words before a command that make root obey the modes of files, as everybody else does, and
    end it with this campaign; None if that cannot be done.
    """
    if not shutil.which("setpriv"):
        return None if os.geteuid() == 0 else []
    words = ["setpriv", "--pdeathsig", "KILL"]
    return [*words, "--bounding-set", "-dac_override"] if os.geteuid() == 0 else words
