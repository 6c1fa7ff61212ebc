"""What an update takes on a GPU that is not here: its floating-point operations, counted, over a
published peak of which a fraction is reached.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec
from dicerl.parts.learner import Learner
from dicerl.parts.sequence import allocate, schema, window_length

# TFLOP/s in float32 without tensor cores, from NVIDIA's data sheets. There is no TF32 here
# (parts/learner.py).
PEAK = {"V100": 15.7, "T4": 8.1, "A100": 19.5}
# Of the peak. Convolutions of 16 and 32 channels do not fill a GPU: nobody has measured this one.
FRACTION = 0.2


def update_flops(config: Config, spec: EnvSpec) -> int:
    """Floating-point operations of one update, forward and backward. They are counted with a few
    sequences, whose tensors have shapes only, and are proportional to these.
    """
    few = config.replace(**{"sequence.batch": 2})
    arrays = allocate(schema(few, spec), window_length(few), 2)
    arrays["valid"][...] = True
    # an episode ends: the way through the LSTM whose products are seen here
    arrays["valid"][window_length(few) // 2] = False
    learner = Learner(ActorCritic(few, spec), 1, torch.device("meta"))
    with FlopCounterMode(display=False) as counter:
        learner.update(arrays)
    return int(counter.get_total_flops()) * config.sequence.batch // 2


def update_seconds(flops: int, name: str, fraction: float = FRACTION) -> float:
    """Seconds of an update on a GPU of PEAK."""
    return flops / (PEAK[name] * 1e12 * fraction)
