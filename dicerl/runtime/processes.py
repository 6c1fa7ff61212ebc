"""Children as processes on this machine: pipes for messages, shared memory for the rest, signals.

Children are forked by a server that has imported what they need (forkserver.py), or spawned where
that cannot be. Each has its own pipe. Sequences and parameters are in unnamed shared memory, which
the kernel frees with the last process. Nothing outlives the supervisor: on Linux the kernel kills
each child with it, elsewhere a child ends when its pipe breaks.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch.multiprocessing as mp

from dicerl.agent import own_torso
from dicerl.agent.weights import PipeLock, Weights
from dicerl.errors import DicerlError
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.runtime import forkserver
from dicerl.runtime.base import Role, RunContext
from dicerl.runtime.forkserver import ForkServer
from dicerl.runtime.machine import (
    STOPPING,
    die_with,
    keep_freed_memory,
    name_process,
    signal_name,
    take_long_time_slices,
)
from dicerl.runtime.messages import Ended
from dicerl.runtime.roles import ROLES, Shared, pickled, run_role
from dicerl.runtime.setup import restore_weights

CLOSING = 5.0  # seconds for a child that was asked to end; an actor speaks about twice a second
TURN = 2.0  # seconds for a learner to apply its gradient: milliseconds, but its core may be busy
# by children: terminals and service managers signal the whole group; the supervisor ends them
IGNORED = set(STOPPING)
SAFE_PATH = "PYTHONSAFEPATH"  # of Python: it takes any value
SET_HERE = "dicerl"  # this one shows a child that it is ours


class ProcessTransport:
    """A Transport whose children are processes of this machine."""

    renewable = True
    asks = False

    def __init__(self, context: RunContext) -> None:
        self._server = _fork_server()  # it imports while this process goes on
        try:
            self.shared = _shared(context)
            self._torso = pickled("torso", own_torso.of_main(context.config))
        except BaseException:
            self._close_server()
            raise
        self._children: set[ProcessHandle] = set()
        # Made once: making one for each wait would take as long as a message.
        self._selector = selectors.DefaultSelector()

    def start(self, role: Role, *args: Any) -> ProcessHandle:
        process, pipe = start_process(
            ROLES[role], self.shared, *args, torso=self._torso, server=self._server
        )
        handle = ProcessHandle(self, process, pipe, closes=role != "learner")
        self._children.add(handle)
        self._selector.register(pipe, selectors.EVENT_READ, handle)
        self._selector.register(process.sentinel, selectors.EVENT_READ, handle)
        if self._server is not None and self._server.closed:  # it did not answer
            self._server = _fork_server(patient=False)
        return handle

    def room(self) -> int:
        return 0  # a machine stays as it is

    def receive(self, seconds: float) -> Iterator[tuple[ProcessHandle, Any]]:
        ready = self._selector.select(seconds)
        # Pipes first: a child's messages come before its end.
        for key, _ in sorted(ready, key=lambda found: isinstance(found[0].fileobj, int)):
            handle: ProcessHandle = key.data
            if handle not in self._children:
                continue  # an earlier message led to its being killed
            if key.fileobj is handle.pipe:
                # Only one message: polling for another takes as long as reading it.
                message = handle.receive()
                if message is not None:
                    yield handle, message
                continue
            while handle in self._children and handle.pipe.poll():
                message = handle.receive()
                if message is None:
                    break
                yield handle, message
            if handle in self._children:
                how = handle.how_it_ended()
                handle.kill()
                yield handle, Ended(how)

    def failing(self) -> str:
        return ""  # each child lives and dies for itself

    def weights_left(self) -> int | None:
        """A learner changes the weights only while it holds their lock: one that died with it may
        have changed half of them. Those on a GPU went with its process.
        """
        weights = self.shared.weights
        on_cpu, lock = self.shared.plan.device.type == "cpu", weights.lock
        whole = on_cpu and isinstance(lock, PipeLock) and lock.intact(TURN)
        return weights.updates if whole else None

    def forget(self, handle: ProcessHandle) -> None:
        """Stop listening to a child."""
        self._children.discard(handle)
        self._selector.unregister(handle.pipe)
        self._selector.unregister(handle.process.sentinel)

    def close(self) -> None:
        for handle in (children := list(self._children)):
            if handle.closes:
                handle.end()
        for handle in children:
            handle.kill()
        self._selector.close()
        self._close_server()

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()


class ProcessHandle:
    """A Handle of a child process; ``pipe`` is our end, ``closes`` whether it has something to
    close at its end.
    """

    place = ""

    def __init__(
        self, transport: ProcessTransport, process: Any, pipe: Connection, closes: bool
    ) -> None:
        self._transport, self.process, self.pipe = transport, process, pipe
        self.closes = closes
        self._killed = False
        self._ends_by: float | None = None  # when it is killed that was asked to end

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has died: its sentinel reports that
            self.pipe.send(message)

    def receive(self) -> Any:
        """The next message, or None if there will be no more."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def how_it_ended(self) -> str:
        """How the process ended, in words that follow its name."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "stopped answering"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        return f"ended with exit code {code}"

    def end(self) -> None:
        if self._ends_by is None:
            self._ends_by = time.monotonic() + CLOSING
            self._transport.forget(self)
            self.pipe.close()  # it notices when it next listens or speaks

    def kill(self) -> None:
        if self._killed:
            return
        self._killed = True
        if self._ends_by is None:
            self._transport.forget(self)
        else:
            self.process.join(max(0.0, self._ends_by - time.monotonic()))
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class PipeChannel:
    """The child's end of the pipe, as a Channel (roles.py)."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.send, self.receive = pipe.send, pipe.recv
        self._poll = select.poll()  # takes a fifth of the time of pipe.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)

    def waits(self) -> bool:
        return bool(self._poll.poll(0))


