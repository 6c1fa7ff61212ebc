"""The Python API: ``train(config)``, ``resume(run)``, ``load_agent(run)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dicerl.agent.actor_critic import ActorCritic, sample
from dicerl.agent.behaviour import Behaviours, Region
from dicerl.agent.networks import Network
from dicerl.config import Config, validate
from dicerl.core.family import NUMBERS
from dicerl.envs import MakeEnv, callable_id, env_spec
from dicerl.errors import CheckpointError, DicerlError
from dicerl.records import checkpoint
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.runtime import precision
from dicerl.runtime.base import OnBatch
from dicerl.runtime.launch import run_to_end
from dicerl.runtime.setup import build_model, plan, prepare_model


def train(
    config: Config,
    make_env: MakeEnv | None = None,
    *,
    quiet: bool = False,
    on_batch: OnBatch | None = None,
) -> Run:
    """Train a new run to its end or until Ctrl-C; return it, with its directory and a summary.

    ``make_env`` makes one environment and overrides ``config.env.id``. ``on_batch(learner, batch)``
    is called with every batch before it is trained, in the process of the learner that trains it.
    """
    config = validate(config)
    if make_env is not None:
        config = config.replace(**{"env.id": callable_id(make_env)})
    spec = env_spec(config, make_env)
    machine = plan(config, spec)
    config = precision.resolved(config, spec, machine.runtime, machine.device)
    model = prepare_model(config, spec, make_env)
    run = Run.create(config)
    return run_to_end(run, spec, machine, model, make_env, quiet=quiet, on_batch=on_batch)


def resume(
    run_dir: str | Path,
    make_env: MakeEnv | None = None,
    *,
    quiet: bool = False,
    on_batch: OnBatch | None = None,
) -> Run:
    """Continue a run from its newest intact checkpoint; return it as ``train`` does.

    A run that ended before its first checkpoint starts from the beginning. A run that was trained
    with ``make_env`` needs it again.
    """
    run = Run.open(run_dir)
    spec = env_spec(run.config, make_env)
    machine = plan(run.config, spec)
    run.lock()
    progress = Progress("", quiet)
    if not checkpoint.checkpoints_of(run.directory):
        progress.say(f"{run.directory} has no checkpoint yet; starting from the beginning")
        model = prepare_model(run.config, spec, make_env)
        return run_to_end(run, spec, machine, model, make_env, quiet=quiet, on_batch=on_batch)
    damaged: list[str] = []

    def passed_over(line: str) -> None:
        damaged.append(line)
        progress.say(line)

    start = run.newest_checkpoint(passed_over)
    model = build_model(run.config, spec)
    load_network(model.network, start.path)
    return run_to_end(
        run, spec, machine, model, make_env, start, quiet=quiet, on_batch=on_batch, damaged=damaged
    )


def load_network(network: Network, path: Path) -> None:
    """Load the model tensors of the checkpoint in the folder ``path`` into ``network``."""
    try:
        network.load_state_dict(checkpoint.read_tensors(path, "model"))
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} does not fit its run's network: {str(error).splitlines()[-1].strip()}"
        ) from None


class Agent:
    """A trained network that acts, with behaviours from ``region`` (in x)."""

    def __init__(self, model: ActorCritic, region: Region, seed: int = 0) -> None:
        self.config, self.spec, self.model, self.region = model.config, model.spec, model, region
        model.network.eval()
        self._rng = np.random.default_rng(seed)
        self._behaviour = np.zeros((0, len(region)), np.float32)  # [N, numbers], current episodes

    @property
    def network(self) -> Network:
        """The model's network, with the weights of the checkpoint."""
        return self.model.network

    def initial_state(self, batch: int = 1) -> torch.Tensor:
        """The recurrent state at the start of ``batch`` episodes.    [2, batch, H]"""
        return self.model.initial_state(batch)

    def act(
        self,
        observation: np.ndarray,
        state: torch.Tensor | None = None,
        inv_temperature: float | np.ndarray | None = None,
        *,
        greedy: bool = False,
    ) -> tuple[Any, torch.Tensor]:
        """Choose the action for one observation, or actions [N] for a batch [N, ...]; return
        (action, next state).

        Start an episode with ``state=None``: unless ``inv_temperature`` is given, its tau is then
        drawn from the bandits' best region and kept for the episode. ``greedy`` takes A's best
        action instead of sampling.
        """
        single = np.ndim(observation) == len(self.spec.observation_shape)
        batch = np.ascontiguousarray(observation, self.spec.observation_dtype)
        batch = batch[None] if single else batch
        if batch.shape[1:] != self.spec.observation_shape:
            raise DicerlError(
                f"an observation has shape {np.shape(observation)}; {self.spec.name} gives"
                f" {self.spec.observation_shape}"
            )
        if self.config.network.last_action_reward:
            raise DicerlError(
                "this network also takes the last action and reward, which act is not given; call"
                " model.step"
            )
        n = len(batch)
        nothing = np.zeros(n, np.float32)
        step = self.model.step(
            batch,
            self.initial_state(n) if state is None else state,
            nothing,
            nothing,
            self._choose(n, state is None, inv_temperature, greedy),
        )
        chosen = step.greedy() if greedy else sample(step.log_pi, self._rng)
        action = chosen + self.spec.first_action
        return (int(action[0]) if single else action), step.state

    def _choose(
        self, n: int, begins: bool, inv_temperature: float | np.ndarray | None, greedy: bool
    ) -> np.ndarray:
        """The behaviours of n episodes.    [n, numbers]"""
        if inv_temperature is not None:
            if NUMBERS[self.config.behaviour.family] != ("inv_temperature",):
                raise DicerlError(
                    f"inv_temperature is {inv_temperature}, but this agent's family is"
                    f" {self.config.behaviour.family}; leave it out"
                )
            given = np.broadcast_to(np.asarray(inv_temperature, np.float32), (n,))[:, None].copy()
            if not np.isfinite(given).all() or (given < 0).any():
                raise DicerlError(
                    f"inv_temperature is {inv_temperature}; it must be 0 or more, and finite"
                )
            return given
        if greedy:  # a conditioned network gets the middle of the best region as its input
            middle = [((low + high) / 2,) * 2 for low, high in self.region]
            return self.model.draw(middle, np.random.default_rng(0), n)
        if begins or len(self._behaviour) != n:
            self._behaviour = self.model.draw(self.region, self._rng, n)
        return self._behaviour


def load_agent(run_or_checkpoint: Run | str | Path, make_env: MakeEnv | None = None) -> Agent:
    """Load the agent of a run's newest checkpoint, or of one checkpoint
    (``runs/x/checkpoints/1000``, ``runs/x/best/1000``). A run that was trained with ``make_env``
    needs it again.
    """
    if isinstance(run_or_checkpoint, Run):
        run_or_checkpoint = run_or_checkpoint.directory
    path = Path(run_or_checkpoint)
    if path.parent.name in ("checkpoints", "best"):
        run = Run.open(path.parent.parent)
        found = checkpoint.Checkpoint(path, checkpoint.read_state(path))
    else:
        run = Run.open(path)
        found = run.newest_checkpoint()
    model = build_model(run.config, env_spec(run.config, make_env))
    load_network(model.network, found.path)
    votes = found.state.temperatures
    behaviours = Behaviours(run.config, len(votes["votes"]))
    behaviours.load_state_dict(votes)
    return Agent(model, behaviours.evaluation_region())
