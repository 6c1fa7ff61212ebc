"""The configuration: frozen dataclasses. Each number has its range beside it, and each field from
the paper's hyperparameter table names its row.

The defaults are the paper's numbers; `presets.py` states what each preset changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dicerl.config.fields import (
    RENAMED,
    Leaves,
    Reference,
    flatten,
    is_object,
    leaves_of,
    override,
    row,
)
from dicerl.errors import ConfigError

# Fields that are no part of the hash of a config in which they have their default.
ADDED = (
    ("env", "reward_unit"),
    ("env", "kwargs"),
    ("env", "wrappers"),
    ("env", "vector"),
    ("bandit", "memory"),
    ("bandit", "min_visits"),
    ("bandit", "record"),
    ("collector", "replay_memory"),
    ("optimizer", "decay"),
    ("runtime", "precision"),
    ("runtime", "restart_window"),
    ("checkpoint", "exact"),
    ("ray", "address"),
    ("ray", "cpus_per_actor"),
    ("init", "run"),
    ("init", "vote"),
    ("evaluation", "stop_at"),
    ("", "log"),
)


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and the reward as the learner sees it."""

    id: str = row(
        "",
        "Atari game (pong, Pong, ALE/Pong-v5) or Gymnasium id (CartPole-v1, module:MyEnv-v0); it"
        " has no default",
    )
    action_repeat: int = row(
        4, "Atari: frames an action is repeated for", range=(1, 64), paper="Num. Action Repeats"
    )
    frame_stack: int = row(
        4, "Atari: frames in one observation", range=(1, 64), paper="Num. Frame Stacks"
    )
    image_size: int = row(
        84, "Atari: height and width of a frame", range=(16, 512), paper="Image Size"
    )
    full_action_space: bool = row(
        True, "Atari: all 18 actions instead of the game's own", paper="Action Space"
    )
    noop_max: int = row(
        30,
        "Atari: up to this many random no-ops at an episode's start",
        range=(0, 10_000),
        paper="Random No-ops",
    )
    episodic_life: bool = row(
        False, "Atari: end the episode when a life is lost", paper="End of Episode When Life Lost"
    )
    sticky_actions: float = row(
        0.0, "Atari: probability that the last action is repeated instead", range=(0, 0.999)
    )
    max_episode_frames: int = row(
        108_000, "Atari: frames after which an episode is truncated", range=(1, 1e9)
    )
    reward_shape: Literal["log", "none"] = row(
        "log",
        "reward for the learner: log(|r|+1) * (2 if r >= 0 else -1), or as it is",
        paper="Reward Shape",
    )
    reward_scale: float = row(
        1.0, "factor on the reward for the learner, before its shape", range=(1e-9, 1e9)
    )
    reward_unit: Literal["fixed", "returns"] = row(
        "fixed",
        "of the learner's rewards, after their shape: 1, or a running size of the returns inside a"
        " window, so that rewards of any scale are learned alike",
    )
    kwargs: Mapping[str, Any] = row(
        {}, 'arguments of a Gymnasium environment, a JSON object: {"size": 9}; Atari takes none'
    )
    wrappers: tuple[str, ...] = row(
        (),
        "around each Gymnasium environment, the first one innermost:"
        " gymnasium.wrappers:FlattenObservation,my_module:MyWrapper",
    )
    vector: bool = row(
        False,
        "Gymnasium: all environments in one, by the vector_entry_point that it is registered with",
    )


