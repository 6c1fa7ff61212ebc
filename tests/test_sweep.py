"""suite/sweep.py: settings from lists and from distributions; a real suite over two of them."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.config import Config, fields_of, get, override, validate
from dicerl.errors import ConfigError
from dicerl.records.run import Run
from dicerl.report.compare import groups
from dicerl.scores.statistics import interval, iqm
from dicerl.suite import sweep
from dicerl.suite.plan import make_plan
from dicerl.suite.results import results
from dicerl.suite.show import best_lines, result_table, score_table
from runs import finish, opened, plan_of

RATE, Q, LENGTH = "optimizer.learning_rate", "loss.q", "sequence.length"
WIDTHS, CRITIC = "bandit.widths", "loss.critic"

numbers = st.floats(0.001, 0.01)
lists = st.fixed_dictionaries(
    {},
    optional={
        RATE: st.lists(numbers, min_size=1, max_size=4),
        LENGTH: st.lists(st.integers(1, 99), min_size=1, max_size=3),
        CRITIC: st.lists(st.sampled_from(["dueling", "casa"]), min_size=1, max_size=3),
        WIDTHS: st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1),
        "loss.stop_pi": st.lists(st.booleans(), min_size=1, max_size=3),
    },
)


def values_of(name, given):
    """As a config holds them."""
    return [get(override(Config(), {name: value}), name) for value in given]


few = settings(max_examples=max(10, settings().max_examples // 4))


@few
@given(lists, st.fixed_dictionaries({}, optional={Q: numbers, "frames": st.integers(1, 10**9)}))
def test_lists_give_every_combination_once(lists, single):
    fixed, swept = sweep.split(lists | single)
    try:
        settings = sweep.combined(swept, [{}])
    except ConfigError:
        assert math.prod(len(set(values_of(n, v))) for n, v in lists.items()) > sweep.MOST
        return
    # what each run is given holds every field, once with each of its values
    found = [fixed | setting for setting in settings.values()]
    assert all(set(changes) == set(lists) | set(single) for changes in found)
    as_given = {tuple(repr(get(override(Config(), c), name)) for name in lists) for c in found}
    wanted = set(
        itertools.product(*([repr(v) for v in values_of(n, given)] for n, given in lists.items()))
    )
    assert as_given == wanted
    assert len(found) == len(wanted)
    # labels and directories tell them apart
    assert len({sweep.directory_name(setting) for setting in settings.values()}) == len(settings)
    assert all(len(sweep.directory_name(s)) <= 100 for s in settings.values())


def test_on_the_command_line_commas_separate_numbers_and_choices():
    fixed, swept = sweep.split(
        {RATE: "1e-3,0.003", CRITIC: "casa", WIDTHS: "1,2", "init.run": "runs/a,b", LENGTH: "8,8"}
    )
    assert swept == {RATE: [1e-3, 3e-3]}
    assert fixed == {CRITIC: "casa", WIDTHS: "1,2", "init.run": "runs/a,b", LENGTH: 8}


def test_a_list_of_lists_sweeps_a_field_that_is_a_list():
    assert sweep.split({WIDTHS: [1, 2]}) == ({WIDTHS: [1, 2]}, {})
    assert sweep.split({WIDTHS: [[1, 2], [3]]}) == ({}, {WIDTHS: [(1, 2), (3,)]})


ranges = st.tuples(st.floats(1e-6, 1.0), st.floats(1.001, 1e4), st.booleans())


@few
@given(ranges, st.integers(0, 2**63 - 1), st.integers(1, 20))
def test_samples_are_in_their_range_short_and_reproducible(of, seed, samples):
    low, factor, log = of
    high = min(low * factor, 1.0) if low < 1 else 1.0
    if not low < high:
        return
    table = {
        "samples": samples,
        "seed": seed,
        "optimizer": {"learning_rate": {"min": low, "max": high, "log": log}},
        "sequence": {"length": {"min": 3, "max": 90, "log": log}},
    }
    found = sweep.search(table)
    assert len(found) == samples == len({repr(setting) for setting in found})
    for setting in found:
        assert low <= setting[RATE] <= high
        assert 3 <= setting[LENGTH] <= 90
        validate(override(Config(), setting))
        if log and setting[RATE] not in (low, high):
            assert setting[RATE] == float(f"{setting[RATE]:.3g}")
    assert sweep.search(table) == found
    assert sweep.search(table, samples="1") == found[:1]  # a larger budget begins with the same


def test_samples_fill_their_range():
    """Evenly in the logarithm with ``log``, and both ends of whole numbers are drawn."""
    for log, middle in ((True, 1e-2), (False, 0.5)):
        of = {"min": 1e-4, "max": 1.0, "log": log}
        table = {"samples": 300, "optimizer": {"learning_rate": of}}
        values = np.array([setting[RATE] for setting in sweep.search(table)])
        assert 0.4 < np.mean(values < middle) < 0.6, log
    whole = {"samples": 6, "sequence": {"length": {"min": 4, "max": 9}}}
    assert sorted(s[LENGTH] for s in sweep.search(whole)) == [4, 5, 6, 7, 8, 9]
    choice = {"samples": 2, "loss": {"critic": ["casa", "dueling"]}}
    assert {s[CRITIC] for s in sweep.search(choice)} == {"casa", "dueling"}


def test_every_game_and_seed_gets_the_same_settings(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'games = ["CartPole-v1", "Acrobot-v1"]\nseeds = 2\npreset = "debug"\n'
        "[config]\nloss.q = [1, 2]\n"
        "[search]\nsamples = 3\noptimizer.learning_rate = {min = 1e-4, max = 1e-2, log = true}\n"
        "[search.sequence]\nlength = [5, 6]\n"
    )
    plan = make_plan({}, {}, str(path))
    assert len(plan.settings) == 6
    assert len(plan.runs) == 6 * 2 * 2
    for run in plan.runs:
        for name, value in plan.settings[run.setting].items():
            assert get(run.config, name) == value == run.changes[name]
    by_place = {(r.game, r.seed): [] for r in plan.runs}
    for run in plan.runs:
        by_place[run.game, run.seed].append(run.setting)
    assert all(labels == list(plan.settings) for labels in by_place.values())
    # options win over both
    one = make_plan({"samples": "1"}, {RATE: "0.5", Q: "3"}, str(path))
    assert len(one.settings) == 1
    assert {(r.config.loss.q, get(r.config, RATE)) for r in one.runs} == {(3.0, 0.5)}
    assert {get(r.config, LENGTH) for r in one.runs} <= {5, 6}


def test_labels_are_short_and_told_apart():
    assert sweep.label({}) == ""
    assert sweep.label({RATE: 1e-3, Q: -1.0}) == "learning_rate 0.001 · q -1.0"
    assert sweep.directory_name({RATE: 1e-3, Q: -1.0}) == "learning_rate=0.001,q=-1.0"
    alike = [name for name in fields_of() if name.split(".")[-1] == "every"]
    assert len(alike) > 1
    assert sweep.label(dict.fromkeys(alike, 1)) == " · ".join(f"{name} 1" for name in alike)
    assert sweep.directory_name({"init.run": "../x"}) != sweep.directory_name({"init.run": "y"})
    assert "/" not in sweep.directory_name({"init.run": "../x"})


def test_the_best_setting_and_how_far_to_trust_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    scores = {0.1: (5, 6, 7, 8), 0.2: (0.5, 9, 9, 9), 0.3: (0.1, 0.2, 0.1, 0.2)}
    plan = plan_of({RATE: list(scores)}, seeds=4, dir="s")
    for run in plan.runs:
        run.score = float(scores[get(run.config, RATE)][run.seed])
        run.state = "finished"
    found = results(plan)
    best = found["best"]["dice"]
    # the IQM leaves out the lowest and the highest of four
    assert best["setting"] == "learning_rate 0.2"
    assert best["config"] == {RATE: 0.2}
    assert list(best["iqm"].values()) == pytest.approx(
        list(interval(iqm, {"": scores[0.2]})), abs=1e-5
    )
    assert best["settings"] == 3
    assert best["not_told_apart"] == 1  # 0.1's; 0.3 ends below
    # of three, it is their mean: 6.67 and 6.33 without seed 1 and 2, against 6.17
    chosen = {0: 0.2, 1: 0.1, 2: 0.1, 3: 0.2}
    left = [scores[rate][seed] for seed, rate in chosen.items()]
    assert best["held_out"] == pytest.approx(iqm({"": left}))
    assert found["settings"]["learning_rate 0.3"] == {RATE: 0.3}
    assert found["runs"][0]["setting"] == "learning_rate 0.1"
    assert next(iter(found["statistics"])) == "dice · learning_rate 0.1"
    text = " ".join(best_lines(found))
    assert "--optimizer.learning-rate 0.2" in text
    assert "optimistic" in text

    from rich.console import Console

    console = Console(width=80)
    console.print(score_table(plan), result_table(found))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    rows = [line.split() for line in lines if line.strip().startswith("dice ")]
    assert [row[1] for row in rows] == ["0.2", "0.1", "0.3"]  # the highest first

    plan.runs[0].score = None  # 0.1 is not complete now, 0.2 and 0.3 are
    assert results(plan)["best"]["dice"]["settings"] == 2


def test_of_many_settings_a_live_table_shows_those_that_run_and_the_highest():
    plan = plan_of({RATE: [i / 100 for i in range(1, 31)]}, seeds=1)
    for i, run in enumerate(plan.runs[:20]):
        run.state, run.score = "finished", float(i)
    plan.runs[25].state = "running"
    table = score_table(plan, "caption", most=3)
    assert [str(cell) for cell in table.columns[1]._cells] == ["0.19", "0.2", "0.26"]
    assert table.caption == "… 27 more rows\ncaption"


@pytest.mark.timeout(600)
def test_a_real_suite_over_two_settings_goes_on_with_a_third(call, tmp_path):
    small = {
        "frames": "300",
        "evaluation.every": "300",
        "evaluation.max_steps": "20",
        "tensorboard": "false",
    }
    args = ["suite", "--games", "CartPole-v1", "--preset", "debug", "--seeds", "1", "--dir", "s"]
    args += [f"--{name}={value}" for name, value in small.items()]
    code, out, err = call(*args, "--optimizer.learning-rate", "0.001,0.01", "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["complete"] is True
    names = [f"CartPole_v1-dice-learning_rate={rate}-0" for rate in ("0.001", "0.01")]
    assert [Path(run["run"]).name for run in found["runs"]] == names
    runs = [Run.open(Path("s/runs") / name) for name in names]
    assert [run.config.optimizer.learning_rate for run in runs] == [0.001, 0.01]
    assert found["best"]["dice"]["settings"] == 2

    # what is there is not run again
    before = {path: path.stat().st_mtime_ns for path in Path("s/runs").rglob("*.jsonl")}
    plan = plan_of(small | {RATE: "0.001,0.01,0.1"}, seeds=1, dir="s")
    finish(plan.runs[2], 99.0)
    code, out, err = call(*args, "--optimizer.learning-rate", "0.001,0.01,0.1")
    assert code == 0, err
    assert "dice, best of 3 settings: --optimizer.learning-rate 0.1; IQM 99.00" in " ".join(
        out.split()
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    labels = [g.label for g in groups([opened(Path("s/runs") / name) for name in names])]
    assert labels == ["dice · learning_rate 0.001", "dice · learning_rate 0.01"]
