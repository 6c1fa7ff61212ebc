"""The machines of a planned run, and how a run would use them: by the rules of runtime/setup.py and
runtime/ray_cluster.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.errors import ConfigError
from dicerl.runtime import ray_cluster
from dicerl.runtime.setup import is_small, shares, slots


@dataclass(frozen=True)
class Machines:
    """``nodes`` machines alike, each with ``cpus``; ``gpus`` in the one that trains. Several are
    joined by links of ``gbits`` each, and the head, where nothing heavy runs, is another.
    """

    cpus: int
    gpus: int = 0
    nodes: int = 1
    gbits: float = 10.0


@dataclass(frozen=True)
class Layout:
    """How a run uses its machines. The learner is on the first."""

    machines: Machines
    runtime: str
    actors: tuple[int, ...]  # on each machine
    num_envs: int  # of all actors
    learners: int  # on GPUs: they share each batch
    threads: int  # of each learner
    capacity: int  # of the collector, in sequences
    kept: int  # of those at most: for replay
    replay_slots: int  # of those: not for new sequences
    slot_bytes: int

    @property
    def num_actors(self) -> int:
        return sum(self.actors)

    @property
    def on_gpu(self) -> bool:
        return self.machines.gpus > 0

    @property
    def envs_per_actor(self) -> int:
        """Rounded up: the largest actor's."""
        return -(-self.num_envs // self.num_actors)

    @property
    def remote(self) -> float:
        """The fraction of actors that are on another machine than the learner."""
        return sum(self.actors[1:]) / self.num_actors


def layout(config: Config, spec: EnvSpec, machines: Machines) -> Layout:
    """How a run with this config would use the machines."""
    runtime: str = config.runtime.kind
    on_cpu = machines.gpus == 0
    device = config.runtime.device.split(":")[0]
    if (device == "cpu" and not on_cpu) or (device == "cuda" and on_cpu):
        raise ConfigError(
            "gpus", machines.gpus, f"runtime.device is {device}: give --gpus {int(on_cpu)}"
        )
    if runtime == "auto":
        several = "ray" if machines.nodes > 1 else "process"
        runtime = several if machines.cpus * machines.nodes > 1 else "serial"
    if machines.nodes > 1 and runtime != "ray":
        raise ConfigError(
            "nodes", machines.nodes, f"the runtime {runtime} is for one machine; use --runtime ray"
        )
    if runtime == "ray":
        actors, learners, threads = _in_cluster(config, spec, machines)
    else:
        count, learners, threads = shares(config, spec, runtime, machines.cpus, on_cpu)
        if not on_cpu and learners > 1:
            raise ConfigError(
                "runtime.num_learners", learners, "on GPUs only the runtime ray has several"
            )
        actors = (count,)
    capacity, kept, slot = slots(config, spec, sum(actors), learners)
    return Layout(
        machines,
        runtime,
        actors,
        config.runtime.num_envs,
        learners,
        threads,
        capacity,
        kept,
        _replay_slots(config, kept),
        slot,
    )


def _replay_slots(config: Config, kept: int) -> int:
    """Those kept, and a batch of them under way."""
    return kept + config.sequence.batch if config.replayed else 0


def _in_cluster(
    config: Config, spec: EnvSpec, machines: Machines
) -> tuple[tuple[int, ...], int, int]:
    """Actors on each machine, learners, and a learner's threads in a Ray cluster."""
    on_cpu, small = machines.gpus == 0, is_small(spec)
    cpus, each = float(machines.cpus), config.ray.cpus_per_actor
    found = [
        ray_cluster.Node(f"{i:06}", "", cpus, cpus, 0.0 if i else float(machines.gpus), False)
        for i in range(machines.nodes)
    ]
    places = ray_cluster.learner_nodes(found, config.runtime.num_learners or 1, not on_cpu)
    threads = 1
    if on_cpu:
        threads = config.runtime.learner_threads or (1 if small else max(1, machines.cpus))
    reserved = ray_cluster.reserved_cpus(found, places, on_cpu, threads, small, each)
    rooms = [ray_cluster.room_on(node, reserved, each) for node in found]
    if not sum(rooms):
        raise ConfigError(
            "ray.cpus_per_actor", each, f"a machine of {machines.cpus} CPUs has no room: use less"
        )
    wanted = min(config.runtime.num_actors or sum(rooms), config.runtime.num_envs, sum(rooms))
    actors = [0] * len(found)
    for _ in range(wanted):  # evenly, as ray_cluster.actor_node places them
        fitting = [i for i, room in enumerate(rooms) if room > actors[i]]
        actors[min(fitting, key=lambda i: (actors[i], actors[i] - rooms[i]))] += 1
    learners = config.runtime.num_learners or 1
    if not on_cpu and learners > machines.gpus:
        raise ConfigError(
            "runtime.num_learners",
            learners,
            f"there are {machines.gpus} GPU(s): use fewer learners, or --gpus {learners}",
        )
    return tuple(actors), learners, min(threads, config.sequence.batch)


def with_actors(found: Layout, config: Config, spec: EnvSpec, count: int) -> Layout:
    """The same with ``count`` actors of as many environments each, on as many machines as they
    need: what a larger fleet would be. One machine becomes a cluster when they outgrow it.
    """
    cpus = found.machines.cpus
    first = min(count, max(1, found.actors[0]))
    room = max(1, int(cpus / config.ray.cpus_per_actor))
    actors = [first]
    while sum(actors) < count:
        actors.append(min(room, count - sum(actors)))
    envs = count * found.envs_per_actor
    larger = config.replace(**{"runtime.num_envs": envs})
    capacity, kept, slot = slots(larger, spec, count, found.learners)
    return replace(
        found,
        machines=replace(found.machines, nodes=len(actors)),
        runtime="ray" if len(actors) > 1 else found.runtime,
        actors=tuple(actors),
        num_envs=envs,
        capacity=capacity,
        kept=kept,
        slot_bytes=slot,
    )
