"""The paper's mathematics: pure functions and values. Imports no other part of the package."""

from dicerl.core.bandit import Bandit, BanditVote, JointVote, inv_temperature_from_x, x_from_inv_temperature
from dicerl.core.policy import entropy, entropy_surrogate, log_probs, policy_surrogate
from dicerl.core.targets import drtrace, qtrace, retrace, vtrace

__all__ = [
    "Bandit", "BanditVote", "JointVote", "drtrace", "entropy", "entropy_surrogate", "inv_temperature_from_x", "log_probs",
    "policy_surrogate", "qtrace", "retrace", "vtrace", "x_from_inv_temperature",
]
