"""runtime/precision.py, and the torso in bfloat16: the policy that acts is the one trained."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import dicerl
import probe
from dicerl.agent.networks import Network
from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError
from dicerl.runtime import precision

CPU = torch.device("cpu")
PONG = EnvSpec("pong", (4, 84, 84), np.dtype(np.uint8), 18, frame_stack=4)
BOUND = 1e-3  # |log mu - log pi| at the same weights; 9e-6 was measured


def laptop(**changes):
    return preset("laptop", **{"env.id": "pong", **changes})


def frames(count, spec=PONG):
    shape = (count, *spec.observation_shape)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8))


@pytest.mark.parametrize("torso", ["impala_shallow", "impala_deep", "minatar"])
@pytest.mark.parametrize("normalise", ["statistics", "scale"])
def test_bfloat16_features_are_those_of_float32_but_for_rounding(torso, normalise):
    torch.manual_seed(0)
    changes = {"network.torso": torso, "network.normalise": normalise}
    # MinAtar's own pictures are small: of large ones its torso is a matrix of 100 MB
    spec = replace(PONG, observation_shape=(4, 20, 20)) if torso == "minatar" else PONG
    full = Network(laptop(**changes), spec)
    half = Network(laptop(**changes, **{"runtime.precision": "bfloat16"}), spec)
    half.load_state_dict(full.state_dict())
    seen = frames(20, spec)
    with torch.no_grad():
        a, b = full.torso(seen), half.torso(seen)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    torch.testing.assert_close(b, a, rtol=0.05, atol=0.05)
    assert all(p.dtype == torch.float32 for p in half.parameters())


def test_gradients_are_float32_and_close():
    torch.manual_seed(0)
    full = Network(laptop(), PONG)
    half = Network(laptop(**{"runtime.precision": "bfloat16"}), PONG)
    half.load_state_dict(full.state_dict())
    gradients = []
    for network in (full, half):
        loss = network.torso(frames(8)).square().mean()
        gradients.append(torch.autograd.grad(loss, list(network.parameters()), allow_unused=True))
    for a, b in zip(*gradients, strict=True):
        if a is not None:
            assert b.dtype == torch.float32
            assert torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.98


@pytest.mark.parametrize("lstm", [0, 16])
@pytest.mark.parametrize("inv_temperature", [1.0, 50.0])
def test_what_acts_in_bfloat16_is_what_is_trained(lstm, inv_temperature):
    """Acting sees a few stacks at a time, the learner a whole batch of single frames: at the same
    weights both give the same probabilities, at the greediest temperature, too.
    """
    windows = []
    config = laptop(
        **{
            "runtime.precision": "bfloat16",
            "network.lstm": lstm,
            "sequence.burn_in": 3 if lstm else 0,
            "behaviour.source": "fixed",
            "behaviour.inv_temperature": inv_temperature,
        }
    )
    actor = probe.actor_of(
        config,
        None,
        16,
        send_sequences=lambda w: windows.append({name: x.copy() for name, x in w.items()}),
    )
    # 1/tau in units of A's deviation: greedy but for near ties
    actor.model.calibrate(actor._observation)
    start = config.sequence.burn_in
    while len(windows) < (2 if start else 1):  # the first has nothing to burn in on
        actor.act()
        actor.advance()
    actor.env.close()
    data = {name: torch.from_numpy(x) for name, x in windows[-1].items()}
    actor.model.network.allow_gradient_in_parts()  # as a learner process trains it
    advantage = actor.model.window(data).advantage.detach()
    spread = float(actor.model.network.advantage_scale)
    log_pi = torch.log_softmax(advantage * (inv_temperature / spread), -1)
    likeliest = float(log_pi.exp().max(-1).values.mean())
    assert likeliest > 0.9 if inv_temperature > 10 else 0.2 < likeliest < 0.8
    taken = log_pi.gather(-1, data["action"][start:, :, None])[..., 0]
    error = (taken - data["log_prob"][start:]).abs()[data["valid"][start:]]
    assert float(error.max()) < BOUND


def test_auto_measures_only_where_bfloat16_may_pay(monkeypatch):
    def resolved(config, runtime="process", spec=PONG, device=CPU):
        return precision.resolved(config, spec, runtime, device).runtime.precision

    config = laptop()
    asked = []
    monkeypatch.setattr(precision, "speedup", lambda c, s: asked.append(s) or 1.7)
    monkeypatch.setattr(precision, "has_bfloat16", lambda: True)
    assert resolved(config) == "bfloat16"
    assert len(asked) == 1
    assert resolved(config, "serial") == "float32"
    assert resolved(config, device=torch.device("cuda")) == "float32"
    assert resolved(config, spec=EnvSpec("x", (4,), np.dtype(np.float32), 2)) == "float32"
    assert resolved(laptop(**{"runtime.precision": "float32"})) == "float32"
    assert len(asked) == 1
    monkeypatch.setattr(precision, "speedup", lambda c, s: 1.05)
    assert resolved(config) == "float32"
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    monkeypatch.setattr(precision, "speedup", lambda c, s: 1.7)
    assert resolved(config) == "float32"
    assert resolved(laptop(**{"runtime.precision": "bfloat16"}), "serial") == "bfloat16"


def test_bfloat16_without_images_is_refused():
    """Else a checkpoint would name a precision that nothing was computed in."""
    vector = EnvSpec("x", (4,), np.dtype(np.float32), 2)
    with pytest.raises(ConfigError, match=r"runtime.precision is 'bfloat16'; it is for images"):
        precision.resolved(laptop(**{"runtime.precision": "bfloat16"}), vector, "serial", CPU)


def test_the_measurement_is_a_ratio_and_leaves_threads_alone(monkeypatch):
    monkeypatch.setattr(precision, "SECONDS", 0.02)
    before = torch.get_num_threads()
    assert 0.01 < precision.speedup(laptop(), PONG) < 100
    assert torch.get_num_threads() == before


def test_what_is_measured_is_laid_out_and_divided_as_a_learner_has_it(monkeypatch):
    measured = []
    monkeypatch.setattr(precision, "_seconds", lambda network, _: measured.append(network) or 1.0)
    precision.speedup(laptop(**{"network.torso": "impala_deep"}), PONG)
    assert {network.in_bfloat16 for network in measured} == {False, True}
    for network in measured:
        assert network.gradient_in_parts
        assert network.input_offset.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("asked", ["auto", "bfloat16"])
def test_a_run_says_its_precision_everywhere(tmp_path, asked, capsys):
    config = preset(
        "debug",
        **{
            "env.id": "MinAtar/Breakout-v1",
            "runtime.precision": asked,
            "run_dir": str(tmp_path / "run"),
            "frames": 400,
            "evaluation.every": 0,
        },
    )
    run = dicerl.train(config)
    used = "float32" if asked == "auto" else asked
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["runtime"]["precision"] == used
    )
    state = next((tmp_path / "run" / "checkpoints").glob("*/state.json"))
    assert json.loads(state.read_text())["precision"] == used
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert (first["event"], first["precision"]) == ("start", used)
    assert f"on cpu in {used}" in capsys.readouterr().err
    agent = dicerl.load_agent(run.directory)
    assert agent.network.in_bfloat16 == (used == "bfloat16")
