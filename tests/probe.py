"""For the plumbing tests: an environment whose stream is predictable, and a recorder of everything
the learner receives.

In the ``process`` runtime the environment lives in the actors and the recorder in the learner, so
both are found by import in the children, and the recorder writes files: ``<update>.npz`` with the
batch, ``<update>.npy`` with the flat parameters of that version (those the learner has before it
trains that batch; 0 is the initial version).
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.behaviour import Behaviours
from dicerl.agent.networks import Network
from dicerl.config import Config
from dicerl.config.presets import preset
from dicerl.core.family import NUMBERS
from dicerl.envs import EnvSpec, VectorEnv, env_spec, make_vector_env
from dicerl.envs.toy import Counting
from dicerl.parts.actor import Actor
from dicerl.parts.learner import Learner
from dicerl.parts.objective import Objective, draw_scaling, objective
from dicerl.parts.sequence import allocate, schema, window_length
from dicerl.records.progress import Progress
from dicerl.records.run import Run
from dicerl.runtime.base import RunContext
from dicerl.runtime.coordinator import Coordinator
from dicerl.runtime.setup import plan, prepare_model

PER_STEP = (
    "observation",
    "action",
    "reward",
    "discount",
    "valid",
    "log_prob",
    "inv_temperature",
    "scale",
    "version",
)
# of the other families
BEHAVIOUR = tuple(
    sorted({name for names in NUMBERS.values() for name in names} - {"inv_temperature"})
)
PER_WINDOW = ("state", "last_action", "last_reward", "stream", "created")
ACTIONS = 3  # where no environment says how many
WAIT = 90.0  # seconds for the actors to come up


# --- the environment ------------------------------------------------------------------------------


def episode_length(identity: float, episode: float) -> int:
    """1 to 23 steps."""
    return 1 + (int(identity) * 31 + int(episode) * 17) % 23


class Traced(Counting):
    """Counting that also shows the last action, with episode lengths that follow from identity and
    episode.
    """

    observation_space = Box(-np.inf, np.inf, (4,), np.float32)

    def __init__(self, stepped: Path | None = None) -> None:
        """``stepped`` is touched by the first step."""
        super().__init__()
        self._stepped = stepped

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._action = -1
        observation, info = super().reset(seed=seed)
        self._last = episode_length(self._identity, self._episode)
        return observation, info

    def _observe(self) -> np.ndarray:
        return np.append(super()._observe(), np.float32(self._action))

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._stepped is not None:
            self._stepped.touch()
            self._stepped = None
        self._action = action
        return super().step(action)


def expected_stream(identity: float, actions: np.ndarray, gamma: float) -> dict[str, np.ndarray]:
    """What ``Traced`` must give when these actions are taken, one row a step, reset steps
    included.
    """
    rows: dict[str, list[Any]] = {n: [] for n in ("observation", "reward", "discount", "valid")}
    episode = step = 0
    last_action = -1
    for action in actions.tolist():
        length = episode_length(identity, episode)
        ended = step == length  # the final observation: the action is ignored
        last = step + 1 == length
        rows["observation"].append((identity, episode, step, last_action))
        rows["valid"].append(not ended)
        rows["reward"].append(0.0 if ended else step + 1.0)
        # even episodes terminate, odd ones are truncated
        rows["discount"].append(0.0 if last and episode % 2 == 0 else gamma)
        episode, step, last_action = (episode + 1, 0, -1) if ended else (episode, step + 1, action)
    kinds = {
        "observation": np.float32,
        "reward": np.float32,
        "discount": np.float32,
        "valid": np.bool_,
    }
    return {n: np.array(r, kinds[n]) for n, r in rows.items()}


class Small(Traced):
    """Traced in numbers that a network takes as they are."""

    def _observe(self) -> np.ndarray:
        return super()._observe() / np.array([1 << 20, 10, 10, 4], np.float32)


@dataclass
class MakeTraced:
    """Makes ``Traced`` environments; a file records which process stepped one."""

    directory: Path | None = None

    def __call__(self) -> Traced:
        return Traced(self.directory and self.directory / f"stepped-by-{os.getpid()}")


def flat_state(model: ActorCritic) -> torch.Tensor:
    """A copy of a network's parameters and buffers."""
    return model.flat.vector.detach().clone()


