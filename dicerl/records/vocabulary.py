"""The fields of a line of metrics.jsonl: each is declared here once, with its unit and meaning.

Code that writes a field with a variable part in its name takes the name from here
(``stage_field``, ``tile_field``, ``FAVOURED.name`` ...); code that reads fields takes names and
units from ``LINES``. ``docs/metrics.md`` is generated from these tables. No torch here: reports
read runs without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dicerl.core import family


def label(name: str) -> str:
    """The name of a field or of a number in words, as a person is shown it: "policy lag" for
    policy_lag, "1/tau low" for inv_temperature_low.
    """
    return name.replace("inv_temperature", "1/tau").replace("_", " ")


@dataclass(frozen=True)
class Field:
    """One field. ``unit`` is also the title of its axis; for a number without a unit it is a
    formula or a symbol.
    """

    name: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Family:
    """Fields that differ in one word of their name.

    ``pattern`` holds that word in angle brackets, ``members`` are its values. ``unit`` is None
    where each field has its member's unit.
    """

    pattern: str
    unit: str | None
    meaning: str
    members: tuple[Field, ...]

    def name(self, member: str) -> str:
        """The name of one member's field, for example favoured_epsilon for epsilon."""
        before, _, rest = self.pattern.partition("<")
        return before + member + rest.partition(">")[2]

    def fields(self) -> tuple[Field, ...]:
        """The fields, one for each member."""
        return tuple(
            Field(self.name(m.name), self.unit or m.unit, f"{self.meaning}: {m.meaning}")
            for m in self.members
        )


# --- what the families are made of

# What an episode may draw, by the family of its behaviour policy.
NUMBERS = (
    Field("inv_temperature", "1/τ", "inverse temperature; 0 is uniform, large is greedy"),
    Field("epsilon", "ε", "probability of a uniform action in the family `epsilon`"),
    Field("inv_temperature_low", "1/τ₁", "the lower inverse temperature of a `mixture`"),
    Field("inv_temperature_high", "1/τ₂", "the higher inverse temperature of a `mixture`"),
    Field("weight_low", "w", "weight of the lower inverse temperature of a `mixture`"),
)
NUMBER_NAMES = tuple(p.name for p in NUMBERS)
# those of families that draw several numbers: each number has its own vote
_OF_SEVERAL = tuple(
    p for p in NUMBERS if any(p.name in x for x in family.NUMBERS.values() if len(x) > 1)
)

# Where the time of an actor and of the learner goes. The remainder to 1 is everything else.
_TIME = "share of time"
_ACTOR = (
    Field("environment", _TIME, "steps of the environments"),
    Field("inference", _TIME, "the network, and the choice of actions"),
    Field("copying", _TIME, "windows into the collector"),
    Field("waiting", _TIME, "for a free slot of the collector (not in `serial`)"),
)
_LEARNER = (
    Field("training", _TIME, "losses, gradients and the optimizer's step"),
    Field("copying", _TIME, "batches out of the collector"),
    Field("pushing", _TIME, "parameters to the actors"),
    Field("starved", _TIME, "waiting for data (not in `serial`)"),
)
ACTOR_STAGES = tuple(stage.name for stage in _ACTOR)
LEARNER_STAGES = tuple(stage.name for stage in _LEARNER)
STAGES_OF = {"actor": ACTOR_STAGES, "learner": LEARNER_STAGES}

# The machines of a cluster: lists, all in the order of ``nodes``.
_NODES = (
    Field("nodes", "list of addresses", "Machines that have actors (runtime `ray`)"),
    Field("node_actors", "list of actors", "On each of them"),
    Field("node_steps_per_s", "list of agent steps / s", "Of each, since the train line before"),
    Field("node_waiting", "list of shares of time", "`actor_waiting` of each"),
)
NODE_FIELDS = tuple(field.name for field in _NODES)

