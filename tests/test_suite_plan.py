"""suite/plan.py: a suite from a file and from options, and the mistakes in both."""

import os
import textwrap
from pathlib import Path

import pytest

from dicerl.errors import DicerlError
from dicerl.suite.plan import make_plan
from runs import one_line, plan_of


def test_a_file_and_options(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        textwrap.dedent("""
        games = ["pong", "MinAtar/Breakout-v1"]
        variants = ["dice", "baseline"]
        seeds = 2
        jobs = 3
        [config]
        frames = 1_000
        optimizer.learning_rate = 0.01
        bandit.widths = [1, 2]
        [config.loss]
        q = 3
    """)
    )
    plan = make_plan({}, {}, str(path))
    assert plan.directory == Path("suites/mine")
    assert (plan.jobs, plan.against, plan.seeds) == (3, "baseline", [0, 1])
    assert [(r.seed, r.game, r.variant) for r in plan.runs[:3]] == [
        (0, "pong", "dice"),
        (0, "pong", "baseline"),
        (0, "MinAtar/Breakout-v1", "dice"),
    ]
    assert len(plan.runs) == 8
    config = plan.runs[-1].config
    assert (config.preset, config.variant, config.seed, config.env.id) == (
        "minatar",
        "baseline",
        1,
        "MinAtar/Breakout-v1",
    )
    assert (config.frames, config.optimizer.learning_rate, config.bandit.widths, config.loss.q) == (
        1_000,
        0.01,
        (1, 2),
        3.0,
    )
    assert config.run_dir == "suites/mine/runs/MinAtar_Breakout_v1-baseline-1"
    assert plan.runs[0].config.preset == "laptop"

    wins = make_plan(
        {"games": ["freeway,pong"], "seeds": ["4,5"], "dir": "x", "preset": "debug"},
        {"frames": "2000"},
        str(path),
    )
    assert (wins.games, wins.seeds, wins.directory) == (["freeway", "pong"], [4, 5], Path("x"))
    assert {(r.config.frames, r.config.preset, r.config.loss.q) for r in wins.runs} == {
        (2_000, "debug", 3.0)
    }


def test_a_file_may_name_a_field_as_before_a_renaming(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('games = ["pong"]\n[config]\nsequence.capacity = 99\n')
    plan = make_plan({}, {}, str(path))
    assert plan.changes == {"collector.capacity": 99}  # what the runs are started with
    assert {r.config.collector.capacity for r in plan.runs} == {99}


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(["3"], [0, 1, 2]), (["7,"], [7]), (["0,2", "9"], [0, 2, 9]), ([5, 1], [5, 1]), (2, [0, 1])],
)
def test_seeds(given, seeds):
    assert plan_of(seeds=given).seeds == seeds


def test_no_run_is_compared_with_itself():
    assert plan_of().against is None
    assert plan_of(variants=["baseline"]).against is None
    assert plan_of(variants=["dice", "random"]).against is None
    assert plan_of(variants=["dice", "random"], against="random").against == "random"


