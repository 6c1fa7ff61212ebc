"""A child of the runtime ``ray`` as it runs in a Ray worker: a role in a thread, with what it needs
of ray_wire.py.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import ray
import torch

from dicerl.agent import own_torso
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.weights import Weights
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.parts.replicas import LostReplica, Meeting, Replicas
from dicerl.parts.sequence import Arrays, Store, schema, window_length
from dicerl.records.checkpoint import Tensors
from dicerl.runtime.base import Role
from dicerl.runtime.children import LearnerChild
from dicerl.runtime.machine import keep_freed_memory
from dicerl.runtime.ray_wire import (
    Collected,
    Mailbox,
    Newest,
    Parcel,
    Pulled,
    Receiver,
    Sender,
    SlowWritten,
    load,
)
from dicerl.runtime.roles import ROLES, Shared, run_role
from dicerl.runtime.setup import Plan


@dataclass
class Setting:
    """What every child gets."""

    config: Config
    spec: EnvSpec
    plan: Plan
    make_env: bytes  # cloudpickled callable or None
    on_batch: bytes  # the same
    torso: bytes  # the same: one that only the driver's own program has (agent/own_torso.py)
    path: list[str]  # where the driver finds modules: the user's may lie beside their script


class TensorsToSave(NamedTuple):
    """Tensors of a checkpoint, for the driver to write; it passes ``Saved`` or ``NotSaved`` on."""

    folder: str
    groups: dict[str, Arrays]
    steps_trained: int

    def tensors(self) -> Tensors:
        """The tensors again."""
        return {
            name: {key: torch.from_numpy(array.copy()) for key, array in group.items()}
            for name, group in self.groups.items()
        }


class Over(NamedTuple):
    """The role has ended, and how; no message follows."""

    how: str = "has ended"


class Child:
    """A role in a thread of a Ray worker. ``deliver``, ``collect`` and ``end`` are the supervisor's
    calls; ``receive``, ``refuse``, ``newer_than`` and ``meeting`` those to a learner.
    """

    def __init__(
        self,
        role: Role,
        number: int,
        setting: Setting,
        args: tuple[Any, ...],
        learners: list[Any],
        weights: Arrays | None = None,
        meeting: Meeting | None = None,
    ) -> None:
        """``number`` is this child's own; ``learners`` are the Ray actors of those that were
        started before. ``weights`` are a learner's; it joins the others at the first one's
        ``meeting``.
        """
        keep_freed_memory()
        sys.path += [folder for folder in setting.path if folder not in sys.path]
        config, spec = setting.config, setting.spec
        own_torso.put_into_main(config, cloudpickle.loads(setting.torso))
        self._mailbox = Mailbox()
        channel: Any = self._mailbox
        store: Any = None
        parameters: Any = None
        trained: Any = None
        if role == "learner":
            assert weights is not None
            model = ActorCritic(config, spec)
            trained = load(Weights(model.flat), weights)
            store = Store(schema(config, spec), window_length(config), setting.plan.capacity)
            self._receiver, parameters = Receiver(config, store), Newest()
            self._newest: Newest = parameters
            parameters.push(trained.vector, trained.updates)
            self._patience = LearnerChild().patience(config.runtime.stuck_seconds)
            self._listening = None
            self._meeting = meeting and meeting._replace(rank=len(learners))
            if not learners and setting.plan.num_learners > 1:
                self._listening = socket.create_server((ray.util.get_node_ip_address(), 0))
                host, port = self._listening.getsockname()[:2]
                self._meeting = Meeting(host, port, setting.plan.num_learners, 0)
        else:
            parameters = Pulled(learners[0], patient=role == "evaluator")
            if role == "actor":
                channel = SlowWritten(self._mailbox)
                store = Sender(number, config, spec, learners, args[0], self._mailbox)
        shared = Shared(
            config,
            spec,
            setting.plan,
            store,
            parameters,
            trained,
            setting.make_env,
            setting.on_batch,
            save=self._to_driver,
            join=self._join,
        )
        self._thread = threading.Thread(
            target=self._run, args=(ROLES[role], channel, shared, args), daemon=True
        )
        self._thread.start()

    def _run(
        self, role: Callable[..., None], channel: Any, shared: Shared, args: tuple[Any, ...]
    ) -> None:
        try:
            run_role(role, channel, shared, *args)
        except LostReplica as error:
            self._mailbox.send(Over(f"lost the other learners ({error})"))
        except (EOFError, BrokenPipeError):
            return  # it was asked to end
        self._mailbox.send(Over())

    def _join(self) -> Replicas | None:
        """The learners that train every batch together, once all have come."""
        if self._meeting is None:
            return None
        return Replicas(self._meeting, self._patience, self._listening)

    def _to_driver(self, folder: Path, tensors: Tensors, steps_trained: int = 0) -> TensorsToSave:
        groups = {
            name: {key: x.detach().cpu().clone().numpy() for key, x in group.items()}
            for name, group in tensors.items()
        }
        return TensorsToSave(str(folder), groups, steps_trained)

    def deliver(self, number: int, message: Any) -> None:
        self._mailbox.deliver(number, message)

    def collect(self, arrived: int, seconds: float) -> Collected:
        return self._mailbox.collect(arrived, seconds)

    def end(self, seconds: float) -> None:
        """Let the role end and close what it opened, which may take so many seconds."""
        self._mailbox.close()
        self._thread.join(seconds)

    def receive(self, parcel: Parcel) -> bool:
        return self._receiver.receive(parcel)

    def refuse(self, child: int) -> None:
        self._receiver.refuse(child)

    def meeting(self) -> Meeting | None:
        """Where the other learners find this one."""
        return self._meeting

    def newer_than(self, known: int) -> tuple[int, list[Any]] | None:
        return self._newest.newer_than(known)
