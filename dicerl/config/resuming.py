"""What of a run may change when it goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dicerl.config.config import Config, fields_of
from dicerl.config.fields import get, override
from dicerl.config.validation import validate
from dicerl.errors import ConfigError

_NEW = "a new run can start from its weights: dicerl train --init-from RUN"
_VOTE = "the vote in the checkpoint was made with it"
# section or field -> why it stays as it is
FIXED = {
    "env": f"the agent was trained in this environment; {_NEW}",
    "network": f"the tensors in the checkpoint are of this network; {_NEW}",
    "loss.critic": f"the weights mean what this critic made of them; {_NEW}",
    "loss.auxiliary": f"the network has heads for it or none; {_NEW}",
    "behaviour": _VOTE,
    "bandit": _VOTE,
    "sequence.length": "sequences in the checkpoint are of this length",
    "sequence.burn_in": "sequences in the checkpoint are of this length",
    "seed": "the random streams go on where they were",
    "preset": "it has set its fields already; name those that should change",
    "variant": "it has set its fields already; name those that should change",
    "run_dir": "a run goes on where it is; copy the directory first",
    "init": "that was the start of this run",
}
# what the state of the serial runtime's actor and collector is made for
SERIAL = ("runtime", "sequence", "collector", "checkpoint")


def why_fixed(name: str) -> str | None:
    """Why a field must stay as it is; None if it may change."""
    return FIXED.get(name) or FIXED.get(name.split(".")[0])


def changed(config: Config, changes: Mapping[str, Any]) -> tuple[Config, dict[str, str]]:
    """The config with ``changes`` to its fields by dotted name, and those that differ as
    {"optimizer.learning_rate": "0.001 -> 0.0001"}.
    """
    found = validate(override(config, dict(changes)))
    differing = {}
    for name in fields_of():
        before, now = get(config, name), get(found, name)
        if before != now:
            why = why_fixed(name)
            if why is not None:
                raise ConfigError(name, now, f"this run has {before!r}, and {why}")
            differing[name] = f"{before!r} -> {now!r}"
    return found, differing


def keeps_serial_state(differing: Mapping[str, str]) -> bool:
    """Whether a serial run can go on with its own sequences and environments after these changes;
    otherwise it starts new ones, as it does after another runtime.
    """
    return not any(name.split(".")[0] in SERIAL for name in differing)
