"""Whose code may run. An id like ``module:MyEnv-v0`` names a module, and to import it is to run it.
Who types the id wants that; a run's config.json or a suite's file may come from anybody, so a
module that only a file names needs consent.

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


def module_of(env_id: str) -> str:
    """The module that an environment's id names; empty if it names none."""
    return env_id.rpartition(":")[0]


def is_trusted(module: str, imported: bool = True) -> bool:
    """Whether a module needs no consent: none is named, it came with dicerl, it is on the list of
    the environment variable, or (if ``imported`` counts) it was imported before, so that nothing
    runs.
    """
    known = (*INSTALLED, *os.environ.get(VARIABLE, "").replace(",", " ").split())
    return (
        not module
        or (imported and module in sys.modules)
        or any(module == name or module.startswith(f"{name}.") for name in known)
    )


def require(env_id: str, file: Path, trust: bool = False) -> None:
    """Refuse an id that ``file`` names unless its module is trusted, or ``trust`` is given."""
    module = module_of(env_id)
    if not trust and not is_trusted(module):
        raise DicerlError(
            f"{file} asks to import the module {module!r}, which runs its code; if you trust it:"
            f" --trust (in Python trust=True), or {VARIABLE}={module}"
        )


def listed_with(module: str) -> str:
    """The environment variable's value with ``module`` added, for a subprocess."""
    return f"{os.environ.get(VARIABLE, '')} {module}".strip()


def import_named(env_id: str) -> None:
    """Import the module that an id names, if any: an installed one, or one in this folder. The
    folder is searched from here on, not earlier: else whatever lies in it could stand in for an
    optional module of some library.
    """
    module = module_of(env_id)
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
        raise ConfigError("env.id", env_id, f"its module cannot be imported: {reason}") from None
