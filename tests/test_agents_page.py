"""docs/agents.md: its Python samples run, one after the other, and its tables name all there is."""

import re
from pathlib import Path

import numpy as np
import pytest

import dicerl
from dicerl.core.family import NUMBERS
from dicerl.export import graph
from runs import debug

TEXT = (Path(__file__).parent.parent / "docs/agents.md").read_text()


@pytest.mark.usefixtures("single_threaded")
def test_the_samples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = dicerl.train(debug(Path("runs/cartpole"), "CartPole-v1", network__lstm=0), quiet=True)
    names = {}
    samples = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(samples) == 6
    for sample in samples:
        exec(sample, names)
    agent = dicerl.load_agent(run)
    inputs = names["observations"], agent.initial_state(3), *[np.zeros(3, np.float32)] * 2
    expected = agent.model.step(*inputs, np.ones((3, 1), np.float32))
    np.testing.assert_allclose(names["found"]["log_probs"].numpy(), expected.log_pi, atol=1e-5)
    np.testing.assert_allclose(names["value"], expected.value(), atol=1e-5)
    assert names["made"]["difference"]["onnx"] < graph.EXACT
    assert Path("cartpole-agent/README.md").is_file()


def test_the_tables_name_every_tensor():
    named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", TEXT, re.M))))
    numbers = {name for names in NUMBERS.values() for name in names}
    others = {"observation", "state", "action_mask", "last_action", "last_reward"}
    assert named == numbers | others | {"log_probs", "value", "advantage", "next_state"}