FILES = {
    "no TOML": ("games = [", ["is not TOML"]),
    "unknown key": ('game = ["pong"]', ["'game'", "did you mean games?"]),
    "a field at the top": ('games = ["pong"]\nframes = 3', ["'frames'", "[config]"]),
    "unknown field": (
        'games = ["pong"]\n[config]\nloss.qq = 3',
        ["'loss.qq'", "did you mean loss.q?"],
    ),
    "a fixed field": ('games = ["pong"]\n[config]\nseed = 3', ["'seed'", "seeds"]),
    "config is no table": ('games = ["pong"]\nconfig = 3', ["config is 3"]),
    "games are numbers": ("games = [1]", ["games is [1]"]),
    "seeds are words": ('games = ["pong"]\nseeds = ["a"]', ["seeds is ['a']"]),
    "half a seed": ('games = ["pong"]\nseeds = 1.5', ["seeds is 1.5"]),
    "no seeds": ('games = ["pong"]\nseeds = []', ["seeds is []"]),
    "an empty list": ('games = ["pong"]\n[config]\nloss.q = []', ["loss.q is []", "at least one"]),
    "one bad value of a list": (
        'games = ["pong"]\n[config]\nloss.q = [1, "a"]',
        ["loss.q is 'a'", "a finite number"],
    ),
    "a value of a list out of range": (
        'games = ["pong"]\n[config]\nloss.discount = [0.5, 2]',
        ["loss.discount is 2", "between"],
    ),
    "a list of book-keeping": (
        'games = ["pong"]\n[config]\nruntime.num_envs = [1, 2]',
        ["'runtime.num_envs'", "does not change what is learned"],
    ),
    "too large a grid": (
        f'games = ["pong"]\n[config]\nloss.q = {list(range(50))}\nloss.value = {list(range(50))}',
        ["loss.q, loss.value", "2,500 combinations"],
    ),
    "search is no table": ('games = ["pong"]\nsearch = 3', ["search is 3"]),
    "no samples": (
        'games = ["pong"]\n[search]\nloss.q = [1, 2]',
        ["search.samples is None", "whole number"],
    ),
    "samples without fields": (
        'games = ["pong"]\n[search]\nsamples = 3',
        ["search.samples is 3", "no field to draw"],
    ),
    "more samples than settings": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = [1, 2]',
        ["search.samples is 3", "only 2 different"],
    ),
    "a range of two rounded values": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = {min = 1, max = 1.01, log = true}',
        ["search.samples is 3", "only 2 different"],
    ),
    "unknown field to draw": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.qq = [1, 2]',
        ["search is 'loss.qq'", "did you mean loss.q?"],
    ),
    "a fixed field to draw": (
        'games = ["pong"]\n[search]\nsamples = 2\nvariant = ["dice", "casa"]',
        ["search is 'variant'", "variants"],
    ),
    "no distribution": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = 3',
        ["search.loss.q is 3", "{min = "],
    ),
    "half a range": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = {min = 1}',
        ["search.loss.q is", "{min = "],
    ),
    "a range turned round": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = {min = 2, max = 1}',
        ["search.loss.q is", "min must be below max"],
    ),
    "a range that leaves the field's": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.discount = {min = 0.9, max = 2}',
        ["search.loss.discount is", "from 0 to 1"],
    ),
    "a logarithm of zero": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.q = {min = 0, max = 1, log = true}',
        ["search.loss.q is", "above 0"],
    ),
    "a range of choices": (
        'games = ["pong"]\n[search]\nsamples = 3\nloss.critic = {min = 0, max = 1}',
        ["search.loss.critic is", "only numbers"],
    ),
    "a field in a list and in the search": (
        'games = ["pong"]\n[config]\nloss.q = [1, 2]\n[search]\nsamples = 3\nloss.q = [1, 2, 3]',
        ["search is 'loss.q'", "[config]"],
    ),
    "jobs": ('games = ["pong"]\njobs = 0', ["jobs is 0"]),
    "jobs without end": ('games = ["pong"]\njobs = inf', ["jobs is inf"]),
    "a deep table": (f'games = ["pong"]\n[config]\n{".".join("a" * 2000)} = 1', ["50 levels deep"]),
    **{
        f"digits without end: {line.split(' =')[0]}": (
            f'games = ["pong"]\n{line.replace("N", "0x" + "f" * 4000)}',
            ["a whole number lies beyond 9.22e+18"],
        )
        for line in (
            "seeds = [N]",
            "config = [N]",
            "log = N",
            "[config]\nframes = [1, N]",
            "[config]\nruntime.device = N",
            "[config]\nevaluation.stop_at = N",
            "[config]\nbandit.widths = [[N]]",
        )
    },
}
MISTAKES = {
    "no games": (["--seeds", "1"], ["needs games", "--games"]),
    "unknown game": (["--games", "pnog"], ["'pnog'", "did you mean pong?"]),
    "unknown variant": (
        ["--games", "pong", "--variants", "dyce"],
        ["variant is 'dyce'", "did you mean dice?"],
    ),
    "unknown preset": (["--games", "pong", "--preset", "labtop"], ["did you mean laptop?"]),
    "a system as preset": (
        ["--games", "pong", "--preset", "impala"],
        ["preset is 'impala'", "variants"],
    ),
    "unknown file": (["nothing.toml"], ["nothing.toml"]),
    "unknown option": (["--games", "pong", "--seed", "3"], ["--seed", "did you mean --seeds?"]),
    "negative seed": (["--games", "pong", "--seeds=-1,2"], ["seeds is"]),
    "against a stranger": (
        ["--games", "pong", "--against", "baseline"],
        ["against is 'baseline'", "dice"],
    ),
    "bad value": (["--games", "pong", "--frames", "many"], ["frames is 'many'"]),
    "one game twice": (
        ["--games", "MinAtar/Breakout-v1", "MinAtar_Breakout_v1"],
        ["share a directory"],
    ),
    "samples without a search": (
        ["--games", "pong", "--samples", "3"],
        ["samples is '3'", "[search]"],
    ),
    "a number with commas": (["--games", "pong", "--frames", "1,000"], ["frames is"]),
    "no evaluation": (["--games", "pong", "--evaluation.every", "0"], ["evaluation.every is 0"]),
}


@pytest.mark.parametrize("mistake", [*FILES, *MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing_behind(call, tmp_path, mistake):
    args, fragments = MISTAKES.get(mistake) or (["suite.toml"], FILES[mistake][1])
    if mistake in FILES:
        (tmp_path / "suite.toml").write_text(FILES[mistake][0])
    code, out, err = call("suite", *args)
    assert (code, out) == (2, "")
    assert err.startswith("dicerl: ")
    assert len(err.splitlines()) == 1
    for fragment in fragments:
        assert fragment in err
    assert [p.name for p in tmp_path.iterdir()] in ([], ["suite.toml"])


def test_arguments_and_wrappers_of_the_environment(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        games = ["CartPole-v1"]
        [config]
        env.kwargs = {sutton_barto_reward = true}
        env.wrappers = ["gymnasium.wrappers:FlattenObservation"]
        """
    )
    env = make_plan({}, {}, str(path)).runs[0].config.env
    assert env.kwargs == {"sutton_barto_reward": True}
    assert env.wrappers == ("gymnasium.wrappers:FlattenObservation",)


@pytest.mark.timeout(60)
def test_a_suite_too_large_to_list_is_refused(tmp_path):
    path = tmp_path / "suite.toml"
    for seeds in (10**12, 100_001):
        path.write_text(f'games = ["CartPole-v1"]\nseeds = {seeds}\n')
        with pytest.raises(DicerlError, match="at most 100,000 runs"):
            make_plan({}, {}, str(path))
    games = [f"Game{i}-v0" for i in range(2_000)]
    path.write_text(f"games = {games}\nseeds = 51\n")
    with pytest.raises(DicerlError, match="make 102,000 runs"):
        make_plan({}, {}, str(path))


@pytest.mark.timeout(60)
def test_a_suite_file_that_is_none(call, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "zero", "bytes", "folder"):
        one_line(call("suite", name), name)


def test_a_folder_with_a_name_that_no_file_can_have(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text('games = ["CartPole-v1"]\ndir = "a\\u0000b"\n')
    with pytest.raises(DicerlError, match=r"dir is .* it must be a path"):
        make_plan({}, {}, str(path))