@torch.no_grad()
def load_flat_state(model: ActorCritic, flat: torch.Tensor) -> None:
    model.flat.vector.copy_(flat)


# --- the recorder ---------------------------------------------------------------------------------


@dataclass
class Recorder:
    """An ``on_batch`` that keeps every batch and every version of the parameters.

    ``players``: the first batch is held back until this many processes have stepped environments,
    so that a quick actor cannot finish a short run alone. The collector is full by then: the actors
    wait.
    """

    directory: Path
    players: int = 0

    def __call__(self, learner: Any, batch: dict[str, np.ndarray]) -> None:
        end = time.monotonic() + WAIT
        while len(list(self.directory.glob("stepped-by-*"))) < self.players:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.players} processes should have stepped environments")
            time.sleep(0.02)
        self.players = 0
        name = f"{learner.updates:06d}"
        np.save(self.directory / f"{name}.npy", flat_state(learner.model).numpy())
        np.savez(self.directory / f"{name}-{os.getpid()}.npz", updates=learner.updates, **batch)


def load_batches(directory: Path) -> list[dict[str, np.ndarray]]:
    """Batches in the order of their updates; the shares of learners that train together are side
    by side.
    """
    batches: dict[str, dict[str, np.ndarray]] = {}
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as file:
            share = {n: file[n] for n in file.files}
        update = path.stem.split("-")[0]
        if update in batches:
            per_step = {n for n, x in share.items() if x.shape[:1] == share["valid"].shape[:1]}
            for name in share.keys() - {"updates"}:
                both = [batches[update][name], share[name]]
                batches[update][name] = np.concatenate(both, 1 if name in per_step else 0)
        else:
            batches[update] = share
    return list(batches.values())


def load_parameters(directory: Path) -> dict[int, torch.Tensor]:
    """Flat parameters by version."""
    return {int(p.stem): torch.from_numpy(np.load(p)) for p in sorted(directory.glob("*.npy"))}


# --- streams --------------------------------------------------------------------------------------


@dataclass
class Window:
    fields: dict[str, np.ndarray]  # [L, ...] or one value
    updates: list[int] = field(default_factory=list)  # that trained it


Key = tuple[int, int]  # actor incarnation, environment