def _shared(context: RunContext) -> Shared:
    """What children share, in shared memory, with the weights that the run starts from."""
    config, vector = context.config, context.model.flat.vector
    fields = schema(config, context.spec)
    try:
        weights = Weights(context.model.flat, shared=True)
        store = Store(fields, window_length(config), context.plan.capacity, shared=True)
        parameters = ParameterServer(vector.numel(), shared=True)
    except RuntimeError as error:  # torch's, for any error of the system
        raise DicerlError(
            f"shared memory could not be made: {error}; free some of /dev/shm or use"
            " runtime.kind=serial"
        ) from error
    if context.start is not None:
        restore_weights(weights, context.start)
    parameters.push(vector, context.coordinator.updates)
    return Shared(
        config,
        context.spec,
        context.plan,
        store,
        parameters,
        weights,
        pickled("make_env", context.make_env),
        pickled("on_batch", context.on_batch),
    )


def _fork_server(patient: bool = True) -> ForkServer | None:
    """A fork server, where the system can do that."""
    _wait_passively()
    if not forkserver.available():
        return None
    with contextlib.suppress(OSError), _holding_signals():  # it keeps them blocked
        return ForkServer(__name__, patient)
    return None


def start_process(
    role: Callable[..., None],
    shared: Shared,
    *args: Any,
    torso: bytes = b"",
    server: ForkServer | None = None,
) -> tuple[Any, Connection]:
    """Start a process that runs ``role(channel, shared, *args)``, from ``server`` if there is one;
    return it and our end of its pipe. ``torso`` is what ``own_torso.of_main`` gave.
    """
    ours, theirs = mp.get_context("spawn").Pipe()
    call = (role, os.getpid(), theirs, torso, shared, *args)
    forked = None if server is None else server.start(_child, *call)
    process = forked or _spawned(role.__name__, call)
    theirs.close()
    return process, ours


def _spawned(name: str, call: tuple[Any, ...]) -> Any:
    """A process that does ``_child(*call)``, with an interpreter of its own."""
    _wait_passively()
    # the first start would do this, and unblock the signals that are blocked below
    with _safe_path():
        resource_tracker.ensure_running()
    with _without_main(), _safe_path(), _holding_signals():
        process = mp.get_context("spawn").Process(target=_child, args=call, daemon=True, name=name)
        process.start()
    return process


def _wait_passively() -> None:
    """Threads that wait busily would starve the process that shares their core."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module: spawned children would run the user's script again unless it is
    guarded, and ours need nothing from it.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        if "__file__" in hidden:
            del main.__file__
        main.__spec__ = None
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Python starts in a child as for ``python -c``, which looks for every module in this folder
    first: not here (envs/trust.py). The child then gets our ``sys.path``.
    """
    if SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = SET_HERE
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]


@contextlib.contextmanager
def _holding_signals() -> Iterator[None]:
    """Block IGNORED while a child starts. Ctrl-C on the terminal is for the supervisor
    alone: a child starts with it blocked and then ignores it, and the supervisor receives what came
    meanwhile once the child has started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(
    role: Callable[..., None],
    parent: int,
    pipe: Connection,
    torso: bytes,
    shared: Shared,
    *args: Any,
) -> None:
    if os.environ.get(SAFE_PATH) == SET_HERE:  # not for what an environment may start
        del os.environ[SAFE_PATH]
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    die_with(parent)
    name_process(role.__name__.removesuffix("_role"))
    keep_freed_memory()
    take_long_time_slices()
    if torso:
        own_torso.put_into_main(shared.config, cloudpickle.loads(torso))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        # else the supervisor has ended or closed our pipe
        run_role(role, PipeChannel(pipe), shared, *args)
