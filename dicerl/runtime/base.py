"""Interfaces: what a runtime gets and must do, and what the supervisor needs of a transport.

There are two runtimes, one of them over two transports:

    SerialRuntime           one process takes turns                          serial.py
    Supervisor(Transport)   actors, learners and an evaluator as children    supervisor.py
        ProcessTransport    processes, pipes and shared memory               processes.py
        RayTransport        Ray actors on the nodes of a cluster             ray.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec, MakeEnv
from dicerl.records.checkpoint import Checkpoint
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.restarts import Restarts
from dicerl.runtime.setup import Plan

OnBatch = Callable[..., None]  # (learner, batch)
Role = Literal["actor", "learner", "evaluator"]


@dataclass(frozen=True)
class RunContext:
    """Everything that a runtime gets."""

    config: Config
    spec: EnvSpec
    plan: Plan
    model: ActorCritic  # with the weights the run starts from
    coordinator: Coordinator
    make_env: MakeEnv | None = None
    start: Checkpoint | None = None  # the checkpoint to continue from
    stop: Callable[[], bool] = lambda: False  # whether a stop was requested
    on_batch: OnBatch | None = None  # called with every batch before it is trained
    vote: dict[str, Any] | None = None  # of another run, that a new one starts from
    # the lowest of this life's actors: those below have used up their random streams
    incarnation: int = 0
    restarts: Restarts = field(default_factory=Restarts)  # over all lives of the run


class Runtime(Protocol):
    """Trains a run with actors, learners and an evaluator."""

    @property
    def incarnation(self) -> int:
        """The highest of any actor so far."""
        ...

    def run(self) -> bool:
        """Train to the end of the run or until stopped; return whether the run is complete."""
        ...

    def close(self) -> None:
        """End everything that was started; nothing is saved here."""
        ...


class Handle(Protocol):
    """A child as its transport sees it."""

    place: str  # the address of its machine; empty where there is one machine only

    def send(self, message: Any) -> None:
        """Send a message; a child that has ended gets none, and ``Ended`` reports that."""
        ...

    def end(self) -> None:
        """Ask the child to end and close its environments; no message from it follows. ``kill``
        then waits for it, for some seconds.
        """
        ...

    def kill(self) -> None:
        """End the child and wait for that; no message from it follows, not even ``Ended``."""
        ...


class Transport(Protocol):
    """Starts children and carries messages (messages.py). Sequences, parameters and weights pass
    between the children by the transport's own means; the supervisor only names slots.
    """

    def start(self, role: Role, *args: Any) -> Handle:
        """Start a child in a role of roles.py, with these arguments for it; NoRoom if there is no
        place for it. A learner is the first to be started.
        """
        ...

    def room(self) -> int:
        """For how many more actors there is a place now; 0 where that does not change in a run."""
        ...

    def receive(self, seconds: float) -> Iterator[tuple[Handle, Any]]:
        """Wait at most ``seconds`` for messages; yield them with their children. The messages of
        one child come in order, and ``Ended`` is its last.
        """
        ...

    renewable: bool  # whether another transport of the run can take the place of one that fails
    asks: bool  # whether it asks its children for ``Answered`` now and then

    def failing(self) -> str:
        """Why all children are about to be lost together; empty if they are not."""
        ...

    def weights_left(self) -> int | None:
        """After a learner died: the number of updates in the weights, if those outlived it and it
        was not in the middle of changing them; else None. Takes a few seconds at most.
        """
        ...

    def close(self) -> None:
        """End every remaining child."""
        ...
