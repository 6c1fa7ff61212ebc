"""config/presets.py: the paper's table (dice.tex, "Hyperparameters for Atari Experiments"), what
each preset and variant changes, and which wins.
"""

import json

import numpy as np
import pytest

import dicerl
from dicerl.agent.networks import Network
from dicerl.config import Config, fields_of, from_dict, get, validate
from dicerl.config.presets import PRESETS, VARIANTS, characteristics, differences, preset
from dicerl.envs import EnvSpec
from dicerl.errors import ConfigError
from dicerl.parts import optimizer

PAPER = {
    "env.image_size": 84,
    "env.action_repeat": 4,
    "env.frame_stack": 4,
    "env.full_action_space": True,
    "env.episodic_life": False,
    "frames": 200_000_000,
    "sequence.reuse": 2,
    "runtime.num_envs": 160,
    "env.reward_shape": "log",
    "env.noop_max": 30,
    "sequence.burn_in": 40,
    "sequence.length": 80,
    "sequence.batch": 64,
    "loss.discount": 0.997,
    "loss.value": 1.0,
    "loss.q": 10.0,
    "loss.policy": 10.0,
    "loss.entropy": 0.0,
    "loss.c_bar": 1.05,
    "loss.rho_bar": 1.05,
    "network.lstm": 256,
    "optimizer.weight_decay": 0.01,
    "optimizer.learning_rate": 5e-4,
    "optimizer.warmup": 4000.0,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.98,
    "optimizer.eps": 1e-6,
    "optimizer.clip_norm": 50.0,
    "runtime.push_every": 25,
    "runtime.pull_every": 64,
    "bandit.num_bandits": 7,
    "bandit.learning_rates": (0.05, 0.1, 0.2),
    "bandit.widths": (1, 2, 3),
    "bandit.num_candidates": 7,
    "bandit.ucb_scale": 1.0,
    "bandit.max_inv_temperature": 50.0,
    # Not in the table but in its spirit: no sticky actions, one vote, temperatures in the paper's
    # own units.
    "env.sticky_actions": 0.0,
    "behaviour.source": "bandit",
    "behaviour.scale": "raw",
    "network.last_action_reward": False,
}
FIELDS = fields_of()
EVERY_PRESET = [(p, v) for p in PRESETS for v in VARIANTS]


def test_the_paper_preset_is_the_papers_table():
    config = dicerl.preset("paper")
    assert {name: get(config, name) for name in PAPER} == PAPER
    rows = {name for name, (_, field) in fields_of().items() if field.metadata["paper"]}
    # every field that names a row of the table is checked here
    assert rows - {"network.torso"} <= set(PAPER)


def test_the_paper_preset_has_the_deep_torso_and_anneals_to_zero():
    config = dicerl.preset("paper")
    atari = EnvSpec(
        name="pong",
        observation_shape=(4, 84, 84),
        observation_dtype=np.dtype(np.uint8),
        num_actions=18,
        action_repeat=4,
    )
    assert Network(config, atari).torso_name == "impala_deep"
    total = optimizer.total_updates(config, 4)
    assert total == 19532  # 200M frames / 4 * 2 / (64 * 80), rounded up
    assert optimizer.schedule(config, 4000, total)[0] == pytest.approx(5e-4)
    assert optimizer.schedule(config, 1999, total)[0] == pytest.approx(2.5e-4)
    assert optimizer.schedule(config, 0, total)[1] == pytest.approx(0.01)
    assert optimizer.schedule(config, total, total) == (0.0, 0.0)


@pytest.mark.parametrize(("name", "variant"), EVERY_PRESET)
def test_presets_are_valid_and_survive_json(name, variant):
    config = preset(name, variant)
    assert validate(config) is config
    assert (config.preset, config.variant) == (name, variant)
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_states_only_differences(name):
    default = Config()
    same = [field for field, value in PRESETS[name].items() if get(default, field) == value]
    assert not same, f"{name} repeats the default of {same}"
    config = preset(name)
    assert {n for n in FIELDS if get(config, n) != get(default, n)} - {"preset"} == set(
        PRESETS[name]
    )


def test_debug_takes_seconds_on_atari_too():
    """The deep torso's work grows with the pixels: 84 x 84 on every core took 90 seconds of CPU."""
    config = preset("debug")
    # acting, and forward and backward of training
    steps = config.frames / config.env.action_repeat * (1 + 3 * config.sequence.reuse)
    steps += (
        2
        * config.evaluation.episodes
        * config.evaluation.max_steps
        * config.frames
        / config.evaluation.every
    )
    assert steps * config.env.image_size**2 < 20e6
    assert config.runtime.learner_threads == 1


