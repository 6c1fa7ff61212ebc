"""What a runtime is given and must do, and what the supervisor asks of a transport.

There are two runtimes, and one transport so far:

    SerialRuntime           one process takes turns                          serial.py
    Supervisor(Transport)   actors, learners and an evaluator as children    supervisor.py
        ProcessTransport    processes, pipes and shared memory               processes.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec, MakeEnv
from dicerl.records.checkpoint import Checkpoint
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.setup import Plan

OnBatch = Callable[..., None]  # (learner, batch)
Role = Literal["actor", "learner", "evaluator"]


@dataclass(frozen=True)
class RunContext:
    """All that a runtime is given."""

    config: Config
    spec: EnvSpec
    plan: Plan
    model: ActorCritic  # with the weights the run starts from
    coordinator: Coordinator
    make_env: MakeEnv | None = None
    start: Checkpoint | None = None  # what the run goes on from
    stop: Callable[[], bool] = lambda: False  # whether somebody asked for the end
    on_batch: OnBatch | None = None  # sees every batch before it is trained


class Runtime(Protocol):
    def run(self) -> bool:
        """Train to the end of the run, or to a stop; True where the run is complete."""
        ...

    def close(self) -> None:
        """End all that was started; what had to be kept was saved before."""
        ...


class Handle(Protocol):
    """A child as its transport sees it."""

    def send(self, message: Any) -> None:
        """To a child that has gone nothing is sent: ``Ended`` tells of it."""
        ...

    def kill(self) -> None:
        """End it and wait for that; no message of it comes afterwards, ``Ended`` neither."""
        ...


class Transport(Protocol):
    """Starts children and carries messages (messages.py). Sequences, parameters and weights go
    between the children by its own means; the supervisor only names slots.
    """

    def start(self, role: Role, *args: Any) -> Handle:
        """A child that does what roles.py says, with these arguments."""
        ...

    def receive(self, seconds: float) -> Iterator[tuple[Handle, Any]]:
        """What came from any child, after waiting for at most so long. Messages of one child come
        in order, ``Ended`` is its last.
        """
        ...

    def close(self) -> None:
        """End every child that is left."""
        ...
