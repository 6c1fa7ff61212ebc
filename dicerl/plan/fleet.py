"""Simulated children: a Transport (runtime/base.py) whose actors and learners are generators that
take simulated time, on cores that they share, and send what real ones send.

The supervisor over it is the real one. What that does takes the time that it was measured to take
(``Books``), so messages wait when it is busy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dicerl.parts.actor import Episode
from dicerl.parts.parameter_server import ParameterServer
from dicerl.plan.events import Clock, Cores, Link
from dicerl.plan.model import Load
from dicerl.runtime.base import Role
from dicerl.runtime.messages import (
    Alive,
    Batch,
    BatchProgress,
    EpisodesEnded,
    SlotsWanted,
    TimesSpent,
    Written,
)
from dicerl.runtime.roles import FRESH, HEARTBEAT, TIMES_EVERY

VISITS_A_MESSAGE = 100  # of a child: the supervisor takes as long for a message

# What a child waits for: its callable gets the continuation.
Wait = Callable[[Callable[[Any], None]], None]
Steps = Generator[Wait, Any, None]


class TimeIsUp(Exception):
    """The simulated run is over."""


@dataclass
class Numbers:
    """Counted so far."""

    messages: int = 0
    episodes: int = 0
    visits: float = 0.0
    supervisor: float = 0.0  # seconds at work
    learner: float = 0.0  # seconds of all learners, not starved
    acting: float = 0.0  # seconds of all actors, not waiting for slots
    updates: int = 0
    windows: int = 0
    lags: float = 0.0  # summed over sequences
    trained: int = 0  # those sequences


@dataclass
class Tick:
    """One round of the supervisor: what it handled, and the seconds that this took here."""

    seconds: float
    children: int
    messages: int
    episodes: int


class Child:
    """A simulated child: a generator that yields what it waits for."""

    place = ""

    def __init__(self, transport: SimulatedTransport, steps: Callable[[Child], Steps]) -> None:
        self._transport = transport
        self.inbox: deque[Any] = deque()
        self._waiting: Callable[[Any], None] | None = None
        self._steps = steps(self)
        self._go(None)

    def _go(self, value: Any) -> None:
        self._steps.send(value)(self._go)

    def send(self, message: Any) -> None:
        """The supervisor's message: it leaves when the round is over (as a Handle)."""
        self._transport.outbox.append((self, message))

    def deliver(self, message: Any) -> None:
        if self._waiting is None:
            self.inbox.append(message)
        else:
            go, self._waiting = self._waiting, None
            go(message)

    def message(self, go: Callable[[Any], None]) -> None:
        """Wait for the next message."""
        if self.inbox:
            go(self.inbox.popleft())
        else:
            self._waiting = go

    def end(self) -> None:
        pass

    def kill(self) -> None:
        pass


@dataclass
class Node:
    """A machine: its cores, and the version of the parameters that is there."""

    cores: Cores
    remote: bool
    version: int = 0
    fetching: bool = False


