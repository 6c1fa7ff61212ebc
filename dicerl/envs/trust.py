"""Whose code may run. An id like ``module:MyEnv-v0`` names a module, as the names of wrappers and
of a torso (agent/own_torso.py) do, and to import it is to run it. Who types the name wants that; a
run's config.json or a suite's file may come from anybody, so a module that only a file names needs
consent.

The question is asked once, where the file is read. What is started after that, actors on whatever
machine and the runs of a suite, is the same person's doing.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from gymnasium import Wrapper

from dicerl.config import Config, EnvConfig
from dicerl.errors import LONGEST, ConfigError, DicerlError, told

VARIABLE = "DICERL_TRUST"  # modules, separated by commas or spaces
OWN_CLUSTERS = ("", "auto", "local")  # of Ray: what this machine or its user has started
INSTALLED = ("dicerl", "gymnasium", "ale_py", "minatar")  # environments that come with dicerl


def module_of(name: str) -> str:
    """The module that an environment's id, or the name of a wrapper or a torso, begins with; empty
    if there is none.
    """
    return name.rpartition(":")[0]


def names_in(env: EnvConfig) -> tuple[str, ...]:
    """What a config of environments may ask to import: their id and their wrappers' names."""
    return env.id, *env.wrappers


def named_in(config: Config) -> tuple[str, ...]:
    """Everything in a config that may need consent: modules, and the host of a Ray cluster."""
    cluster = () if config.ray.address in OWN_CLUSTERS else (config.ray.address,)
    return *names_in(config.env), config.network.torso, *cluster


def is_listed(module: str) -> bool:
    """Whether the environment variable lists a module or the package it is in."""
    return _is_in(module, tuple(os.environ.get(VARIABLE, "").replace(",", " ").split()))


def is_trusted(module: str, imported: bool = True) -> bool:
    """Whether a module needs no consent: none is named, it came with dicerl, it is on the list of
    the environment variable, or (if ``imported`` counts) it was imported before, so that nothing
    runs.
    """
    return (
        not module
        or (imported and module in sys.modules)
        or came_with_dicerl(module)
        or is_listed(module)
    )


def came_with_dicerl(module: str) -> bool:
    """Whether it is a module of dicerl or of the environments that are installed with it."""
    return _is_in(module, INSTALLED)


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in packages)


def require(name: str, file: Path, trust: bool = False) -> None:
    """Refuse the name of an environment or wrapper that ``file`` gives unless its module is
    trusted, or ``trust`` is given.
    """
    module = module_of(name)
    if not trust and not is_trusted(module):
        raise needs_consent(file, module)


def require_all(env: EnvConfig, file: Path, trust: bool = False, own: bool = False) -> None:
    """The same of everything that the config in ``file`` may ask to import; with an ``own``
    environment its id is not used.
    """
    if not own:
        require(env.id, file, trust)
    for name in env.wrappers:
        require_wrapper(name, file, trust)


def require_wrapper(name: str, file: Path, trust: bool = False) -> None:
    """The same of a wrapper. It is also called, and a file could name any function of any module
    that is imported (``builtins:input``): without consent only a class of ``gymnasium.Wrapper`` is
    taken.
    """
    module, word = module_of(name), name.rpartition(":")[2]
    found = getattr(sys.modules.get(module), "__dict__", {}).get(word)
    if came_with_dicerl(module) or (isinstance(found, type) and issubclass(found, Wrapper)):
        return
    if not trust and not is_listed(module):
        raise needs_consent(file, module)


def require_cluster(config: Config, file: Path, trust: bool = False) -> None:
    """Refuse a Ray cluster that ``file`` names, unless it is trusted: what its nodes send is
    unpickled here, and so runs.
    """
    if not trust and not is_own_cluster(config):
        address = config.ray.address[:LONGEST]
        raise DicerlError(
            f"{file} asks to join the Ray cluster at {address}, whose nodes can run code here; if"
            f" you trust it: --trust (in Python trust=True), --ray.address {address}, or"
            f" {VARIABLE}={module_of(address) or address}"
        )


def is_own_cluster(config: Config) -> bool:
    """Whether a run needs no consent to its Ray cluster: it uses none, or the one of this machine
    and its user, or the environment variable lists the host.
    """
    address = config.ray.address
    return (
        config.runtime.kind != "ray"
        or address in OWN_CLUSTERS
        or is_listed(module_of(address) or address)
    )


def needs_consent(file: Path, module: str) -> DicerlError:
    """The error that asks for consent to the module that ``file`` names."""
    return DicerlError(
        f"{file} asks to import the module {module!r}, which runs its code; if you trust it:"
        f" --trust (in Python trust=True), or {VARIABLE}={module}"
    )


def listed_with(*names: str) -> str:
    """The environment variable's value with the modules of ``names`` added, for a subprocess."""
    modules = map(module_of, names)
    return " ".join(filter(None, (os.environ.get(VARIABLE, ""), *modules)))


def import_named(name: str, field: str = "env.id") -> None:
    """Import the module that the name in a config ``field`` begins with, if any: an installed one,
    or one in this folder. The folder is searched from here on, not earlier, nor for a module that
    nobody was asked about: else whatever lies in it could stand in for an optional module of some
    library, or announce environments.
    """
    module = module_of(name)
    if not module:
        return
    asked = module not in sys.modules and not came_with_dicerl(module)
    if asked and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # it may do anything
        reason = told(error)
        if isinstance(error, ImportError):
            reason = str(error)
        raise ConfigError(field, name, f"its module cannot be imported: {reason}") from None
