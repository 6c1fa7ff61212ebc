"""The model: what an agent step asks of every resource, and so how many of them a second there
are.

    resource          seconds (or bytes) for each agent step
    the actors        a step, on one core each
    the learner       updates a step * update / threads, or on the GPU
    a machine         all that runs on it, over its cores
    the supervisor    messages a step * message, on one core
    the network       bytes a step to the learner's machine, and parameters from it
    the slots         those that actors hold while they act; the others wait for a batch

The run is as fast as the scarcest one allows. Where actors and learner share cores, whichever waits
leaves them to the other, so what counts is the sum of their seconds, not the slower one. A serial
run does everything in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.parts.sequence import is_frames, schema, window_bytes
from dicerl.plan.costs import COMPRESSED, Books, Costs, Wire
from dicerl.plan.machines import Layout
from dicerl.runtime.roles import FRESH, HEARTBEAT, TIMES_EVERY

MB = 1e6
PRECISION = 40  # halvings of the interval that the rate lies in


@dataclass(frozen=True)
class Messages:
    """What the supervisor handles in a second."""

    received: float
    sent: float
    episodes: float


@dataclass(frozen=True)
class Load:
    """A run as model and simulation see it."""

    layout: Layout
    costs: Costs
    books: Books
    wire: Wire
    length: int  # trained steps of a sequence
    new_sequences: int  # of a batch: not replayed
    reuse: int
    updates_per_step: float  # for each agent step
    sequence_bytes: int  # of a sequence as it crosses the network
    parameter_bytes: int
    push_every: int
    pull_every: int
    gpu_update: float = 0.0  # seconds of an update on the GPUs; 0: on the CPU
    frame_bytes: int = 0  # of a sequence's frames, before they are compressed

    @property
    def window_steps(self) -> float:
        """Agent steps between two windows of one actor's environments, all of them together."""
        return self.layout.envs_per_actor * self.length * self.costs.valid

    @property
    def pull_steps(self) -> float:
        """Agent steps of an actor between two pulls."""
        return self.layout.envs_per_actor * self.pull_every * self.costs.valid

    # --- seconds of a core

    def actor_seconds(self) -> float:
        """Of an actor for each agent step."""
        wire = self.wire
        calls = 3 / self.window_steps + 2 * self._reports_per_step()
        if wire.shared:
            return self.costs.step + calls * wire.call
        calls += 1 / self.window_steps + 1 / self.pull_steps  # a parcel, a question
        versions = min(1 / self.pull_steps, self.updates_per_step / self.push_every)
        return (
            self.costs.step
            + calls * wire.call
            + (self.bytes_per_step() + versions * self.parameter_bytes) / MB * wire.megabyte
            + self._compression()
        )

    def _compression(self) -> float:
        """Of frames for each agent step, at either end."""
        return self.frame_bytes / (self.length * self.costs.valid) / MB * self.wire.frames

    def _reports_per_step(self) -> float:
        """Messages with ended episodes: those of FRESH seconds come together."""
        return min(1 / self.costs.episode_steps, self.costs.step / FRESH)

    def update_seconds(self) -> float:
        """Of an update on the CPU, all threads of the learner together; on a GPU, of the host."""
        return self.costs.read if self.gpu_update else self.costs.update

    def beside_update(self) -> float:
        """Of the learner's process for each update, beside training: messages, and what arrives
        there meanwhile.
        """
        wire = self.wire
        found = 2 * wire.call
        if not wire.shared:
            steps = 1 / self.updates_per_step
            calls = steps / self.window_steps + steps / self.pull_steps + 1 / self.push_every
            carried = steps * self.bytes_per_step() + self.parameter_bytes / self.push_every
            found += calls * wire.call + carried / MB * wire.megabyte + steps * self._compression()
        return found

    def update_time(self) -> float:
        """Seconds from an update to the next if nothing is waited for."""
        layout = self.layout
        if self.gpu_update:
            return max(self.gpu_update, self.costs.read + self.beside_update())
        return self.costs.update / layout.threads + self.beside_update()

    def bytes_per_step(self) -> float:
        """That cross the network for each agent step."""
        return self.sequence_bytes / (self.length * self.costs.valid)

    def slots_to_act(self) -> float:
        """Of the collector's: a batch begins when its sequences are there, and frees one in
        ``reuse`` of them, so on average so many wait.
        """
        waiting = self.new_sequences * (1 - 0.5 / self.reuse)
        return max(1.0, self.layout.capacity - self.layout.replay_slots - waiting)

    # --- in a second, at a rate of agent steps

    def messages(self, rate: float) -> Messages:
        """Of the supervisor."""
        n = self.layout.num_actors
        acting = n * min(1.0, rate * self.actor_seconds() / n)  # those that wait send nothing
        windows = rate / self.window_steps
        reports = min(rate / self.costs.episode_steps, acting / FRESH)
        updates = rate * self.updates_per_step
        alive = max(0.0, acting / HEARTBEAT - windows - reports)
        # a learner that waits for the next batch reports the one before by itself
        starved = 1 - min(1.0, updates * self.update_time() / self.layout.learners)
        received = 2 * windows + reports + updates * (1 + starved)
        received += alive + acting / TIMES_EVERY
        return Messages(received, windows + reports + updates, rate / self.costs.episode_steps)

    def supervisor(self, rate: float, waking: bool) -> float:
        """Seconds of a core. Each message wakes the supervisor, unless others have; where it is
        busy, many come at once, and ``waking`` costs nothing.
        """
        found, books = self.messages(rate), self.books
        children = self.layout.num_actors + self.layout.learners
        each = books.message + self.wire.call
        if waking:
            each += books.tick + books.child * children
        return found.received * each + found.sent * self.wire.call + found.episodes * books.episode

    def network(self, rate: float) -> tuple[float, float]:
        """Bytes to and from the learner's machine."""
        layout = self.layout
        versions = rate * self.updates_per_step / self.push_every
        away = 0.0
        for actors in layout.actors[1:]:
            asked = rate * actors / layout.num_actors / self.pull_steps
            away += min(versions, asked) * self.parameter_bytes
        return rate * layout.remote * self.bytes_per_step(), away

    def busy(self, rate: float) -> dict[str, float]:
        """The busy fraction of every resource, of which 1 is all."""
        layout, n = self.layout, self.layout.num_actors
        machines, actor = layout.machines, self.actor_seconds()
        updates = rate * self.updates_per_step
        if layout.runtime == "serial":
            episodes = rate / self.costs.episode_steps * self.books.episode
            return {"serial": rate * self.costs.step + updates * self.costs.update + episodes}
        training = updates * (self.update_seconds() + self.beside_update())
        found = {
            "actors": rate * actor / n,
            "learner": updates * self.update_time() / (1 if self.gpu_update else layout.learners),
            "supervisor": self.supervisor(rate, waking=False),
            "slots": rate * actor * layout.envs_per_actor / self.slots_to_act(),
        }
        for i, actors in enumerate(layout.actors):
            seconds = rate * actors / n * actor + (0.0 if i else training)
            if machines.nodes == 1:  # else it is on the head
                seconds += min(1.0, self.supervisor(rate, waking=True))
            found["cores"] = max(found.get("cores", 0.0), seconds / machines.cpus)
        if machines.nodes > 1:
            found["network"] = max(self.network(rate)) * 8 / (machines.gbits * 1e9)
        return found


