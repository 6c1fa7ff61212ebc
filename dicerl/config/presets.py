"""Presets and variants: each states only what differs from the paper's table (config.py's
defaults), and why.
"""

from __future__ import annotations

from typing import Any

from dicerl.config.config import Config, fields_of
from dicerl.config.fields import get, override
from dicerl.errors import ConfigError, nearest

PRESETS: dict[str, dict[str, Any]] = {
    # Exactly the paper's table.
    "paper": {},
    # Atari on few cores.
    "laptop": {
        "frames": 6_000_000,
        # Freeway's episodes take 8,192 frames: with 16 environments the bandits get their first
        # returns after 131k frames.
        "runtime.num_envs": 16,
        # The game's own actions (freeway has 3): all 18 are mostly doubles of them, each of which
        # must be learned alone.
        "env.full_action_space": False,
        # 3 x faster to train than the deep torso at this scale; no burn-in to pay for without the
        # LSTM.
        "network.torso": "impala_shallow",
        "network.lstm": 0,
        "sequence.burn_in": 0,
        # Plain x/255 leaves the features of one game nearly constant and kills ReLUs
        # (docs/architecture.md).
        "network.normalise": "statistics",
        "network.initialisation": "orthogonal",
        "network.layer_norm": True,
        # 1.5M agent steps / (8 * 20) = 9,375 updates: many small ones instead of few large ones.
        # Windows of 20 steps are soon complete: half the lag of 40.
        "sequence.length": 20,
        "sequence.batch": 16,
        # The second use of a sequence comes later and among others, not right after the first
        # (benchmarks/README.md). 3,000 sequences are 240k frames and take 0.5 GB; 600 learn pong
        # half a million frames later.
        "sequence.reuse": 1,
        "collector.replay": 0.5,
        "collector.replay_capacity": 3_000,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup": 200.0,
        # A short run needs a short horizon: less noise in every advantage.
        "loss.discount": 0.99,
        # Where rewards are rare the Q loss shrinks A until even 1/tau = 50 is uniform: freeway
        # never scores with the raw scale (docs/architecture.md).
        "behaviour.scale": "normalised",
        # In units of A's own scale 50 is as good as greedy: without sticky actions such episodes
        # repeat one another point by point, those that lose, too, and nothing is learned from them.
        # Up to 10, pong is learned half a million frames sooner, and kept (benchmarks/README.md).
        "bandit.max_inv_temperature": 10.0,
        # The bandits' best tile is often a lucky one: 0.91 of what can be had where returns are
        # noisy, 0.99 by record (tests/test_bandit_record.py).
        "bandit.record": 300,
        # 16 episodes, for an interval one can use; each evaluation takes a minute of one core.
        "evaluation.every": 2_000_000,
        "checkpoint.every": 500_000,
        # Near-greedy policies change with every update: 10 updates of lag left a mean ratio of 0.5
        # to 0.8, 1 to 2 leave it near 1. With these, lag is about 2 in `process`.
        "runtime.push_every": 1,
        "runtime.pull_every": 8,
    },
    # MinAtar: 1M agent steps / (4 * 20) = 12,500 updates.
    "minatar": {
        "frames": 1_000_000,
        # The network is so small that one process keeps up, and its results can be reproduced bit
        # for bit.
        "runtime.kind": "serial",
        "runtime.num_envs": 32,
        # The LSTM doubles breakout; alone it halves the speed of learning asterix, which the skip
        # around it gives back (benchmarks/README.md).
        "network.torso": "minatar",
        "network.hidden": 128,
        "network.lstm": 128,
        "network.skip": True,
        "sequence.burn_in": 10,
        "sequence.length": 20,
        # Each sequence is trained once when it is new and three times later: 32 environments at the
        # same moment of a game are no batch to learn features from. Two uses at once left V without
        # an idea of its targets on seaquest (0.1 of their variance explained; with replay 0.6).
        "sequence.batch": 16,
        "sequence.reuse": 1,
        "collector.replay": 0.75,
        "collector.replay_capacity": 4_000,
        "loss.discount": 0.99,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup": 200.0,
        # A is a few hundredths where single actions matter little: 1/tau = 50 of the raw scale is
        # still soft (asterix after 500k steps: 14 raw, 31 normalised, with replay).
        "behaviour.scale": "normalised",
        "env.reward_shape": "none",
        "env.reward_unit": "returns",
        "bandit.record": 300,  # as in laptop
        "evaluation.every": 250_000,
        "evaluation.episodes": 64,
        "evaluation.max_steps": 5_000,
        "checkpoint.every": 250_000,
        "runtime.push_every": 1,
        "runtime.pull_every": 4,
    },
    # Own environments and classic control: short runs, any scale of rewards.
    "classic": {
        "frames": 200_000,
        "runtime.kind": "serial",
        "runtime.num_envs": 16,
        "network.torso": "light",
        "network.hidden": 128,
        "network.activation": "tanh",
        "network.lstm": 0,
        # 200k steps / (4 * 20) = 2,500 updates: the number of updates matters most in short runs.
        # Each sequence is trained once when it is new and three times later: where an agent does
        # well, new ones are all alike, and it forgets the rest (benchmarks/README.md).
        "sequence.burn_in": 0,
        "sequence.length": 20,
        "sequence.batch": 16,
        "sequence.reuse": 1,
        "collector.replay": 0.75,
        "collector.replay_capacity": 4_000,
        "collector.replay_memory": 1.0,
        "loss.discount": 0.99,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup": 100.0,
        # In units of what is seen of returns: hundreds would take the value head most of a short
        # run to reach, hundredths would be lost in its first noise (benchmarks/README.md).
        "env.reward_shape": "none",
        "env.reward_unit": "returns",
        # Before replay, CartPole after 25k frames, ten seeds: 142; 99 without the memory, 111 with
        # the sampled Q.
        "bandit.memory": 50,
        "bandit.min_visits": 3,
        "bandit.record": 50,  # not more: a peak that moves is followed
        "loss.retrace_bootstrap": "expected",
        "evaluation.every": 50_000,
        "evaluation.episodes": 20,
        "evaluation.max_steps": 10_000,
        "checkpoint.every": 50_000,
        "runtime.push_every": 1,
        "runtime.pull_every": 1,
    },
    # Runs every part once, in seconds rather than minutes.
    "debug": {
        "frames": 4_000,
        "runtime.kind": "serial",
        "runtime.num_envs": 4,
        "runtime.push_every": 1,
        "runtime.pull_every": 4,
        "network.hidden": 32,
        "network.lstm": 16,
        # Atari: the deep torso on 84 x 84 frames alone would take a minute of CPU, and more threads
        # than free cores far longer.
        "env.image_size": 42,
        "runtime.learner_threads": 1,
        "runtime.num_learners": 1,
        "sequence.burn_in": 4,
        "sequence.length": 8,
        "sequence.batch": 4,
        "optimizer.warmup": 10.0,
        "log_every": 5,
        "evaluation.every": 2_000,
        "evaluation.episodes": 2,
        "evaluation.max_steps": 100,
        "checkpoint.every": 2_000,
    },
}