# Statistics of the evaluation episodes: of those with drawn behaviours, and of the greedy ones.
_SCORES = (
    Field("mean_return", "return", "mean"),
    Field("median_return", "return", "median"),
    Field("stderr", "return", "standard error of the mean; 0 of a single episode"),
    Field(
        "interval", "two returns", "95 % interval of the mean (Student's t); null of one episode"
    ),
    Field("returns", "list of returns", "of each episode"),
)

# --- the families

ACTOR_TIME = Family("actor_<stage>", None, "The actors' time, their mean", _ACTOR)
LEARNER_TIME = Family("learner_<stage>", None, "The learner's time", _LEARNER)
DRAWN = Family("<number>", None, "Drawn for this episode", NUMBERS)
EVALUATED = Family("<number>s", None, "Of each episode, greedy ones aside (list)", NUMBERS)
BATCH_MEAN = Family("<number>_mean", None, "Mean over the batch", NUMBERS)
FAVOURED = Family(
    "favoured_<number>", None, "Middle of the region that the vote values most", NUMBERS
)
TILE_VALUES = Family(
    "tile_values_<number>",
    "list of returns",
    "`tile_values` of each, where an episode draws several",
    _OF_SEVERAL,
)
TILE_VISITS = Family(
    "tile_visits_<number>",
    "list of episodes",
    "`tile_visits` of each, where an episode draws several",
    _OF_SEVERAL,
)
GREEDY = Family("greedy_<score>", None, "Return of the greedy episodes", _SCORES)


def stage_field(who: str, stage: str) -> str:
    """The name of the field with a stage's share of the time.

    ``who`` is actor or learner, ``stage`` one of its ``STAGES_OF``; the result is for example
    learner_starved.
    """
    return {"actor": ACTOR_TIME, "learner": LEARNER_TIME}[who].name(stage)


def stage_fields(who: str, fractions: dict[str, float]) -> dict[str, float]:
    """The shares of the time by stage, under their fields' names."""
    return {stage_field(who, stage): fraction for stage, fraction in fractions.items()}


STAGE_FIELDS = tuple(stage_field(who, stage) for who in STAGES_OF for stage in STAGES_OF[who])


def tile_field(what: str, number: str, several: bool) -> str:
    """The name of the field with the tiles of the vote over one number of the behaviour.

    ``what`` is tile_values or tile_visits; ``number`` is part of the name only if the family draws
    ``several``.
    """
    tiles = {"tile_values": TILE_VALUES, "tile_visits": TILE_VISITS}[what]
    return tiles.name(number) if several else what


# --- the kinds of lines


@dataclass(frozen=True)
class Kind:
    """A kind of line, and what it holds besides the ``COMMON`` fields. The numbers of a
    ``tensorboard`` kind are also written to TensorBoard.
    """

    name: str
    meaning: str
    tensorboard: bool
    contents: tuple[Field | Family, ...]


COMMON = (
    Field("kind", "", "train, episode, evaluation or event"),
    Field("time", "seconds since 1970", "When the line was written"),
    Field("agent_steps", "steps", "Actions chosen by all actors so far"),
    Field("frames", "frames", "Steps of the environments so far: `agent_steps` × action repeat"),
    Field("updates", "learner updates", "Batches trained so far"),
)

