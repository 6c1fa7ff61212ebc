"""bench/costs.py: what an actor and a learner cost, measured in processes of their own."""

import pytest
import torch

import dicerl
from dicerl.bench.costs import FRAMES, Work, costs, measured_sequences
from dicerl.envs import env_spec
from dicerl.errors import DicerlError
from dicerl.parts.sequence import window_length

CPU = torch.device("cpu")


def work(alone, **changes):
    config = dicerl.preset("debug", **{"env.id": "CartPole-v1", **changes})
    return Work(config, env_spec(config), CPU, 2, 1, config.sequence.batch, alone)


@pytest.mark.parametrize("alone", [True, False])
def test_steps_and_updates_cost_something(alone, single_threaded):
    said = []
    found = costs(work(alone), 0.2, said.append)
    assert 1e-6 < found["step_seconds"] < 0.1
    assert 1e-5 < found["read_seconds"] < found["update_seconds"] < 1.0
    assert 0.8 < found["valid_fraction"] <= 1.0  # CartPole's episodes are short
    assert 5 < found["episode_steps"] < 100
    assert found["actor_bytes"] > 50 * 2**20
    assert found["num_envs"] == 2
    assert len(said) == (2 if alone else 1)


def test_a_part_of_a_large_batch_is_measured():
    paper = dicerl.preset("paper")
    sequences = measured_sequences(paper, False, CPU)
    assert 1 <= sequences * window_length(paper) <= FRAMES
    assert measured_sequences(paper, True, CPU) == paper.sequence.batch
    assert measured_sequences(paper, False, torch.device("cuda")) == paper.sequence.batch
    laptop = dicerl.preset("laptop")
    assert measured_sequences(laptop, False, CPU) == laptop.sequence.batch


def test_a_part_of_a_batch_costs_its_part(single_threaded):
    """One of four sequences is measured; what is given is of all four."""
    whole = work(True)
    part = Work(**{**vars(whole), "sequences": 1})
    found = costs(part, 0.2, lambda line: None)
    assert found["sequences"] == 1
    assert found["update_seconds"] > 1.5 * costs(whole, 0.2, lambda line: None)["update_seconds"]


def test_an_environment_that_fails_is_told(tmp_path, monkeypatch):
    """In the process that is measured."""
    (tmp_path / "broken_env.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the wheel came off')\n\n\n"
        "gymnasium.register('Broken-v0', entry_point=Broken)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DicerlError, match="the wheel came off"):
        costs(work(False, **{"env.id": "broken_env:Broken-v0"}), 0.2, lambda line: None)
