"""records/files.py: reading what a stranger wrote. And every file of a run directory as one could
have made it, through every command that reads it: one line and exit code 2, or one run that is
marked.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from dicerl.records import files
from dicerl.report.dashboard import Board
from dicerl.scores.own import own_scores
from hostile import BYTES, KINDS, TENSORS, content, edited, unreadable
from runs import one_line

pytestmark = pytest.mark.timeout(90)  # a FIFO that is opened blocks for ever

FILES = ("config.json", "metrics.jsonl", "evaluations.jsonl", "run.lock")
IN_CHECKPOINT = ("state.json", "model.safetensors", "optimizer.safetensors")
# of state.json: (field, values no run wrote)
EDITS = {
    "agent_steps": (-1, 0.5, "x", True, 10**400, float("nan"), None, ...),
    "recent": ([None], 3),
    "elapsed": ("x", float("inf")),
    "best_evaluation": ([], "x"),
    "precision": (3,),
    "temperatures": ([], {}, {"votes": 3, "initial": []}),
    "temperatures.votes.0.0.accuracy": (0, 1e-300, -1, "x"),
    "temperatures.votes.0.0.rng": ({}, 3),
    "temperatures.votes.0.0.bandits": ([], [3], None),
    "temperatures.votes.0.0.bandits.0.weights": ([], ["x"]),
    "temperatures.votes.0.0.bandits.0.counts.0": (-1, None),
    "temperatures.votes.0.0.bandits.0.learning_rate": ("x", None),
    "serial": (3, {}),
    "serial.uses": ([1] * 10_000, [-1], "x"),
    "serial.actor": ({}, {"rng": 3, "count": 0}),
    "serial.replay_rng": ({"state": 1},),
    "format": ("2", None),
}


@pytest.fixture(scope="session")
def unfinished(finished, tmp_path_factory):
    """A run with frames left to play."""
    directory = Path(shutil.copytree(finished, tmp_path_factory.mktemp("hostile") / "run"))
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"frames": 620}))
    return directory


@pytest.fixture
def fresh(unfinished, tmp_path):
    """``fresh(name)`` copies it; a second argument sets its environment."""

    def make(name, env="CartPole-v1"):
        directory = tmp_path / name
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(unfinished, directory)
        edited("config.json", "env.id", env)(directory)
        return directory

    return make


def assert_readers_stand(fresh, tmp_path, damage):
    """Scores and dashboard, whose figures are the report's, show the good run."""
    if not (tmp_path / "runs").exists():
        fresh("runs/good", "pong")
    damage(fresh("runs/bad", "pong"))
    own, _ = own_scores([tmp_path / "runs"])
    answer = Board(tmp_path / "runs").state(["good", "bad"], "")
    assert own["own dice"]["pong"]
    json.dumps(answer, allow_nan=False)
    assert {run["id"] for run in answer["list"]} == {"good", "bad"}
    assert answer["sections"][0]["cards"][0]["figure"]["data"]


def assert_one_line(call, directory):
    """Evaluate and resume work or say one line."""
    quick = ("--episodes", 1, "--max-steps", 3)
    for command in (("evaluate", directory, *quick), ("resume", directory)):
        code, out, err = call(*command, "--quiet")
        assert "\x1b" not in out + err
        if code != 0:
            one_line((code, out, err))


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file(call, fresh, tmp_path, name):
    damages = [content(name, data) for data in BYTES.values()]
    damages += [unreadable(name, kind) for kind in KINDS]
    for damage in damages:
        assert_readers_stand(fresh, tmp_path, damage)
    code, _, err = call("report", tmp_path / "runs", "-o", "report.html")
    assert code == 0, err
    for damage in (damages[2], damages[5], *damages[-len(KINDS) :]):
        directory = fresh("run")
        damage(directory)
        assert_one_line(call, directory)


@pytest.mark.parametrize("name", IN_CHECKPOINT)
def test_a_hostile_file_of_every_checkpoint(call, fresh, tmp_path, name):
    for damage in (
        *(content(f"every/{name}", BYTES[kind]) for kind in ("empty", "deep list", "number")),
        content(f"every/{name}", b"\xff" * 8 + b"{}"),  # of a safetensors file: its header's size
        content(f"every/{name}", (2).to_bytes(8, "little") + b"{}"),  # a header without tensors
        *(content(f"every/{name}", data) for data in TENSORS),
        *(unreadable(f"every/{name}", kind) for kind in ("FIFO", "directory")),
    ):
        directory = fresh("run")
        damage(directory)
        assert_one_line(call, directory)
    assert_readers_stand(fresh, tmp_path, content(f"every/{name}", b"[" * 100_000))


@pytest.mark.parametrize("field", EDITS)
def test_an_edited_state_is_refused(call, fresh, field):
    """Its checksum fits, as a stranger's would."""
    for value in EDITS[field]:
        directory = fresh("run")
        edited("every/state.json", field, value)(directory)
        one_line(call("resume", directory, "--quiet"), str(directory))


