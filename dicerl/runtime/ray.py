"""Children as Ray actors, on the nodes of a cluster (ray_child.py is what runs there).

Each child has one call under way that returns its next messages; to send is a call of its own.
Children end with the driver, which owns them. Checkpoints are written here, by the driver.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from dicerl.agent import own_torso
from dicerl.agent.weights import Weights
from dicerl.errors import DicerlError, NoRoom
from dicerl.parts.replicas import Meeting
from dicerl.runtime import ray_cluster
from dicerl.runtime.base import Role, RunContext
from dicerl.runtime.messages import Answered, Ended, NotSaved, Saved
from dicerl.runtime.ray_child import Child, Over, Setting, TensorsToSave
from dicerl.runtime.ray_cluster import Node
from dicerl.runtime.ray_services import services
from dicerl.runtime.ray_wire import AGAIN, dump, patiently
from dicerl.runtime.roles import pickled, save
from dicerl.runtime.setup import is_small, restore_weights

COLLECT = 5.0  # seconds after which a call for messages returns without any
CALLS = {"actor": 4, "learner": 32, "evaluator": 4}  # that a child answers at the same time
CLOSING = 5.0  # seconds for a child that was asked to end; an actor speaks about twice a second
LOOK_EVERY = 2.0  # seconds between two looks at the nodes
REFUSAL = 30.0  # seconds for a learner to answer; one that is stopped would be waited for for ever
SETTLED = 5.0  # seconds until Ray's books know of an actor that was ended


class RayTransport:
    """A Transport whose children are Ray actors."""

    asks = True  # each call for messages returns after COLLECT seconds

    def __init__(self, context: RunContext) -> None:
        ray_cluster.connect(context.config)
        self.renewable = ray_cluster.started_here()
        self._services = services(self.renewable)
        self._failing = ""  # which of them is lost
        self._config, self._plan, self._stop = context.config, context.plan, context.stop
        weights = Weights(context.model.flat)
        if context.start is not None:
            restore_weights(weights, context.start)
        self._weights = ray.put(dump(weights))
        self._setting = ray.put(
            Setting(
                context.config,
                context.spec,
                context.plan,
                pickled("make_env", context.make_env),
                pickled("on_batch", context.on_batch),
                pickled("torso", own_torso.of_main(context.config)),
                sys.path,
            )
        )
        self._started = 0
        self._learners: list[RayHandle] = []
        self._meeting: Meeting | None = None
        found, on_cpu = ray_cluster.nodes(), context.plan.device.type == "cpu"
        self._places = ray_cluster.learner_nodes(found, context.plan.num_learners, not on_cpu)
        self._reserved = ray_cluster.reserved_cpus(
            found,
            self._places,
            on_cpu,
            context.plan.learner_threads,
            is_small(context.spec),
            context.config.ray.cpus_per_actor,
        )
        self._calls: dict[Any, RayHandle] = {}  # for messages, under way
        self._cut_off: set[RayHandle] = set()  # children that cannot be reached at present
        self._freed: list[tuple[str, float]] = []  # (node, when) of actors that were ended
        self._looked = time.monotonic()
        for line in ray_cluster.warnings(context.config):
            context.coordinator.progress.say(line)

    def start(self, role: Role, *args: Any) -> RayHandle:
        if self._failing or not self._services.head_answers():
            raise NoRoom(self._failing or "the head of the cluster does not answer")
        node, cpus, gpus = self._places[0], 0.0, 0.0
        learners = [handle.actor for handle in self._learners]
        if role == "actor":
            node, cpus = self._node_for_actor(), self._config.ray.cpus_per_actor
        elif role == "learner":
            node, gpus = self._places[len(learners)], float(self._plan.device.type != "cpu")
        self._started += 1
        made = ray.remote(Child).options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=CALLS[role],
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=ray_cluster.affinity(node),
        )
        actor: Any = made.remote(
            role,
            self._started,
            self._setting,
            args,
            learners,
            weights=self._weights if role == "learner" else None,
            meeting=self._meeting,
        )
        handle = RayHandle(self, actor, role, self._started, node)
        if role == "learner":
            self._learners.append(handle)
            if self._plan.num_learners > 1 and self._meeting is None:
                self._meeting = patiently(actor.meeting)
        self._listen(handle)
        return handle

    def failing(self) -> str:
        self._failing = self._failing or self._services.lost()
        return self._failing

    def is_lost(self) -> bool:
        """Whether Ray is lost, as it is now."""
        self._failing = self._failing or self._services.lost(now=True)
        return bool(self._failing)

    def _node_for_actor(self) -> Node:
        taken = Counter(h.node.id for h in self._handles() if h.role == "actor")
        return ray_cluster.actor_node(
            self._nodes(), self._reserved, self._config.ray.cpus_per_actor, taken
        )

    def _handles(self) -> list[RayHandle]:
        return [*self._calls.values(), *self._cut_off]

    def _nodes(self) -> list[Node]:
        """The nodes, with what is free on each. Ray's own books follow after a moment: actors that
        were started or ended a short while ago are counted here.
        """
        cpus, now = self._config.ray.cpus_per_actor, time.monotonic()
        self._freed = [(node, when) for node, when in self._freed if now - when < SETTLED]
        freed = Counter(node for node, _ in self._freed)
        mine = Counter(h.node.id for h in self._handles() if h.role == "actor")
        return [
            replace(n, free=min(n.free + cpus * freed[n.id], n.cpus - cpus * mine[n.id]))
            for n in ray_cluster.nodes()
        ]

    def room(self) -> int:
        """The number of actors that the cluster has room for beside those there are."""
        if time.monotonic() - self._looked > LOOK_EVERY and self._services.head_answers():
            self._looked = time.monotonic()
            cpus, found = self._config.ray.cpus_per_actor, ray_cluster.workers(self._nodes())
            return sum(ray_cluster.room_on(node, self._reserved, cpus) for node in found)
        return 0

    def _listen(self, handle: RayHandle) -> None:
        self._calls[handle.actor.collect.remote(handle.arrived, COLLECT)] = handle

    def receive(self, seconds: float) -> Iterator[tuple[RayHandle, Any]]:
        for handle in [h for h in self._cut_off if time.monotonic() > h.again]:
            self._cut_off.discard(handle)
            self._listen(handle)
        if not self._calls:
            time.sleep(min(seconds, AGAIN))
            return
        ready, rest = ray.wait(list(self._calls), timeout=min(seconds, AGAIN))
        if ready and rest:
            ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        for call in ready:
            if call not in self._calls:
                continue  # an earlier message led to its being killed
            handle = self._calls.pop(call)
            try:
                found = ray.get(call)
            except ActorUnavailableError:
                # Its connection is cut, or its node is dying: Ray will say which. The supervisor
                # ends what is silent for too long.
                handle.again, handle.resend = time.monotonic() + AGAIN, True
                self._cut_off.add(handle)
                continue
            except RayError as error:
                yield handle, self._ended(handle, error)
                continue
            handle.has(found.delivered)
            messages = found.messages[handle.arrived - found.first :]
            handle.arrived += len(messages)
            self._listen(handle)
            for message in messages or [Answered()]:
                if handle.killed:
                    break
                if isinstance(message, Over):
                    handle.kill()
                    yield handle, Ended(message.how)
                else:
                    yield handle, _written(message)

    def _ended(self, handle: RayHandle, error: RayError) -> Ended:
        """How a child ended, in words that follow its name."""
        handle.kill()
        where = handle.node.address
        if self._services.head_answers() and handle.node.id not in {
            node.id for node in ray_cluster.nodes()
        }:
            return Ended(f"was on node {where}, which has left the cluster", place_lost=True)
        reason = " ".join(str(error).split())
        for module in ("dicerl", "ale_py", "gymnasium", "lz4"):
            if f"No module named '{module}" in reason:
                raise DicerlError(
                    f"node {where} has no package {module}: install the same dicerl there as here"
                )
        return Ended(f"died on node {where}: {reason[:300]}")

    def weights_left(self) -> int | None:
        return None  # they were in the learner's process, on whatever machine

    def forget(self, handle: RayHandle) -> None:
        """Stop listening to a child; learners accept nothing more from it."""
        self._calls = {call: h for call, h in self._calls.items() if h is not handle}
        self._cut_off.discard(handle)
        if handle.role != "actor":
            return
        self._freed.append((handle.node.id, time.monotonic()))
        lost = self.is_lost()  # it may have died of that
        for learner in self._learners:
            if not learner.killed and not lost:
                with contextlib.suppress(RayError):  # it has died, too, or is stopped
                    patiently(learner.actor.refuse, handle.number, seconds=REFUSAL)

    def close(self) -> None:
        learners, self._learners = self._learners, []  # they end with the others
        for handle in (children := {*self._handles(), *learners}):
            # a learner has nothing to close, and where Ray is lost there is no time to
            if handle.role != "learner" and not self._failing:
                handle.end()
        for handle in children:
            handle.kill()
        if self._stop() and self.is_lost():
            ray_cluster.abandon()
        else:
            ray_cluster.disconnect()


class RayHandle:
    """A Handle of a Ray actor."""

    def __init__(
        self, transport: RayTransport, actor: Any, role: Role, number: int, node: Node
    ) -> None:
        self._transport, self.actor, self.role = transport, actor, role
        self.number, self.node, self.place = number, node, node.address
        self.killed = False
        self.arrived = 0  # messages from it
        self._sent = 0
        self._on_the_way: dict[int, Any] = {}  # messages that it has not said it has
        self.again, self.resend = 0.0, False  # when to call it again; whether some may be lost
        # the call by which it was asked to end, and when it is killed then
        self._ending: tuple[Any, float] | None = None

    def send(self, message: Any) -> None:
        self._on_the_way[self._sent] = message
        self.actor.deliver.remote(self._sent, message)
        self._sent += 1

    def has(self, delivered: int) -> None:
        """It has the first ``delivered`` messages; after a cut the others are sent again."""
        for number in [n for n in self._on_the_way if n < delivered]:
            del self._on_the_way[number]
        if self.resend:
            self.resend = False
            for number, message in self._on_the_way.items():
                self.actor.deliver.remote(number, message)

    def end(self) -> None:
        if self._ending is None and not self.killed:
            self._ending = self.actor.end.remote(CLOSING), time.monotonic() + CLOSING
            self._transport.forget(self)

    def kill(self) -> None:
        if self.killed:
            return
        self.killed = True
        if self._ending is not None:
            call, until = self._ending
            ray.wait([call], timeout=max(0.0, until - time.monotonic()))
        if not self._transport.is_lost():  # else this would wait for the head
            ray.kill(self.actor)
        if self._ending is None:
            self._transport.forget(self)


def _written(message: Any) -> Any:
    """A child's message; tensors to save are written first, and answered for it."""
    if not isinstance(message, TensorsToSave):
        return message
    found: Saved | NotSaved = save(Path(message.folder), message.tensors(), message.steps_trained)
    return found
