"""The Python API: ``train("CartPole-v1")``, ``resume(run)``, ``load_agent(run)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dicerl.agent import own_torso
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.agent import Agent
from dicerl.agent.behaviour import Behaviours
from dicerl.config import Config, presets, validate
from dicerl.config.resuming import changed, keeps_serial_state
from dicerl.envs import EnvSpec, MakeEnv, callable_id, env_spec, preset_for
from dicerl.envs.trust import require_all, require_cluster
from dicerl.errors import CheckpointError, ConfigError, DicerlError
from dicerl.records import checkpoint
from dicerl.records.callbacks import Callback
from dicerl.records.checkpoint import fitting
from dicerl.records.loggers import configured
from dicerl.records.progress import Progress
from dicerl.records.run import PACKAGE, Run
from dicerl.runtime import precision
from dicerl.runtime.base import OnBatch
from dicerl.runtime.launch import describe, run_to_end
from dicerl.runtime.machine import trains_here
from dicerl.runtime.setup import Plan, build_model, load_network, plan, prepare_model

Stop = Callable[[], bool]  # whether a run is to stop


def train(
    config: Config | str | MakeEnv,
    make_env: MakeEnv | None = None,
    *,
    quiet: bool = False,
    on_batch: OnBatch | None = None,
    stop: Stop = lambda: False,
    callbacks: Sequence[Callback] = (),
    preset: str | None = None,
    variant: str | None = None,
    torso: own_torso.Torso | str | None = None,
    **changes: Any,
) -> Run:
    """Train a new run to its end or until Ctrl-C; return it, with its directory and a summary.

    ``config`` is a Config, or only an environment's id (``train("CartPole-v1")``) or a callable
    that makes one: then ``preset`` (default: the one that fits it) and ``variant`` may be named.
    ``changes`` are fields, as for ``Config.replace``: ``frames=500``, ``loss__q=1``. ``torso`` is
    ``network.torso``, or a class of ``torch.nn.Module`` of your own (agent/own_torso.py).

    ``make_env`` makes one environment and overrides ``config.env.id``. ``on_batch(learner, batch)``
    is called with every batch before it is trained, in the process of the learner that trains it.
    ``stop()`` is asked often: True ends the run with a checkpoint, as Ctrl-C does, which only
    reaches a run in the main thread. ``callbacks`` are called at the run's moments, here, in this
    process (records/callbacks.py).
    """
    trains_here()
    if callable(config):
        make_env = config
        config = callable_id(make_env)
    if torso is not None:
        changes["network.torso"] = own_torso.reference(torso)
    config = validate(_chosen(config, preset, variant, changes))
    if make_env is not None:
        config = config.replace(**{"env.id": callable_id(make_env)})
    config, spec, machine = _resolved(config, make_env)
    go = partial(
        run_to_end,
        quiet=quiet,
        on_batch=on_batch,
        stop_when=stop,
        callbacks=[*callbacks, *configured(config)],  # or a package for them is missing
    )
    model, vote = _beginning(config, spec, make_env)
    run = Run.create(config)
    with run.unlocked_if_this_fails():
        return go(run, spec, machine, model, make_env, vote=vote)


def dry_run(config: Config, make_env: MakeEnv | None = None) -> tuple[Run, Plan, list[str]]:
    """What ``train`` would do with a valid config: the run, with its resolved config, how it would
    use the machine, and the lines that describe it. Nothing is written, trained or played.
    """
    config, spec, machine = _resolved(config, make_env)
    configured(config)
    model = _beginning(config, spec, make_env)[0] if config.init.run else build_model(config, spec)
    run = Run.planned(config)
    return run, machine, describe(config, spec, machine, model, run)


def _resolved(config: Config, make_env: MakeEnv | None) -> tuple[Config, EnvSpec, Plan]:
    """The environment's spec, what the run does with this machine, and the config with what was
    left open.
    """
    spec = env_spec(config, make_env)
    machine = plan(config, spec)
    return precision.resolved(config, spec, machine.runtime, machine.device), spec, machine


def _beginning(
    config: Config, spec: EnvSpec, make_env: MakeEnv | None
) -> tuple[ActorCritic, dict[str, Any] | None]:
    """The model of a new run, and the state of the vote that it starts from, if any."""
    if not config.init.run:
        return prepare_model(config, spec, make_env), None
    found, source = find_checkpoint(config.init.run)
    model = build_model(config, spec)
    try:
        load_network(model.network, found.path)
    except CheckpointError as error:
        raise ConfigError(
            "init.run", config.init.run, f"its network is another than this run's: {error}"
        ) from None
    if not config.init.vote:
        return model, None
    for section in ("behaviour", "bandit"):
        if getattr(source.config, section) != getattr(config, section):
            raise ConfigError(
                "init.vote", True, f"the vote of {config.init.run} has other {section} fields"
            )
    return model, found.state.temperatures


def _chosen(
    config: Config | str, name: str | None, variant: str | None, changes: dict[str, Any]
) -> Config:
    """The config that ``train`` was given, or that of an environment's id."""
    if isinstance(config, str):
        name, variant = presets.split(name, variant or "dice")
        return presets.preset(name or preset_for(config), variant, **{"env.id": config, **changes})
    if not isinstance(config, Config):
        raise DicerlError(
            f"train was given {type(config).__name__}; it must be an environment's id"
            " ('CartPole-v1'), a Config (dicerl.preset(...)), or a callable that makes an"
            " environment"
        )
    for field, value in (("preset", name), ("variant", variant)):
        if value is not None:
            raise ConfigError(
                field, value, f"a Config has its own; name it there: dicerl.preset({field}=...)"
            )
    return config.replace(**changes)


