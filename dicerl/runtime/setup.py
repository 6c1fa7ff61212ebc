"""What a run needs before its first step: the network, its input statistics, and the plan of how to
use the machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.networks import Network
from dicerl.agent.weights import Weights
from dicerl.config import Config, get, seeding
from dicerl.envs import (
    EnvSpec,
    MakeEnv,
    make_vector_env,
    mask_of,
    random_actions,
    require_finite,
    require_same,
)
from dicerl.envs.patience import STARTING, Patience
from dicerl.errors import ConfigError
from dicerl.parts.collector import default_capacity
from dicerl.parts.optimizer import total_updates
from dicerl.parts.sequence import schema, window_bytes, window_length
from dicerl.records import checkpoint
from dicerl.records.checkpoint import Checkpoint
from dicerl.runtime.device import choose_device, require_device_memory
from dicerl.runtime.machine import (
    allow_open_files,
    amount,
    available_memory,
    cores,
    has_process_runtime,
)

LEARNERS = 2  # at most, if chosen here: a gradient is that many updates late, less one
ENVS_PER_ACTOR = 8  # at least, if chosen here
PAGE = 4096  # bytes


@dataclass(frozen=True)
class Plan:
    """How a run uses this machine."""

    runtime: str
    device: torch.device
    num_actors: int
    num_learners: int
    learner_threads: int
    capacity: int  # of the collector, in sequences
    kept: int  # of those at most: for replay
    slot_bytes: int
    total_updates: int
    cores: int
    shared_cores: bool = False  # whether actors and learners take turns with the same cores

    @property
    def store_bytes(self) -> int:
        return self.capacity * self.slot_bytes


def plan(config: Config, spec: EnvSpec) -> Plan:
    """Choose what the config leaves to the machine; refuse what does not fit into its memory."""
    if config.runtime.kind == "ray":
        return _cluster_plan(config, spec)
    count, device = cores(), choose_device(config.runtime.device)
    runtime = config.runtime.kind
    if runtime == "auto":
        runtime = "process" if count > 1 and has_process_runtime() else "serial"
    if runtime == "process" and not has_process_runtime():
        raise ConfigError(
            "runtime.kind", runtime, f"it needs what {sys.platform} does not have; use serial"
        )
    actors, learners, threads = shares(config, spec, runtime, count, device.type == "cpu")
    if learners > 1 and device.type != "cpu":
        raise ConfigError(
            "runtime.num_learners",
            learners,
            f"learners share weights in the machine's memory, not on {device}: it must be 0 or 1",
        )
    if device.type == "cuda":
        require_device_memory(config, spec, *torch.cuda.mem_get_info(device))
    return _with_slots(config, spec, runtime, device, actors, learners, threads, count)


def shares(
    config: Config, spec: EnvSpec, runtime: str, count: int, on_cpu: bool
) -> tuple[int, int, int]:
    """The numbers of actors, of learners and of each learner's threads on a machine of ``count``
    cores, which train where they are ``on_cpu``.
    """
    small = is_small(spec)
    actors = learners = threads = 1
    if runtime == "process":
        # Beside a GPU the actors need the machine. On a CPU a learner of large batches and the
        # actors may each use every core: while one waits, the other has its cores. Few environments
        # in an actor make inference expensive.
        wanted = count if on_cpu and not small else count - 1
        actors = config.runtime.num_actors or max(
            1, min(wanted, config.runtime.num_envs // ENVS_PER_ACTOR)
        )
        actors = min(actors, config.runtime.num_envs)
        # A small network's learner is busy with many small operations, which threads of one process
        # cannot share; with only a multi-layer perceptron it keeps up with an actor.
        slow = small and (spec.is_image or config.network.lstm > 0)
        learners = config.runtime.num_learners or (min(count, LEARNERS) if slow and on_cpu else 1)
    if on_cpu:
        threads = config.runtime.learner_threads or (1 if small else max(1, count // learners))
    return actors, learners, min(threads, config.sequence.batch)


def slots(config: Config, spec: EnvSpec, actors: int, learners: int) -> tuple[int, int, int]:
    """The collector's capacity, how many of its slots are kept for replay, and a slot's bytes."""
    capacity = config.collector.capacity or default_capacity(
        config.sequence.batch - config.replayed, config.runtime.num_envs, learners, actors
    )
    slot = window_bytes(schema(config, spec), window_length(config))
    kept = 0
    if config.replayed:
        kept, limit = config.collector.replay_capacity, config.collector.replay_memory
        if limit:
            kept = max(config.replayed, min(kept, int(limit * 2**30 / slot)))
        # kept sequences in a batch under way cannot make room
        capacity += kept + config.sequence.batch
    return capacity, kept, slot


def is_small(spec: EnvSpec) -> bool:
    """Whether observations are so small that a step costs mostly overhead."""
    return not spec.is_image or min(sorted(spec.observation_shape)[-2:]) < 24


def _cluster_plan(config: Config, spec: EnvSpec) -> Plan:
    """The same for a Ray cluster, from its free CPUs and GPUs."""
    from dicerl.runtime import ray_cluster

    ray_cluster.connect(config)
    found = ray_cluster.nodes()
    workers, name = ray_cluster.workers(found), config.runtime.device
    gpus = int(sum(node.gpus for node in workers))
    if name.split(":")[0] not in ("auto", "cpu", "cuda"):
        raise ConfigError("runtime.device", name, "it can be auto, cpu or cuda")
    on_cpu = name == "cpu" or (name == "auto" and not gpus)
    if not on_cpu and not gpus:
        raise ConfigError("runtime.device", name, "no node of the cluster has a GPU")
    learners = config.runtime.num_learners or 1
    most, what = (config.sequence.batch, "sequences of a batch") if on_cpu else (gpus, "GPUs")
    if learners > most:
        raise ConfigError(
            "runtime.num_learners", learners, f"there are {most} {what}: it can be 0 to {most}"
        )
    places = ray_cluster.learner_nodes(found, learners, not on_cpu)
    small, threads = is_small(spec), 1
    if on_cpu:
        share = min(int(n.cpus / sum(n.id == other.id for other in places)) for n in places)
        threads = config.runtime.learner_threads or (1 if small else max(1, share))
    cpus = config.ray.cpus_per_actor
    reserved = ray_cluster.reserved_cpus(found, places, on_cpu, threads, small, cpus)
    room = sum(ray_cluster.room_on(node, reserved, cpus) for node in workers)
    if not room:
        free = max(node.free for node in workers)
        raise ConfigError(
            "ray.cpus_per_actor",
            cpus,
            f"no node has as many CPUs free for an actor ({free:g} at most): use less, or wait for"
            " the others",
        )
    device = torch.device("cpu" if on_cpu else "cuda")  # the one that Ray gives the learner
    actors = min(config.runtime.num_actors or room, config.runtime.num_envs)
    total = int(sum(node.cpus for node in workers))
    return _with_slots(config, spec, "ray", device, actors, learners, threads, total)


def _with_slots(
    config: Config,
    spec: EnvSpec,
    runtime: str,
    device: torch.device,
    actors: int,
    learners: int,
    threads: int,
    count: int,
) -> Plan:
    """The plan with its number of slots; refused where they do not fit into memory."""
    _require_batch(config, spec, runtime)
    threads = min(threads, config.sequence.batch)
    # under ray, learners train every batch together
    capacity, kept, slot = slots(config, spec, actors, 1 if runtime == "ray" else learners)
    _require_memory(config, spec, runtime, actors, learners, capacity, slot)
    if runtime == "process":
        _require_open_files(config, spec, actors, learners)
    return Plan(
        runtime,
        device,
        actors,
        learners,
        threads,
        capacity,
        kept,
        slot,
        total_updates(config, spec.action_repeat),
        count,
        # not under ray: its messages take so long that cores would be idle
        runtime == "process" and device.type == "cpu" and actors + learners * threads > count,
    )


def _require_batch(config: Config, spec: EnvSpec, runtime: str) -> None:
    """Refuse a run whose first batch is never filled: it would play all its frames and learn
    nothing.
    """
    envs, batch, length = config.runtime.num_envs, config.sequence.batch, config.sequence.length
    round_ = envs * length * spec.action_repeat  # frames in which each environment fills a sequence
    # the serial runtime ends with whole sequences, the others at the last frame
    rounds = math.ceil(config.frames / round_) if runtime == "serial" else config.frames // round_
    if rounds * envs < batch:
        needed = math.ceil(batch / envs) * round_
        raise ConfigError(
            "sequence.batch",
            batch,
            f"{config.frames:,} frames of {envs} environments give {rounds * envs:,} sequences of"
            f" {length} steps, so no batch would ever be trained; use a smaller batch, or at least"
            f" {needed:,} frames",
        )


def _require_memory(
    config: Config,
    spec: EnvSpec,
    runtime: str,
    actors: int,
    learners: int,
    capacity: int,
    slot: int,
) -> None:
    """Refuse a run that does not fit into memory, naming the field that takes the most."""
    free = available_memory()
    shared = _free_shared_memory() if runtime == "process" else None
    parameters = entries = 0
    # a smaller network fits anywhere, and torch takes seconds to load its "meta" device
    scarce = shared is not None and shared < slot * capacity + 2**30
    hidden = config.network.hidden
    widest = {
        "network.hidden": hidden if isinstance(hidden, int) else max(hidden),
        "network.lstm": config.network.lstm,
    }
    if scarce or max(widest.values()) > 2048:
        with torch.device("meta"):  # counts without taking memory
            counted = Network(config, spec)
        parameters = counted.num_parameters()
        entries = parameters + sum(x.numel() for x in counted.buffers())
    # The weights, two moments of AdamW and two published sets; a learner's gradient, briefly in two
    # places; the actors' own weights. In the process runtime learners and the supervisor have their
    # own, too.
    network = (
        4 * parameters * (5 + 2 * learners + actors + (learners + 1 if runtime == "process" else 0))
    )
    wide, other = sorted(widest, key=lambda n: -widest[n])
    if network > 0.9 * free:
        raise ConfigError(
            wide,
            get(config, wide),
            f"with {other} {get(config, other)} the network has {parameters:,} parameters and needs"
            f" {amount(network)} with its gradients, AdamW's moments and copies; this machine has"
            f" {amount(free)} free: use fewer units",
        )
    factors = [
        "collector.capacity",
        "sequence.batch",
        "runtime.num_envs",
        "sequence.length",
        "sequence.burn_in",
    ]
    factors += ["collector.replay_capacity"] if config.replayed else []
    field = max(factors, key=lambda name: get(config, name))
    value, envs = get(config, field), config.runtime.num_envs
    # the weights, two moments of AdamW, two published sets; a page for the rest of each tensor
    weights = 4 * entries * 5 + PAGE * (len(schema(config, spec)) + 8)
    if shared is not None and slot * capacity + weights > shared:
        largest = field if slot * capacity > weights else wide
        raise ConfigError(
            largest,
            get(config, largest),
            f"the collector's {capacity} slots take {amount(slot * capacity)} and the network's"
            f" weights {amount(weights)}, more than the {amount(shared)} free in /dev/shm; use less"
            " or runtime.kind=serial",
        )
    # The store, and the actors' own windows with the recurrent state of every step.
    sequences = slot * (capacity + envs) + 8 * config.network.lstm * window_length(config) * envs
    if network + sequences > 0.9 * free:
        raise ConfigError(
            field,
            value,
            f"sequences need {amount(sequences)} (the collector's {capacity} slots and {envs}"
            f" environments' own) and the network {amount(network)}; this machine has"
            f" {amount(free)} free: use less",
        )


def _free_shared_memory() -> int | None:
    """Bytes free in /dev/shm; None where there is none."""
    if not Path("/dev/shm").is_dir():
        return None
    found = os.statvfs("/dev/shm")
    return found.f_bavail * found.f_frsize


def _require_open_files(config: Config, spec: EnvSpec, actors: int, learners: int) -> None:
    """Refuse a run with processes that would open more files than this one may."""
    # a file for each shared tensor; for each child (and the evaluator) a pipe and what is open
    # while it starts; the run's own files
    needed = len(schema(config, spec)) + 10 + 4 * (actors + learners + 1) + 16
    room = allow_open_files(needed)
    if room < needed:
        raise ConfigError(
            "runtime.kind",
            "process",
            f"{actors} actors and {learners} learners need about {needed} open files; there is room"
            f" for {room} (ulimit -n): raise that, use fewer actors or runtime.kind=serial",
        )


def build_model(config: Config, spec: EnvSpec) -> ActorCritic:
    """A freshly initialised model, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeding.integer(seeding.stream(config.seed, "network")))
        return ActorCritic(config, spec)