@dataclass(frozen=True)
class NetworkConfig:
    """The network and its inputs."""

    torso: (
        Literal["auto", "light", "impala_deep", "impala_shallow", "minatar", "mlp"] | Reference
    ) = row(  # noqa: RUF009
        "auto",
        "auto: by observation (large image impala_deep, small image minatar, vector mlp); light:"
        " the same with impala_shallow for large images; module:Name: your own (docs/network.md)",
        paper="Backbone",
    )
    hidden: int | tuple[int, ...] = row(
        256,
        "width of the torso's dense layer (mlp: two of them), or of each of several: 256,128",
        range=(1, 65_536),
    )
    lstm: int = row(
        256, "LSTM units; 0 for a feed-forward network", range=(0, 65_536), paper="LSTM Units"
    )
    forget_bias: float = row(
        1.0,
        "initial bias of the LSTM's forget gate: above 0 it remembers from the start",
        range=(-10, 10),
    )
    skip: bool = row(
        False,
        "the heads see the torso beside the LSTM: what needs no memory is learned as without one",
    )
    last_action_reward: bool = row(
        False, "feed the last action and reward to the LSTM beside the torso"
    )
    normalise: Literal["auto", "none", "scale", "statistics"] = row(
        "auto",
        "inputs: as they are, x/255, or by per-element mean and deviation of random play; "
        "auto: scale for uint8 images, none otherwise",
    )
    statistics_steps: int = row(
        8192, "agent steps of random play for normalise=statistics", range=(1, 1e8)
    )
    statistics_floor: float = row(
        0.03, "added to every deviation, in units of the input's range", range=(1e-6, 1e6)
    )
    statistics_clip: float = row(5.0, "normalised inputs are cut here", range=(0.1, 1e6))
    initialisation: Literal["torch", "orthogonal"] = row(
        "torch", "of the weights; orthogonal also makes the A head small"
    )
    layer_norm: bool = row(False, "LayerNorm after the torso's dense layer")
    activation: Literal["relu", "tanh"] = row("relu", "of the mlp torso")


@dataclass(frozen=True)
class BehaviourConfig:
    """The family of behaviours, and the source of each episode's."""

    family: Literal["boltzmann", "epsilon", "mixture", "conditioned"] = row(
        "boltzmann",
        "of policies: exp(A/tau); eps-greedy; w pi_tau1 + (1-w) pi_tau2; exp(A/tau) of a network"
        " conditioned on tau",
    )
    source: Literal["bandit", "fixed", "distribution", "trainable"] = row(
        "bandit",
        "an episode's tau (or eps, or tau1, tau2, w): the bandits' vote, a fixed value, the"
        " bandits' initial distribution; trainable: tau is a parameter of the network",
    )
    inv_temperature: float = row(
        1.0, "1/tau where source is fixed, and where a trainable one starts", range=(0, 1e6)
    )
    epsilon: float = row(0.05, "eps where family is epsilon and source is fixed", range=(0, 1))
    mixture: tuple[float, ...] = row(
        (1.0, 10.0, 0.5), "1/tau1,1/tau2,w where family is mixture and source is fixed"
    )
    scale: Literal["raw", "normalised"] = row(
        "raw", "pi ~ exp(A/tau), or tau measured in units of A's own running deviation over actions"
    )


@dataclass(frozen=True)
class BanditConfig:
    """The bandits and their vote."""

    num_bandits: int = row(7, "bandits in the vote", range=(1, 10_000), paper="Num. Bandits")
    learning_rates: tuple[float, ...] = row(
        (0.05, 0.1, 0.2), "each bandit draws one", range=(0, 1000), paper="Bandit Learning Rate"
    )
    widths: tuple[int, ...] = row(
        (1, 2, 3), "each bandit draws one", range=(0, 1000), paper="Bandit Tiling Width"
    )
    num_candidates: int = row(
        7, "candidates a bandit proposes", range=(1, 10_000), paper="Num. Bandit Candidates"
    )
    ucb_scale: float = row(1.0, "c of the score", range=(0, 1e6), paper="Bandit UCB Scaling")
    max_inv_temperature: float = row(
        50.0,
        "1/tau is searched in [0, this]",
        range=(1e-6, 1e6),
        paper="Bandit Search Range for 1/tau",
    )
    accuracy: float = row(0.1, "tile width in x = log(1 + 1/tau)", range=(1e-4, 10))
    scope: Literal["run", "actor"] = row("run", "one vote for the run, or one for each actor")
    memory: int = row(
        0,
        "episodes after which a return is forgotten; returns are then judged by their distance from"
        " the running mean. 0: raw returns, as printed",
        range=(0, 1e9),
    )
    min_visits: int = row(1, "episodes a tile needs to be the best region", range=(1, 1e9))
    record: int = row(
        0,
        "episodes that say which region is best; an eighth of all, if that is more. 0: the bandits'"
        " values, as printed",
        range=(0, 1e9),
    )


