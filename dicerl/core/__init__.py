"""The paper's mathematics: pure functions and values. Imports no other part of the package."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dicerl.core.bandit import (
        Bandit,
        BanditVote,
        JointVote,
        inv_temperature_from_x,
        x_from_inv_temperature,
    )
    from dicerl.core.policy import entropy, entropy_surrogate, log_probs, policy_surrogate
    from dicerl.core.targets import drtrace, qtrace, retrace, vtrace

__all__ = [
    "Bandit",
    "BanditVote",
    "JointVote",
    "drtrace",
    "entropy",
    "entropy_surrogate",
    "inv_temperature_from_x",
    "log_probs",
    "policy_surrogate",
    "qtrace",
    "retrace",
    "vtrace",
    "x_from_inv_temperature",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the bandits need numpy only, so they come without torch."""
    import importlib

    for module in ("bandit", "policy", "targets") if name in __all__ else ():
        found = vars(importlib.import_module(f"dicerl.core.{module}"))
        if name in found:
            return found[name]
    raise AttributeError(f"module 'dicerl.core' has no attribute {name!r}")