# tau = 1 in the paper's sense: of raw A
_FIXED = {"behaviour.source": "fixed", "behaviour.inv_temperature": 1.0, "behaviour.scale": "raw"}
_CASA = {"loss.critic": "casa", "loss.estimator": "drtrace", "loss.auxiliary": 0.1}
# V-Trace alone, with IMPALA's weights and clips.
_IMPALA = {
    **_FIXED,
    "loss.q": 0.0,
    "loss.policy": 1.0,
    "loss.value": 0.5,
    "loss.entropy": 0.01,
    "loss.rho_bar": 1.0,
    "loss.c_bar": 1.0,
    "collector.replay": 0.0,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dice": ("the paper's agent: temperatures from the bandits' vote", {}),
    "baseline": ("tau = 1 always, no bandit", _FIXED),
    "random": (
        "tau from the bandits' initial distribution, never adapted",
        {"behaviour.source": "distribution"},
    ),
    "entropy": ("dice with an entropy bonus of coefficient 1", {"loss.entropy": 1.0}),
    "casa": ("Q = A - E_pi[A] + V with DR-Trace, forward- and inverse-dynamics losses", _CASA),
    "casa/no_stop_pi": (
        "casa with the gradient through pi in E_pi[A]",
        {**_CASA, "loss.stop_pi": False},
    ),
    "casa/no_stop_v": ("casa with the gradient of Q through V", {**_CASA, "loss.stop_v": False}),
    "casa/no_drtrace": (
        "casa with V-Trace for V, and Q in the place of V in DR-Trace's sum for Q",
        {**_CASA, "loss.estimator": "vtrace+qtrace"},
    ),
    "casa/random_scaling": (
        "casa with alpha and beta drawn anew for every sequence",
        {**_CASA, "loss.scaling": "random"},
    ),
    "casa/trainable_tau": (
        "casa with tau as a trained parameter, no bandit",
        {**_CASA, "behaviour.source": "trainable"},
    ),
    "casa/no_bva": (
        "casa with the bandits' initial distribution, never adapted",
        {**_CASA, "behaviour.source": "distribution"},
    ),
    # eps = 1/(1 + 1/tau) has no unit of A: whatever a preset has, down to 1/51
    "epsilon": (
        "dice over eps-greedy policies: the vote searches eps",
        {"behaviour.family": "epsilon", "bandit.max_inv_temperature": 50.0},
    ),
    "mixture": (
        "dice over w pi_tau1 + (1-w) pi_tau2: the vote searches tau1, tau2 and w",
        {"behaviour.family": "mixture"},
    ),
    "conditioned": (
        "dice with a network conditioned on tau: V and A of pi_tau itself",
        {"behaviour.family": "conditioned"},
    ),
    "impala": ("V-Trace alone, tau = 1, entropy coefficient 0.01", _IMPALA),
    # Half of each batch, so twice the updates; LASER's own 7/8 would be eight times as many.
    "laser": (
        "impala with half of each batch from a shared replay",
        {**_IMPALA, "collector.replay": 0.5},
    ),
}
SYSTEMS = ("impala", "laser")  # the systems the paper compares with; also accepted as presets