def resume(
    run_dir: str | Path,
    make_env: MakeEnv | None = None,
    *,
    quiet: bool = False,
    on_batch: OnBatch | None = None,
    stop: Stop = lambda: False,
    callbacks: Sequence[Callback] = (),
    changes: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Run:
    """Continue a run from its newest intact checkpoint; return it as ``train`` does.

    A run that ended before its first checkpoint starts from the beginning. A run that was trained
    with ``make_env`` needs it again. ``changes`` are other values for some fields of its config, by
    dotted name: {"frames": 2_000_000, "optimizer.learning_rate": 1e-4}; what a checkpoint depends
    on is refused. ``trust`` allows to import a module that its config.json names.
    """
    trains_here()
    run = Run.open(run_dir)
    if (run.directory / PACKAGE).exists():
        raise DicerlError(
            f"{run.directory} is a package, an agent without its optimizer; to train on from it:"
            f" dicerl train {run.config.env.id} --init-from {run.directory}"
        )
    require_all(run.config.env, run.directory / "config.json", trust, own=make_env is not None)
    own_torso.require(run.config, run.directory / "config.json", trust)
    config, differing = changed(run.config, changes or {})
    named = "ray.address" in (changes or {})
    require_cluster(config, run.directory / "config.json", trust or named)
    run.config = config
    spec = env_spec(run.config, make_env)
    machine = plan(run.config, spec)
    go = partial(
        run_to_end,
        quiet=quiet,
        on_batch=on_batch,
        stop_when=stop,
        callbacks=[*callbacks, *configured(config)],
    )
    run.lock()
    with run.unlocked_if_this_fails():
        progress = Progress("", quiet)
        if differing:
            run.write_config()
            for name, how in differing.items():
                progress.say(f"changed: {name} {how}")
        if not checkpoint.checkpoints_of(run.directory):
            progress.say(f"{run.directory} has no checkpoint yet; starting from the beginning")
            model, vote = _beginning(run.config, spec, make_env)
            return go(run, spec, machine, model, make_env, vote=vote)
        damaged: list[str] = []

        def passed_over(line: str) -> None:
            damaged.append(line)
            progress.say(line)

        start = run.newest_checkpoint(passed_over)
        if differing:
            serial = start.state.serial if keeps_serial_state(differing) else None
            start = start._replace(
                state=replace(start.state, serial=serial, config_hash=config.hash())
            )
        checkpoint.set_aside_after(start.path)
        model = build_model(run.config, spec)
        load_network(model.network, start.path)
        return go(run, spec, machine, model, make_env, start, damaged=damaged)


def find_checkpoint(run_or_checkpoint: str | Path) -> tuple[checkpoint.Checkpoint, Run]:
    """A run's newest checkpoint, or the one that is named, and its run."""
    path = Path(run_or_checkpoint)
    if path.parent.name in ("checkpoints", "best"):
        run = Run.open(path.parent.parent)
        return checkpoint.Checkpoint(path, checkpoint.read_state(path)), run
    run = Run.open(path)
    return run.newest_checkpoint(), run


def load_agent(
    run_or_checkpoint: Run | str | Path,
    make_env: MakeEnv | None = None,
    *,
    checkpoint: str = "newest",
    seed: int = 0,
    trust: bool = False,
) -> Agent:
    """Load the agent of a run's newest checkpoint, of its ``best`` or of another one, by its number
    of updates; or of a checkpoint's own folder (``runs/x/checkpoints/1000``, ``runs/x/best/1000``).
    ``seed`` is for the temperatures and actions it draws. A run that was trained with ``make_env``
    needs it again. ``trust`` allows to import a module that its config.json names.
    """
    if isinstance(run_or_checkpoint, Run):
        run_or_checkpoint = run_or_checkpoint.directory
    if checkpoint != "newest":
        run_or_checkpoint = Run.open(run_or_checkpoint).checkpoint(checkpoint)
    found, run = find_checkpoint(run_or_checkpoint)
    config = run.config
    require_all(config.env, run.directory / "config.json", trust, own=make_env is not None)
    own_torso.require(config, run.directory / "config.json", trust)
    model = build_model(config, env_spec(config, make_env))
    load_network(model.network, found.path)
    votes = found.state.temperatures
    with fitting(found.path):
        behaviours = Behaviours(config, len(votes["votes"]))
        behaviours.load_state_dict(votes)
    return Agent(model, behaviours.evaluation_region(), seed)