def test_a_folder_that_is_no_number(call, fresh, tmp_path):
    def damage(run):
        for name in ("²", "1" * 30, "-1", "1_0"):
            (run / "checkpoints" / name).mkdir()
            (run / "best" / name).mkdir(parents=True)

    assert_readers_stand(fresh, tmp_path, damage)
    directory = fresh("run")
    damage(directory)
    assert call("resume", directory, "--quiet")[0] == 0
    one_line(call("evaluate", directory / "checkpoints" / "²", "--video"), "²", "number of updates")


def test_a_bad_run_is_one_marked_entry(fresh, tmp_path):
    for name in ("good", "bad"):
        fresh(f"runs/{name}")
    content("config.json", b'{"frames": NaN}')(tmp_path / "runs" / "bad")
    entries = {r["id"]: r for r in Board(tmp_path / "runs").state(None, "")["list"]}
    assert entries["good"]["problem"] == ""
    assert "NaN" in entries["bad"]["problem"]


def test_nothing_is_written_through_a_link(call, fresh, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("run.lock", "metrics.jsonl", "evaluations.tmp", "metrics.discarded.jsonl"):
        directory = fresh("run")
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(outside)
        one_line(call("resume", directory, "--quiet"), name, "link")
    directory = fresh("run")
    (directory / "report.html").symlink_to(outside)
    one_line(call("report", directory), "report.html", "link", "-o")
    (directory / "videos").symlink_to(tmp_path)
    one_line(
        call("evaluate", directory, "--episodes", 1, "--max-steps", 1, "--video"), "videos", "link"
    )
    assert outside.read_text() == "mine"


def made(*folders):
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").touch()


def found(root, depth=3, **how):
    return {str(p.relative_to(root)) for p in files.folders_with("config.json", root, depth, **how)}


def test_folders_are_found_at_some_depth(tmp_path):
    made(tmp_path / "a", tmp_path / "a" / "in", tmp_path / "x" / "b", tmp_path / "x" / "y" / "c")
    made(tmp_path / ".hidden")
    assert found(tmp_path) == {"a", "x/b", "x/y/c"}
    assert found(tmp_path, 2) == {"a", "x/b"}
    assert found(tmp_path / "a") == {"."}
    assert found(tmp_path / "nothing") == set()


def test_a_link_that_cannot_be_followed_hides_no_other(tmp_path):
    made(tmp_path / "a", tmp_path / "z")
    for name, target in (("long", "x" * 300), ("loop", "loop"), ("gone", "nowhere")):
        (tmp_path / name).symlink_to(target)
    assert found(tmp_path) == {"a", "z"}


def test_a_folder_is_found_once_under_its_own_name(tmp_path):
    root = tmp_path / "root"
    made(root / "x" / "run", root / ".store" / "kept", root / "p" / "q" / "r" / "deep")
    for name, target in (
        ("a", "x/run"),
        ("b", "x"),
        ("c", "."),
        ("d", ".."),
        ("only", ".store/kept"),
        ("r", "p/q/r"),
    ):
        (root / name).symlink_to(target)
    expected = {"x/run", "only", "r/deep"}
    assert found(root) == found(root, outside=False) == expected
    (tmp_path / "link").symlink_to("root")
    assert found(tmp_path / "link", outside=False) == expected


def test_links_to_the_folder_itself_cost_little(tmp_path, monkeypatch):
    made(tmp_path / "run")
    for i in range(300):
        (tmp_path / str(i)).symlink_to(".")
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked.append(path), scandir(path))[1])
    assert found(tmp_path) == {"run"}
    assert len(looked) == 1


def test_a_link_out_of_the_folder_is_followed_only_where_asked_for(tmp_path):
    root = tmp_path / "root"
    made(root / "run", tmp_path / "other" / "runs" / "b", tmp_path / "roots")
    (root / "runs").symlink_to("../other/runs")
    (root / "roots").symlink_to("../roots")
    assert found(root) == {"run", "runs/b", "roots"}
    assert found(root, outside=False) == {"run"}


def test_json_without_surprises():
    assert files.parse_json(b'{"a": [1, 2.5, null, "\xc3\xa4"]}') == {"a": [1, 2.5, None, "ä"]}
    for data in (
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"-1e400",
        b"\xff",
        b'"\\ud800"',
        b'{"\\udc00": 1}',
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            files.parse_json(data)
    assert files.parse_json(b"[" * 50 + b"]" * 50)
    for depth in (51, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 50 levels"):
            files.parse_json(b"[" * depth + b"]" * depth)


def test_only_regular_files_inside_the_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"1")
    (tmp_path / "outside").write_bytes(b"2")
    os.mkfifo(folder / "fifo")
    (folder / "in").symlink_to(folder / "file")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "zero").symlink_to("/dev/zero")
    for name in ("file", "in"):
        with files.open_regular(folder / name, folder) as file:
            assert file.read() == b"1"
    with files.open_regular(folder / "out") as file:
        assert file.read() == b"2"
    for name in ("fifo", "zero", "nothing"):
        with pytest.raises(OSError):  # noqa: PT011
            files.open_regular(folder / name)
    with pytest.raises(OSError, match="link out of its folder"):
        files.open_regular(folder / "out", folder)
