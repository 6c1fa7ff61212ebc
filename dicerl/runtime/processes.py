"""Children as processes on this machine: pipes for messages, shared memory for the rest, signals.

Each child has its own pipe. Sequences and parameters are in unnamed shared memory, which the kernel
frees with the last process. Nothing outlives the supervisor: on Linux the kernel kills each child
with it, elsewhere a child ends when its pipe breaks.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch.multiprocessing as mp

from dicerl.agent.weights import Weights
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.runtime.base import Role, RunContext
from dicerl.runtime.machine import die_with, keep_freed_memory, take_long_time_slices
from dicerl.runtime.messages import Ended
from dicerl.runtime.roles import ROLES, Shared, run_role
from dicerl.runtime.setup import restore_weights


class ProcessTransport:
    """A Transport whose children are processes of this machine."""

    def __init__(self, context: RunContext) -> None:
        config, vector = context.config, context.model.flat.vector
        updates = context.coordinator.updates
        weights = Weights(context.model.flat, shared=True)
        if context.start is not None:
            restore_weights(weights, context.start)
        fields = schema(config, context.spec)
        self.shared = Shared(
            config,
            context.spec,
            context.plan,
            Store(fields, window_length(config), context.plan.capacity, shared=True),
            ParameterServer(vector.numel(), shared=True),
            weights,
            cloudpickle.dumps(context.make_env),
            cloudpickle.dumps(context.on_batch),
        )
        self.shared.parameters.push(vector, updates)
        self._children: set[ProcessHandle] = set()
        # Made once: making one for each wait would take as long as a message.
        self._selector = selectors.DefaultSelector()

    def start(self, role: Role, *args: Any) -> ProcessHandle:
        process, pipe = start_process(ROLES[role], self.shared, *args)
        handle = ProcessHandle(self, process, pipe)
        self._children.add(handle)
        self._selector.register(pipe, selectors.EVENT_READ, handle)
        self._selector.register(process.sentinel, selectors.EVENT_READ, handle)
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

    def forget(self, handle: ProcessHandle) -> None:
        """Stop listening to a child."""
        self._children.discard(handle)
        self._selector.unregister(handle.pipe)
        self._selector.unregister(handle.process.sentinel)

    def close(self) -> None:
        for handle in list(self._children):
            handle.kill()
        self._selector.close()


class ProcessHandle:
    """A Handle of a child process; ``pipe`` is our end."""

    def __init__(self, transport: ProcessTransport, process: Any, pipe: Connection) -> None:
        self._transport, self.process, self.pipe = transport, process, pipe
        self._killed = False

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
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def kill(self) -> None:
        if self._killed:
            return
        self._killed = True
        self._transport.forget(self)
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


def start_process(role: Callable[..., None], shared: Shared, *args: Any) -> tuple[Any, Connection]:
    """Start a process that runs ``role(channel, shared, *args)``; return it and our end of its
    pipe.
    """
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    # Busy-waiting threads would starve the process that shares their core.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # the first start would do this, and unblock the signals that are blocked below
    resource_tracker.ensure_running()
    with _without_main(), _holding_signals():
        process = context.Process(
            target=_child,
            args=(role, os.getpid(), theirs, shared, *args),
            daemon=True,
            name=role.__name__,
        )
        process.start()
    theirs.close()
    return process, ours


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
def _holding_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM while a child starts. Ctrl-C on the terminal is for the supervisor
    alone: a child starts with it blocked and then ignores it, and the supervisor receives what came
    meanwhile once the child has started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(
    role: Callable[..., None], parent: int, pipe: Connection, shared: Shared, *args: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # a service manager signals the whole group; the supervisor ends us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    die_with(parent)
    keep_freed_memory()
    take_long_time_slices()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        # else the supervisor has ended or closed our pipe
        run_role(role, PipeChannel(pipe), shared, *args)
