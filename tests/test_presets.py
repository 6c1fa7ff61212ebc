"""config/presets.py: the paper's table (dice.tex, "Hyperparameters for Atari Experiments")."""

import numpy as np
import pytest

import dicerl
from dicerl.agent.networks import Network
from dicerl.config import fields_of, get
from dicerl.envs import EnvSpec
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
