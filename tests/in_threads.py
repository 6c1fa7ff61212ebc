"""A transport of the supervisor: the same roles in threads, with queues."""

import contextlib
import dataclasses
import queue
import threading

import cloudpickle

import probe
from dicerl.agent.weights import Weights
from dicerl.envs.toy import Catch
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Store, schema, window_length
from dicerl.records.metrics import read_lines
from dicerl.runtime.messages import Ended
from dicerl.runtime.roles import ROLES, Shared, run_role
from dicerl.runtime.supervisor import Supervisor


class ThreadHandle:
    """Both ends of a child: the supervisor's (send, kill) and its own (the channel)."""

    place = ""

    def __init__(self, transport, role, args):
        self.role, self._transport = role, transport
        self._inbox, self._gone = queue.Queue(), threading.Event()
        self._thread = threading.Thread(target=self._live, args=args, daemon=True)
        self._thread.start()

    def _live(self, *args):
        with contextlib.suppress(EOFError):  # it was killed
            run_role(ROLES[self.role], Channel(self), self._transport.shared, *args)

    def send(self, message):
        self._transport.sent.append((self.role, message))
        self._inbox.put(message)

    def end(self):
        pass

    def kill(self):
        self._gone.set()
        self._inbox.put(None)
        self._thread.join(60)
        assert not self._thread.is_alive()


class Channel:
    def __init__(self, handle):
        self._handle = handle

    def send(self, message):
        if self._handle._gone.is_set():
            raise EOFError
        self._handle._transport.said.put((self._handle, message))

    def receive(self):
        message = self._handle._inbox.get()
        if self._handle._gone.is_set():
            raise EOFError
        return message

    def waits(self):
        return not self._handle._inbox.empty()


class ThreadTransport:
    """``lose(role, message)`` says whether a child vanishes instead of sending this message."""

    whole = False  # whether the weights outlive a learner
    renewable = True
    asks = False

    def __init__(self, context, lose=lambda role, message: False):
        config, flat = context.config, context.model.flat
        store = Store(schema(config, context.spec), window_length(config), context.plan.capacity)
        server = ParameterServer(flat.vector.numel())
        server.push(flat.vector, context.coordinator.updates)
        weights = Weights(flat, shared=True)
        callables = (cloudpickle.dumps(context.make_env), cloudpickle.dumps(context.on_batch))
        self.shared = Shared(config, context.spec, context.plan, store, server, weights, *callables)
        self._lose, self.started, self.sent, self.said = lose, [], [], queue.Queue()

    def start(self, role, *args):
        self.started.append(ThreadHandle(self, role, args))
        return self.started[-1]

    def room(self):
        return 0

    def receive(self, seconds):
        try:
            handle, message = self.said.get(timeout=seconds)
        except queue.Empty:
            return
        if handle._gone.is_set():
            return
        if self._lose(handle.role, message):
            handle.kill()
            message = Ended("vanished")
        yield handle, message

    def failing(self):
        return ""

    def weights_left(self):
        return self.shared.weights.updates if self.whole else None

    def close(self):
        for handle in self.started:
            if not handle._gone.is_set():
                handle.kill()


def run_in_threads(tmp_path, lose=lambda role, message: False, seen=None, on_batch=None, **changes):
    """(run, whether it is complete, its transport) of a small run of Catch; two actors."""
    context = probe.context_of(
        tmp_path / "run",
        Catch,
        **{
            "frames": 1500,
            "runtime.kind": "process",
            "runtime.num_actors": 2,
            "evaluation.every": 600,
            "checkpoint.every": 600,
            **changes,
        },
    )
    context = dataclasses.replace(context, on_batch=on_batch)
    run = context.coordinator.run
    transport = ThreadTransport(context, lose)
    supervisor = Supervisor(context, transport)
    if seen is not None:
        seen.append(supervisor)
    try:
        return run, supervisor.run(), transport
    finally:
        supervisor.close()
        context.coordinator.close()
        run.unlock()


def lines(run, **wanted):
    every = read_lines(run.directory / "metrics.jsonl")
    return [line for line in every if all(line.get(k) == v for k, v in wanted.items())]
