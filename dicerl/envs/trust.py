"""Whose code may run. An id like ``module:MyEnv-v0`` names a module, and to import it is to run it;
so does the name of a torso (agent/own_torso.py). Who types it wants that; a run's config.json or a
suite's file may come from anybody, so a module that only a file names needs consent.

The question is asked once, where the file is read. What is started after that, actors on whatever
machine and the runs of a suite, is the same person's doing.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from dicerl.errors import ConfigError, DicerlError

VARIABLE = "DICERL_TRUST"  # modules, separated by commas or spaces
INSTALLED = ("dicerl", "gymnasium", "ale_py", "minatar")  # environments that come with dicerl


def module_of(name: str) -> str:
    """The module that an environment's id or a torso's name names; empty if it names none."""
    return name.rpartition(":")[0]


def is_listed(module: str, names: tuple[str, ...] = ()) -> bool:
    """Whether the environment variable lists a module or the package it is in, or ``names`` do."""
    known = (*names, *os.environ.get(VARIABLE, "").replace(",", " ").split())
    return any(module == name or module.startswith(f"{name}.") for name in known)


def is_trusted(module: str, imported: bool = True) -> bool:
    """Whether a module needs no consent: none is named, it came with dicerl, it is on the list of
    the environment variable, or (if ``imported`` counts) it was imported before, so that nothing
    runs.
    """
    return not module or (imported and module in sys.modules) or is_listed(module, INSTALLED)


def require(env_id: str, file: Path, trust: bool = False) -> None:
    """Refuse an id that ``file`` names unless its module is trusted, or ``trust`` is given."""
    module = module_of(env_id)
    if not trust and not is_trusted(module):
        raise needs_consent(file, module)


def needs_consent(file: Path, module: str) -> DicerlError:
    """The error that asks for consent to the module that ``file`` names."""
    return DicerlError(
        f"{file} asks to import the module {module!r}, which runs its code; if you trust it:"
        f" --trust (in Python trust=True), or {VARIABLE}={module}"
    )


def listed_with(*modules: str) -> str:
    """The environment variable's value with ``modules`` added, for a subprocess."""
    return " ".join((os.environ.get(VARIABLE, ""), *modules)).strip()


def import_named(name: str, field: str = "env.id") -> None:
    """Import the module that an id names, if any: an installed one, or one in this folder. The
    folder is searched from here on, not earlier: else whatever lies in it could stand in for an
    optional module of some library. ``field`` is the config's that holds the name, for the error.
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
