"""agent/own_torso.py: a torso of the user's own, by name; and ``network.hidden`` as a list."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dicerl
from dicerl.agent.networks import Network
from dicerl.config import Config, as_text, override
from dicerl.config.presets import preset
from dicerl.envs import trust
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError, DicerlError
from dicerl.suite.plan import make_plan
from hostile import edited
from runs import TINY, one_line, refused

HERE = __name__
VECTOR = EnvSpec("test", (5,), np.dtype(np.float32), 3)
IMAGE = EnvSpec("test", (12, 10, 2), np.dtype(np.uint8), 3)
PACKAGE = str(Path(dicerl.__file__).parents[1])


class Small(nn.Module):
    def __init__(self, shape, size=6):
        super().__init__()
        self.shape = shape
        self.layer = nn.Linear(int(np.prod(shape)), size)

    def forward(self, x):
        assert x.shape[1:] == self.shape
        return torch.tanh(self.layer(x.flatten(1)))


def factory(shape):
    return Small(shape, 9)


def lazy(shape):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4))


class Changed(nn.Module):
    """``Small`` with something wrong."""

    def __init__(self, shape):
        super().__init__()
        self.inner = Small(shape)

    def forward(self, x):
        return self.inner(x)


class NoFeatures(Changed):
    def forward(self, x):
        return self.inner(x)[None]


class Numbers(Changed):
    def forward(self, x):
        return self.inner(x).argmax(-1, keepdim=True)


class Pair(Changed):
    def forward(self, x):
        return self.inner(x), x


class Raises(Changed):
    def forward(self, x):
        raise ValueError("not\nnow")


class Normed(Changed):
    def __init__(self, shape):
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(6)


class Dropped(Changed):
    def __init__(self, shape):
        super().__init__(shape)
        self.drop = nn.Dropout(0.5)


class Counts(Changed):
    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))


class Frozen(Changed):
    def __init__(self, shape):
        super().__init__(shape)
        self.inner.layer.weight.requires_grad_(False)


class NoShape(nn.Module):
    def __init__(self):
        super().__init__()


def no_module(shape):
    return "text"


def network(torso, spec=VECTOR, variant="dice", **changes):
    return Network(preset("debug", variant, **{"network.torso": torso, **changes}), spec)


# --- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("Small", 6), ("factory", 9), ("lazy", 4)])
@pytest.mark.parametrize("spec", [VECTOR, IMAGE], ids=["vector", "image"])
def test_its_output_are_the_features(name, size, spec):
    net = network(f"{HERE}:{name}", spec)
    seen = torch.zeros(
        7,
        *spec.observation_shape,
        dtype=torch.from_numpy(np.zeros(1, spec.observation_dtype)).dtype,
    )
    assert net.torso(seen).shape == (7, size)
    assert net.torso_name == f"{HERE}:{name}"
    out = net.unroll(seen[None], net.initial_state(7), None)
    assert out.advantage.shape == (1, 7, 3)
    assert out.features.shape == (1, 7, size)
    assert torch.equal(net.torso(seen), net.convolutions(net._normalised(net.inputs(seen))))


def test_images_come_with_channels_first():
    assert network(f"{HERE}:Small", IMAGE).convolutions.shape == (2, 12, 10)


@pytest.mark.parametrize("variant", ["conditioned", "casa", "casa/trainable_tau"])
def test_with_what_variants_add(variant):
    net = network(f"{HERE}:Small", variant=variant, **{"network.hidden": 11})
    seen = torch.randn(4, 2, 5)
    out = net.unroll(seen, net.initial_state(2), None, inv_temperature=torch.rand(4, 2))
    assert out.features.shape == (4, 2, 11 if variant == "conditioned" else 6)
    if variant == "casa":
        predicted, guessed = net.dynamics(
            out.hidden, out.features, torch.zeros(3, 2, dtype=torch.int64)
        )
        assert predicted.shape == (3, 2, 6)
        assert guessed.shape == (3, 2, 3)


def test_it_keeps_its_own_initialisation():
    torch.manual_seed(0)
    plain = Small((5,)).layer.weight.clone()
    torch.manual_seed(0)
    net = network(f"{HERE}:Small", **{"network.initialisation": "orthogonal"})
    assert torch.equal(net.convolutions.layer.weight, plain)
    assert net.advantage_head.weight.abs().max() < 0.02


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Smal", f"{HERE} has no Smal; did you mean Small?"),
        ("NoShape", "called with (5,), it raised TypeError"),
        ("no_module", "called with (5,), it gave str; it must be a class of torch.nn.Module"),
        ("HERE", "called with (5,), it raised TypeError: 'str' object is not callable"),
        ("NoFeatures", "of shape (2, 5) it gave torch.float32 of shape (1, 2, 6); it must give"),
        ("Numbers", "it gave torch.int64 of shape (2, 1)"),
        ("Pair", "it gave tuple"),
        ("Raises", "for inputs of shape (2, 5) it raised ValueError: not now"),
        ("Normed", "it has a BatchNorm1d, which acts otherwise than it trains"),
        ("Dropped", "it has a Dropout"),
        ("Counts", "its seen is torch.int64; it must be torch.float32"),
        ("Frozen", "its inner.layer.weight is not trained: what stays fixed must be a buffer"),
    ],
)
def test_what_does_not_fit_is_one_line(name, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        network(f"{HERE}:{name}")
    assert str(error.value).startswith(f"network.torso is '{HERE}:{name}'; ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["a:", ":b", "a b:C", "a:b.C", "a:b:c", ["a:b"], 5, None, Small])
def test_what_is_no_name_is_refused(value):
    assert "network.torso is" in refused("network.torso", value)


def test_a_module_that_is_not_there_is_one_line_of_the_command(call):
    one_line(
        call("train", "CartPole-v1", "--network.torso", "nowhere_to_be:Found"),
        "network.torso is 'nowhere_to_be:Found'; its module cannot be imported: No module named",
    )


def test_a_torso_without_a_name_is_refused():
    class Local(Small):
        pass

    for torso, name in (
        (Local, "Local"),
        (lambda shape: Small(shape), "<lambda>"),
        (Small((5,)), "Small"),
    ):
        with pytest.raises(ConfigError, match=f"network.torso is .*{name}.*at the top of a module"):
            dicerl.train("CartPole-v1", torso=torso)


# --- runs -----------------------------------------------------------------------------------------

EXAMPLE = (
    (Path(__file__).parents[1] / "docs/network.md")
    .read_text()
    .split("```python")[1]
    .split("```")[0]
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the module of docs/network.md, which this process has not imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    (tmp_path / "my_torsos.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("my_torsos", None)


def test_the_example_of_the_page_from_the_command_line(call, folder):
    trained = call(
        "train", "CartPole-v1", *TINY, "--network.torso", "my_torsos:Waves", "--run-dir", "run"
    )
    assert trained[0] == 0, trained
    saved = json.loads((folder / "run/config.json").read_text())
    assert saved["network"]["torso"] == "my_torsos:Waves"
    quick = ("--episodes", "1", "--max-steps", "2", "--quiet")
    sys.modules.pop("my_torsos")
    for command, more in (("evaluate", quick), ("resume", ("--quiet", "--frames", "700"))):
        one_line(call(command, "run", *more), "run/config.json", "module 'my_torsos'", "--trust")
        assert "my_torsos" not in sys.modules
    assert call("evaluate", "run", *quick, "--trust")[0] == 0
    assert call("resume", "run", "--quiet", "--frames", "700")[0] == 0  # a class, imported by now
    agent = dicerl.load_agent("run")
    assert type(agent.network.convolutions).__name__ == "Waves"
    (folder / "my_torsos.py").write_text("")
    sys.modules.pop("my_torsos")
    one_line(call("evaluate", "run", *quick, "--trust"), "my_torsos has no Waves")


def test_from_python(tmp_path):
    run = dicerl.train(
        "CartPole-v1",
        preset="debug",
        frames=200,
        torso=factory,
        quiet=True,
        run_dir=str(tmp_path / "run"),
        tensorboard=False,
        evaluation__every=0,
    )
    assert run.config.network.torso == f"{HERE}:factory"
    with pytest.raises(DicerlError, match="trust=True"):  # a function: it would be called
        dicerl.load_agent(run)
    assert dicerl.load_agent(run, trust=True).network.lstm_input == 9


@pytest.mark.parametrize("name", ["os:system", "builtins:print", "dicerl:train", "torch:load"])
def test_a_file_cannot_have_functions_called(copy, name):
    """Their modules are imported, but to make a torso is to call it."""
    edited("config.json", "network.torso", name)(copy)
    for door in (dicerl.load_agent, dicerl.resume):
        with pytest.raises(DicerlError, match="asks to import the module"):
            door(copy)


def test_a_suite_s_file(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(
        'games = ["CartPole-v1"]\nseeds = 1\npreset = "debug"\n'
        '[config.network]\ntorso = "evil:Waves"\n'
    )
    with pytest.raises(DicerlError, match=r"suite\.toml asks to import the module 'evil'"):
        make_plan({}, {}, str(path))
    assert make_plan({}, {}, str(path), trust=True).runs[0].config.network.torso == "evil:Waves"
    typed = {"network.torso": "mine:Waves"}
    assert make_plan({}, typed, str(path)).runs[0].config.network.torso == "mine:Waves"


def test_processes_are_sent_a_torso_of_the_script_itself(tmp_path):
    (tmp_path / "script.py").write_text(
        EXAMPLE + "\nimport dicerl\n"
        "run = dicerl.train('CartPole-v1', torso=Waves, preset='debug', frames=300, quiet=True,"
        " tensorboard=False, evaluation__every=0, runtime__kind='process', runtime__num_actors=1,"
        " run_dir='run')\n"
        "agent = dicerl.load_agent(run)\n"
        "print(run.config.network.torso, run.summary['complete'])\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__:Waves True\n"
    with pytest.raises(ConfigError, match="it was in the program that trained, and this one has"):
        dicerl.load_agent(tmp_path / "run", trust=True)


# --- network.hidden -------------------------------------------------------------------------------


def layers(net):
    return [(m.in_features, m.out_features) for m in net.dense if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(
    ("hidden", "vector", "image"),
    [
        (7, [(5, 7), (7, 7)], [(1280, 7)]),
        ((7,), [(5, 7)], [(1280, 7)]),
        ((9, 8, 4), [(5, 9), (9, 8), (8, 4)], [(1280, 9), (9, 8), (8, 4)]),
    ],
)
def test_the_widths_of_dense_layers(hidden, vector, image):
    for spec, expected in ((VECTOR, vector), (IMAGE, image)):
        net = network("auto", spec, **{"network.hidden": hidden, "network.layer_norm": True})
        assert layers(net) == expected
        assert [type(m).__name__ for m in net.dense][-2:] == ["LayerNorm", "ReLU"]
        assert net.lstm_input == expected[-1][1]


def test_a_list_of_equal_widths_is_the_number_bit_for_bit():
    nets = []
    for hidden in (7, (7, 7)):
        torch.manual_seed(0)
        nets.append(network("mlp", variant="casa", **{"network.hidden": hidden}))
    one, two = (net.state_dict() for net in nets)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("typed", "value"),
    [("256,128", (256, 128)), ("64", 64), ("64,", (64,)), ("1e2", 100), ([5, 6], (5, 6)), (8, 8)],
)
def test_widths_as_they_are_typed(typed, value):
    assert override(Config(), {"network.hidden": typed}).network.hidden == value


@pytest.mark.parametrize("value", [64, (64,), (64, 32)])
def test_a_suite_passes_widths_on_as_they_are(value):
    assert override(Config(), {"network.hidden": as_text(value)}).network.hidden == value


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "it must be a whole number"),
        ("a", "it must be a whole number"),
        ("4,x", "it must be a list of whole numbers"),
        ("4,0.5", "it must be a list of whole numbers"),
        (0, "it must lie between 1 and 65536"),
        ((4, 0), "it needs at least one value, each between 1 and 65536"),
        ((), "it needs at least one value"),
    ],
)
def test_widths_that_are_refused(typed, words):
    assert words in refused("network.hidden", typed)
