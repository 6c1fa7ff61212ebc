"""The learner's device: which one, and whether a run fits into its memory."""

from __future__ import annotations

import textwrap

import torch
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError
from dicerl.parts.learner import Learner
from dicerl.parts.sequence import allocate, schema, window_bytes, window_length
from dicerl.runtime.machine import amount

LONGEST_WHY = 200  # characters of torch's reason, which may list all its devices
SLACK = 1.25  # times what was counted: workspaces of libraries, and memory in pieces


def choose_device(name: str) -> torch.device:
    """The torch device for ``runtime.device``; auto prefers a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # "meta" has no values to copy back
    except (RuntimeError, AssertionError, ImportError) as error:
        why = textwrap.shorten(str(error), LONGEST_WHY, placeholder=" ...")
        raise ConfigError("runtime.device", name, f"it cannot be used here: {why}") from None
    return device


def require_device_memory(config: Config, spec: EnvSpec, free: int, total: int) -> None:
    """Refuse a run whose updates do not fit into the ``free`` of a device's ``total`` bytes."""
    needed = int(SLACK * training_bytes(config, spec))
    if needed > free:
        raise ConfigError(
            "sequence.batch",
            config.sequence.batch,
            f"an update of sequences of {window_length(config)} steps needs about {amount(needed)}"
            f" on the device; {amount(free)} of its {amount(total)} are free: use fewer or shorter"
            " sequences",
        )


def training_bytes(config: Config, spec: EnvSpec) -> int:
    """The bytes of an update: weights, gradient and moments, two batches, and every tensor that is
    kept for the gradient, each counted once. Nothing is computed: the tensors have shapes only.
    """
    device = torch.device("meta")
    fields, length, batch = schema(config, spec), window_length(config), config.sequence.batch
    learner = Learner(ActorCritic(config, spec), 1, device)
    kept: dict[int, int] = {}  # bytes by storage
    alive: list[Tensor] = []  # so that no storage gets the number of another

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if x.device == device and storage._cdata not in kept:
            kept[storage._cdata] = storage.nbytes()
            alive.append(x)
        return x

    arrays = allocate(fields, length, batch)
    arrays["valid"][...] = True
    arrays["valid"][length // 2] = False  # an episode ends: the longer way through the LSTM
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        learner.update(arrays)
    vectors = 4 * learner.weights.vector.numel() * 6  # two of weights, two moments, two gradients
    return vectors + 2 * batch * window_bytes(fields, length) + sum(kept.values())
