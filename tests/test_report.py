"""report/: reading metrics while they are written, the figures' numbers, the HTML file, and the
dashboard's server.
"""

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl import cli
from dicerl.core.bandit import x_from_inv_temperature
from dicerl.records.run import Run, in_use, software
from dicerl.report import data, figures, maps
from dicerl.report.compare import PALETTE, colour, groups
from dicerl.report.dashboard import is_loopback, make_server
from dicerl.report.data import RunData, find_runs
from dicerl.report.jsonl import LIMIT, Thinned, parse_lines
from dicerl.report.report import EMBEDDED, write_report
from dicerl.report.sections import payload, sections
from dicerl.scores import SYSTEMS, hns
from runs import append, line, make_run

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


def opened(directory, **more):
    run = RunData(Path(directory), **more)
    run.refresh()
    return run


# --- reading


@quick
@given(st.data())
def test_pieces_give_what_the_whole_gives(tmp_path_factory, data):
    """However the file grows, and whatever damage lies between the lines, each whole line is read
    once.
    """
    garbage = st.sampled_from(
        [
            b"",
            b"\x00\x00\x00",
            b"{",
            b"}",
            b"[1, 2]",
            b"null",
            b'{"kind": "episode", "frames": 1',
            b"\xff\xfe",
            b"[" * 5000,
            b'{"kind": ["episode"], "frames": 3}',
            b'{"kind": "episode", "frames": null}',
            b'{"kind": "train", "frames": "x"}',
        ]
    )
    returns = data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
    whole = b""
    for i, g in enumerate(returns):
        whole += (
            data.draw(garbage)
            + b"\n"
            + json.dumps(line("episode", i, **{"return": g})).encode()
            + b"\n"
        )
    directory = make_run(tmp_path_factory.mktemp("pieces") / "run")
    run, at = RunData(directory), 0
    while at < len(whole):
        step = data.draw(st.integers(1, len(whole)))
        with (directory / "metrics.jsonl").open("ab") as file:
            file.write(whole[at : at + step])
        at += step
        run.refresh()
    frames, values = run.episodes("return")
    assert frames.tolist() == list(range(len(returns)))
    assert values.tolist() == returns
    payload([run])


def test_lines_are_lines():
    """Two objects on one line are damage, and so are two lines that only together are an object."""
    whole = b'{"a": 1}, {"a": 2}\n{"a": 3}\n{"b": 1\n"c": 2}\n\n{"a": 4}\n'
    assert parse_lines(whole) == ([{"a": 3}, {"a": 4}], 3)


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


def test_a_file_cut_back_and_grown_again_is_read_anew(tmp_path):
    """A resumed run cuts its metrics to the checkpoint; by the next look it may have grown past
    where we were.
    """
    directory = make_run(tmp_path / "run")
    append(directory, *(line("episode", i, **{"return": 1.0}) for i in range(50)))
    run = opened(directory)
    path = directory / "metrics.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:20]))
    append(directory, *(line("episode", i, **{"return": 2.0}) for i in range(20, 90)))
    run.refresh()
    frames, values = run.episodes("return")
    assert frames.tolist() == list(range(90))
    assert values.tolist() == [1.0] * 20 + [2.0] * 70


@quick
@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.sampled_from(("mean", "last")))
def test_thinned_stays_small_and_true(sizes, keep):
    table, limit, total = Thinned(2, limit=16, keep=keep), 16, 0
    for size in sizes:
        x = np.arange(total, total + size, dtype=float)
        table.add(np.stack([x, 3 * x + 1], 1))
        total += size
    rows = table.rows()
    assert len(rows) <= 2 * limit
    assert len(rows) == total if total < 2 * limit else len(rows) >= limit
    assert np.allclose(rows[:, 1], 3 * rows[:, 0] + 1)
    assert (np.diff(rows[:, 0]) > 0).all()
    if keep == "last" and total:
        assert rows[-1, 0] == total - 1
    gaps = np.diff(rows[:-1, 0])  # the last row may still be filling
    assert len(gaps) == 0 or gaps.max() <= 4 * gaps.min()


