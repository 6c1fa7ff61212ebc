"""report/data.py: reading metrics while they are written, and how a run stands."""

import json
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.records.lock import in_use
from dicerl.records.run import Run, software
from dicerl.report import data
from dicerl.report.data import RunData, find_runs
from dicerl.report.jsonl import LIMIT
from dicerl.report.sections import payload
from runs import append, line, make_run, opened

quick = settings(max_examples=25, deadline=None, derandomize=True)


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


def test_score_is_the_last_evaluation_else_recent_episodes(runs):
    last = json.loads((runs / "dice-0" / "evaluations.jsonl").read_text().splitlines()[-1])
    overview = RunData(runs / "dice-0").overview()
    assert (overview["score"], overview["stderr"], overview["score_of"]) == (
        last["mean_return"],
        last["stderr"],
        "evaluation",
    )
    (runs / "dice-0" / "evaluations.jsonl").unlink()
    overview = RunData(runs / "dice-0").overview()
    assert overview["score_of"] == "recent episodes"
    assert -1 <= overview["score"] <= 1


def test_a_run_says_what_code_made_it(trained):
    assert opened(trained / "dice-0").software() == software()
    assert software()["version"]
    assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?", software().get("commit", "0" * 12))


def test_a_damaged_checkpoint_gives_way_to_the_one_before(runs):
    newest, before = sorted(
        (runs / "dice-0" / "checkpoints").iterdir(), key=lambda p: -int(p.name)
    )[:2]
    expected = json.loads((before / "state.json").read_text())["updates"]
    (newest / "state.json").write_text("{")
    assert RunData(runs / "dice-0").checkpoint()["updates"] == expected


def test_a_video_that_is_being_written_is_not_shown(tmp_path):
    videos = make_run(tmp_path / "run") / "videos"
    videos.mkdir()
    (videos / "1.mp4").write_bytes(b"film")
    (videos / ".2.77.tmp.mp4").write_bytes(b"half a film")
    (videos / "link.mp4").symlink_to("x" * 300)  # nor does one that is none hide the others
    assert RunData(tmp_path / "run").newest_video() == videos / "1.mp4"
    (videos / "1.mp4").unlink()
    assert RunData(tmp_path / "run").newest_video() is None


def test_seconds_at_frames(tmp_path):
    """Between train lines, before the first and after the last; unknown without any."""
    run = make_run(tmp_path / "run")
    frames = np.array([0.0, 100.0, 150.0, 200.0, 400.0])
    assert np.isnan(opened(run).seconds(frames)).all()
    append(run, line("train", 100, elapsed=10.0), line("train", 200, elapsed=40.0))
    assert opened(run).seconds(frames).tolist() == [0.0, 10.0, 25.0, 40.0, 80.0]


def test_a_name_is_cut_where_it_would_fill_the_page(tmp_path):
    run = opened(make_run(tmp_path / "run", variant="v" * 100_000, **{"env.id": "e" * 100_000}))
    assert (len(run.variant), len(run.env)) == (200, 200)


def test_a_vote_of_too_many_tiles_is_no_map(tmp_path):
    directory = make_run(tmp_path / "run")
    for count in (40, 100_000):
        tiles = {"tile_values": [0.5] * count, "tile_visits": [1] * count}
        append(directory, line("train", 100, **tiles))
    frames, values, _ = opened(directory).tile_map("inv_temperature")
    assert (len(frames), values.shape[1]) == (1, 40)
