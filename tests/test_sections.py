"""report/sections.py: which cards a page has, whatever the runs' files hold."""

import json

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.report.data import find_runs
from dicerl.report.sections import payload
from runs import append, figures_of, line, make_run, opened

quick = settings(max_examples=25, deadline=None, derandomize=True)
KINDS = ("train", "episode", "evaluation", "event", "other")
FIELDS = (
    "frames",
    "return",
    "entropy",
    "tile_values",
    "tile_visits",
    "mean_return",
    "event",
    "time",
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3),
    max_leaves=6,
)
SECTIONS = ["Return", "Temperature", "Learning", "Data", "Speed"]


@quick
@given(
    st.binary(max_size=300),
    st.dictionaries(st.sampled_from(FIELDS), VALUES),
    st.sampled_from(KINDS),
)
def test_nothing_in_a_metrics_file_breaks_the_page(tmp_path_factory, raw, fields, kind):
    directory = make_run(tmp_path_factory.mktemp("odd") / "run")
    with (directory / "metrics.jsonl").open("wb") as file:
        file.write(raw + b"\n" + json.dumps({"kind": kind, **fields}).encode() + b"\n" + raw)
    json.dumps(payload([opened(directory)]), allow_nan=False)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"env": 3, "variant": null, "frames": "many", "bandit": []}']
)
def test_damaged_config_is_said(tmp_path, damage):
    directory = make_run(tmp_path / "run")
    append(directory, line("episode", 10), line("train", 20, entropy=0.5))
    (directory / "config.json").write_text(damage)
    content = payload([opened(directory)])
    assert "entropy" in {c["id"] for s in content["sections"] for c in s["cards"]}
    assert bool(content["runs"][0]["problem"]) == (damage in ("", "{", "[]"))


def test_every_figure_of_a_real_run_is_one_plotly_accepts(trained):
    content = payload([opened(p) for p in find_runs(trained)])
    assert [s["title"] for s in content["sections"]] == SECTIONS
    cards = {c["id"]: c for s in content["sections"] for c in s["cards"]}
    for card in cards.values():
        go.Figure(card["figure"])  # raises where a property or a value is none of Plotly's
        layout = card["figure"]["layout"]
        assert layout["xaxis"]["title"]["text"], card["id"]
        assert layout["yaxis"]["title"]["text"] or layout["yaxis"]["type"] == "category", card["id"]
        assert any(len(trace["x"]) for trace in card["figure"]["data"]), card["id"]
    env = "dicerl.envs.toy:Catch-v0"
    of_temperatures = {
        f"{kind}/dice-0/inv_temperature" for kind in ("values", "visits", "bandits", "votes")
    }
    assert of_temperatures | {
        f"return/{env}",
        f"evaluation/{env}",
        "entropy",
        "favoured",
        "loss_value",
        "loss_q",
        "loss_policy",
        "gradient_norm",
        "policy_lag",
        "ratio",
        "clipped",
        "throughput",
        "stages",
    } <= set(cards)
    # its temperature is fixed: there is no map to show
    assert not any("/baseline-" in id_ for id_ in cards)
    # serial: nothing measured it
    assert any("Learner waits" in note for s in content["sections"] for note in s["missing"])
    json.dumps(content, allow_nan=False)


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ("pong", True),
        ("Pong", True),
        ("PongNoFrameskip-v4", True),
        ("PongDeterministic-v0", True),
        ("MontezumaRevenge-v5", True),
        ("ALE/UpNDown-v5", True),
        ("ALE/Blackjack-v5", False),  # a cartridge, but none of the 57
        ("Blackjack-v1", False),
        ("MinAtar/Breakout-v1", False),
        ("CartPole-v1", False),
        ("my_module:Pong-v0", False),
        ("<Pong>", False),
    ],
)
def test_which_environments_are_compared_with_the_papers_table(tmp_path, env, shown):
    directory = make_run(tmp_path / "run", **{"env.id": env})
    append(directory, line("evaluation", 10, mean_return=9.0))
    assert (f"hns/{env}" in figures_of([opened(directory)])) == shown
