"""Train a prepared run to its end: describe it, choose the runtime, stop on signals, close."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dicerl.agent import own_torso
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config import Config
from dicerl.envs import EnvSpec, MakeEnv
from dicerl.envs.trust import is_own_cluster, is_trusted, module_of, names_in
from dicerl.errors import CheckpointError, DicerlError, Diverged, GoBack
from dicerl.records import checkpoint
from dicerl.records.callbacks import Callback, Callbacks
from dicerl.records.checkpoint import Checkpoint
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.runtime.base import OnBatch, RunContext, Runtime, Transport
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.keeper import kept
from dicerl.runtime.machine import SIGHUP, STOPPING, amount, open_standard_streams
from dicerl.runtime.setup import Plan, build_model, load_network


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
    vote: dict[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a locked run from ``start``, or from the beginning, to its end or until stopped by a
    signal or by ``stop_when``; return it with its summary.

    ``damaged`` are lines about checkpoints that were skipped, for the metrics; ``vote`` is the
    state of another run's vote that a new one starts from; ``callbacks`` are called at the run's
    moments (records/callbacks.py).
    """
    open_standard_streams()
    config = run.config
    title = f"{spec.name} · {config.variant} · {plan.runtime} · {run.directory}"
    progress = progress or Progress(title, quiet)
    for line in describe(config, spec, plan, model, run):
        progress.say(line)
    state = None if start is None else start.state
    called = Callbacks(callbacks, progress.say)
    coordinator = Coordinator(config, spec, plan, run, progress, state, vote, called)
    for reason in damaged:
        coordinator.event("checkpoint_damaged", reason=reason)
    if coordinator.complete():
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
    complete, received, diverged = False, list[int](), False
    keeper = kept()
    if keeper.reason:
        coordinator.healed("restarted", reason=f"the supervisor {keeper.reason}")
    called("start", run, coordinator.frames)
    try:
        with _stop_on_signals(progress, received, keeper.heard) as stopped:
            context = RunContext(
                config,
                spec,
                plan,
                model,
                coordinator,
                make_env=make_env,
                start=start,
                stop=lambda: stopped() or called.asks(stop_when),
                on_batch=on_batch,
                vote=vote,
            )
            while True:
                runtime = make_runtime(context)
                try:
                    complete = runtime.run()
                    break
                except GoBack as error:
                    if diverged and isinstance(error, Diverged):
                        raise DicerlError(
                            f"{error}, after going back to a checkpoint, too; try a smaller"
                            f" optimizer.learning_rate, then: dicerl resume {run.directory}"
                        ) from error
                    diverged = diverged or isinstance(error, Diverged)
                    loss, incarnation = error, runtime.incarnation + 1
                finally:
                    runtime.close()
                # or its memory would still be there when the next one takes as much
                del runtime
                loss.__traceback__ = None
                gc.collect()
                if _stopped_within(loss.pause, context.stop):
                    progress.say(f"{loss}; the run ends where it would have gone back to")
                    break
                context = _gone_back(context, loss, incarnation)
                coordinator = context.coordinator
            coordinator.show(force=True)
    except DicerlError as error:
        # the metrics themselves may have failed, or be closed
        with contextlib.suppress(DicerlError, ValueError):
            coordinator.event("failed", reason=str(error))
        raise
    finally:
        progress.close()
        with contextlib.suppress(DicerlError):
            coordinator.close()
        run.summary["complete"] = complete
        called("end", run)
        run.unlock()
    run.signal = 0 if complete or not received else received[0]
    saved = bool(checkpoint.checkpoints_of(run.directory))
    progress.say(
        f"{'finished' if complete else 'stopped'} at {coordinator.frames:,} frames,"
        f" {coordinator.updates:,} updates;"
        f" {f'checkpoint in {run.directory}/checkpoints' if saved else 'no checkpoint yet'}"
    )
    if not complete:
        trusted = all(is_trusted(module_of(n), imported=False) for n in names_in(config.env))
        trusted = trusted and own_torso.is_trusted(config.network.torso, imported=False)
        trusted = trusted and is_own_cluster(config)
        consent = "" if trusted else " --trust"
        progress.say(f"to continue: dicerl resume {run.directory}{consent}")
    if called.failure:
        raise DicerlError(called.failure)
    return run


def _stopped_within(seconds: float, stop: Callable[[], bool]) -> bool:
    """Wait, unless a stop is requested; return whether one is."""
    end = time.monotonic() + seconds
    while not stop():
        left = end - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, 0.1))
    return True


def _gone_back(context: RunContext, error: GoBack, incarnation: int) -> RunContext:
    """The run as it was at its last checkpoint that is good, but with new random streams and
    without the sequences of then: the same again might end the same. A run that lost its learner
    before the first checkpoint goes back to its beginning.
    """
    before, run = context.coordinator, context.coordinator.run
    start, model = None, context.model
    if isinstance(error, Diverged) or context.start or checkpoint.checkpoints_of(run.directory):
        try:
            found = checkpoint.newest(run.directory, before.progress.say, error.until)
        except CheckpointError:
            advice = "; try a smaller optimizer.learning_rate" * isinstance(error, Diverged)
            raise DicerlError(f"{error}; there is no checkpoint from before{advice}") from error
        checkpoint.set_aside_after(found.path)
        start = Checkpoint(found.path, replace(found.state, serial=None))
        model = build_model(context.config, context.spec)
        load_network(model.network, found.path)
    before.close()
    coordinator = Coordinator(
        context.config,
        context.spec,
        context.plan,
        run,
        before.progress,
        None if start is None else start.state,
        context.vote,
        before.callbacks,
    )
    coordinator.went_back(before, str(error))
    coordinator.progress.say(f"{error}; going back to update {coordinator.updates:,}")
    coordinator.callbacks("back", run, coordinator.frames)
    return replace(
        context, model=model, coordinator=coordinator, start=start, incarnation=incarnation
    )


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
def _stop_on_signals(
    progress: Progress, received: list[int], acknowledge: Callable[[], None] = lambda: None
) -> Iterator[Any]:
    """Yield a callable that returns whether to stop. Ctrl-C, SIGTERM or a terminal that closes
    requests a clean stop with a checkpoint; a second Ctrl-C or SIGTERM stops at once. ``received``
    gets their numbers; ``acknowledge`` is called for each.

    Signals only reach the main thread. A run in another one stops when the main thread has ended,
    as Ctrl-C ends it unless it is caught there.
    """
    announced = False
    if threading.current_thread() is not threading.main_thread():
        main = threading.main_thread()
        progress.say("note: not in the main thread, where Ctrl-C arrives; `stop` can end this run")
        yield lambda: not main.is_alive()
        return

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        acknowledge()
        # a closing terminal may say so twice, itself and through the shell, and systemd may send
        # its signal beside SIGTERM: only what is no SIGHUP counts
        if number != SIGHUP and sum(one != SIGHUP for one in received) > 1:
            raise KeyboardInterrupt(number)

    def stop() -> bool:
        nonlocal announced
        for number in heard:
            if signal.getsignal(number) is not handle:  # an environment, or its library, took it
                signal.signal(number, handle)
        # printed here, not in the handler, which may have interrupted the drawing of the panel
        if received and not announced:
            announced = True
            progress.say("stopping after a checkpoint (again to stop at once)")
        return bool(received)

    # one that closing the terminal shall not stop was started by nohup
    heard = [n for n in STOPPING if n != SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