TRAIN = Kind(
    "train",
    "The learner's diagnostics of one batch, every `log_every` updates.",
    True,
    (
        # losses; means over the batch's valid steps
        Field("loss", "", "Weighted sum of the losses: what is minimised"),
        Field("loss_value", "½ (V-Trace target − V)²", "Loss of V; `casa`: DR-Trace's target"),
        Field("loss_q", "½ (ReTrace target − Q)²", "Loss of Q; `casa`: DR-Trace's target"),
        Field("loss_policy", "surrogate; its gradient matters", "Loss of the policy"),
        Field("loss_auxiliary", "", "Forward- and inverse-dynamics losses, where they are on"),
        Field("entropy_bonus", "τ × nats", "The entropy bonus before its coefficient; 0 when off"),
        Field("alpha_mean", "", "Drawn coefficients of the Q loss, mean (`random_scaling`)"),
        Field("alpha_std", "", "Their deviation"),
        Field("beta_mean", "", "Drawn coefficients of the policy loss, mean (`random_scaling`)"),
        Field("beta_std", "", "Their deviation"),
        Field("gradient_norm", "", "Norm of the gradient before it is clipped"),
        Field("gradient_norm_median", "", "Its running median over updates"),
        Field(
            "gradient_spikes",
            "learner updates",
            "Since the last line: norm far above its running quartiles (parts/spikes.py)",
        ),
        Field(
            "updates_skipped",
            "learner updates",
            "So far: loss or gradient was not finite, and nothing was changed",
        ),
        Field("learning_rate", "", "Of this update"),
        Field("weight_decay", "", "Of this update"),
        # the policy and its ratios
        Field("entropy", "nats", "Mean entropy of the policies that acted, each at its own τ"),
        Field("ratio_mean", "mean of π / μ", "Importance ratio: target policy / acting policy"),
        Field("ratio_max", "π / μ", "The largest ratio"),
        Field("ratio_std", "π / μ", "The ratios' deviation"),
        Field("rho_clipped", "share of ratios", "Above `loss.rho_bar`"),
        Field("c_clipped", "share of ratios", "Above `loss.c_bar`"),
        # V, A and the features
        Field("value_mean", "shaped return", "Mean of V"),
        Field("value_std", "shaped return", "Deviation of V over the batch"),
        Field("value_explained", "1 − var(error) / var(target)", "1: V predicts its targets"),
        Field("advantage_std", "shaped return", "Deviation of A over actions, mean over steps"),
        Field("advantage_scale", "shaped return", "Running mean of that deviation"),
        Field(
            "return_size",
            "shaped return",
            "Unit of the learner's rewards, V and A, with `env.reward_unit` returns",
        ),
        Field("target_advantage_std", "shaped return", "Deviation of the policy loss's advantage"),
        Field("dead_units", "share of units", "Features that are the same at every step"),
        Field("feature_spread", "", "Deviation of a feature over the batch, mean over features"),
        # temperatures
        BATCH_MEAN,
        FAVOURED,
        Field("favoured_at_end", "0 or 1", "1: that region is the greedy end of what is searched"),
        Field("tile_values", "list of returns", "Value of every tile of the first vote"),
        Field("tile_visits", "list of episodes", "Episodes that fell into every tile of it so far"),
        TILE_VALUES,
        TILE_VISITS,
        Field("trainable_inv_temperature", "1/τ", "Value of a trained temperature"),
        Field("trainable_gradient", "", "Its gradient, with respect to log(1/τ), after the clip"),
        # where the data comes from
        Field(
            "policy_lag",
            "learner updates",
            "From acting to training, mean since the last line; of new sequences, not of replayed",
        ),
        Field("policy_lag_max", "learner updates", "The same, at most"),
        Field("sequence_age", "seconds", "From acting to training, mean over the batch"),
        Field("valid_fraction", "share of steps", "Steps of the batch other than reset steps"),
        Field("queued_sequences", "sequences", "In the collector, waiting for the learner"),
        Field("reuse_served", "uses", "Uses so far for each sequence received"),
        Field("produced_sequences", "sequences", "Written by actors so far"),
        Field("trained_uses", "uses", "Uses of those in batches so far, without replayed ones"),
        Field("waiting_uses", "uses", "Uses still due to those in the collector or under way"),
        Field("dropped_uses", "uses", "Lost with a learner, or by going back to a checkpoint"),
        Field("lost_sequences", "sequences", "Begun by actors that died before they were complete"),
        Field("kept_sequences", "sequences", "Kept for replay, where it is on"),
        Field("replayed_fraction", "share of sequences", "Of those trained so far: from replay"),
        # progress and time
        Field("episodes", "episodes", "Ended so far"),
        Field("recent_return", "return", "Mean of the last 100 episodes; from the first one on"),
        Field("frames_per_s", "frames / s", "Since the train line before"),
        Field("elapsed", "seconds", "Time of training so far, without what lay between resumes"),
        ACTOR_TIME,
        LEARNER_TIME,
        *_NODES,
    ),
)