@dataclass(frozen=True)
class Forecast:
    """What the model expects."""

    steps_per_s: float
    limit: str  # the scarcest resource
    busy: dict[str, float]
    learner_steps_per_s: float  # that the learner alone could train
    actor_steps_per_s: float  # that one actor alone could take
    saturating_actors: int


def load_of(
    config: Config,
    spec: EnvSpec,
    layout: Layout,
    costs: Costs,
    books: Books,
    wire: Wire,
    parameters: int,
    gpu_update: float = 0.0,
) -> Load:
    """A run's load; ``parameters`` is the length of its network's vector."""
    s = config.sequence
    fields = {name: field for name, field in schema(config, spec).items() if name != "history"}
    length = s.length + 1  # the rest of a window is known there
    frames = window_bytes({n: f for n, f in fields.items() if is_frames(f)}, length)
    return Load(
        layout,
        costs,
        books,
        wire,
        s.length,
        s.batch - config.replayed,
        s.reuse,
        s.reuse / ((s.batch - config.replayed) * s.length * costs.valid),
        window_bytes(fields, length) - frames + int(COMPRESSED * frames),
        4 * parameters,
        config.runtime.push_every,
        config.runtime.pull_every,
        gpu_update,
        frames,
    )


def forecast(load: Load) -> Forecast:
    """The highest rate at which no resource is busier than it can be."""
    serial = load.layout.runtime == "serial"
    update = load.costs.update if serial else load.update_time()
    per_update = 1 / load.updates_per_step
    learners = 1 if serial or load.gpu_update else load.layout.learners
    learner = per_update / update * learners
    actor = 1 / (load.costs.step if serial else load.actor_seconds())
    low, high = 0.0, load.layout.num_actors * actor
    for _ in range(PRECISION):
        middle = (low + high) / 2
        low, high = (middle, high) if max(load.busy(middle).values()) <= 1 else (low, middle)
    busy = load.busy(high)
    limit = max(busy, key=lambda name: busy[name])
    saturating = max(1, -int(-learner // actor))
    return Forecast(high, limit, busy, learner, actor, saturating)