class SimulatedTransport:
    """A Transport whose children take simulated time. ``end`` says whether it has seen enough."""

    renewable = False
    asks = False

    def __init__(self, load: Load, end: Callable[[SimulatedTransport], bool]) -> None:
        self.load, self._end = load, end
        self.clock = Clock()
        layout, machines = load.layout, load.layout.machines
        self.nodes = [Node(Cores(self.clock, machines.cpus), i > 0) for i in range(machines.nodes)]
        self._places = [i for i, count in enumerate(layout.actors) for _ in range(count)]
        self._head = self.nodes[0].cores if machines.nodes == 1 else Cores(self.clock, 1)
        speed = machines.gbits * 1e9 / 8
        self.inward, self.outward = Link(self.clock, speed), Link(self.clock, speed)
        self.server, self._vector = ParameterServer(1), torch.zeros(1)
        self.server.push(self._vector, 0)
        self.numbers, self.ticks = Numbers(), []  # type: tuple[Numbers, list[Tick]]
        self.inbox: list[tuple[Child, Any]] = []
        self.outbox: list[tuple[Child, Any]] = []
        self._children = 0
        self._round: tuple[float, int, int] | None = None  # since, messages, episodes
        self._versions: dict[int, float] = {}  # that acted, by slot
        self._rng = np.random.default_rng(0)

    # --- the supervisor's side

    def start(self, role: Role, *args: Any) -> Child:
        self._children += 1
        if role == "learner":
            return Child(self, self._learner)
        return Child(self, lambda child: self._actor(child, *args))

    def room(self) -> int:
        return 0

    def failing(self) -> str:
        return ""

    def weights_left(self) -> int | None:
        return None  # no child dies

    def close(self) -> None:
        pass

    def receive(self, seconds: float) -> Iterator[tuple[Child, Any]]:
        self._work_off()
        clock, deadline = self.clock, self.clock.now + seconds
        clock.at(deadline, lambda: None)
        while not self.inbox and clock.now < deadline:
            clock.step()
        if self._end(self):
            raise TimeIsUp
        messages, self.inbox = self.inbox, []
        episodes = sum(len(m.episodes) for _, m in messages if isinstance(m, EpisodesEnded))
        numbers = self.numbers
        numbers.messages += len(messages)
        numbers.episodes += episodes
        numbers.visits += self._children + VISITS_A_MESSAGE * len(messages)
        self._round = time.thread_time(), len(messages), episodes
        yield from messages

    def _work_off(self) -> None:
        """Let the time pass that the last round took, then send what it said."""
        if self._round is None:
            return
        since, messages, episodes = self._round
        self.ticks.append(Tick(time.thread_time() - since, self._children, messages, episodes))
        books, call = self.load.books, self.load.wire.call
        seconds = (
            books.tick
            + books.child * self._children
            + messages * (books.message + call)
            + len(self.outbox) * call
            + episodes * books.episode
        )
        done: list[bool] = []
        start = self.clock.now
        self._head.work(seconds, lambda: done.append(True))
        while not done:
            self.clock.step()
        self.numbers.supervisor += self.clock.now - start
        said, self.outbox = self.outbox, []
        for child, message in said:
            child.deliver(message)

    def _say(self, child: Child, message: Any) -> None:
        self.inbox.append((child, message))

    # --- the children's side

    def _sleep(self, seconds: float) -> Wait:
        return lambda go: self.clock.after(seconds, lambda: go(None))

    @staticmethod
    def _work(cores: Cores, seconds: float) -> Wait:
        return lambda go: cores.work(seconds, lambda: go(None))

    def _pull(self, node: Node) -> float:
        """The version that actors of a node have now; a newer one is fetched once for all."""
        newest = self.server.pull(self._vector, node.version)
        if newest is None:
            return node.version
        if not node.remote:
            node.version = newest
        elif not node.fetching:
            node.fetching = True

            def arrived() -> None:
                node.version, node.fetching = newest, False

            self.outward.carry(self.load.parameter_bytes, arrived)
        return node.version

    def _actor(self, child: Child, number: int, _: int, first_env: int, num_envs: int) -> Steps:
        """As actor_role in runtime/roles.py; many steps at a time."""
        load, clock, numbers = self.load, self.clock, self.numbers
        node = self.nodes[self._places[number]]
        together = num_envs * load.costs.valid  # agent steps of a step of all environments
        second = load.actor_seconds() * together  # of each of those
        most = max(1, int(TIMES_EVERY / 2 / second))
        ended, unreported, reported = float(self._rng.random()), 0.0, clock.now
        timed = reported
        reserved: list[int] = []

        def steps() -> int:
            nonlocal unreported, reported
            whole = int(unreported)
            unreported, reported = unreported - whole, clock.now
            return whole

        self._say(child, Alive())
        self._say(child, EpisodesEnded(0, [], num_envs))
        drawn = (yield child.message).behaviours
        # they do not start as one
        yield self._sleep(float(self._rng.random()) * load.length * second)
        asked, asked_at = False, 0.0
        version, pulled = self._pull(node), 0
        while True:
            left, versions = load.length, 0.0
            while left:
                until = (1.0 - ended) * load.costs.episode_steps / together
                chunk = max(1, min(left, most, int(until) + 1))
                began = clock.now
                yield self._work(node.cores, chunk * second)
                numbers.acting += clock.now - began
                left -= chunk
                pulled += chunk
                versions += chunk * version
                if pulled >= load.pull_every:
                    version, pulled = self._pull(node), 0
                unreported += chunk * together
                ended += chunk * together / load.costs.episode_steps
                if asked:
                    drawn, asked = (yield child.message).behaviours, False
                if ended >= 1 and clock.now - asked_at >= FRESH:
                    count, asked, asked_at = int(ended), True, clock.now
                    played = float(self._rng.random()), round(load.costs.episode_steps)
                    episodes = [Episode(drawn[i % len(drawn)], *played) for i in range(count)]
                    self._say(child, EpisodesEnded(steps(), episodes, count))
                    ended -= count
                if clock.now - reported > HEARTBEAT:
                    self._say(child, Alive(steps()))
                if clock.now - timed > TIMES_EVERY:
                    timed = clock.now
                    self._say(child, TimesSpent({"environment": 1.0}))
            if asked:
                drawn, asked = (yield child.message).behaviours, False
            unwritten = num_envs
            while unwritten:
                if not reserved:
                    self._say(child, SlotsWanted(steps(), unwritten))
                    reserved = (yield child.message).slots
                slots, reserved = reserved[:unwritten], reserved[unwritten:]
                unwritten -= len(slots)
                self._write(child, node, slots, versions / load.length)
            self._say(child, SlotsWanted(steps(), num_envs))
            reserved = list((yield child.message).slots)

    def _write(self, child: Child, node: Node, slots: list[int], version: float) -> None:
        def written() -> None:
            self._versions.update(dict.fromkeys(slots, version))
            self.numbers.windows += len(slots)
            self._say(child, Written(slots))

        if node.remote:
            self.inward.carry(len(slots) * self.load.sequence_bytes, written)
        else:
            written()

    def _learner(self, child: Child) -> Steps:
        """As learner_role in runtime/roles.py."""
        load, clock, numbers = self.load, self.clock, self.numbers
        cores, threads = self.nodes[0].cores, load.layout.threads
        training = load.costs.update - load.costs.read
        trained = False
        diagnostics: dict[str, float] | None = None

        def share(go: Callable[[Any], None]) -> None:
            left = [threads]

            def one() -> None:
                left[0] -= 1
                if not left[0]:
                    go(None)

            for _ in range(threads):
                cores.work(training / threads, one)

        while True:
            if trained and not child.inbox:
                self._say(child, BatchProgress([], trained, diagnostics))
                trained, diagnostics = False, None
            batch: Batch = yield child.message
            began = clock.now
            yield self._work(cores, load.costs.read + load.beside_update())
            self._say(child, BatchProgress(batch.slots, trained, diagnostics))
            new = batch.slots[: load.new_sequences]  # the others are replayed
            numbers.lags += sum(numbers.updates - self._versions[slot] for slot in new)
            numbers.trained += len(new)
            if load.gpu_update:  # the host is ahead: it read this batch meanwhile
                yield self._sleep(max(0.0, load.gpu_update - (clock.now - began)))
            else:
                yield share
            numbers.learner += clock.now - began
            numbers.updates += 1
            if numbers.updates % load.push_every == 0:
                self.server.push(self._vector, numbers.updates)
            trained, diagnostics = True, {} if batch.diagnose else None
