"""export/graph.py: exported files, run by onnxruntime and torch.export.load, do what the agent
does.
"""

import contextlib
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import dicerl
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.agent import Agent
from dicerl.config.presets import preset
from dicerl.envs import env_spec, make_vector_env
from dicerl.errors import DicerlError
from dicerl.export import graph
from masked import Masked
from runs import debug, one_line

pytestmark = pytest.mark.usefixtures("single_threaded")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """CartPole without LSTM, with all that a policy can depend on besides its weights."""
    config = debug(
        tmp_path_factory.mktemp("graph") / "run",
        "CartPole-v1",
        network__lstm=0,
        network__normalise="statistics",
        network__statistics_steps=64,
        behaviour__scale="normalised",
        env__reward_unit="returns",
        env__reward_shape="none",
    )
    return dicerl.train(config, quiet=True).directory


@pytest.fixture
def pong(trained_once):
    return trained_once(
        "pong",
        frames=160,
        evaluation__every=0,
        checkpoint__every=0,
        network__torso="impala_shallow",
        runtime__learner_threads=1,
    )


def onnx_of(file):
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def torch_export_of(file):
    module = torch.export.load(str(file)).module()

    def run(inputs):
        with torch.no_grad():
            results = module({name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in results.items()}

    return run


def compare(agent, runs, n, steps=3):
    """Play ``n`` environments, each at its own temperature: a file's results are the agent's."""
    rng = np.random.default_rng(n)
    with contextlib.closing(make_vector_env(agent.config, n)) as env:
        observation, state = env.reset(seed=n), agent.initial_state(n)
        nothing = np.zeros(n, np.float32)
        for _ in range(steps):
            inv_temperature = rng.uniform(0, 50, n).astype(np.float32)
            inputs = {"observation": observation, "inv_temperature": inv_temperature}
            if agent.network.lstm is not None:
                inputs["state"] = state.numpy()
            step = agent.model.step(observation, state, nothing, nothing, inv_temperature[:, None])
            expected = {
                "log_probs": step.log_pi,
                "value": step.value(),
                "advantage": step.output.advantage[0].numpy(),
            }
            if agent.network.lstm is not None:
                expected["next_state"] = step.state.numpy()
            action, _ = agent.act(observation, state, greedy=True)
            for run in runs:
                found = run(inputs)
                assert found.keys() == expected.keys()
                for name, x in expected.items():
                    np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-5, err_msg=name)
                assert (found["advantage"].argmax(1) == action).all()
            state, observation = step.state, env.step(action)[0]


@pytest.mark.parametrize(
    "run", ["vectors", "minatar", pytest.param("pong", marks=pytest.mark.slow)]
)
def test_the_files_do_what_the_agent_does(run, request, tmp_path):
    directory = request.getfixturevalue(run)
    files = {"onnx": tmp_path / "a.onnx", "torch_export": tmp_path / "a.pt2"}
    result = graph.export(directory, **files)
    agent = dicerl.load_agent(directory)
    assert bool(agent.network.lstm) == (run != "vectors")
    runs = [onnx_of(files["onnx"]), torch_export_of(files["torch_export"])]
    for n in (1, 2, 17):
        compare(agent, runs, n)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "a.pt2"]
    # what they say of themselves
    onnx.checker.check_model(str(files["onnx"]), full_check=True)
    session = onnxruntime.InferenceSession(str(files["onnx"]))
    properties = session.get_modelmeta().custom_metadata_map
    for x in session.get_inputs():
        dtype, shape = json.loads(properties["inputs"])[x.name]
        assert x.shape == shape
        assert x.type == f"tensor({ {'float32': 'float'}.get(dtype, dtype) })"
    with zipfile.ZipFile(files["torch_export"]) as archive:
        (name,) = [x for x in archive.namelist() if x.endswith(graph.METADATA)]
        assert json.loads(archive.read(name)) == {
            name: value for name, value in result.items() if name not in ("files", "difference")
        }
        unpacked = b"".join(map(archive.read, archive.namelist()))
    # and what they must not: where they were made
    places = (Path.home(), Path(graph.__file__).parent, Path(torch.__file__).parent, directory)
    for content in (files["onnx"].read_bytes(), unpacked):
        assert result["env"].encode() in content
        assert not [place for place in places if str(place).encode() in content]
    for name, value in properties.items():
        assert value == result[name] or json.loads(value) == result[name]
    low, high = result["region"]["inv_temperature"]
    assert [(low, high)] == [tuple(np.expm1(ends)) for ends in agent.region]
    assert len(result["actions"]) == agent.spec.num_actions
    assert result["trained_with"]["version"] == dicerl.__version__
    if run == "pong":
        assert result["actions"][:3] == ["noop", "fire", "up"]
        assert result["inputs"]["observation"] == ["uint8", ["N", 4, 42, 42]]
    if run == "vectors":
        assert result["value_scale"] == pytest.approx(agent.model.value_scale())
        assert result["score"]["episodes"] == agent.config.evaluation.episodes