def prepare_model(config: Config, spec: EnvSpec, make_env: MakeEnv | None) -> ActorCritic:
    """A new run's model with statistics of random play: the inputs' mean and deviation, and A's
    deviation.
    """
    model = build_model(config, spec)
    statistics = model.network.normalise == "statistics"
    if statistics or config.behaviour.scale == "normalised":
        steps = config.network.statistics_steps if statistics else 64
        observations, mask = random_play(config, spec, make_env, steps)
        if statistics:
            model.network.set_statistics(*moments(observations))
        model.calibrate(observations[-1], mask)
    return model


def load_network(network: Network, path: Path) -> None:
    """Load the model tensors of the checkpoint in the folder ``path`` into ``network``."""
    with checkpoint.fitting(path):
        network.load_state_dict(checkpoint.read_tensors(path, "model"))


def restore_weights(weights: Weights, start: Checkpoint) -> None:
    """Continue training from a checkpoint: AdamW's moments and the counts (the model has its
    parameters already).
    """
    with checkpoint.fitting(start.path):
        weights.load_optimizer_tensors(checkpoint.read_tensors(start.path, "optimizer"))
    weights.updates, weights.steps_trained = start.state.updates, start.state.steps_trained


def random_play(
    config: Config, spec: EnvSpec, make_env: MakeEnv | None, steps: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Observations under uniformly random actions in 8 environments [steps / 8, 8, ...], and the
    mask of the last ones, if there are masks [8, A].
    """
    rng = np.random.default_rng(seeding.stream(config.seed, "statistics"))
    stuck = config.runtime.stuck_seconds
    with (
        Patience(spec.name, stuck) as patience,
        patience.within(max(STARTING, stuck), "random play"),
        contextlib.closing(make_vector_env(config, 8, make_env)) as env,
    ):
        require_same(env.spec, spec)
        seen = [env.reset(int(rng.integers(2**31)))]
        for _ in range(max(1, steps // 8 - 1)):
            patience.again()
            seen.append(env.step(random_actions(env, rng))[0])
        mask = mask_of(env, spec)
    observations = np.stack(seen)
    require_finite(env.spec, "observed value", observations)
    return observations, mask


def moments(observations: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-element mean and deviation over the first two axes, summed stepwise to save memory."""
    total = np.zeros(observations.shape[2:])
    squares = np.zeros(observations.shape[2:])
    for step in observations:
        x = step.astype(np.float64)
        total += x.sum(0)
        squares += np.square(x).sum(0)
    count = observations.shape[0] * observations.shape[1]
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(deviation.astype(np.float32))