EPISODE = Kind(
    "episode",
    "A training episode that ended. Each of a run's first 200,000 has a line, then every second,"
    " from 400,000 on every fourth, and so on: the log of a long run grows with the logarithm of"
    " their number. `episodes` of the train lines counts all of them, and callbacks see all.",
    False,
    (
        Field("return", "return", "Sum of its raw rewards"),
        Field("length", "steps", "Agent steps"),
        DRAWN,
        Field("actor", "", "Number of the actor that played it"),
    ),
)

EVALUATION = Kind(
    "evaluation",
    "Episodes apart from training, every `evaluation.every` frames and at the end: as many with"
    " behaviours from the vote's best region as greedy ones. `evaluations.jsonl` holds these lines"
    " again.",
    True,
    (
        *(Field(f.name, f.unit, f"Return at drawn behaviours: {f.meaning}") for f in _SCORES),
        GREEDY,
        Field("episodes", "episodes", "Of each of the two sorts"),
        EVALUATED,
        Field("version", "learner updates", "Behind the parameters that were evaluated"),
    ),
)

EVENT = Kind(
    "event",
    "Something that happened once.",
    False,
    (
        Field(
            "event",
            "",
            "start, resume, restarted, checkpoint, checkpoint_damaged, actor_crashed,"
            " actor_replaced, actor_added, learner_crashed, learner_replaced, evaluator_died,"
            " update_skipped, rolled_back or failed",
        ),
        Field("version", "", "start, resume: version of dicerl"),
        Field("commit", "", "start, resume: its git commit, where it has one"),
        Field("precision", "", "start, resume: of the torso (`runtime.precision`)"),
        Field("bandits", "", "start: mode, width and learning rate of each bandit, by vote"),
        Field("reason", "", "Why, in words"),
        Field("traceback", "", "Of a crash"),
        Field("actor", "", "Number of the actor"),
        Field("incarnation", "", "actor_added: the number of that actor's life"),
        Field("learner", "", "learner_replaced: its number, from 0"),
        Field("restarts", "", "How often that part died within `runtime.restart_window`"),
        Field("lost", "sequences", "actor_replaced: begun by that actor, and lost with it"),
        Field("dropped", "uses", "learner_replaced: of sequences that only that learner had"),
        Field("redone", "steps", "rolled_back: agent steps since that checkpoint, done again"),
        Field(
            "books",
            "",
            "checkpoint: where every sequence went so far. `produced` sequences have `due` uses;"
            " each of these is `trained`, `dropped`, or `waiting` (in flight): the sum holds."
            " `lost`: sequences begun and lost, by actor; `replayed`: uses beside those",
        ),
        Field("batch", "", "update_skipped: file with the batch, for the first few"),
    ),
)

KINDS = (TRAIN, EPISODE, EVALUATION, EVENT)


def _expanded(contents: Iterable[Field | Family]) -> dict[str, Field]:
    fields = [f for x in contents for f in (x.fields() if isinstance(x, Family) else (x,))]
    return {f.name: f for f in fields}


# {kind: {name: Field}}: every field that a line may hold, by name
LINES = {kind.name: _expanded((*COMMON, *kind.contents)) for kind in KINDS}


def declared(kind: str, *names: str) -> tuple[str, ...]:
    """``names``, after checking that they are fields of a ``kind`` of line.

    An undeclared name raises KeyError: a misspelt one would read as "no data".
    """
    return tuple(LINES[kind][name].name for name in names)
