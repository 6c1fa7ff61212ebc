"""Every variant trains, through the command line, and its metrics show what it claims
(docs/paper.md 2.7).
"""

import json
import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from dicerl.api import load_agent, train
from dicerl.cli import main
from dicerl.config import from_dict
from dicerl.config.presets import VARIANTS, preset
from dicerl.core.family import NUMBERS
from dicerl.records.metrics import read_lines

pytestmark = pytest.mark.timeout(600)

# 400 frames of Breakout, every update logged: 30 updates of 8 sequences.
OPTIONS = {
    "preset": "debug",
    "runtime": "serial",
    "frames": 400,
    "tensorboard": "false",
    "log-every": 1,
    "checkpoint.every": 0,
    "evaluation.every": 200,
    "evaluation.max-steps": 20,
    "network.hidden": 16,
    "network.lstm": 8,
    "sequence.batch": 8,
    "sequence.length": 5,
    "sequence.burn-in": 3,
    "optimizer.learning-rate": 3e-3,
    "optimizer.warmup": 0,
    "collector.replay-capacity": 16,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """variant -> its finished run, trained once, on demand."""
    done = {}

    def run(variant):
        if variant not in done:
            directory = tmp_path_factory.mktemp("variants") / "run"
            options = [f"--{name}={value}" for name, value in OPTIONS.items()]
            assert (
                main(
                    [
                        "train",
                        "MinAtar/Breakout-v1",
                        f"--variant={variant}",
                        *options,
                        f"--run-dir={directory}",
                        "--quiet",
                    ]
                )
                == 0
            )
            done[variant] = directory
        return done[variant]

    return run


def lines(directory, kind):
    return [line for line in read_lines(directory / "metrics.jsonl") if line["kind"] == kind]


def column(directory, kind, name):
    return np.array([line[name] for line in lines(directory, kind)])


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_on_breakout(runs, variant):
    directory = runs(variant)
    config = from_dict(json.loads((directory / "config.json").read_text()))
    assert config.variant == variant
    trained, episodes, evaluations = (
        lines(directory, kind) for kind in ("train", "episode", "evaluation")
    )
    assert len(trained) >= 18
    assert len(episodes) >= 10
    assert len(evaluations) >= 2
    for line in trained:
        assert all(math.isfinite(x) for x in line.values() if isinstance(x, float)), line
        assert None not in line.values()  # JSON's NaN
    assert len({line["loss"] for line in trained}) == len(trained)
    parameters = NUMBERS[config.behaviour.family]
    for name in parameters:  # every episode and evaluation carries its behaviour
        assert all(isinstance(e[name], float) for e in episodes)
        assert all(len(e[f"{name}s"]) == config.evaluation.episodes for e in evaluations)
        assert f"{name}_mean" in trained[-1]
        assert f"favoured_{name}" in trained[-1]


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "casa/random_scaling"])
def test_the_loss_is_the_weighted_sum_of_its_terms(runs, variant):
    """xi L_V + alpha L_Q + beta L_pi - coefficient * bonus + 0.1 * auxiliary, each as logged."""
    config = preset("debug", variant).loss
    for line in lines(runs(variant), "train"):
        total = (
            config.value * line["loss_value"]
            + config.q * line["loss_q"]
            + config.policy * line["loss_policy"]
        )
        total += (
            config.auxiliary * line.get("loss_auxiliary", 0.0)
            - config.entropy * line["entropy_bonus"]
        )
        assert line["loss"] == pytest.approx(total, rel=1e-3, abs=1e-3)
        assert ("loss_auxiliary" in line) is variant.startswith("casa")
        assert line.get("loss_auxiliary", 1.0) > 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_agent_of_every_variant_plays(runs, variant):
    agent = load_agent(runs(variant))
    observation = np.zeros((10, 10, 4), np.bool_)
    action, state = agent.act(observation)
    again, _ = agent.act(np.stack([observation] * 5), agent.initial_state(5), greedy=True)
    assert action in range(agent.spec.num_actions)
    assert len(set(again.tolist())) == 1
    assert state.shape == (2, 1, 8)


# --- each -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["baseline", "impala", "laser"])
def test_baseline_always_has_tau_1(runs, variant):
    assert set(column(runs(variant), "episode", "inv_temperature")) == {1.0}
    assert set(column(runs(variant), "train", "inv_temperature_mean")) == {1.0}
    assert set(column(runs(variant), "evaluation", "inv_temperatures").ravel()) == {1.0}


@pytest.mark.parametrize(
    "variant", ["dice", "random", "entropy", "casa", "casa/no_bva", "conditioned"]
)
def test_the_others_have_many_temperatures(runs, variant):
    drawn = column(runs(variant), "episode", "inv_temperature")
    assert len(set(drawn)) == len(drawn)
    assert ((drawn >= 0) & (drawn <= 50)).all()


@pytest.mark.parametrize(
    ("variant", "coefficient"), [("dice", 0.0), ("casa", 0.0), ("entropy", 1.0), ("impala", 0.01)]
)
def test_the_bonus_in_the_loss(runs, variant, coefficient):
    assert preset("debug", variant).loss.entropy == coefficient
    bonus = column(runs(variant), "train", "entropy_bonus")
    assert bonus.all() if coefficient else not bonus.any()


def test_impala_s_q_is_not_trained(runs):
    assert preset("debug", "impala").loss.q == 0.0
    assert column(runs("impala"), "train", "loss_q").all()  # it is logged all the same