def characteristics(variant: str) -> dict[str, bool]:
    """Which of the paper's three characteristics a variant has, derived from its config."""
    config = override(Config(), VARIANTS[variant][1])
    diverse = config.behaviour.source in ("bandit", "distribution")
    # Without a family of policies to choose from there is nothing to keep out of the objective or
    # to adapt (the paper's N/A).
    return {
        "closed-form diversity": diverse,
        "objective-invariant": diverse and config.loss.entropy == 0,
        "adaptive": config.behaviour.source == "bandit",
    }


def split(name: str | None, variant: str) -> tuple[str | None, str]:
    """(preset or None, variant) from the two names as given: ``impala`` and ``laser`` are also
    accepted as presets, and mean the variant with no preset named.
    """
    if name in SYSTEMS and variant == "dice":
        return None, name
    return name, variant


def differences(config: Config) -> dict[str, tuple[Any, Any]]:
    """The fields in which a config differs from its preset and variant: {name: (its value, that of
    the preset)}.
    """
    plain = preset(config.preset, config.variant)
    values = {name: (get(config, name), get(plain, name)) for name in fields_of()}
    return {name: (its, usual) for name, (its, usual) in values.items() if its != usual}


def preset(name: str = "paper", variant: str = "dice", **changes: Any) -> Config:
    """Build a config from a preset and a variant. ``changes`` are fields, as for
    ``Config.replace``: ``loss__q=1`` or ``**{"loss.q": 1}``.
    """
    named, variant = split(name, variant)
    name = "paper" if named is None else named
    if name not in PRESETS:
        raise ConfigError("preset", name, f"it can be {', '.join(PRESETS)}{nearest(name, PRESETS)}")
    if variant not in VARIANTS:
        raise ConfigError(
            "variant", variant, f"it can be {', '.join(VARIANTS)}{nearest(variant, VARIANTS)}"
        )
    fields = {"preset": name, "variant": variant, **PRESETS[name], **VARIANTS[variant][1]}
    return override(Config(), fields).replace(**changes)