@pytest.mark.parametrize("keep", ["mean", "last"])
def test_rows_of_a_thinned_table_stand_for_equally_many_lines(keep):
    """369 lines at once were thinned with a row left over, which stayed short for ever."""
    table, total = Thinned(1, limit=16, keep=keep), 0
    for size in (369, 1, 400, 3):
        table.add(np.arange(total, total + size, dtype=float)[:, None])
        total += size
        gaps = np.diff(table.rows()[:-1, 0])  # the last row may still be filling
        assert len(set(gaps.tolist())) == 1


def test_thinned_passes_over_what_is_unknown():
    table = Thinned(1, limit=2)
    table.add(np.array([[1.0], [np.nan], [np.nan], [np.nan], [5.0], [7.0], [9.0], [11.0]]))
    assert np.array_equal(table.rows()[:, 0], [1.0, 8.0], equal_nan=True)


def test_a_long_run_opens_quickly_and_stays_light(tmp_path):
    """An hour: 120,000 episodes and 6,000 train lines, about 33 MB."""
    directory = make_run(tmp_path / "run", frames=10**8)
    tiles = {
        "tile_values": [round(0.1234 * i, 4) for i in range(39)],
        "tile_visits": list(range(39)),
    }
    train = [json.dumps(line("train", 0, **dict.fromkeys(data.TRAIN[1:], 1.2345), **tiles))] * 6000
    with (directory / "metrics.jsonl").open("w") as file:
        for i in range(120_000):
            file.write(
                json.dumps(
                    line(
                        "episode",
                        100 * i,
                        **{"return": float(i % 7), "length": 50, "inv_temperature": 3.0},
                    )
                )
                + "\n"
            )
            if i % 20 == 0:
                file.write(train[i // 20].replace('"frames": 0', f'"frames": {100 * i}') + "\n")
    start = time.process_time()
    run = RunData(directory)
    assert run.overview()["frames"] == 11_999_900
    run.refresh(everything=False)
    text = json.dumps(payload([run]), allow_nan=False)
    assert time.process_time() - start < 2.0
    assert len(text) < 1_000_000
    frames, values = run.episodes("return")
    assert LIMIT <= len(frames) < 2 * LIMIT + 1
    assert values.mean() == pytest.approx(3.0, abs=0.05)
    start = time.process_time()
    append(directory, line("episode", 12_000_000))
    run.refresh(everything=False)
    assert time.process_time() - start < 0.1  # only what is new
    assert run.episodes("return")[0][-1] > 11_900_000


def test_find_runs(runs):
    assert [p.name for p in find_runs(runs / "dice-0")] == ["dice-0"]
    assert {p.name for p in find_runs(runs.parent)} == {
        "dice-0",
        "dice-1",
        "baseline-0",
        "baseline-1",
    }
    assert find_runs(runs / "nothing") == []


# --- how a run stands


def test_states(runs):
    directory = runs / "dice-0"
    state = lambda: RunData(directory).overview()["state"]  # noqa: E731
    assert state() == "finished"
    run = Run.open(directory)
    run.lock()
    assert in_use(directory)
    assert state() == "running"
    run.unlock()
    assert not in_use(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"frames": 10 * config["frames"]}))
    assert state() == "stopped"
    append(directory, line("episode", 700))
    assert state() == "dead"
    append(directory, line("event", 700, event="failed", reason="the disk is full"))
    assert state() == "failed"
    assert "failed: the disk is full" in payload([opened(directory)])["runs"][0]["events"]


def test_looking_at_a_lock_does_not_keep_a_run_out(runs):
    done = threading.Event()

    def look():
        while not done.is_set():
            in_use(runs / "dice-0")

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            run = Run.open(runs / "dice-0")
            run.lock()
            run.unlock()
    finally:
        done.set()
        watcher.join()


