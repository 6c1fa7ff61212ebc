"""dicerl: DiCE, exploration without an entropy coefficient."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names below, for editors and type checkers
    from dicerl.agent.agent import Agent
    from dicerl.api import load_agent, resume, train
    from dicerl.config import Config
    from dicerl.config.presets import preset
    from dicerl.envs.vector import vector
    from dicerl.errors import DicerlError
    from dicerl.records.callbacks import Callback
    from dicerl.records.run import Run

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Callback",
    "Config",
    "DicerlError",
    "Run",
    "load_agent",
    "preset",
    "resume",
    "train",
    "vector",
]

_HOME = {
    "Agent": "agent.agent",
    "Callback": "records.callbacks",
    "Config": "config",
    "DicerlError": "errors",
    "Run": "records.run",
    "load_agent": "api",
    "preset": "config.presets",
    "resume": "api",
    "train": "api",
    "vector": "envs.vector",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``from dicerl.core import ...`` stays light and
    ``dicerl --help`` quick.
    """
    import importlib

    if name in _HOME:
        return getattr(importlib.import_module(f"dicerl.{_HOME[name]}"), name)
    raise AttributeError(f"module 'dicerl' has no attribute {name!r}")
