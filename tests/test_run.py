"""records/run.py: a run has its directory to itself, and errors name what is in the way."""

import json
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dicerl
from dicerl.config import Config
from dicerl.records.metrics import read_lines
from dicerl.records.run import Run, in_use
from runs import TINY, one_line, rewrite, truncate


def test_a_finished_run_is_not_overwritten(call, copy):
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    one_line(
        call("train", "CartPole-v1", *TINY, "--run-dir", copy),
        str(copy),
        "already holds a run",
        f"dicerl resume {copy}",
    )
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


def test_a_run_in_use_is_left_alone(call, copy):
    live = Run.open(copy)
    live.lock()
    one_line(call("resume", copy), str(copy), "in use by another process")
    one_line(call("train", "CartPole-v1", "--run-dir", copy), str(copy))
    live.unlock()


def test_a_directory_another_process_has_just_taken(call, tmp_path):
    """Before its config.json is there: the lock decides."""
    config = Config().replace(run_dir=str(tmp_path / "run"))
    live = Run.create(config)
    (tmp_path / "run" / "config.json").unlink()
    (tmp_path / "run" / "run.lock").rename(tmp_path / "lock")
    (tmp_path / "run").rmdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "lock").rename(tmp_path / "run" / "run.lock")
    one_line(call("train", "CartPole-v1", "--run-dir", "run"), "run")
    live.unlock()


def test_a_run_directory_that_is_a_file(call, tmp_path):
    (tmp_path / "file").write_text("precious")
    one_line(call("train", "CartPole-v1", "--run-dir", "file"), "run_dir file is a file")
    one_line(
        call("train", "CartPole-v1", "--run-dir", "file/below"), "file/below", "cannot be made"
    )
    one_line(call("resume", "file"), "file holds no run")
    assert (tmp_path / "file").read_text() == "precious"


def test_a_run_directory_with_something_else_in_it(call, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("precious")
    one_line(call("train", "CartPole-v1", "--run-dir", "photos"), "photos is not empty")
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.png"]


@pytest.mark.skipif(
    not Path("/sys/kernel").is_dir(), reason="needs a directory that even root cannot write to"
)
def test_a_run_directory_that_cannot_be_written(call):
    one_line(
        call("train", "CartPole-v1", "--run-dir", "/sys/dicerl-test"),
        "run_dir /sys/dicerl-test cannot be made",
        "ermi",
    )


def test_a_config_that_cannot_be_written_leaves_no_run(call, tmp_path):
    """As on a full disk; once there is room, the same command works."""
    command = (
        "train",
        "CartPole-v1",
        *TINY,
        "--frames",
        "40",
        "--evaluation.every",
        "0",
        "--run-dir",
        "run",
        "--quiet",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        one_line(call(*command), "run/config.json could not be written", "File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert call(*command) == (0, "", "")


def test_runs_started_at_once_get_a_directory_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(4)

    def create():
        together.wait(30)
        return Run.create(Config())

    with ThreadPoolExecutor(4) as pool:
        runs = [future.result() for future in [pool.submit(create) for _ in range(4)]]
    assert len({run.directory for run in runs}) == 4
    for run in runs:
        assert Run.open(run.directory).config == run.config
        with pytest.raises(dicerl.DicerlError, match="in use"):
            Run.open(run.directory).lock()


def test_two_runs_without_a_directory_do_not_meet(call, tmp_path):
    command = ["train", "CartPole-v1", *TINY, "--frames", "40", "--evaluation.every", "0", "--json"]
    results = [call(*command) for _ in range(2)]
    assert [code for code, _, _ in results] == [0, 0]
    directories = [Path(json.loads(out)["run"]) for _, out, _ in results]
    assert directories == [Path("runs/CartPole_v1-dice-0"), Path("runs/CartPole_v1-dice-0-2")]
    for directory in directories:
        assert [
            line["event"]
            for line in read_lines(tmp_path / directory / "metrics.jsonl")
            if line["kind"] == "event"
        ] == ["start"]


# --- a damaged config -----------------------------------------------------------------------------


CONFIGS = {
    "truncated": truncate,
    "empty": lambda p: p.write_text(""),
    "bytes": lambda p: p.write_bytes(bytes(range(256))),
    "a list": lambda p: p.write_text("[]"),
    "null": lambda p: p.write_text("null"),
    "unknown field": rewrite(lambda c: c | {"sped": 3}),
    "impossible value": rewrite(lambda c: c | {"frames": -3}),
    "wrong type": rewrite(lambda c: c | {"frames": "many"}),
    "a number for several": rewrite(lambda c: c | {"bandit": c["bandit"] | {"widths": 5}}),
    "a list for a number": rewrite(lambda c: c | {"frames": [3]}),
    "an object for a number": rewrite(lambda c: c | {"frames": {}}),
    "a section that is a number": rewrite(lambda c: c | {"loss": 3}),
    "a directory": lambda p: (p.unlink(), p.mkdir()),
}


@pytest.mark.parametrize("damage", CONFIGS)
def test_a_damaged_config_is_named(call, copy, damage):
    CONFIGS[damage](copy / "config.json")
    one_line(call("resume", copy), "config.json")


def test_looking_at_a_lock_does_not_keep_a_run_out(copy):
    done = threading.Event()

    def look():
        while not done.is_set():
            in_use(copy)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(50):
            run = Run.open(copy)
            run.lock()
            run.unlock()
    finally:
        done.set()
        watcher.join()


def test_a_lock_that_was_deleted_still_keeps_others_out(call, copy):
    live = Run.open(copy)
    live.lock()
    (copy / "run.lock").unlink()
    assert in_use(copy)
    one_line(call("resume", copy), "in use by another process")
    assert in_use(copy)  # what the second one left does not count
    live.unlock()
    assert not in_use(copy)
    assert call("resume", copy, "--quiet")[0] == 0


def test_where_a_run_would_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = dicerl.preset("debug", env__id="CartPole-v1")
    for _ in range(2):
        planned = Run.planned(config)
        assert not planned.directory.exists()
        run = Run.create(config)
        assert run.directory == planned.directory
        run.unlock()
