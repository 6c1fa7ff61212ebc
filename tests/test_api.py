"""dicerl from Python: train, resume, load_agent, and an agent that acts."""

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
import threading

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import dicerl
from dicerl.envs.toy import Catch
from dicerl.errors import CheckpointError, ConfigError, DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines


def debug(directory, **changes):
    return dicerl.preset(
        "debug",
        **{
            "env__id": "CartPole-v1",
            "frames": 600,
            "run_dir": str(directory),
            "tensorboard": False,
            "checkpoint__every": 200,
            "checkpoint__exact": True,
            "evaluation__every": 300,
            "evaluation__max_steps": 20,
            **changes,
        },
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return dicerl.train(debug(tmp_path_factory.mktemp("api") / "run"), quiet=True)


@pytest.fixture
def agent(run):
    return dicerl.load_agent(run)


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run.directory, tmp_path / "copy")


def same_parameters(a, b):
    return all(
        torch.equal(x, y)
        for x, y in zip(
            a.network.state_dict().values(), b.network.state_dict().values(), strict=True
        )
    )


class Five(gymnasium.Env):
    """Five steps an episode; actions 1 and 2; the reward is the action."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.full(3, self._steps / 5, np.float32), float(action), self._steps == 5, False, {}


# --- train


def test_everything_the_package_offers_is_there():
    for name in dicerl.__all__:
        assert getattr(dicerl, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dicerl.nothing


def test_train_returns_the_run_and_its_summary(run):
    assert isinstance(run, dicerl.Run)
    assert run.summary["complete"] is True
    assert run.summary["frames"] == run.summary["agent_steps"] >= 600
    assert run.summary["updates"] > 0
    assert run.summary["episodes"] > 0
    assert len(run.summary["evaluation"]["returns"]) == run.config.evaluation.episodes
    assert run.summary["recent_return"] > 0
    json.dumps(run.summary)
    last = read_lines(run.directory / "metrics.jsonl")[-1]
    assert [last[k] for k in ("frames", "agent_steps", "updates")] == [
        run.summary[k] for k in ("frames", "agent_steps", "updates")
    ]
    assert run.newest_checkpoint().state.updates == run.summary["updates"]
    assert dicerl.Run.open(run.directory).config == run.config


def test_train_takes_the_name_of_an_environment(tmp_path, monkeypatch):
    """The shortest way in: the preset that fits, and fields by keyword."""
    monkeypatch.chdir(tmp_path)
    run = dicerl.train("CartPole-v1", frames=400, tensorboard=False, quiet=True)
    assert run.directory.name == "CartPole_v1-dice-0"
    config = run.config.replace(runtime__precision="auto")
    expected = {"env.id": "CartPole-v1", "frames": 400, "tensorboard": False}
    assert config == dicerl.preset("classic", **expected)
    assert run.summary["complete"]
    short = {"frames": 100, "tensorboard": False, "quiet": True, "evaluation__every": 0}
    run = dicerl.train("CartPole-v1", preset="debug", variant="baseline", seed=3, **short)
    assert run.config.preset == "debug"
    assert run.config.variant == "baseline"
    assert run.config.behaviour.source == "fixed"
    assert run.directory.name == "CartPole_v1-baseline-3"
    run = dicerl.train(Catch, preset="debug", **short)
    assert run.config.env.id == "<Catch>"
    assert dicerl.load_agent(run, make_env=Catch).spec.name == "Catch"


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        # no environment is none, not pong
        (dicerl.preset("classic", frames=500), {}, "env.id is ''; no environment was chosen"),
        ("", {}, "env.id is ''; no environment was chosen"),
        ("CartPole-v1", {"frame": 5}, "'frame'; no such field; did you mean frames?"),
        ("CartPole-v1", {"preset": "clasic"}, "did you mean classic?"),
        (dicerl.preset("debug"), {"variant": "baseline"}, "variant is 'baseline'; a Config has"),
        (Catch(), {}, "train was given Catch; it must be an environment's id"),
        ({"env": {"id": "pong"}}, {}, "train was given dict; it must be"),
    ],
)
def test_train_refuses_what_is_not_clear(tmp_path, monkeypatch, config, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DicerlError) as caught:
        dicerl.train(config, **arguments)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_train_refuses_a_bad_config_before_it_makes_anything(tmp_path):
    with pytest.raises(ConfigError, match=r"sequence\.batch is -1"):
        dicerl.train(debug(tmp_path / "run", sequence__batch=-1), quiet=True)
    with pytest.raises(ConfigError, match=r"env\.id is 'CratPole-v1'.*did you mean CartPole-v1"):
        dicerl.train(debug(tmp_path / "run", env__id="CratPole-v1"), quiet=True)
    with pytest.raises(DicerlError, match="it must be a gymnasium"):
        dicerl.train(debug(tmp_path / "run"), lambda: "no environment", quiet=True)
    assert not (tmp_path / "run").exists()


def test_train_never_writes_into_another_run(run):
    before = (run.directory / "metrics.jsonl").read_bytes()
    with pytest.raises(DicerlError, match="already holds a run"):
        dicerl.train(debug(run.directory), quiet=True)
    assert (run.directory / "metrics.jsonl").read_bytes() == before


def test_on_batch_sees_every_batch(tmp_path):
    seen = []
    run = dicerl.train(
        debug(tmp_path / "run", evaluation__every=0, frames=200),
        quiet=True,
        on_batch=lambda learner, batch: seen.append((learner.updates, batch["observation"].shape)),
    )
    assert [updates for updates, _ in seen] == list(range(run.summary["updates"]))
    # burn-in, length, bootstrap; batch; CartPole's observation
    assert {shape for _, shape in seen} == {(4 + 8 + 1, 4, 4)}


def test_train_outside_the_main_thread(tmp_path):
    """Signals can only be caught in the main thread; training must not need them."""
    config, done = debug(tmp_path / "run", frames=100, evaluation__every=0), []
    thread = threading.Thread(target=lambda: done.append(dicerl.train(config, quiet=True)))
    thread.start()
    thread.join(60)
    assert done[0].summary["complete"]


# --- resume


def test_resume_of_a_finished_run_says_so_and_changes_nothing(run, copy, capfd):
    lines = read_lines(copy / "metrics.jsonl")
    again = dicerl.resume(copy)
    assert again.summary["complete"] is True
    for name in ("frames", "agent_steps", "updates", "episodes"):
        assert again.summary[name] == run.summary[name], name
    assert [p.name for p in checkpoint.checkpoints_of(copy)] == [
        p.name for p in checkpoint.checkpoints_of(run.directory)
    ]
    added = read_lines(copy / "metrics.jsonl")[len(lines) :]
    assert not [line for line in added if line["kind"] != "event"]
    assert same_parameters(dicerl.load_agent(copy), dicerl.load_agent(run))
    assert "finished" in capfd.readouterr().err


def test_resume_goes_on_from_the_newest_checkpoint(run, copy):
    newest, before = checkpoint.checkpoints_of(copy)[::-1][:2]
    shutil.rmtree(newest)
    again = dicerl.resume(str(copy), quiet=True)
    assert again.summary["complete"] is True
    assert again.summary["updates"] == run.summary["updates"]
    assert again.summary["frames"] == run.summary["frames"]
    resumed = [line for line in read_lines(copy / "metrics.jsonl") if line.get("event") == "resume"]
    assert [line["updates"] for line in resumed] == [int(before.name)]
    assert same_parameters(dicerl.load_agent(copy), dicerl.load_agent(run))  # serial: bit for bit


def test_resume_of_nothing(tmp_path):
    with pytest.raises(DicerlError, match="holds no run"):
        dicerl.resume(tmp_path / "nowhere")


def test_a_run_that_trains_cannot_be_resumed_at_the_same_time(copy):
    held = dicerl.Run.open(copy)
    held.lock()
    with pytest.raises(DicerlError, match="is in use by another process"):
        dicerl.resume(copy, quiet=True)
    held.unlock()


# --- load_agent


def test_load_agent_from_a_run_a_path_and_a_checkpoint(run):
    first, *_, last = checkpoint.checkpoints_of(run.directory)
    agents = [
        dicerl.load_agent(source)
        for source in (run, run.directory, str(run.directory), last, str(last))
    ]
    assert all(same_parameters(agents[0], other) for other in agents[1:])
    assert not same_parameters(agents[0], dicerl.load_agent(first))
    assert agents[0].config == run.config
    assert agents[0].spec.num_actions == 2


def test_load_agent_passes_over_a_damaged_checkpoint(copy):
    *_, before, newest = checkpoint.checkpoints_of(copy)
    (newest / "model.safetensors").write_bytes(b"nonsense")
    assert same_parameters(dicerl.load_agent(copy), dicerl.load_agent(before))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        dicerl.load_agent(newest)


def test_load_agent_of_unknown_things(run, tmp_path):
    with pytest.raises(DicerlError, match="holds no run"):
        dicerl.load_agent(tmp_path / "nowhere")
    with pytest.raises(DicerlError, match="holds no run"):
        dicerl.load_agent(tmp_path)
    with pytest.raises(CheckpointError, match=r"123456789.*is not a complete checkpoint"):
        dicerl.load_agent(run.directory / "checkpoints" / "123456789")


def test_load_agent_of_a_model_from_another_network(run, copy):
    config = json.loads((copy / "config.json").read_text())
    config["network"]["hidden"] = 48
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="does not fit its run") as caught:
        dicerl.load_agent(copy)
    assert len(str(caught.value).splitlines()) == 1


# --- act


def test_act_on_one_observation(agent):
    action, state = agent.act(np.zeros(4, np.float32))
    assert action in (0, 1)
    assert type(action) is int
    assert isinstance(state, torch.Tensor)
    action, _ = agent.act([0.0, 0.1, 0.0, 0.1], state)  # a list and Python floats do as well
    assert action in (0, 1)


def test_act_on_a_batch(agent):
    observations = np.random.default_rng(0).normal(size=(64, 4))
    actions, state = agent.act(observations, inv_temperature=0.0)
    assert actions.shape == (64,)
    assert set(actions.tolist()) == {0, 1}  # tau infinite: uniform
    actions, _ = agent.act(observations, state, inv_temperature=np.linspace(0, 50, 64))
    assert actions.shape == (64,)


def test_greedy_takes_the_largest_advantage_and_draws_nothing(run):
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    a, b = dicerl.load_agent(run), dicerl.load_agent(run)
    actions, _ = a.act(observations, greedy=True)
    with torch.no_grad():
        advantage = b.network.unroll(
            torch.from_numpy(observations)[None], b.initial_state(64), None
        ).advantage[0]
    assert (actions == advantage.argmax(-1).numpy()).all()
    # the greedy call left the random stream alone
    assert (a.act(observations)[0] == b.act(observations)[0]).all()


def test_a_cold_agent_is_nearly_greedy_and_a_hot_one_is_not(agent):
    observations = np.random.default_rng(1).normal(size=(256, 4)).astype(np.float32)
    greedy, _ = agent.act(observations, greedy=True)
    cold, _ = agent.act(observations, inv_temperature=1e6)
    hot, _ = agent.act(observations, inv_temperature=0.0)
    assert (cold == greedy).mean() > 0.99
    assert 0.3 < (hot == greedy).mean() < 0.7


def test_the_state_is_what_makes_the_next_action(agent):
    """Step by step with the state handed on is the whole sequence at once; without it, it is
    not.
    """
    observations = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32) * 3
    with torch.no_grad():
        whole = agent.network.unroll(
            torch.from_numpy(observations)[:, None], agent.initial_state(1), None
        ).state
    state = None
    for observation in observations:
        _, state = agent.act(observation, state)
    torch.testing.assert_close(state, whole)
    assert not torch.allclose(agent.act(observations[-1])[1], whole)


def test_the_temperature_comes_from_the_best_region(run, agent):
    ((low, high),) = agent.region
    assert 0 <= low < high <= math.log1p(run.config.bandit.max_inv_temperature)
    fixed = dicerl.api.Agent(agent.model, [(math.log(1e6), math.log(1e6))])
    observations = np.random.default_rng(1).normal(size=(256, 4)).astype(np.float32)
    assert (fixed.act(observations)[0] == fixed.act(observations, greedy=True)[0]).mean() > 0.99


@pytest.mark.parametrize(
    "observation", [np.zeros(5), np.zeros((2, 3)), np.zeros((1, 2, 4)), np.zeros(()), 0.0, []]
)
def test_an_observation_of_the_wrong_shape_is_refused(agent, observation):
    with pytest.raises(DicerlError, match=r"shape \(.*\); CartPole-v1 gives \(4,\)"):
        agent.act(observation)


@pytest.mark.parametrize("observation", ["nonsense", [[0.0, 1.0], [0.0]], None])
def test_an_observation_that_is_no_array_is_refused(agent, observation):
    with pytest.raises((DicerlError, TypeError, ValueError)):
        agent.act(observation)


@pytest.mark.parametrize(
    "arguments",
    [
        {"state": torch.zeros(2, 3, 16)},
        {"state": torch.zeros(2, 1, 5)},
        {"inv_temperature": np.ones(3)},
        {"inv_temperature": -1.0},
        {"inv_temperature": np.nan},
    ],
)
def test_a_state_or_temperature_that_does_not_fit_is_refused(agent, arguments):
    with pytest.raises((DicerlError, RuntimeError, ValueError)):
        agent.act(np.zeros(4), **arguments)


def test_the_last_action_and_reward_are_asked_for(tmp_path):
    run = dicerl.train(
        debug(tmp_path / "run", network__last_action_reward=True, frames=64, evaluation__every=0),
        quiet=True,
    )
    with pytest.raises(DicerlError, match="last action and reward"):
        dicerl.load_agent(run).act(np.zeros(4))


# --- an own environment


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return dicerl.train(debug(tmp_path_factory.mktemp("own") / "run", frames=200), Five, quiet=True)


def test_an_agent_plays_its_own_environment(own):
    agent = dicerl.load_agent(own, Five)
    env = Five()
    observation, _ = env.reset(seed=0)
    state, done, actions = None, False, []
    while not done:
        action, state = agent.act(observation, state, inv_temperature=0.0)
        actions.append(action)
        assert env.action_space.contains(action), "act gives actions of the environment's own space"
        observation, _, done, _, _ = env.step(action)
    assert len(actions) == 5


def test_a_run_of_an_own_environment_needs_it_again(own):
    """Its config only knows an id; loading it without the callable must not silently take another
    environment.
    """
    with pytest.raises(DicerlError):
        dicerl.load_agent(own)
    with pytest.raises(DicerlError):
        dicerl.resume(own.directory, quiet=True)
    assert dicerl.resume(own.directory, Five, quiet=True).summary["complete"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_a_process_that_has_trained_can_train(tmp_path):
    """torch's threads are not in the copy, and what is divided among them waited for ever."""
    code = """
        import multiprocessing, sys
        import dicerl

        def train(name):
            settings = {"env.id": "CartPole-v1", "runtime.kind": "serial", "frames": 200}
            settings |= {"run_dir": name, "network.hidden": 1024, "runtime.learner_threads": 2}
            dicerl.train(dicerl.preset("debug", **settings), quiet=True)

        train("first")
        copy = multiprocessing.get_context("fork").Process(target=train, args=("second",))
        copy.start()
        copy.join(60)
        ended = copy.exitcode
        copy.kill()
        sys.exit(ended != 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0
