"""The command line: every mistake is one line and exit code 2, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.spaces import Box, Discrete, Text

from runs import TINY, one_line

DICERL = str(Path(sys.executable).with_name("dicerl"))
SUPPORTED = "supported are Discrete, MultiDiscrete and MultiBinary actions"


class TextObservation(gymnasium.Env):
    action_space, observation_space = Discrete(2), Text(5)


class ContinuousAction(gymnasium.Env):
    action_space, observation_space = Box(-1, 1, (2,)), Box(0, 1, (2,))


gymnasium.register("CliText-v0", TextObservation)
gymnasium.register("CliContinuous-v0", ContinuousAction)

MISTAKES = {
    "unknown command": (["trian", "pong"], "'trian'", "train"),
    "no environment": (["train"], "ENV"),
    "unknown game": (["train", "pnog"], "env.id is 'pnog'", "did you mean pong?"),
    "unknown game with prefix": (
        ["train", "ALE/Brekout-v5"],
        "'ALE/Brekout-v5'",
        "did you mean breakout?",
    ),
    "unknown gymnasium id": (["train", "CartPol-v1"], "'CartPol-v1'", "did you mean CartPole-v1?"),
    "unknown module": (["train", "no_such_module:X-v0"], "no_such_module", "cannot be imported"),
    "unknown preset": (
        ["train", "CartPole-v1", "--preset", "labtop"],
        "preset is 'labtop'",
        "paper, laptop",
        "did you mean laptop?",
    ),
    "unknown variant": (
        ["train", "CartPole-v1", "--variant", "dyce"],
        "variant is 'dyce'",
        "baseline",
        "did you mean dice?",
    ),
    "unknown field": (
        ["train", "CartPole-v1", "--sequence.bach", "3"],
        "--sequence.bach",
        "did you mean --sequence.batch?",
    ),
    "unknown field with =": (
        ["train", "CartPole-v1", "--optimiser.learning-rate=1"],
        "did you mean --optimizer.learning-rate?",
    ),
    "renamed field": (
        ["train", "CartPole-v1", "--sequence.capacity", "64"],
        "unknown argument --sequence.capacity; it is now --collector.capacity",
    ),
    "renamed field with =": (
        ["bench", "CartPole-v1", "--sequence.capacity=64"],
        "--sequence.capacity=64; it is now --collector.capacity",
    ),
    "renamed field of a command without fields": (
        ["resume", "nowhere", "--sequence.capacity", "64"],
        "unknown argument --sequence.capacity",
    ),
    "shortened field": (
        ["train", "CartPole-v1", "--frame", "3"],
        "--frame",
        "did you mean --frames?",
    ),
    "stray argument": (["train", "CartPole-v1", "pong"], "pong"),
    "missing value": (["train", "CartPole-v1", "--frames"], "--frames"),
    "unknown runtime": (
        ["train", "CartPole-v1", "--runtime", "threads"],
        "runtime.kind is 'threads'",
        "auto, serial, process",
    ),
    "unknown torso": (
        ["train", "CartPole-v1", "--network.torso", "impala"],
        "network.torso is 'impala'",
        "impala_deep",
    ),
    "not true or false": (
        ["train", "CartPole-v1", "--tensorboard", "maybe"],
        "tensorboard is 'maybe'",
        "true or false",
    ),
    "negative batch": (
        ["train", "CartPole-v1", "--sequence.batch", "-3"],
        "sequence.batch is -3",
        "between 1",
    ),
    "no frames": (["train", "CartPole-v1", "--frames", "0"], "frames is 0", "between 1"),
    "half a frame": (
        ["train", "CartPole-v1", "--frames", "1.5"],
        "frames is '1.5'",
        "whole number",
    ),
    "NaN": (["train", "CartPole-v1", "--loss.discount", "nan"], "loss.discount is 'nan'", "finite"),
    "infinite": (["train", "CartPole-v1", "--loss.q", "inf"], "loss.q is 'inf'", "finite"),
    "no number": (
        ["train", "CartPole-v1", "--optimizer.learning-rate", "abc"],
        "optimizer.learning_rate is 'abc'",
        "a finite number",
    ),
    "negative seed": (["train", "CartPole-v1", "--seed", "-1"], "seed is -1", "between 0"),
    "a million environments": (
        ["train", "CartPole-v1", "--runtime.num-envs", "1000000"],
        "runtime.num_envs is 1000000",
        "100000",
    ),
    "too many games for the memory": (
        [
            "train",
            "pong",
            "--preset",
            "paper",
            "--runtime.num-envs",
            "100000",
            "--runtime",
            "serial",
        ],
        "runtime.num_envs is 100000",
        "GiB free",
    ),
    "too much capacity for the memory": (
        ["train", "pong", "--collector.capacity", "100000000", "--runtime", "serial"],
        "collector.capacity is 100000000",
        "GiB free",
    ),
    "a batch that is never filled": (
        ["train", "CartPole-v1", "--sequence.batch", "1000000", "--collector.replay", "0"],
        "sequence.batch is 1000000",
        "200,000 frames of 16 environments give 10,000 sequences of 20 steps",
        "at least 20,000,000 frames",
    ),
    "too large a batch for the memory": (
        [
            "train",
            "pong",
            "--sequence.batch",
            "1000000",
            "--collector.replay",
            "0",
            "--runtime",
            "serial",
            "--frames",
            "1e9",
        ],
        "sequence.batch is 1000000",
        "GiB free",
    ),
    "too much to replay for the memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "100000000",
            "--runtime",
            "serial",
        ],
        "collector.replay_capacity is 100000000",
        "GiB free",
    ),
    "too long sequences for the memory": (
        ["train", "pong", "--sequence.length", "100000", "--runtime", "serial"],
        "sequence.length is 100000",
        "GiB free",
    ),
    "too many recurrent states for the memory": (
        [
            "train",
            "CartPole-v1",
            "--runtime.num-envs",
            "100000",
            "--sequence.length",
            "1000",
            "--network.lstm",
            "1024",
        ],
        "runtime.num_envs is 100000",
        "GiB free",
    ),
    "too large a network for the memory": (
        ["train", "CartPole-v1", "--network.hidden", "65536", "--network.lstm", "65536"],
        "network.hidden is 65536",
        "network.lstm 65536",
        "38,655,819,779 parameters",
        "1152.03 GiB",
        "GiB free",
    ),
    "too large an LSTM for the memory": (
        ["train", "pong", "--network.lstm", "65536", "--runtime", "process"],
        "network.lstm is 65536",
        "network.hidden 256",
        "GiB free",
    ),
    "too much capacity for shared memory": (
        ["train", "pong", "--collector.capacity", "100000000", "--runtime", "process"],
        "collector.capacity is 100000000",
        "/dev/shm",
    ),
    "too many games for shared memory": (
        [
            "train",
            "pong",
            "--preset",
            "paper",
            "--runtime.num-envs",
            "100000",
            "--runtime",
            "process",
        ],
        "runtime.num_envs is 100000",
        "/dev/shm",
    ),
    "capacity below a batch": (
        ["train", "CartPole-v1", "--collector.capacity", "3"],
        "collector.capacity is 3",
        "at least",
    ),
    "more actors than environments": (
        ["train", "CartPole-v1", "--runtime.num-actors", "99"],
        "runtime.num_actors is 99",
        "only",
    ),
    "no such device": (
        ["train", "CartPole-v1", "--runtime.device", "tpu:9"],
        "runtime.device is 'tpu:9'",
    ),
    "a device whose module is missing": (
        ["train", "CartPole-v1", "--runtime.device", "privateuseone"],
        "runtime.device is 'privateuseone'",
        "it cannot be used here",
    ),
    "a torso that does not fit": (
        ["train", "CartPole-v1", "--network.torso", "minatar"],
        "network.torso is 'minatar'",
        "images",
    ),
    "continuous actions": (
        ["train", "CliContinuous-v0"],
        "CliContinuous-v0 acts in Box",
        "continuous actions have no closed-form pi_tau",
    ),
    "text observations": (["train", "CliText-v0"], "CliText-v0 observes Text", SUPPORTED),
    "DR-Trace without casa": (
        ["train", "CartPole-v1", "--loss.estimator", "drtrace"],
        "loss.estimator is 'drtrace'",
        "learns nothing",
        "casa",
    ),
    "a trainable tau of another family": (
        [
            "train",
            "CartPole-v1",
            "--variant",
            "casa/trainable_tau",
            "--behaviour.family",
            "mixture",
        ],
        "behaviour.source is 'trainable'",
        "boltzmann",
    ),
    "a mixture of one": (
        ["train", "CartPole-v1", "--behaviour.mixture", "3"],
        "behaviour.mixture is (3.0,)",
        "1/tau1,1/tau2,w",
    ),
    "a mixture in the wrong order": (
        ["train", "CartPole-v1", "--behaviour.mixture", "9,3,0.5"],
        "behaviour.mixture",
        "1/tau1 <= 1/tau2",
    ),
    "all replayed": (
        ["train", "CartPole-v1", "--collector.replay", "1"],
        "collector.replay is 1",
        "between 0 and 0.99",
    ),
    "replay of less than one": (
        ["train", "CartPole-v1", "--collector.replay", "0.01"],
        "collector.replay is 0.01",
        "at least one",
    ),
    "too large a batch to replay from what is kept": (
        ["train", "pong", "--sequence.batch", "1000000", "--runtime", "serial"],
        "collector.replay_capacity is 3000",
        "sequence.batch is 1000000",
    ),
    "replay from too few": (
        ["train", "CartPole-v1", "--collector.replay", "0.5", "--collector.replay-capacity", "2"],
        "collector.replay_capacity is 2",
        "takes 8",
    ),
    "too much replay for the memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "50000000",
            "--runtime",
            "serial",
        ],
        "collector.replay_capacity is 50000000",
        "GiB free",
    ),
    "too much replay for shared memory": (
        [
            "train",
            "pong",
            "--collector.replay",
            "0.5",
            "--collector.replay-capacity",
            "50000000",
            "--runtime",
            "process",
        ],
        "collector.replay_capacity is 50000000",
        "GiB free in /dev/shm",
    ),
    "unknown ablation": (
        ["train", "CartPole-v1", "--variant", "casa/no_stop_p"],
        "variant is 'casa/no_stop_p'",
        "did you mean casa/no_stop_pi?",
    ),
    "unknown family": (
        ["train", "CartPole-v1", "--behaviour.family", "eps"],
        "behaviour.family is 'eps'",
        "boltzmann, epsilon",
    ),
    "resume without a run": (["resume"], "RUN"),
    "resume of nothing": (["resume", "nowhere"], "nowhere holds no run"),
    "unknown option of resume": (["resume", "nowhere", "--frame", "3"], "--frame"),
    "bench of nothing": (["bench", "pnog"], "did you mean pong?"),
    "bench for abc seconds": (["bench", "CartPole-v1", "--seconds", "abc"], "--seconds", "'abc'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(call, tmp_path, mistake):
    args, *fragments = MISTAKES[mistake]
    one_line(call(*args), *fragments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_through_the_installed_command(tmp_path):
    done = subprocess.run(
        [DICERL, "train", "pong", "--preset", "labtop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    one_line((done.returncode, done.stdout, done.stderr), "did you mean laptop?")


def test_the_same_directory_works_once_the_mistake_is_mended(call, tmp_path):
    """A start that failed must not leave a run that can be neither trained nor resumed."""
    one_line(
        call("train", "CartPole-v1", "--network.torso", "minatar", "--run-dir", "run", "--quiet"),
        "network.torso",
    )
    code, _, err = call(
        "train",
        "CartPole-v1",
        *TINY,
        "--frames",
        "40",
        "--evaluation.every",
        "0",
        "--run-dir",
        "run",
        "--quiet",
    )
    assert code == 0, err