def untrained(**changes):
    config = preset("debug", **{"env.id": "CartPole-v1", **changes})
    torch.manual_seed(1)
    model = ActorCritic(config, env_spec(config))
    model.network.advantage_scale.fill_(0.3)
    return Agent(model, [(0.0, 1.0)] * len(model._numbers))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("epsilon", {"network.last_action_reward": True}),
        ("mixture", {"behaviour.scale": "normalised", "network.lstm": 0}),
        ("conditioned", {}),
    ],
)
def test_every_family_has_its_numbers_as_inputs(family, changes):
    agent = untrained(**{"behaviour.family": family, **changes})
    policy = graph.Policy(agent).eval()
    module = graph.traced(policy).module()
    for n in (1, 4):
        inputs = policy.examples(n)
        behaviour = torch.stack([inputs[name] for name in policy.numbers], 1).numpy()
        step = agent.model.step(
            inputs["observation"].numpy(),
            inputs.get("state", agent.initial_state(n)),
            inputs.get("last_action", torch.zeros(n)).numpy(),
            inputs.get("last_reward", torch.zeros(n)).numpy(),
            behaviour,
        )
        with torch.no_grad():
            found = module(inputs)["log_probs"]
        np.testing.assert_allclose(found.numpy(), step.log_pi, rtol=1e-5, atol=1e-6)


def test_a_mask_is_an_input(tmp_path):
    config = preset("debug", **{"env.id": "masked"})
    agent = Agent(ActorCritic(config, env_spec(config, Masked)), [(0.0, 1.0)])
    policy = graph.Policy(agent).eval()
    program, file = graph.traced(policy), tmp_path / "a.pt2"
    torch.export.save(program, file)
    assert graph.difference(policy, lambda inputs: torch.export.load(file).module()(inputs)) < 1e-6
    inputs = policy.examples(5)
    with torch.no_grad():
        found = program.module()(inputs)["log_probs"]
    assert (found.exp() > 0).equal(inputs["action_mask"])
    assert 0 < inputs["action_mask"].sum() < 25
    with pytest.raises(DicerlError, match="differs from the agent"):
        graph.difference(
            policy, lambda x: policy(x | {"action_mask": torch.ones_like(x["action_mask"])})
        )


def test_infinity_is_greedy():
    """As in core/policy.py, where it is another path: a graph has both."""
    policy = graph.Policy(untrained()).eval()
    inputs = policy.examples(6)
    inputs["inv_temperature"][::2] = np.inf
    with torch.no_grad():
        found = graph.traced(policy).module()(inputs)
    probability = found["log_probs"].exp()
    assert (probability[::2].amax(1) == 1).all()
    assert (probability[::2].argmax(1) == found["advantage"][::2].argmax(1)).all()
    assert (probability[1::2].amax(1) < 1).all()


def test_a_network_that_is_no_graph_is_one_line(monkeypatch):
    """What looks at values, as somebody's own layers may."""
    policy = graph.Policy(untrained()).eval()
    dense = policy.network.dense
    monkeypatch.setattr(dense, "forward", lambda x: x.relu() if x.sum() > 0 else x, raising=False)
    with pytest.raises(DicerlError, match="this network cannot be exported") as caught:
        graph.traced(policy)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_differs_is_not_kept(vectors, tmp_path, monkeypatch):
    write, load = graph.WRITERS["torch_export"]

    def changed(file):
        module = load(file)
        return lambda inputs: {name: x + 0.001 for name, x in module(inputs).items()}

    monkeypatch.setitem(graph.WRITERS, "torch_export", (write, changed))
    with pytest.raises(DicerlError, match="differs from the agent"):
        graph.export(vectors, torch_export=tmp_path / "a.pt2")
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_one_line_says_what_to_install(call, vectors, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    one_line(call("export", vectors, "--onnx"), "onnxscript", "pip install 'dicerl[export]'")
    monkeypatch.setattr(graph, "PACKAGES", ())
    one_line(call("export", vectors), "--onnx", "--torch-export")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--onnx", "a.bin"), ("onnx is 'a.bin'", ".onnx")),
        (("--torch-export", "nowhere/a.pt2"), ("torch_export is", "nowhere")),
        (("--torch-export", "--checkpoint", "7"), ("checkpoint is '7'",)),
        (("--torch-export", f"{'a' * 300}.pt2"), ("torch_export is", "File name too long")),
    ],
)
def test_mistakes_are_one_line(call, vectors, arguments, fragments):
    one_line(call("export", vectors, *arguments), *fragments)


def test_the_command_prints_files_and_tensors(call, vectors, tmp_path):
    code, out, _ = call("export", vectors, "--checkpoint", "best", "--torch-export", "best.pt2")
    assert code == 0
    assert "observation float32 [N, 4], inv_temperature float32 [N]" in out
    code, out, err = call("export", vectors, "--torch-export", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert Path(result["files"]["torch_export"]).is_file()
    assert Path(result["files"]["torch_export"]).parent == vectors / "exports"
    assert result["difference"]["torch_export"] < 1e-6
    assert (tmp_path / "best.pt2").is_file()
