"""config/resuming.py and ``init``: a run that goes on with other settings, and one that starts from
another's weights.
"""

import json

import pytest
import torch

from dicerl.api import find_checkpoint, resume, train
from dicerl.config import fields_of, from_dict
from dicerl.config.presets import preset
from dicerl.config.resuming import FIXED, changed, why_fixed
from dicerl.errors import ConfigError
from dicerl.records import checkpoint
from runs import TINY


def config_of(run):
    return from_dict(json.loads((run / "config.json").read_text()))


def test_a_run_goes_on_with_what_was_changed(copy, call):
    before = checkpoint.newest(copy)[1]
    code, out, err = call(
        "resume", str(copy), "--frames", "900", "--optimizer.learning-rate", "1e-4", "--json"
    )
    assert code == 0
    assert "changed: frames 600 -> 900" in err
    assert "changed: optimizer.learning_rate 0.0005 -> 0.0001" in err
    assert "was changed since" not in err  # nobody edited it
    assert json.loads(out)["complete"]
    now = config_of(copy)
    assert (now.frames, now.optimizer.learning_rate) == (900, 1e-4)
    assert checkpoint.newest(copy)[1].updates > before.updates
    assert resume(copy, quiet=True).summary["complete"]  # and later runs have it


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime.num_envs": 3},
        {"sequence.batch": 5, "sequence.reuse": 1},
        {"runtime.kind": "process"},
        {"loss.entropy": 0.1, "evaluation.every": 0},
    ],
    ids=str,
)
def test_what_may_change(copy, changes):
    ended = resume(copy, quiet=True, changes={"frames": 800, **changes})
    assert ended.summary["complete"]
    assert ended.summary["frames"] >= 800


@pytest.mark.parametrize(
    "option",
    [
        "--env.action-repeat 2",
        "--network.hidden 99",
        "--seed 5",
        "--bandit.num-bandits 3",
        "--variant casa",
    ],
)
def test_what_a_checkpoint_depends_on_is_refused_with_the_reason(copy, call, option):
    before = (copy / "config.json").read_text()
    code, _, err = call("resume", str(copy), *option.split())
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    name = option.split()[0].lstrip("-").replace("-", "_")
    assert err.startswith(f"dicerl: {name} is ")
    assert "this run has" in err
    assert FIXED.get(name, FIXED.get(name.split(".")[0])) in err
    assert (copy / "config.json").read_text() == before


def test_the_same_value_is_no_change(copy):
    config = config_of(copy)
    assert changed(config, {"seed": config.seed, "env.id": config.env.id}) == (config, {})


def test_every_reason_is_of_a_field_or_section_that_exists():
    sections = {name.split(".")[0] for name in fields_of()}
    assert set(FIXED) <= set(fields_of()) | sections
    assert why_fixed("optimizer.learning_rate") is None


def test_the_help_tells_what_may_change(call):
    _, out, _ = call("resume", "--help")
    for option in ("--optimizer.learning-rate", "--runtime.kind"):
        assert option in out
    for option in ("--network.hidden", "--seed"):
        assert option not in out


# --- init -----------------------------------------------------------------------------------------


def starting(finished, tmp_path, **changes):
    """The weights that a new run starts from, and the run."""
    found = []

    def keep(learner, batch):
        found.append({name: x.clone() for name, x in learner.network.state_dict().items()})

    config = config_of(finished).replace(run_dir=str(tmp_path / "new"), **changes)
    run = train(config, quiet=True, on_batch=keep)
    return found[0], run


def test_a_new_run_starts_from_another_s_weights(finished, tmp_path):
    began, run = starting(finished, tmp_path, **{"init.run": str(finished), "seed": 7})
    saved, _ = find_checkpoint(finished)
    tensors = checkpoint.read_tensors(saved.path, "model")
    assert began.keys() == tensors.keys()
    assert all(torch.equal(began[name], tensors[name]) for name in tensors)
    assert run.summary["frames"] >= 600  # its own frames, from 0


def episodes_of(run):
    """Episodes that the vote of a run has seen, by its first bandit's books."""
    joint = find_checkpoint(run)[0].state.temperatures["votes"]
    return sum(sum(vote["bandits"][0]["counts"]) for votes in joint for vote in votes)


def test_the_vote_begins_anew_or_is_kept(finished, tmp_path):
    had = episodes_of(finished)
    _, anew = starting(finished, tmp_path / "a", **{"init.run": str(finished)})
    _, kept = starting(finished, tmp_path / "b", **{"init.run": str(finished), "init.vote": True})
    assert had > 0
    assert episodes_of(kept.directory) > had + 0.5 * episodes_of(anew.directory)


def test_another_network_is_refused(finished, call):
    code, _, err = call(
        "train", "CartPole-v1", *TINY, "--init-from", str(finished), "--network.hidden", "33"
    )
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert f"init.run is '{finished}'; its network is another than this run's" in err


def test_another_vote_is_refused(finished):
    config = config_of(finished).replace(
        **{"init.run": str(finished), "init.vote": True, "bandit.num_bandits": 2}
    )
    with pytest.raises(ConfigError, match=r"init\.vote is True; .* other bandit fields"):
        train(config, quiet=True)


def test_a_run_that_is_not_there(call):
    code, _, err = call("train", "CartPole-v1", *TINY, "--init-from", "nowhere")
    assert code == 2
    assert "nowhere holds no run" in err


def test_the_presets_start_from_nothing():
    assert preset("paper").init.run == ""