def test_score_is_the_last_evaluation_else_recent_episodes(runs):
    last = json.loads((runs / "dice-0" / "evaluations.jsonl").read_text().splitlines()[-1])
    told = RunData(runs / "dice-0").overview()
    assert (told["score"], told["stderr"], told["score_of"]) == (
        last["mean_return"],
        last["stderr"],
        "evaluation",
    )
    (runs / "dice-0" / "evaluations.jsonl").unlink()
    told = RunData(runs / "dice-0").overview()
    assert told["score_of"] == "recent episodes"
    assert -1 <= told["score"] <= 1


def test_a_run_says_what_code_made_it(trained):
    assert opened(trained / "dice-0").software() == software()
    assert software()["version"]
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?", software().get("commit", "0" * 12))


# --- figures


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


def test_mean_and_shade_over_seeds(tmp_path):
    """Two seeds at 10 and 20: the mean is 15, the shade reaches from 10 to 20; a seed that ended
    early counts while it lasted.
    """
    for seed, (value, length) in enumerate(((10.0, 1000), (20.0, 2000))):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        append(run, *(line("episode", f, **{"return": value}) for f in range(0, length + 1, 2)))
    (group,) = groups([opened(tmp_path / "s0"), opened(tmp_path / "s1")])
    shade, mean = figures.training_return([group])["data"]
    x, y = np.array(mean["x"]), np.array(mean["y"])
    assert "2 seeds" in mean["name"]
    assert np.allclose(y[x < 980], 15.0)
    assert np.allclose(y[x > 1040], 20.0)
    both = np.array(shade["y"])[np.array(shade["x"]) < 980]
    assert set(both.tolist()) == {10.0, 20.0}
    assert mean["line"]["color"] == colour("dice")


def test_evaluations_of_seeds_meet_although_their_frames_differ_a_little(tmp_path):
    for seed, (shift, score) in enumerate(((0, 1.0), (7, 3.0))):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        append(
            run,
            *(
                line("evaluation", 1000 * i + shift, mean_return=score, greedy_mean_return=score)
                for i in range(1, 5)
            ),
        )
    shade, mean, greedy = figures.evaluation(
        groups([opened(tmp_path / "s0"), opened(tmp_path / "s1")])
    )["data"]
    assert mean["y"] == greedy["y"] == [2.0] * 4
    assert shade["y"] == [3.0] * 4 + [1.0] * 4


def test_a_run_of_before_a_renaming_is_a_seed_like_the_others(tmp_path):
    """config.json of older runs has collector.capacity among the sequence's fields."""
    made = [
        make_run(tmp_path / f"s{seed}", seed=seed, **{"collector.capacity": capacity})
        for seed, capacity in enumerate((50, 50, 60, 60))
    ]
    for directory in made[1:3]:
        config = json.loads((directory / "config.json").read_text())
        config["sequence"]["capacity"] = config["collector"].pop("capacity")
        (directory / "config.json").write_text(json.dumps(config))
    runs = [opened(directory) for directory in made]
    found = [(g.label, [run.name for run in g.runs]) for g in groups(runs)]
    assert found == [("dice · capacity 50", ["s0", "s1"]), ("dice · capacity 60", ["s2", "s3"])]


def test_a_variant_keeps_its_colour_and_other_settings_get_another_line(tmp_path):
    made = [
        make_run(tmp_path / "a", variant="dice"),
        make_run(tmp_path / "b", variant="baseline"),
        make_run(tmp_path / "c", variant="dice", **{"optimizer.learning_rate": 0.5}),
        make_run(tmp_path / "d", variant="dice", seed=7),
    ]
    for run in made:
        append(run, line("episode", 1), line("train", 1, entropy=1.0))
    found = {g.label: g for g in groups([opened(r) for r in made])}
    assert [len(g.runs) for g in found.values()] == [2, 1, 1]
    plain, other = (g for g in found.values() if g.label.startswith("dice"))
    assert plain.colour == other.colour == colour("dice") != colour("baseline")
    assert plain.dash != other.dash
    assert "learning_rate 0.5" in other.label
    assert (colour("dice"), colour("baseline")) == PALETTE[:2]
    assert colour("my own variant") in PALETTE
    for id_, figure in _figures([opened(made[0]), opened(made[1])]).items():
        for trace in figure["data"]:
            if trace.get("name") in ("dice", "baseline"):
                assert trace["line"]["color"] == colour(trace["name"]), id_


