"""config/elsewhere.py: what an unknown name is answered with."""

import pytest

import dicerl
from dicerl.config import fields_of
from dicerl.config.elsewhere import ELSEWHERE, suggestion
from dicerl.errors import ConfigError
from runs import one_line

# the names that people bring from Stable-Baselines3, CleanRL and RLlib
BROUGHT = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "gamma": "loss.discount",
    "n_envs": "runtime.num_envs",
    "num_envs_per_env_runner": "runtime.num_envs",
    "num_env_runners": "runtime.num_actors",
    "total_timesteps": "frames",
    "n_timesteps": "frames",
    "ent_coef": "loss.entropy",
    "entropy_coeff": "loss.entropy",
    "vf_coef": "loss.value",
    "batch_size": "sequence.batch",
    "train_batch_size": "sequence.batch",
    "n_steps": "sequence.length",
    "num_steps": "sequence.length",
    "rollout_fragment_length": "sequence.length",
    "n_epochs": "sequence.reuse",
    "update_epochs": "sequence.reuse",
    "max_grad_norm": "optimizer.clip_norm",
    "grad_clip": "optimizer.clip_norm",
    "clip_range": "loss.rho_bar",
    "gae_lambda": "loss.c_bar",
    "buffer_size": "collector.replay_capacity",
    "tensorboard_log": "run_dir",
    "eval_freq": "evaluation.every",
    "n_eval_episodes": "evaluation.episodes",
    "save_freq": "checkpoint.every",
    "env_id": "env.id",
}


def test_every_name_of_others_stands_for_one_of_our_fields():
    assert set(ELSEWHERE.values()) <= set(fields_of())
    assert not set(ELSEWHERE) & set(fields_of())  # ours are never answered so


@pytest.mark.parametrize("name", BROUGHT)
def test_names_of_other_libraries(name):
    ours = BROUGHT[name]
    assert suggestion(name, fields_of()).startswith(f"; here it is {ours}")
    assert suggestion(name.replace("_", "-"), fields_of()).startswith(f"; here it is {ours}")
    keyword = ours.replace(".", "__")
    with pytest.raises(ConfigError) as caught:
        dicerl.preset("classic", **{name: 1})
    assert f"here it is {ours}" in str(caught.value)
    assert keyword in str(caught.value)
    dicerl.preset("classic", **{keyword: 1})


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("frame", "; did you mean frames?"),
        ("optimizer.learning_rte", "; did you mean optimizer.learning_rate?"),
        ("learning_rte", "; did you mean optimizer.learning_rate?"),
        ("discount", "; did you mean loss.discount?"),
        ("every", "; did you mean evaluation.every or checkpoint.every?"),
        ("xyz", ""),
        ("wandb", ""),
        ("", ""),
    ],
)
def test_the_nearest_field(word, answer):
    assert suggestion(word, fields_of()) == answer


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("--lr", "unknown argument --lr; here it is --optimizer.learning-rate (see"),
        ("--learning-rate", "here it is --optimizer.learning-rate (see"),
        ("--learning_rate=1", "here it is --optimizer.learning-rate (see"),
        ("--total-timesteps", "here it is --frames (agent steps times action repeat)"),
        ("--batch-size", "here it is --sequence.batch (sequences, not steps)"),
        ("--env-id", "the environment stands alone"),
        ("--xyz", "unknown argument --xyz (see dicerl train --help)"),
    ],
)
def test_on_the_command_line(call, option, answer):
    one_line(call("train", "CartPole-v1", option, "1"), answer)


def test_in_a_suite(call, tmp_path):
    (tmp_path / "suite.toml").write_text('games = ["CartPole-v1"]\n[config]\nlr = 1e-3\n')
    one_line(call("suite", str(tmp_path / "suite.toml")), "here it is optimizer.learning_rate")
