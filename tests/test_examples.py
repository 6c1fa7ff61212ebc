"""examples/, and the tutorial's own: each runs, and does what it says."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def test_catch_wired_by_hand_learns():
    """A random player's mean is about -0.6; every episode counts, also those that explore."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "catch.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert float(done.stdout.rpartition(" ")[2]) > 0.6


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_fits_on_two_screens_and_says_how_to_start_it(path):
    text = path.read_text()
    assert len(text.splitlines()) < 100
    assert f"python examples/{path.name}" in text
    assert f"(../examples/{path.name})" in (ROOT / "docs/examples.md").read_text()


@pytest.fixture
def example(monkeypatch, tmp_path, single_threaded):
    """An example as a module, in this process: starting torch anew takes longer than most. Runs
    are written to an empty folder.
    """
    monkeypatch.chdir(tmp_path)

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_environment_is_learned(example):
    trained, waiting = example("environment").main(frames=30_000)
    assert trained > waiting + 40


def test_memory_finds_the_way(example):
    assert example("memory").main(lstm=32, frames=12_000) > 0.9


def test_a_torso_that_knows_the_tides_names_them(example, monkeypatch):
    module = example("torso")
    # as if it had been imported: a run names its torso by its module
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module.main() > 0.85  # a quarter at random, and with an MLP


def test_callbacks_follow_a_run_and_stop_it(example, capfd):
    run = example("callbacks").main(score=10, frames=8_000)
    assert 5_000 <= run.summary["frames"] < 6_000
    said = capfd.readouterr()
    assert re.search(
        r"frames  return +\d+\.\d  1/tau \d+\.\d to \d+\.\d  entropy 0\.\d\d", said.out
    )
    assert "evaluation: " in said.out


def test_metrics_are_tables(example, cartpole, capfd):
    found = example("read_metrics").main(cartpole)
    assert found.keys() == {"episode", "evaluation", "event", "train"}
    assert found["episode"]["return"].gt(0).all()
    assert "loss" in found["train"]
    assert "loss" not in found["episode"]
    assert "return over 1/tau" in capfd.readouterr().out


def test_a_search_reports_evaluations_and_prunes(example):
    search = example("search")
    study = search.main(trials=2, frames=600)
    assert len(study.trials) == 2
    for trial in study.trials:
        assert list(trial.intermediate_values.values())[-1] == trial.value
        assert len(trial.intermediate_values) >= 2
        assert 1e-4 <= trial.params["learning_rate"] <= 1e-2

    class Behind:
        def report(self, score, step):
            assert score > 0

        def should_prune(self):
            return True

    report = search.Report(Behind())
    assert report.on_evaluation({"mean_return": 9.0, "frames": 1}) is True


def test_the_vote_explores_for_ppo(example):
    module = example("vote_in_sb3")
    mean, vote = module.main(steps=6_000)
    assert mean > 35  # about 22 at random
    assert vote.counts().sum() > 50
    # the first environment acts uniformly, the second at twice the logits; training sees neither
    env = module.make_vec_env("CartPole-v1", n_envs=2, seed=0)
    policy = module.Tempered(env.observation_space, env.action_space, lambda _: 1e-3)
    seen = policy.obs_to_tensor(env.reset())[0]
    plain = policy.get_distribution(seen).distribution.logits
    policy.inv_temperature = plain.new_tensor([[0.0], [2.0]])
    acted = policy.get_distribution(seen).distribution
    assert acted.probs[0].tolist() == [0.5, 0.5]
    apart = acted.logits[1, 0] - acted.logits[1, 1]
    assert apart.item() == pytest.approx(2 * (plain[1, 0] - plain[1, 1]).item(), rel=1e-4)


def tutorial(file):
    """A block of the tutorial that is to be saved as ``file``."""
    text = (ROOT / "docs/tutorial.md").read_text()
    return text[text.index(f"`{file}`") :].split("```python\n")[1].split("```")[0]


def test_the_tutorial_s_own_programs_run(call, tmp_path, monkeypatch):
    (tmp_path / "lights.py").write_text(tutorial("lights.py"))
    monkeypatch.delitem(sys.modules, "lights", raising=False)
    code, _, err = call("train", "lights:Lights-v0", "--frames", "12000", "--quiet")
    assert code == 0, err
    code, out, err = call("evaluate", "runs/lights_Lights_v0-dice-0", "--trust", "--json")
    assert code == 0, err
    assert json.loads(out)["mean_return"] > -6  # of -30; it can be solved
    program = tutorial("cartpole.py")
    assert "frames=30_000" in program
    names = {}
    exec(program.replace("30_000", "500").replace(', checkpoint="best"', ""), names)
    assert names["total"] >= 8