def _figures(runs):
    return {c["id"]: c["figure"] for s in sections(runs) for c in s["cards"]}


def test_temperature_map(tmp_path):
    """Each column is a train line, each row a tile; tiles nobody visited are blank; chosen
    temperatures stand where their tile is.
    """
    directory = make_run(tmp_path / "run")
    for i in range(1, 4):
        append(
            directory,
            line(
                "train",
                100 * i,
                favoured_inv_temperature=9.0,
                tile_values=[0.0, 1.0 * i, 2.0 * i],
                tile_visits=[0, 60 * i, 20 * i],
            ),
            line("episode", 100 * i, **{"return": 1.0, "inv_temperature": 9.0}),
        )
    run = opened(directory)
    heat, chosen, favoured = maps.value_map(run, "inv_temperature")["data"]
    assert heat["x"] == [100.0, 200.0, 300.0]
    assert heat["z"] == [[None, None, None], [1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
    top = float(x_from_inv_temperature(50.0))
    assert np.allclose(heat["y"], [top / 6, top / 2, 5 * top / 6], atol=1e-4)
    assert np.allclose(chosen["y"], np.log(10), atol=1e-4)
    assert np.allclose(favoured["y"], np.log(10), atol=1e-4)
    assert maps.visits_map(run, "inv_temperature")["data"][0]["z"] == [
        [0.0] * 3,
        [75.0] * 3,
        [25.0] * 3,
    ]


def test_visits_look_back_at_the_latest_episodes(tmp_path):
    directory = make_run(tmp_path / "run")
    for i, visits in enumerate(([40, 0], [50, 0], [50, 49], [50, 51], [50, 80])):
        append(directory, line("train", i, tile_values=[1.0, 1.0], tile_visits=visits))
    first, second = maps.visits_map(opened(directory), "inv_temperature")["data"][0]["z"]
    # 59 episodes since the first column, 51 and 80 since the second
    assert first == pytest.approx([100, 100, 100 * 10 / 59, 0, 0], abs=0.01)
    assert second == pytest.approx([0, 0, 100 * 49 / 59, 100, 100], abs=0.01)


def test_time_by_stage(tmp_path):
    """Means of the second half; a stage that takes a quarter of the time at 100 frames/s could do
    400.
    """
    directory = make_run(tmp_path / "run")
    append(
        directory,
        line("train", 10, actor_inference=1.0, frames_per_s=1.0),
        *(
            line(
                "train",
                f,
                actor_inference=0.25,
                learner_training=0.5,
                learner_starved=0.0,
                frames_per_s=100.0,
            )
            for f in (60, 100)
        ),
    )
    bars = {trace["name"]: trace for trace in figures.stages(groups([opened(directory)]))["data"]}
    assert set(bars) == {"inference", "training", "starved"}
    assert (bars["inference"]["x"], bars["inference"]["customdata"], bars["inference"]["y"]) == (
        [0.25],
        [400.0],
        ["dice, actor"],
    )
    assert (bars["training"]["x"], bars["training"]["y"]) == ([0.5], ["dice, learner"])


def test_families_with_other_parameters(tmp_path):
    """mixture votes over three numbers, epsilon over one whose axis runs the other way."""
    mixture = make_run(tmp_path / "mixture", **{"behaviour.family": "mixture"})
    append(
        mixture,
        line(
            "train",
            5,
            tile_values_inv_temperature_low=[1.0, 2.0],
            tile_visits_inv_temperature_low=[1, 0],
            tile_values_weight_low=[3.0, 4.0],
            tile_visits_weight_low=[1, 1],
            favoured_weight_low=0.25,
        ),
        line("episode", 5, inv_temperature_low=0.0, inv_temperature_high=50.0, weight_low=0.75),
    )
    found = _figures([opened(mixture)])
    assert found["values/mixture/inv_temperature_low"]["data"][0]["z"] == [[1.0], [None]]
    heat, chosen, favoured = found["values/mixture/weight_low"]["data"]
    assert (heat["y"], chosen["y"], favoured["y"]) == ([0.25, 0.75], [0.75], [0.25])
    assert "values/mixture/inv_temperature_high" not in found  # no data
    epsilon = make_run(tmp_path / "epsilon", **{"behaviour.family": "epsilon"})
    append(
        epsilon,
        line("train", 5, tile_values=[1.0], tile_visits=[1]),
        line("episode", 5, epsilon=0.1),
        line("episode", 6, epsilon=0.0),
    )
    chosen = _figures([opened(epsilon)])["values/epsilon/epsilon"]["data"][1]
    assert chosen["y"][0] == pytest.approx(-np.log(0.1), abs=1e-4)
    assert chosen["y"][1] > np.log(51.0)  # eps = 0 lies off the axis


def test_each_bandit_of_the_newest_checkpoint(trained):
    run = opened(trained / "dice-0")
    saved = run.checkpoint()["temperatures"]["votes"][0][0]["bandits"]
    vote = run.votes()["inv_temperature"]
    drawn = maps.bandit_votes(run, "inv_temperature", vote)["data"][0]
    assert len(drawn["z"]) == len(saved) == 7
    assert all(
        f"{b['mode']}, ±{b['width']}, {b['learning_rate']:g}" in name
        for b, name in zip(saved, drawn["y"], strict=True)
    )
    lines = maps.bandit_values(run, "inv_temperature", vote)["data"]
    assert np.allclose(lines[-1]["y"], np.mean([t["y"] for t in lines[:-1]], 0), atol=1e-4)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(runs):
    newest, before = sorted(
        (runs / "dice-0" / "checkpoints").iterdir(), key=lambda p: -int(p.name)
    )[:2]
    expected = json.loads((before / "state.json").read_text())["updates"]
    (newest / "state.json").write_text("{")
    assert RunData(runs / "dice-0").checkpoint()["updates"] == expected


def test_hns_bars_against_the_papers_systems(tmp_path):
    directory = make_run(tmp_path / "run", **{"env.id": "ALE/Pong-v5"})
    append(
        directory,
        line("evaluation", 10, mean_return=-20.0),
        line("evaluation", 20, mean_return=9.0, stderr=1.0),
    )
    bars = _figures([opened(directory)])["hns/ALE/Pong-v5"]["data"][0]
    assert len(bars["x"]) == len(SYSTEMS) + 1
    assert sorted(bars["x"]) == bars["x"]
    own = next(i for i, name in enumerate(bars["y"]) if "dice</b>" in name)
    assert bars["x"][own] == pytest.approx(hns("pong", 9.0), rel=1e-4)


# --- the report


def test_report_is_one_file_that_asks_for_no_other(runs, tmp_path):
    write_report([runs / "dice-0", runs / "baseline-0"], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    head = text.split("<script>", 1)[0]
    assert not re.search(r'(src|href)="(?!data:)', head)
    assert "plotly.js v" in text
    content = json.loads(re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1])
    assert [r["name"] for r in content["runs"]] == ["dice-0", "baseline-0"]
    assert content["runs"][0]["version"]
    assert content["differences"] == ["behaviour.source"]
    assert content["runs"][0]["config"]["optimizer.warmup"] == 10.0


def test_a_name_cannot_break_out_of_the_page(tmp_path):
    directory = make_run(tmp_path / "run", variant="</script><script>alert(1)</script>")
    append(directory, line("episode", 1))
    write_report([directory], tmp_path / "out.html")
    assert "<script>alert" not in (tmp_path / "out.html").read_text()


def test_the_latest_video_is_embedded_or_linked(runs, tmp_path):
    videos = runs / "dice-0" / "videos"
    videos.mkdir()
    (videos / "old.mp4").write_bytes(b"old")
    (videos / "new.mp4").write_bytes(b"new video")
    os.utime(videos / "old.mp4", (1, 1))
    write_report([runs / "dice-0"], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "data:video/mp4;base64,bmV3IHZpZGVv" in text
    assert '"href": "runs/dice-0/videos/new.mp4"' in text
    (videos / "new.mp4").write_bytes(b"x" * (EMBEDDED + 1))
    write_report([runs / "dice-0"], tmp_path / "out.html")
    assert "data:video" not in (tmp_path / "out.html").read_text()


def call(capsys, *args):
    try:
        code = cli.main([str(a) for a in args])
    except SystemExit as ended:
        code = ended.code
    return code, *capsys.readouterr()


def test_report_command(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    append(runs / "dice-0", "half a li")
    (runs / "dice-0" / "metrics.jsonl").open("a").write("ne\n")
    code, out, err = call(capsys, "report", "runs/dice-0")
    assert (code, out.split()[0]) == (0, "runs/dice-0/report.html")
    assert err == "runs/dice-0/metrics.jsonl: 1 damaged line passed over\n"
    code, out, err = call(capsys, "report", "runs", "runs/dice-0")
    assert (code, out.split()[0]) == (0, "report.html")
    assert "4 runs of" in Path("report.html").read_text()


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (["report"], "RUN"),
        (["report", "nowhere"], "nowhere is no run directory"),
        (["report", "."], ". holds no run (no config.json)"),
        (["report", "runs/dice-0", "-o", "runs"], "output runs is a directory"),
        (["report", "runs/dice-0", "-o", "no/such/dir.html"], "no/such/dir.html"),
        (["dashboard", "runs/dice-0/config.json"], "is a file"),
        (["dashboard", "--port", "70000"], "port is 70000"),
        (["dashboard", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_mistakes_are_one_line(runs, capsys, monkeypatch, args, fragment):
    (runs / "empty").mkdir()
    monkeypatch.chdir(runs / "empty" if args == ["report", "."] else runs.parent)
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("dicerl: ")
    assert len(err.splitlines()) == 1
    assert fragment in err


HEAVY = ("torch", "ale_py", "gymnasium")
LIGHT_PAGES = f"""
import sys
from pathlib import Path
from dicerl.cli import main
from dicerl.report.dashboard import Board
runs, page = sys.argv[1:]
assert main(["report", runs, "--output", page]) == 0
Board(Path(runs)).state(None, "")
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_pages_load_neither_torch_nor_an_emulator(runs, tmp_path):
    """A dashboard beside a training run must be light, also where runs are compared with the
    paper's table of Atari games.
    """
    directory = make_run(runs / "atari", **{"env.id": "ALE/MsPacman-v5"})
    append(directory, line("evaluation", 10, mean_return=9.0))
    page = tmp_path / "r.html"
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_PAGES, str(runs), str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "hns/ALE/MsPacman-v5" in page.read_text()


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
    assert (f"hns/{env}" in _figures([opened(directory)])) == shown


# --- the dashboard's server


@pytest.fixture
def serve():
    servers = []

    def start(root, host="127.0.0.1"):
        server = make_server(Path(root), host, 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, path, **headers):
    """(status, headers, body) without following a redirect."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return (
        answer.status,
        dict(answer.getheaders()),
        gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body,
    )


def state(server, query="default=1"):
    return json.loads(ask(server, f"/api/state?{query}")[2])


def test_server_lists_and_compares(runs, serve):
    server = serve(runs)
    answer = state(server)
    assert {r["id"] for r in answer["list"]} == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    assert {r["state"] for r in answer["list"]} == {"finished"}
    assert set(answer["picked"]) == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    one = state(server, "run=dice-0&run=../../etc")
    assert one["picked"] == ["dice-0"]
    assert [r["id"] for r in one["runs"]] == ["dice-0"]
    assert "sections" not in state(server, f"run=dice-0&have={one['version']}")
    append(runs / "dice-0", line("train", 10_000, entropy=0.25))
    fresh = state(server, f"run=dice-0&have={one['version']}")
    entropy = next(c for s in fresh["sections"] for c in s["cards"] if c["id"] == "entropy")[
        "figure"
    ]["data"][0]
    assert (entropy["x"][-1], entropy["y"][-1]) == (10_000, 0.25)
    assert state(server, "")["picked"] == []


def test_running_runs_are_picked_first(runs, serve):
    run = Run.open(runs / "baseline-1")
    run.lock()
    assert state(serve(runs))["picked"] == ["baseline-1"]
    run.unlock()


def test_runs_may_come_and_go(tmp_path, serve, trained):
    server = serve(tmp_path / "later")
    assert state(server)["list"] == []
    shutil.copytree(trained / "dice-0", tmp_path / "later" / "suite" / "dice-0")
    assert [r["id"] for r in state(server)["list"]] == ["suite/dice-0"]
    shutil.rmtree(tmp_path / "later" / "suite")
    assert state(server)["list"] == []


def test_loopback_answers_only_to_a_loopback_name(runs, serve):
    """A page of somebody else's, whose name resolves to 127.0.0.1, must not read the runs."""
    server = serve(runs)
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert ask(server, "/", Host=host)[0] == 200
    for host in ("evil.example:8770", "", "192.0.2.1"):
        assert ask(server, "/api/state", Host=host)[0] == 403


def test_other_addresses_need_the_token(runs, serve):
    server = serve(runs, "0.0.0.0")
    assert len(server.token) >= 32
    assert server.address().endswith(f"/?token={server.token}")
    for path in (
        "/",
        "/api/state?default=1",
        "/page.js",
        "/video?run=dice-0",
        "/?token=",
        "/?token=wrong",
        "/nothing",
    ):
        assert ask(server, path)[0] == 403, path
    assert ask(server, "/", Cookie=f"{server.cookie}=wrong")[0] == 403
    status, headers, _ = ask(server, f"/?token={server.token}")
    assert (status, headers["Location"]) == (303, "./")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert ask(server, "/api/state?default=1", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200
    assert serve(runs, "127.0.0.1").token is None


def test_loopback_names():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.3.2.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.2", "localhost.evil.example", "")))


def test_pages_and_headers(runs, serve):
    server = serve(runs)
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/plotly.js", "text/javascript"),
    ):
        status, headers, body = ask(server, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert len(body) > 500
    for path in ("/static/page.js", "/../pyproject.toml", "/video?run=dice-0", "/api"):
        assert ask(server, path)[0] == 404


def test_videos_can_be_sought(runs, serve):
    (runs / "dice-0" / "videos").mkdir()
    (runs / "dice-0" / "videos" / "a.mp4").write_bytes(bytes(range(100)))
    server = serve(runs)
    video = state(server, "run=dice-0")["runs"][0]["video"]
    status, headers, body = ask(server, "/" + video["src"], Range="bytes=10-19")
    assert (status, body, headers["Content-Range"]) == (
        206,
        bytes(range(10, 20)),
        "bytes 10-19/100",
    )
    assert ask(server, "/" + video["src"])[2] == bytes(range(100))
    assert ask(server, "/" + video["src"], Range="bytes=90-")[2] == bytes(range(90, 100))


def test_a_port_in_use_is_said(runs, serve, capsys):
    port = serve(runs).server_address[1]
    code, _, err = call(capsys, "dashboard", runs, "--port", port)
    assert code == 2
    assert f"port {port}" in err
    assert "--port" in err


def test_dashboard_command_serves_and_ends_with_ctrl_c(runs):
    # A test run in the background of a shell ignores Ctrl-C, and so would the child.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from"
        " dicerl.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script, "dashboard", str(runs), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = command.stderr.readline()
        with urllib.request.urlopen(re.search(r"http://\S+", said)[0], timeout=60) as answer:
            assert b"<title>dicerl</title>" in answer.read()
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
        assert "Traceback" not in command.stderr.read()
    finally:
        command.kill()
        command.wait()
        command.stderr.close()