def test_a_trainable_tau_has_a_gradient_and_moves(runs):
    directory = runs("casa/trainable_tau")
    inv, gradient = (
        column(directory, "train", f"trainable_{name}") for name in ("inv_temperature", "gradient")
    )
    assert gradient.all()
    assert len(set(inv)) == len(inv)
    assert abs(inv[-1] - 1.0) > 1e-3
    assert set(column(directory, "episode", "inv_temperature")) - {1.0} <= {
        float(f"{x:.6g}") for x in inv
    } | {1.0}
    last = lines(directory, "evaluation")[-1]
    assert last["inv_temperatures"] == [pytest.approx(inv[-1], rel=1e-3)] * len(
        last["inv_temperatures"]
    )
    assert not any("trainable_gradient" in line for line in lines(runs("casa"), "train"))


def test_random_scaling_draws_for_every_sequence(runs):
    """Mean 10 and deviation 5.77 = 20/sqrt(12) over all sequences; each batch has its own."""
    directory = runs("casa/random_scaling")
    for name in ("alpha", "beta"):
        mean, std = (
            column(directory, "train", f"{name}_mean"),
            column(directory, "train", f"{name}_std"),
        )
        assert len(set(mean)) == len(mean)
        assert (std > 1.0).all()
        assert mean.mean() == pytest.approx(10.0, abs=1.5)
        assert math.sqrt((std**2).mean() + mean.var()) == pytest.approx(20 / math.sqrt(12), abs=0.8)
    assert not np.array_equal(
        column(directory, "train", "alpha_mean"), column(directory, "train", "beta_mean")
    )
    assert not any("alpha_mean" in line for line in lines(runs("casa"), "train"))


def test_epsilon_episodes_carry_eps(runs):
    eps = column(runs("epsilon"), "episode", "epsilon")
    assert ((eps >= 1 / 51 - 1e-6) & (eps <= 1)).all()
    assert len(set(eps)) == len(eps)
    assert not any("inv_temperature" in e for e in lines(runs("epsilon"), "episode"))


def test_mixture_episodes_carry_two_ordered_temperatures_and_a_weight(runs):
    low, high, weight = (column(runs("mixture"), "episode", name) for name in NUMBERS["mixture"])
    assert (low <= high).all()
    assert ((weight >= 0) & (weight <= 1)).all()
    assert len(set(weight)) == len(weight)
    last = lines(runs("mixture"), "evaluation")[-1]
    assert all(
        a <= b
        for a, b in zip(last["inv_temperature_lows"], last["inv_temperature_highs"], strict=True)
    )
    assert {"tile_values_weight_low", "tile_visits_inv_temperature_high"} <= set(
        lines(runs("mixture"), "train")[-1]
    )


def test_conditioned_v_depends_on_the_temperature(runs):
    """At the same observation; the trained network of dice does not look at it."""
    observation = torch.zeros(1, 2, 10, 10, 4, dtype=torch.bool)
    inv = torch.tensor([[0.5, 30.0]])
    for variant, differs in (("conditioned", True), ("dice", False)):
        network = load_agent(runs(variant)).network
        with torch.no_grad():
            out = network.unroll(observation, network.initial_state(2), None, inv_temperature=inv)
        assert (abs(out.value[0, 0] - out.value[0, 1]) > 1e-4) == differs
        assert torch.allclose(out.advantage[0, 0], out.advantage[0, 1], atol=1e-6) is not differs


def test_laser_replays_half_of_each_batch(runs):
    trained = lines(runs("laser"), "train")
    assert trained[-1]["replayed_fraction"] == pytest.approx(0.5, abs=0.12)
    assert max(line["kept_sequences"] for line in trained) == 16
    # twice the updates for the same frames
    assert len(trained) > 1.4 * len(lines(runs("impala"), "train"))
    assert "replayed_fraction" not in lines(runs("impala"), "train")[-1]


# --- random is the initial distribution, dice is not ----------------------------------------------


class Lever(gymnasium.Env):
    """One state, three steps, 1 for action 0 and nothing for the others: soon the cold policies
    return more.
    """

    action_space, observation_space = Discrete(6), Box(0.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.ones(1, np.float32), float(action == 0), self._steps == 3, False, {}


def drawn_x(tmp_path, variant):
    """x = log(1 + 1/tau) of all episodes but the first hundred, and whether their returns depended
    on it.
    """
    config = preset(
        "debug",
        variant,
        **{
            "frames": 4000,
            "run_dir": str(tmp_path / "run"),
            "tensorboard": False,
            "log_every": 1000,
            "evaluation.every": 0,
            "checkpoint.every": 0,
            "network.lstm": 0,
            "network.hidden": 16,
            "runtime.num_envs": 20,
            "sequence.batch": 20,
            "sequence.length": 8,
            "sequence.burn_in": 0,
            "optimizer.learning_rate": 1e-2,
            "optimizer.warmup": 0.0,
        },
    )
    episodes = lines(train(config, Lever, quiet=True).directory, "episode")
    assert len(episodes) > 1000
    x, returns = (
        np.log1p([e["inv_temperature"] for e in episodes[100:]]),
        np.array([e["return"] for e in episodes[100:]]),
    )
    assert np.corrcoef(x, returns)[0, 1] > 0.2
    return x


def chi_square(x, bins=20):
    """Of uniformity over [0, log 51]: with 19 degrees of freedom one uniform sample in a thousand
    passes 43.8.
    """
    seen = np.histogram(x, bins, (0.0, math.log(51.0)))[0]
    return float(((seen - len(x) / bins) ** 2).sum() / (len(x) / bins))


@pytest.mark.parametrize(
    ("variant", "uniform"), [("random", True), ("casa/no_bva", True), ("dice", False)]
)
def test_only_variants_without_the_vote_stay_uniform_in_x_after_many_returns(
    tmp_path, variant, uniform
):
    statistic = chi_square(drawn_x(tmp_path, variant))  # measured: 22 and 365
    assert (statistic < 43.8) if uniform else (statistic > 100)