def split(batch: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The sequences of a batch."""
    per_step = [n for n in (*PER_STEP, *BEHAVIOUR) if n in batch]  # a family has its own parameters
    return [
        {**{n: batch[n][:, i] for n in per_step}, **{n: batch[n][i] for n in PER_WINDOW}}
        for i in range(batch["valid"].shape[1])
    ]


def collect(batches: list[dict[str, np.ndarray]]) -> dict[Key, dict[int, Window]]:
    """stream -> number of the window -> window; each use of a window must show the same content."""
    streams: dict[Key, dict[int, Window]] = {}
    for batch in batches:
        for fields in split(batch):
            incarnation, env, number = fields["stream"].tolist()
            window = streams.setdefault((incarnation, env), {}).setdefault(number, Window(fields))
            for name, value in fields.items():
                assert np.array_equal(value, window.fields[name], equal_nan=True), (
                    f"{name} of {fields['stream']} changed between two uses"
                )
            window.updates.append(int(batch["updates"]))
    return streams


def rows(windows: dict[int, Window], burn_in: int) -> dict[str, np.ndarray]:
    """The trained steps of windows 0, 1, ... one after the other, then the bootstrap step of the
    last.
    """
    ordered = [windows[k].fields for k in range(len(windows))]
    return {
        n: np.concatenate([*(w[n][burn_in:-1] for w in ordered), ordered[-1][n][-1:]])
        for n in ordered[0]
        if n not in PER_WINDOW
    }


class Networks:
    """The network at each recorded version."""

    def __init__(self, config: Config, make_env: Any, parameters: dict[int, torch.Tensor]) -> None:
        self._config, self._spec, self._parameters = config, env_spec(config, make_env), parameters
        self._made: dict[int, Network] = {}

    def __getitem__(self, version: int) -> Network:
        if version not in self._made:
            model = ActorCritic(self._config, self._spec)
            load_flat_state(model, self._parameters[version])
            self._made[version] = model.network.eval()
        return self._made[version]


@dataclass
class Replay:
    state: np.ndarray  # [R, 2, H] before each step
    advantage: np.ndarray  # [R, A]
    scale: np.ndarray  # [R] of the acting version
    trained: np.ndarray  # [R] 1/tau of the acting version where it is trainable, else nan


@torch.inference_mode()
def replay(stream: dict[str, np.ndarray], networks: Networks) -> Replay:
    """Every step of a stream from its start, each with the parameters of the version that acted."""
    state, fresh = networks[int(stream["version"][0])].initial_state(1), True
    states, advantages, scales, trained = [], [], [], []
    # only a conditioned network looks at it
    temperatures = stream.get("inv_temperature", stream["scale"])
    for observation, version, valid, inv in zip(
        stream["observation"],
        stream["version"].tolist(),
        stream["valid"],
        temperatures,
        strict=True,
    ):
        network = networks[version]
        if fresh:
            state = torch.zeros_like(state)
        states.append(state[:, 0].numpy().copy())
        out = network.unroll(
            torch.from_numpy(observation)[None, None],
            state,
            None,
            inv_temperature=torch.tensor([[float(inv)]]),
        )
        advantages.append(out.advantage[0, 0].numpy())
        scales.append(float(network.advantage_scale))
        trained.append(
            math.nan
            if network.log_inv_temperature is None
            else network.log_inv_temperature.exp().item()
        )
        state, fresh = out.state, not valid
    return Replay(np.stack(states), np.stack(advantages), np.array(scales), np.array(trained))


# --- networks -------------------------------------------------------------------------------------


def observations(shape: tuple[int, ...], dtype: str, *lead: int, seed: int = 0) -> torch.Tensor:
    """Random ones.    [*lead, *shape]"""
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        return torch.from_numpy(rng.normal(size=(*lead, *shape)).astype(np.float32))
    return torch.from_numpy(
        rng.integers(0, 2 if dtype == "bool" else 256, (*lead, *shape)).astype(dtype)
    )


def step_by_step(
    network: Network,
    observation: torch.Tensor,
    state: torch.Tensor,
    first: torch.Tensor,
    last_action: torch.Tensor | None = None,
    last_reward: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The plainest reading of ``unroll``: one step at a time, one sequence at a time, the state
    zeroed at an episode's start.
    """
    steps, batch = observation.shape[:2]
    value, advantage, final = (
        torch.zeros(steps, batch),
        torch.zeros(steps, batch, ACTIONS),
        torch.zeros_like(state),
    )
    for b in range(batch):
        h, c = state[0, b].clone(), state[1, b].clone()
        for t in range(steps):
            if first[t, b]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            x = network.torso(observation[t, b][None])[0]
            if last_action is not None:
                one_hot = torch.zeros(ACTIONS)
                if last_action[t, b] >= 0:
                    one_hot[last_action[t, b]] = 1.0
                x = torch.cat([x, one_hot, last_reward[t, b][None]])
            if network.lstm is not None:
                lstm = network.lstm
                gates = (
                    lstm.weight_ih_l0 @ x
                    + lstm.bias_ih_l0
                    + lstm.weight_hh_l0 @ h
                    + lstm.bias_hh_l0
                )
                i, f, g, o = gates.chunk(4)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                x = torch.cat([h, x]) if network.config.skip else h
            value[t, b], advantage[t, b] = network.value_head(x)[0], network.advantage_head(x)
        final[0, b], final[1, b] = h, c
    return value, advantage, final


# --- an actor alone -------------------------------------------------------------------------------


def actor_of(config: Config, make_env: Any, num_envs: int = 2, **callables: Any) -> Actor:
    """An actor whose parameters never change; what it sends and ends goes nowhere unless a callable
    is given.
    """
    env = make_vector_env(config, num_envs, make_env)
    behaviours = Behaviours(config, 1)

    def next_behaviours(wanted: int) -> Any:
        drawn = [behaviours.next() for _ in range(wanted)]
        return lambda: drawn

    return Actor(
        ActorCritic(config, env.spec),
        env,
        rng=np.random.default_rng(0),
        env_seed=0,
        **{
            "get_parameters": lambda vector, version: None,
            "send_sequences": lambda windows: None,
            "end_episodes": lambda episodes: None,
            "next_behaviours": next_behaviours,
            **callables,
        },
    )


# --- batches that no actor made -------------------------------------------------------------------

BURN_IN = 4  # of learner_and_batch
CASA = {"loss.critic": "casa", "loss.estimator": "drtrace"}


def learner_and_batch(seed: int = 0, **changes: Any) -> tuple[Learner, dict[str, np.ndarray]]:
    """A learner and a batch of random content [11, 3]: a padded window, terminations and a
    truncation in burn-in and after it.
    """
    config = preset(
        "debug",
        **{
            "network.hidden": 12,
            "network.lstm": 7,
            "sequence.burn_in": BURN_IN,
            "sequence.length": 6,
            "sequence.batch": 3,
            **changes,
        },
    )
    spec = EnvSpec("test", (5,), np.dtype(np.float32), ACTIONS)
    rng = np.random.default_rng(seed)
    batch = allocate(schema(config, spec), window_length(config), config.sequence.batch)
    shape = batch["valid"].shape
    batch["observation"][...] = rng.normal(size=batch["observation"].shape)
    batch["action"][...] = rng.integers(ACTIONS, size=shape)
    batch["reward"][...] = 2 * rng.normal(size=shape)
    batch["discount"][...] = config.loss.discount
    batch["valid"][...] = True
    for step, sequence, terminated in ENDS:
        batch["valid"][step, sequence] = False
        batch["discount"][step - 1, sequence] = 0.0 if terminated else config.loss.discount
    batch["valid"][:2, 2] = False
    batch["log_prob"][...] = 0.3 * rng.normal(size=shape) - math.log(ACTIONS)
    for name in NUMBERS[config.behaviour.family]:
        batch[name][...] = (
            rng.uniform(0, 5, size=shape) if name.startswith("inv") else rng.uniform(size=shape)
        )
    batch["scale"][...] = (
        1.0 if config.behaviour.scale == "raw" else rng.uniform(0.5, 2.0, size=shape)
    )
    batch["version"][...] = 3
    batch["state"][...] = 0.5 * rng.normal(size=batch["state"].shape)
    batch["last_action"][...] = rng.integers(-1, ACTIONS, size=batch["last_action"].shape)
    batch["last_reward"][...] = rng.normal(size=batch["last_reward"].shape)
    batch["created"][...] = time.time() - 5.0
    torch.manual_seed(seed)
    return Learner(ActorCritic(config, spec), 1000), batch


# (reset step, sequence, terminated) of learner_and_batch
ENDS = ((2, 0, True), (7, 0, True), (8, 1, False))


def loss_of(learner: Learner, data: dict[str, torch.Tensor]) -> Objective:
    """The loss whose gradient the learner's next update of this batch applies."""
    scaling = draw_scaling(learner.config, learner.updates, learner.device)
    return objective(learner.model, data, scaling)


def gradients(learner: Learner, batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Gradients of a batch's loss by parameter name, by plain autograd."""
    data = tensors({n: a for n, a in batch.items() if n not in ("stream", "created")})
    learner.network.zero_grad(set_to_none=True)
    loss_of(learner, data).losses.total.backward()
    return {n: p.grad.clone() for n, p in learner.network.named_parameters()}


def tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {n: torch.from_numpy(a) for n, a in batch.items()}


def zeros(env: VectorEnv) -> np.ndarray:
    """The first action in every environment."""
    return np.zeros(env.num_envs, np.int64)


def context_of(directory: Path, make_env: Any = None, **changes: Any) -> RunContext:
    """What a runtime gets: a new run with the preset debug, in the directory."""
    config = preset("debug", **{"run_dir": str(directory), "tensorboard": False, **changes})
    spec = env_spec(config, make_env)
    machine, model = plan(config, spec), prepare_model(config, spec, make_env)
    run = Run.create(config)
    coordinator = Coordinator(config, spec, machine, run, Progress("", quiet=True))
    return RunContext(config, spec, machine, model, coordinator, make_env)
