"""A torso of the user's own, by name: ``network.torso = "module:Name"``.

``Name`` is a class of ``torch.nn.Module``, or a function that makes one, at the top of its module.
It is called with the shape of one input, (C, H, W) of an image or (F,), and makes a module from
inputs [N, ...] (float32, normalised) to features [N, F]. Those go to the LSTM or the heads.

A torso is code, and to make it is to run it: one that only a file names needs consent
(envs/trust.py). More than for a module, which runs once when it is imported: even of an imported
one, a file could name any function to be called. So without consent only classes of
``torch.nn.Module`` are taken that this program has imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dicerl.config import Config
from dicerl.envs import trust
from dicerl.errors import ConfigError, nearest

FIELD = "network.torso"
MAIN = "__main__"
Torso = Callable[[tuple[int, ...]], nn.Module]  # from the shape of one input
# what differs between training and acting, or changes while it is used
UNFIT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


def is_own(torso: str) -> bool:
    """Whether ``network.torso`` names a torso of the user's own."""
    return ":" in torso


def reference(torso: Torso | str) -> str:
    """The name under which a torso is found again: ``module:Name``."""
    if isinstance(torso, str):
        return torso
    module, name = (getattr(torso, a, "") for a in ("__module__", "__qualname__"))
    if _names(module).get(name) is not torso:
        shown = f"{module}:{name}" if name else type(torso).__name__
        raise ConfigError(
            FIELD,
            shown,
            "it must be found by its name when the run is loaded: a class or a function at the top"
            " of a module",
        )
    return f"{module}:{name}"


def require(config: Config, file: Path, allowed: bool = False) -> None:
    """Refuse a torso that ``file`` names unless it is trusted, or ``allowed``."""
    if not allowed and not is_trusted(config.network.torso):
        module = trust.module_of(config.network.torso)
        raise trust.needs_consent(file, module)


def is_trusted(torso: str, imported: bool = True) -> bool:
    """Whether ``network.torso`` needs no consent: it is none of the user's own, its module is on
    the list of the environment variable, or (if ``imported`` counts) it is a class of
    ``torch.nn.Module`` that was imported before.
    """
    module, _, name = torso.rpartition(":")
    known = _names(module).get(name)
    is_module = isinstance(known, type) and issubclass(known, nn.Module)
    return not is_own(torso) or trust.is_listed(module) or (imported and is_module)


def _names(module: str) -> dict[str, Any]:
    """What an imported module has; looking at it runs nothing."""
    found: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
    return found


def find(torso: str) -> Torso:
    """What ``module:Name`` names; its module is imported."""
    module, _, name = torso.rpartition(":")
    trust.import_named(torso, FIELD)
    there = _names(module)
    if name in there:
        found: Torso = there[name]
        return found
    if module == MAIN:
        raise ConfigError(
            FIELD,
            torso,
            f"it was in the program that trained, and this one has no {name}: import it here under"
            " that name, or train with one from a module of its own",
        )
    raise ConfigError(FIELD, torso, f"{module} has no {name}{nearest(name, there)}")


def build(torso: str, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Make a torso for inputs of this shape; return it and the number of its features. What does
    not fit is refused here: it is tried with two inputs.
    """
    make = find(torso)
    try:
        module = make(shape)
    except Exception as error:  # the user's code
        raise ConfigError(FIELD, torso, f"called with {shape}, {_raised(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            FIELD,
            torso,
            f"called with {shape}, it gave {type(module).__name__}; it must be a class of"
            " torch.nn.Module, or make one",
        )
    tried = torch.zeros(2, *shape)
    if len(shape) == 3:
        tried = tried.to(memory_format=torch.channels_last)  # as images are
    try:
        with torch.no_grad():
            features: Any = module(tried)
    except Exception as error:
        raise ConfigError(
            FIELD, torso, f"for inputs of shape {tuple(tried.shape)} {_raised(error)}"
        ) from error
    if not (
        isinstance(features, Tensor)
        and features.is_floating_point()
        and features.dim() == 2
        and features.shape[0] == 2
        and features.shape[1] > 0
    ):
        gave = type(features).__name__
        if isinstance(features, Tensor):
            gave = f"{features.dtype} of shape {tuple(features.shape)}"
        raise ConfigError(
            FIELD,
            torso,
            f"for inputs of shape {tuple(tried.shape)} it gave {gave}; it must give features [N, F]"
            " of real numbers, here of shape (2, F)",
        )
    _require_fit(torso, module)
    return module, features.shape[1]


def _require_fit(torso: str, module: nn.Module) -> None:
    """Refuse what a learner and its actors could not keep alike, or not train."""
    for part in module.modules():
        if isinstance(part, UNFIT):
            raise ConfigError(
                FIELD,
                torso,
                f"it has a {type(part).__name__}, which acts otherwise than it trains; the policy"
                " that acts must be the one that is trained (LayerNorm and GroupNorm are alike)",
            )
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.dtype != torch.float32:
            raise ConfigError(FIELD, torso, f"its {name} is {x.dtype}; it must be torch.float32")
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise ConfigError(
                FIELD, torso, f"its {name} is not trained: what stays fixed must be a buffer"
            )


def _raised(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {' '.join(str(error).split())}"


def of_main(config: Config) -> Torso | None:
    """The torso itself where it is in the program that runs: children, which do not run that, are
    sent it.
    """
    torso = config.network.torso
    return find(torso) if trust.module_of(torso) == MAIN else None


def put_into_main(config: Config, torso: Torso | None) -> None:
    """In a child: make what ``of_main`` gave found under its name."""
    if torso is not None:
        setattr(sys.modules[MAIN], config.network.torso.rpartition(":")[2], torso)
