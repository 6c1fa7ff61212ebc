"""Whose code may run. An id like ``module:MyEnv-v0`` names a module, as the name of a wrapper does,
and to import it is to run it. Who types the name wants that; a run's config.json or a suite's file
may come from anybody, so a module that only a file names needs consent.

The question is asked once, where the file is read. What is started after that, actors on whatever
machine and the runs of a suite, is the same person's doing.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from dicerl.config import EnvConfig
from dicerl.errors import ConfigError, DicerlError

VARIABLE = "DICERL_TRUST"  # modules, separated by commas or spaces
INSTALLED = ("dicerl", "gymnasium", "ale_py", "minatar")  # environments that come with dicerl


def module_of(name: str) -> str:
    """The module that an environment's id or a wrapper's name begins with; empty if there is
    none.
    """
    return name.rpartition(":")[0]


def names_in(env: EnvConfig) -> tuple[str, ...]:
    """What a config may ask to import: the environment's id and its wrappers' names."""
    return env.id, *env.wrappers


def is_trusted(module: str, imported: bool = True) -> bool:
    """Whether a module needs no consent: none is named, it came with dicerl, it is on the list of
    the environment variable, or (if ``imported`` counts) it was imported before, so that nothing
    runs.
    """
    known = tuple(os.environ.get(VARIABLE, "").replace(",", " ").split())
    return (
        not module
        or (imported and module in sys.modules)
        or came_with_dicerl(module)
        or _is_in(module, known)
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
        raise DicerlError(
            f"{file} asks to import the module {module!r}, which runs its code; if you trust it:"
            f" --trust (in Python trust=True), or {VARIABLE}={module}"
        )


def require_all(env: EnvConfig, file: Path, trust: bool = False, own: bool = False) -> None:
    """The same of everything that the config in ``file`` may ask to import; with an ``own``
    environment its id is not used.
    """
    for name in env.wrappers if own else names_in(env):
        require(name, file, trust)


def listed_with(env: EnvConfig) -> str:
    """The environment variable's value with the modules of ``env`` added, for a subprocess."""
    modules = map(module_of, names_in(env))
    return " ".join(filter(None, (os.environ.get(VARIABLE, ""), *modules)))


def import_named(name: str, field: str = "env.id") -> None:
    """Import the module that the name in a config ``field`` begins with, if any: an installed one,
    or one in this folder. The folder is searched from here on, not earlier: else whatever lies in
    it could stand in for an optional module of some library.
    """
    module = module_of(name)
    if not module:
        return
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # it may do anything
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            reason = str(error)
        raise ConfigError(field, name, f"its module cannot be imported: {reason}") from None
