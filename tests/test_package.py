"""export/package.py, export/card.py and export/about.py: an agent as a folder that can be loaded
anywhere and tells nothing of the machine it was made on.
"""

import contextlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import gymnasium
import pytest
import torch

import dicerl
from dicerl.config.presets import preset
from dicerl.errors import ConfigError, DicerlError
from dicerl.evaluate.evaluate import evaluate
from dicerl.export.about import about, evaluation
from dicerl.export.card import card
from dicerl.export.package import CONTENT, anonymous, package
from dicerl.records import checkpoint
from dicerl.records.run import Run
from runs import append, one_line

pytestmark = pytest.mark.usefixtures("single_threaded")


def files_of(folder):
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def weights(agent):
    return agent.model.flat.vector


def test_a_package_is_loaded_by_its_path_alone(call, cartpole, tmp_path):
    code, out, err = call("package", cartpole, "-o", "agent", "--checkpoint", "best", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    original = dicerl.load_agent(cartpole, checkpoint="best")
    elsewhere = shutil.copytree("agent", tmp_path / "else" / "where")
    shutil.rmtree("agent")
    updates = checkpoint.best_of(cartpole).name
    assert files_of(elsewhere) == [
        "README.md",
        f"checkpoints/{updates}/model.safetensors",
        f"checkpoints/{updates}/state.json",
        "config.json",
        "dicerl.json",
        "evaluations.jsonl",
        "metrics.jsonl",
    ]
    for which in ("newest", "best", updates):
        agent = dicerl.load_agent(elsewhere, checkpoint=which)
        assert torch.equal(weights(agent), weights(original))
        assert agent.region == original.region
    code, out, _ = call("evaluate", elsewhere, "--episodes", 3, "--json", "--quiet")
    assert code == 0
    run = checkpoint.best_of(cartpole)
    assert json.loads(out)["returns"] == evaluate(run, episodes=3).result["returns"]
    # it tells of itself what the run tells
    again = package(elsewhere, tmp_path / "again")
    assert {**again, "package": "agent"} == told
    assert told["score"]["mean_return"] == checkpoint.read_state(run).best_evaluation
    assert told["score"]["best_of"] == 3
    assert told["trained_with"]["version"] == dicerl.__version__


def test_it_tells_nothing_of_the_machine(tmp_path, cartpole):
    """Neither where the run lay nor what it started from, in any file."""
    secret = tmp_path / "s3cret-user"
    run = shutil.copytree(cartpole, secret / "run")
    config = Run.open(run).config.replace(
        **{
            "run_dir": str(run),
            "init.run": str(secret / "before"),
            "ray.address": "s3cret-host:6379",
            "runtime.device": "cuda:3",
        }
    )
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    append(run, '{"kind": "event", "event": "s3cret-note"}')
    package(run, tmp_path / "agent", video=True, episodes=2)
    assert "video.mp4" in files_of(tmp_path / "agent")
    for name in files_of(tmp_path / "agent"):
        content = (tmp_path / "agent" / name).read_bytes()
        for word in (b"s3cret", str(tmp_path).encode(), str(Path.home()).encode() + b"/", b"cuda"):
            assert word not in content, (name, word)
    assert set(os.listdir(tmp_path / "agent")) == set(CONTENT)


@pytest.mark.parametrize("place", ["/home/me/x.txt", "~/x", "size=3,file=/data/x", "C:\\x"])
def test_a_place_in_another_field_is_refused(place):
    config = preset("debug", **{"env.id": "MinAtar/Breakout-v1", "run_dir": place})
    assert anonymous(config).run_dir == ""
    with pytest.raises(ConfigError, match=r"env\.id is .* place on this machine"):
        anonymous(config.replace(**{"env.id": place}))


def test_only_packages_are_replaced(call, cartpole, tmp_path):
    assert call("package", cartpole, "-o", "agent")[0] == 0
    first = (tmp_path / "agent" / "README.md").stat().st_ino
    assert call("package", cartpole, "-o", "agent", "--licence", "MIT")[0] == 0
    assert (tmp_path / "agent" / "README.md").stat().st_ino != first
    assert 'license: "MIT"' in (tmp_path / "agent" / "README.md").read_text()
    (tmp_path / "agent" / ".git").mkdir()
    one_line(call("package", cartpole, "-o", "agent"), "agent", ".git")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.md").write_text("all of it")
    (tmp_path / "thesis" / "package.json").write_text("{}")  # npm's
    one_line(call("package", cartpole, "-o", "thesis"), "thesis", "no package", "chapter.md")
    assert (tmp_path / "thesis" / "chapter.md").read_text() == "all of it"
    one_line(call("package", cartpole, "-o", cartpole), "no package")
    one_line(call("package", cartpole, "-o", "no/where"), "output is", "make it first")
    (tmp_path / "link").symlink_to("agent")
    one_line(call("package", cartpole, "-o", "link"), "it is no folder")
    assert sorted(os.listdir(tmp_path)) == ["agent", "link", "thesis"]  # nothing left behind


def test_one_that_fails_leaves_what_was_there(cartpole, tmp_path, monkeypatch):
    package(cartpole, tmp_path / "agent")
    before = (tmp_path / "agent" / "README.md").stat().st_ino
    rename = Path.rename

    def full(*_):
        raise OSError(28, "No space left on device")

    def stopped(path, target):
        if path.parent.name.startswith(".package-") and path.name == "agent":
            raise KeyboardInterrupt  # between the old and the new one
        return rename(path, target)

    for name, fails, error in (
        ("dicerl.export.package.card", full, OSError),
        ("pathlib.Path.rename", stopped, KeyboardInterrupt),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, fails)
            with pytest.raises(error):
                package(cartpole, tmp_path / "agent")
    assert (tmp_path / "agent" / "README.md").stat().st_ino == before
    assert os.listdir(tmp_path) == ["agent"]


def test_its_default_place_and_its_text(call, minatar, tmp_path):
    """A run without evaluations."""
    code, out, _ = call("package", minatar)
    folder = f"packages/{minatar.name}"
    assert code == 0
    assert out.startswith(f"{folder}: MinAtar/Breakout-v1, ")
    assert "not evaluated" in out
    assert "not evaluated" in (tmp_path / folder / "README.md").read_text()
    assert dicerl.load_agent(folder).network.lstm is not None


def test_the_card_s_code_plays(cartpole, minatar, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in (cartpole, minatar):
        told = package(run, "agent")
        text = (tmp_path / "agent" / "README.md").read_text()
        code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, {})
        assert float(said.getvalue()) >= 0
        assert f"| seed | {told['seed']} |" in text
        assert f"{told['frames']:,} frames" in text
        assert told["trained_with"]["version"] in text


def test_episodes_of_one_s_own_are_the_score(cartpole, tmp_path):
    told = package(cartpole, tmp_path / "agent", episodes=4)
    assert told["score"]["episodes"] == 4
    assert told["score"]["best_of"] is None
    text = (tmp_path / "agent" / "README.md").read_text()
    assert "mean return of 4 episodes; played after training" in text
    played = evaluate(tmp_path / "agent", episodes=4)
    assert told["score"]["mean_return"] == played.result["mean_return"]


def test_a_module_needs_consent(call, tmp_path, monkeypatch, cartpole):
    run = shutil.copytree(cartpole, tmp_path / "run")
    config = Run.open(run).config.replace(**{"env.id": "strangers_module:CartPole-v1"})
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    (tmp_path / "strangers_module.py").write_text("import gymnasium\n")
    monkeypatch.delitem(sys.modules, "strangers_module", raising=False)
    # to pack it runs nothing of it, to play it does
    assert call("package", run, "-o", "agent")[0] == 0
    one_line(call("package", run, "-o", "other", "--episodes", 1), "strangers_module", "--trust")
    assert "strangers_module" not in sys.modules
    one_line(call("evaluate", "agent"), "strangers_module", "--trust")
    with pytest.raises(DicerlError, match="trust=True"):
        dicerl.load_agent("agent")
    assert "trust=True" in Path("agent/README.md").read_text()
    assert "strangers_module" not in sys.modules
    assert call("evaluate", "agent", "--episodes", 1, "--trust")[0] == 0
    monkeypatch.delitem(sys.modules, "strangers_module")


def test_an_environment_of_python_s_own(tmp_path):
    def small():
        return gymnasium.make("CartPole-v1", max_episode_steps=9)

    run = dicerl.train(
        small, frames=60, preset="debug", run_dir=str(tmp_path / "run"), quiet=True
    ).directory
    told = package(run, tmp_path / "agent", small, episodes=2)
    assert told["env"] == "<small>"
    assert told["score"]["mean_return"] <= 9
    assert "pass it as `make_env`" in (tmp_path / "agent" / "README.md").read_text()
    assert dicerl.load_agent(tmp_path / "agent", small).spec.num_actions == 2


def test_a_package_is_not_resumed_but_started_from(call, cartpole, tmp_path):
    package(cartpole, tmp_path / "agent")
    one_line(call("resume", "agent"), "is a package", "--init-from agent")
    assert "run.lock" not in os.listdir("agent")
    config = Run.open("agent").config
    run = dicerl.train(
        config.replace(**{"init.run": "agent", "frames": 40, "run_dir": str(tmp_path / "on")}),
        quiet=True,
    )
    assert checkpoint.checkpoints_of(run.directory)


def test_names_from_files_are_no_markup():
    told = {
        "env": "<b>`x`|\n[y](z)",
        "score": None,
        "region": {"inv_temperature": [1.0, 1.0]},
        "frames": 1,
        "updates": 1,
        "variant": "`v`",
        "preset": "a|b",
        "seed": 0,
        "trained_with": {},
        "written_with": {"version": "1"},
        "licence": None,
        "episodes_played": 0,
        "video": None,
    }
    text = card(told, "agent")
    title = next(line for line in text.splitlines() if line.startswith("# "))
    assert not re.search(r"[<`|\[]", title.replace("&#", ""))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(row.count("|") == 3 for row in rows)
    assert len(rows) == 11


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "evaluation", "version": 9, "mean_return": "many", "episodes": 2}',
        '{"kind": "evaluation", "version": 9, "mean_return": 1.0, "episodes": null}',
        '{"kind": "evaluation", "version": 9, "mean_return": 1, "episodes": 2, "interval": [1]}',
        f'{{"kind": "evaluation", "version": 9, "mean_return": 1{"0" * 400}, "episodes": 2}}',
        f'{{"kind": "evaluation", "version": 9, "mean_return": 1, "episodes": 1{"0" * 400}}}',
        f'{{"version": 9, "mean_return": 1, "episodes": 2, "interval": [0, 1{"0" * 400}]}}',
        '{"kind": "evaluation", "version": 9, "mean_return": 1, "episodes": -1}',
        "[9]",
        "{",
    ],
)
def test_evaluations_that_no_run_wrote_are_none(tmp_path, line):
    (tmp_path / "evaluations.jsonl").write_text(line + "\n")
    assert evaluation(tmp_path, 9) is None


def test_a_trained_temperature_is_told(tmp_path):
    config = preset(
        "debug",
        **{
            "env.id": "CartPole-v1",
            "behaviour.source": "trainable",
            "frames": 60,
            "run_dir": str(tmp_path / "run"),
        },
    )
    run = dicerl.train(config, quiet=True)
    found = run.newest_checkpoint()
    agent = dicerl.load_agent(run)
    told = about(run, found, checkpoint.read_tensors(found.path, "model"))["region"]
    expected = agent.network.log_inv_temperature.exp().item()
    assert told == {"inv_temperature": [pytest.approx(expected)] * 2}
