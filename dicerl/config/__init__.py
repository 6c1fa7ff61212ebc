"""Configuration of a run: fields and ranges, presets and variants, options, random streams."""

from dicerl.config.config import (
    BanditConfig,
    BehaviourConfig,
    CheckpointConfig,
    CollectorConfig,
    Config,
    EnvConfig,
    EvaluationConfig,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    RuntimeConfig,
    SequenceConfig,
    fields_of,
    from_dict,
    object_fields,
)
from dicerl.config.fields import RENAMED, describe_type, flatten, get, override, parse, renamed
from dicerl.config.validation import validate

__all__ = [
    "RENAMED",
    "BanditConfig",
    "BehaviourConfig",
    "CheckpointConfig",
    "CollectorConfig",
    "Config",
    "EnvConfig",
    "EvaluationConfig",
    "LossConfig",
    "NetworkConfig",
    "OptimizerConfig",
    "RuntimeConfig",
    "SequenceConfig",
    "describe_type",
    "fields_of",
    "flatten",
    "from_dict",
    "get",
    "object_fields",
    "override",
    "parse",
    "renamed",
    "validate",
]
