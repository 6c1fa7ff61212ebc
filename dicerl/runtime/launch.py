"""Train a prepared run to its end: describe it, choose the runtime, stop on signals, close."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec, MakeEnv
from dicerl.errors import DicerlError
from dicerl.records.checkpoint import Checkpoint
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.runtime.base import OnBatch, RunContext, Runtime, Transport
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.machine import amount
from dicerl.runtime.setup import Plan


def run_to_end(
    run: Run,
    spec: EnvSpec,
    plan: Plan,
    model: ActorCritic,
    make_env: MakeEnv | None = None,
    start: Checkpoint | None = None,
    *,
    quiet: bool = False,
    on_batch: OnBatch | None = None,
    progress: Progress | None = None,
    stop_when: Callable[[], bool] = lambda: False,
    damaged: Sequence[str] = (),
) -> Run:
    """Train a locked run from ``start``, or from the beginning, to its end or until stopped by a
    signal or by ``stop_when``; return it with its summary.

    ``damaged`` are lines about checkpoints that were skipped, for the metrics.
    """
    config = run.config
    title = f"{spec.name} · {config.variant} · {plan.runtime} · {run.directory}"
    progress = progress or Progress(title, quiet)
    for line in describe(config, spec, plan, model, run):
        progress.say(line)
    state = None if start is None else start.state
    coordinator = Coordinator(config, spec, plan, run, progress, state)
    for reason in damaged:
        coordinator.event("checkpoint_damaged", reason=reason)
    if coordinator.collected_all():
        coordinator.close()
        run.unlock()
        run.summary["complete"] = True
        progress.say(
            f"this run is complete: {coordinator.frames:,} of {config.frames:,} frames; nothing to"
            " do"
        )
        return run
    if state is not None and state.config_hash != config.hash():
        progress.say(f"note: {run.directory}/config.json was changed since its newest checkpoint")
    complete = False
    try:
        with _stop_on_signals(progress) as stopped:
            runtime = make_runtime(
                RunContext(
                    config,
                    spec,
                    plan,
                    model,
                    coordinator,
                    make_env=make_env,
                    start=start,
                    stop=lambda: stopped() or stop_when(),
                    on_batch=on_batch,
                )
            )
            try:
                complete = runtime.run()
                coordinator.show(force=True)
            finally:
                runtime.close()
    except DicerlError as error:
        with contextlib.suppress(DicerlError):  # the metrics themselves may have failed
            coordinator.event("failed", reason=str(error))
        raise
    finally:
        progress.close()
        with contextlib.suppress(DicerlError):
            coordinator.close()
        run.unlock()
    run.summary["complete"] = complete
    progress.say(
        f"{'finished' if complete else 'stopped'} at {coordinator.frames:,} frames,"
        f" {coordinator.updates:,} updates; checkpoint in {run.directory}/checkpoints"
    )
    if not complete:
        progress.say(f"to continue: dicerl resume {run.directory}")
    return run


def make_runtime(context: RunContext) -> Runtime:
    """Make the runtime that the plan names."""
    if context.plan.runtime == "serial":
        from dicerl.runtime.serial import SerialRuntime

        return SerialRuntime(context)
    from dicerl.runtime.supervisor import Supervisor

    transport: Transport
    if context.plan.runtime == "ray":
        from dicerl.runtime.ray import RayTransport

        transport = RayTransport(context)
    else:
        from dicerl.runtime.processes import ProcessTransport

        transport = ProcessTransport(context)
    return Supervisor(context, transport)


def describe(config: Config, spec: EnvSpec, plan: Plan, model: ActorCritic, run: Run) -> list[str]:
    """The lines that describe a run before it starts."""
    network = model.network
    lstm = f"LSTM {config.network.lstm}" if config.network.lstm else "no LSTM"
    shape = "×".join(map(str, spec.observation_shape))
    return [
        f"dicerl: {spec.name} with {config.variant} (preset {config.preset}, seed {config.seed}),"
        f" {config.frames:,} frames, {plan.total_updates:,} updates",
        f"  observation {shape} {spec.observation_dtype}, {spec.num_actions} actions,"
        f" {config.runtime.num_envs} environments",
        f"  network {network.torso_name}, {lstm}, {network.num_parameters():,} parameters on"
        f" {plan.device} in {'bfloat16' if network.in_bfloat16 else 'float32'}, inputs"
        f" {network.normalise}",
        f"  runtime {plan.runtime} on {plan.cores} cores: {plan.num_actors} actor(s),"
        f" {plan.num_learners} learner(s) with {plan.learner_threads} thread(s)",
        f"  collector {plan.capacity} slots of {amount(plan.slot_bytes)}:"
        f" {amount(plan.store_bytes)}",
        f"  writing to {run.directory}",
    ]


@contextlib.contextmanager
def _stop_on_signals(progress: Progress) -> Iterator[Any]:
    """Yield a callable that returns whether to stop. Ctrl-C or SIGTERM requests a clean stop with a
    checkpoint; a second one stops at once.
    """
    asked, announced = threading.Event(), False
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    def stop() -> bool:
        nonlocal announced
        # printed here, not in the handler, which may have interrupted the drawing of the panel
        if asked.is_set() and not announced:
            announced = True
            progress.say("stopping after a checkpoint (again to stop at once)")
        return asked.is_set()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