@pytest.mark.parametrize("name", PRESETS)
def test_variants(name):
    dice, changed = preset(name, "dice"), {}
    for variant in VARIANTS:
        config = preset(name, variant)
        changed[variant] = {n for n in FIELDS if get(config, n) != get(dice, n)} - {"variant"}
    assert changed["dice"] == set()
    assert changed["baseline"] - {"behaviour.scale"} == {"behaviour.source"}
    baseline = preset(name, "baseline").behaviour
    # tau = 1 as the paper means it
    assert (baseline.source, baseline.inv_temperature, baseline.scale) == ("fixed", 1.0, "raw")
    assert changed["random"] == {"behaviour.source"}
    assert preset(name, "random").behaviour.source == "distribution"
    assert changed["entropy"] == {"loss.entropy"}
    assert preset(name, "entropy").loss.entropy == 1.0


# docs/paper.md 2.7 and the appendix's table of ablations: what differs from casa, and casa from
# dice
TABLE = {
    "casa": {"loss.critic": "casa", "loss.estimator": "drtrace", "loss.auxiliary": 0.1},
    "casa/no_stop_pi": {"loss.stop_pi": False},
    "casa/no_stop_v": {"loss.stop_v": False},
    "casa/no_drtrace": {"loss.estimator": "vtrace+qtrace"},
    "casa/random_scaling": {"loss.scaling": "random"},
    "casa/trainable_tau": {"behaviour.source": "trainable"},
    "casa/no_bva": {"behaviour.source": "distribution"},
    "epsilon": {"behaviour.family": "epsilon"},
    "mixture": {"behaviour.family": "mixture"},
    "conditioned": {"behaviour.family": "conditioned"},
    "laser": {"collector.replay": 0.5},
}


@pytest.mark.parametrize("variant", TABLE)
def test_a_variant_changes_what_the_table_says_and_nothing_else(variant):
    base = preset(
        "minatar", "casa" if "/" in variant else "impala" if variant == "laser" else "dice"
    )
    config = preset("minatar", variant)
    assert {
        n: get(config, n) for n in FIELDS if get(config, n) != get(base, n) and n != "variant"
    } == TABLE[variant]


@pytest.mark.parametrize("name", PRESETS)
def test_the_smallest_epsilon_is_the_same_in_every_preset(name):
    """1/(1 + 50), whatever range of 1/tau suits the scale of A there."""
    assert preset(name, "epsilon").bandit.max_inv_temperature == 50.0


def test_every_variant_is_in_a_table_of_these_tests():
    assert set(VARIANTS) == {"dice", "baseline", "random", "entropy", "impala", *TABLE}


def test_impala_is_v_trace_alone_at_tau_1_with_a_little_entropy():
    config = preset("paper", "impala")
    assert (
        config.loss.q,
        config.loss.entropy,
        config.behaviour.source,
        config.behaviour.inv_temperature,
    ) == (0.0, 0.01, "fixed", 1.0)
    assert (config.loss.rho_bar, config.loss.c_bar, config.collector.replay) == (1.0, 1.0, 0.0)
    assert (config.frames, config.sequence.batch) == (200_000_000, 64)
    for name in ("impala", "laser"):  # by name as a preset: at the paper's scale
        assert preset(name) == preset("paper", name)


def test_characteristics_are_those_of_the_paper_s_tables():
    """ "Ablation Settings"; and IMPALA's column of the survey."""
    three = ("closed-form diversity", "objective-invariant", "adaptive")
    printed = {
        "dice": (True, True, True),
        "baseline": (False, False, False),
        "random": (True, True, False),
        "entropy": (True, False, True),
        "impala": (False, False, False),
    }
    for variant, expected in printed.items():
        assert characteristics(variant) == dict(zip(three, expected, strict=True)), variant
    assert characteristics("casa") == characteristics("mixture") == characteristics("dice")
    assert characteristics("casa/no_bva") == characteristics("random")
    assert not characteristics("casa/trainable_tau")["adaptive"]


def test_a_variant_wins_over_the_preset_and_changes_win_over_both(monkeypatch):
    monkeypatch.setitem(
        PRESETS, "debug", {"behaviour.scale": "normalised", "loss.entropy": 3.0, "frames": 5}
    )
    assert preset("debug").behaviour.scale == "normalised"
    assert preset("debug", "baseline").behaviour.scale == "raw"
    assert preset("debug", "entropy").loss.entropy == 1.0
    config = preset("debug", "entropy", **{"loss.entropy": 0.5}, frames=7, loss__q=2)
    assert (config.loss.entropy, config.frames, config.loss.q) == (0.5, 7, 2.0)


def test_unknown_preset_and_variant_are_answered_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"paper, laptop, minatar, classic, debug.*did you mean laptop"
    ):
        preset("labtop")
    with pytest.raises(
        ConfigError, match=r"dice, baseline, random, entropy.*did you mean baseline"
    ):
        preset("paper", "base_line")


@pytest.mark.parametrize("variant", ["dice", "casa"])
def test_what_differs_from_the_preset(variant):
    config = preset("classic", variant)
    assert differences(config) == {}
    assert differences(config.replace(frames=5, loss__q=config.loss.q)) == {
        "frames": (5, config.frames)
    }