@dataclass(frozen=True)
class SequenceConfig:
    """Sequences and batches."""

    burn_in: int = row(
        40,
        "steps before the trained ones that only warm the LSTM up",
        range=(0, 100_000),
        paper="Burn-in",
    )
    length: int = row(80, "trained steps T of a sequence", range=(1, 100_000), paper="Seq-length")
    batch: int = row(64, "sequences in a batch", range=(1, 1e6), paper="Batch size")
    reuse: int = row(2, "times each sequence is trained", range=(1, 1000), paper="Sample Reuse")


@dataclass(frozen=True)
class CollectorConfig:
    """Capacity of the collector, and replay."""

    capacity: int = row(
        0,
        "sequences the collector holds, those that actors record included; 0: by the numbers of"
        " environments, actors and learners. More is older data",
        range=(0, 1e8),
    )
    replay: float = row(
        0.0,
        "fraction of each batch that is drawn from older sequences, uniformly (LASER); 0: none",
        range=(0, 0.99),
    )
    replay_capacity: int = row(
        1024, "older sequences kept for replay, the newest ones", range=(1, 1e8)
    )
    replay_memory: float = row(
        0.0, "GiB that they may take at most, so fewer if they are large; 0: any", range=(0, 1e6)
    )


@dataclass(frozen=True)
class LossConfig:
    """The objective: critic, targets and loss weights."""

    critic: Literal["dueling", "casa"] = row(
        "dueling", "Q = V + A (DiCE), or Q = A - sg(pi).A + sg(V) (CASA)"
    )
    stop_pi: bool = row(True, "casa critic: no gradient through pi")
    stop_v: bool = row(True, "casa critic: no gradient of Q through V")
    estimator: Literal["vtrace+retrace", "drtrace", "vtrace+qtrace"] = row(
        "vtrace+retrace",
        "of V and Q: DiCE's; CASA's DR-Trace for both; V-Trace and DR-Trace's sum with Q in the"
        " place of V",
    )
    discount: float = row(0.997, "gamma", range=(0, 1), paper="Discount")
    value: float = row(1.0, "xi, weight of L_V", range=(0, 1e6), paper="V-loss Scaling")
    q: float = row(10.0, "alpha, weight of L_Q", range=(0, 1e6), paper="Q-loss Scaling")
    policy: float = row(10.0, "beta, weight of L_pi", range=(0, 1e6), paper="pi-loss Scaling")
    scaling: Literal["fixed", "random"] = row(
        "fixed",
        "alpha and beta as they are, or drawn from U[0, 2 alpha], U[0, 2 beta] for every sequence",
    )
    auxiliary: float = row(
        0.0,
        "weight of the forward-dynamics and of the inverse-dynamics loss; 0: none",
        range=(0, 1e6),
    )
    entropy: float = row(
        0.0, "coefficient of the entropy bonus", range=(0, 1e6), paper="Entropy Regularization"
    )
    entropy_scale: Literal["tau", "plain"] = row("tau", "the bonus: tau*H[pi_tau], or H[pi_tau]")
    rho_bar: float = row(
        1.05, "clip of rho", range=(1e-6, 1e6), paper="Importance Sampling Clip rho"
    )
    c_bar: float = row(1.05, "clip of c", range=(1e-6, 1e6), paper="Importance Sampling Clip c")
    retrace_bootstrap: Literal["sampled", "expected"] = row(
        "sampled", "Q at t+1: of the sampled action, or E_pi Q"
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, its schedules and the gradient clip."""

    learning_rate: float = row(5e-4, "peak learning rate", range=(0, 10), paper="Learning Rate")
    warmup: float = row(
        4000.0,
        "updates of linear warm-up; below 1: a fraction of the run",
        range=(0, 1e9),
        paper="Warmup Steps",
    )
    weight_decay: float = row(
        0.01, "annealed linearly to 0", range=(0, 10), paper="Weight Decay Rate"
    )
    decay: Literal["all", "matrices"] = row(
        "all",
        "what weight decay acts on: every parameter, or not biases, LayerNorm and a trainable tau",
    )
    beta1: float = row(0.9, "AdamW", range=(0, 0.9999999), paper="AdamW beta_1")
    beta2: float = row(0.98, "AdamW", range=(0, 0.9999999), paper="AdamW beta_2")
    eps: float = row(1e-6, "AdamW", range=(1e-12, 1), paper="AdamW eps")
    clip_norm: float = row(50.0, "gradient norm clip", range=(1e-9, 1e12), paper="AdamW Clip Norm")


@dataclass(frozen=True)
class RuntimeConfig:
    """Processes, threads, device, and how often parameters are exchanged."""

    kind: Literal["auto", "serial", "process", "ray"] = row(
        "auto",
        "one process taking turns; actor and learner processes of this machine; or those of a Ray"
        " cluster",
    )
    num_envs: int = row(160, "environments in all", range=(1, 100_000), paper="Num. Environments")
    num_actors: int = row(0, "actor processes; 0: by cores", range=(0, 4096))
    num_learners: int = row(
        0,
        "learner processes that train the same weights, each on batches of its own, or under ray"
        " each on its share of every batch; 0: by cores, or 1",
        range=(0, 64),
    )
    learner_threads: int = row(
        0, "threads that share each batch of a learner; 0: by cores", range=(0, 4096)
    )
    device: str = row("auto", "of the learner: auto, cpu, cuda, cuda:1")
    precision: Literal["auto", "float32", "bfloat16"] = row(
        "auto",
        "of an image's torso; auto: bfloat16 in the runtime process where a short measurement finds"
        " it faster, else float32",
    )
    push_every: int = row(
        25,
        "updates between pushes of parameters",
        range=(1, 1e6),
        paper="Learner Push Model Every n Steps",
    )
    pull_every: int = row(
        64, "steps between an actor's pulls", range=(1, 1e6), paper="Actor Pull Model Every n Steps"
    )
    stuck_seconds: float = row(
        120.0, "an actor that reports nothing for this long is replaced", range=(0.1, 1e6)
    )
    max_restarts: int = row(
        10,
        "how often a part that died (an actor, a learner, the evaluator; with --keep-going the"
        " supervisor) is replaced within restart_window, before the run ends with the reason",
        range=(0, 1e6),
    )
    restart_window: float = row(
        300.0,
        "seconds: what died longer ago does not count for max_restarts; those in which the part"
        " recorded, trained or saved nothing are left out",
        range=(1, 1e9),
    )


@dataclass(frozen=True)
class RayConfig:
    """The cluster of the runtime ``ray``."""

    address: str = row(
        "", "auto: the cluster this machine is part of; HOST:PORT; empty: Ray is started here"
    )
    cpus_per_actor: float = row(
        1.0, "CPUs that an actor takes of the cluster's", range=(0.01, 1024)
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluations during training."""

    every: int = row(1_000_000, "frames between evaluations; 0: none", range=(0, 1e13))
    episodes: int = row(
        16, "episodes with tau from the best region, and as many greedy ones", range=(1, 100_000)
    )
    max_steps: int = row(
        27_000, "agent steps after which an evaluation episode is cut", range=(1, 1e9)
    )
    stop_at: str = row(
        "", "a score: the run stops, with a checkpoint, when an evaluation reaches it; empty: never"
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    every: int = row(1_000_000, "frames between checkpoints; 0: only at the end", range=(0, 1e13))
    keep: int = row(3, "newest checkpoints kept", range=(1, 1e6))
    exact: bool = row(
        False,
        "runtime serial: a resumed run does bit for bit what an uninterrupted one does. For that,"
        " all episodes restart at each checkpoint; vote and metrics never learn of those cut"
        " short",
    )


@dataclass(frozen=True)
class InitConfig:
    """What a new run starts from."""

    run: str = row(
        "", "a run or checkpoint whose weights and input statistics it starts from; empty: new ones"
    )
    vote: bool = row(False, "whether it also starts from that run's vote")


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run; ``replace`` makes a changed copy."""

    preset: str = row("paper", "the preset this started from")
    variant: str = row("dice", "the paper's variant this started from")
    frames: int = row(
        200_000_000,
        "length of the run in frames: agent steps times action repeat",
        range=(1, 1e13),
        paper="Num. States",
    )
    seed: int = row(0, "root of every random stream", range=(0, 2**63 - 1))
    run_dir: str = row("", "where the run is written; empty: runs/<env>-<variant>-<seed>")
    log_every: int = row(
        50, "updates between diagnostics in metrics.jsonl and TensorBoard", range=(1, 1e9)
    )
    tensorboard: bool = row(True, "write TensorBoard files")
    log: Literal["none", "csv", "wandb", "mlflow"] = row(
        "none", "where metrics are logged besides metrics.jsonl and TensorBoard"
    )
    env: EnvConfig = field(default_factory=EnvConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    behaviour: BehaviourConfig = field(default_factory=BehaviourConfig)
    bandit: BanditConfig = field(default_factory=BanditConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    init: InitConfig = field(default_factory=InitConfig)

    def replace(self, **changes: Any) -> Config:
        """A copy with fields changed by dotted name: ``config.replace(frames=10, **{"loss.q": 1})``
        or ``loss__q=1``. Types are checked here, ranges by ``validate``.
        """
        return override(self, {k.replace("__", "."): v for k, v in changes.items()})

    @property
    def replayed(self) -> int:
        """The number of replayed sequences in each batch."""
        return round(self.collector.replay * self.sequence.batch)

    @property
    def precision(self) -> str:
        """What the torso is computed in. A run's own config names it (runtime/precision.py); where
        that is still ``auto``, in runs from before there was a choice, it is float32.
        """
        return "bfloat16" if self.runtime.precision == "bfloat16" else "float32"

    def to_dict(self) -> dict[str, Any]:
        """The config as nested dicts; ``from_dict`` reads them."""
        return dataclasses.asdict(self)

    def hash(self) -> str:
        """A digest that shows whether a checkpoint was written with the same config."""
        data = self.to_dict()
        for old, new in RENAMED.items():  # checkpoints from before the renaming still match
            (section, name), (present_section, present_name) = old.split("."), new.split(".")
            data[section][name] = data[present_section].pop(present_name)
        defaults = Config().to_dict()
        for section, name in ADDED:  # those from before a field was added, too
            place, default = (data[section], defaults[section]) if section else (data, defaults)
            if place[name] == default[name]:
                del place[name]
        data = {name: value for name, value in data.items() if value != {}}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def fields_of() -> Leaves:
    """Every leaf field of Config by dotted name: {"loss.q": (float, Field), ...}."""
    return leaves_of(Config)


def object_fields() -> set[str]:
    """The fields whose value is a JSON object, by dotted name."""
    return {name for name, (kind, _) in fields_of().items() if is_object(kind)}


def from_dict(data: dict[str, Any]) -> Config:
    """Build a config from its JSON form; unknown fields are refused by name. Older versions can be
    read as long as fields were only renamed.
    """
    if not isinstance(data, dict):
        raise ConfigError("config", data, "it must be a JSON object")
    objects = object_fields()
    for name in fields_of():
        if name in objects:
            continue
        value: Any = data
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value == {}:  # flatten takes it for a section without fields
            raise ConfigError(name, value, "it must be a value, not an object")
    return override(Config(), flatten(data, whole=objects))
