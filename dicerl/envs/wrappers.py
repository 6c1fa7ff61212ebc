"""What a config adds to a single environment: arguments for making it, and wrappers around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from dicerl.config import EnvConfig
from dicerl.envs.trust import came_with_dicerl, import_named, module_of
from dicerl.errors import ConfigError, nearest, told

Wrapper = Callable[[Any], Any]


def configured(make: Callable[..., Any], env: EnvConfig, name: str) -> Callable[..., Any]:
    """``make`` with the config's arguments and its wrappers, in order: the first one is innermost.
    ``name`` is the environment's, for messages.
    """
    if not env.kwargs and not env.wrappers:
        return make
    wrappers = {wrapper: load(wrapper) for wrapper in env.wrappers}

    def build(**more: Any) -> Any:
        made = with_kwargs(make, env, name)(**more)
        for wrapper in env.wrappers:
            made = _wrapped(made, wrapper, wrappers[wrapper], name)
        return made

    return build


def with_kwargs(make: Callable[..., Any], env: EnvConfig, name: str) -> Callable[..., Any]:
    """``make`` with the config's arguments; what it raises then is put down to them."""

    def build(*args: Any, **more: Any) -> Any:
        try:
            return make(*args, **{**env.kwargs, **more})
        except Exception as error:
            if not env.kwargs:
                raise
            raise ConfigError(
                "env.kwargs", env.kwargs, f"{name} could not be made with that: {told(error)}"
            ) from error

    return build


def load(name: str) -> Wrapper:
    """The wrapper that ``module:Name`` stands for; its module is imported."""
    import_named(name, "env.wrappers")
    module, word = module_of(name), name.rpartition(":")[2]
    try:
        found = getattr(sys.modules[module], word)
    except Exception:  # a module may look its names up in its own way
        close = nearest(word, dir(sys.modules[module]), 0.7)
        raise ConfigError("env.wrappers", name, f"{module} has no {word}{close}") from None
    if not callable(found):
        raise ConfigError(
            "env.wrappers",
            name,
            f"it is a {type(found).__name__}; it must be a class or function that takes an"
            " environment and returns one",
        )
    # These modules need no consent (envs/trust.py), so not everything in them may be called.
    if came_with_dicerl(module) and not (
        isinstance(found, type) and issubclass(found, gymnasium.Wrapper)
    ):
        raise ConfigError("env.wrappers", name, "it is no gymnasium.Wrapper")
    wrapper: Wrapper = found
    return wrapper


def _wrapped(env: Any, name: str, wrapper: Wrapper, of: str) -> gymnasium.Env:
    try:
        made = wrapper(env)
    except Exception as error:
        raise ConfigError("env.wrappers", name, f"around {of} it raised {told(error)}") from error
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            "env.wrappers", name, f"it returned {type(made).__name__}; it must be a gymnasium.Env"
        )
    return made
