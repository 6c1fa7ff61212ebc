"""runtime/keeper.py: a run whose supervisor is killed, with real processes and signals."""

import argparse
import json
import os
import signal
import subprocess
import sys

import pytest

from dicerl.commands.train import keep_going
from dicerl.config import RuntimeConfig
from dicerl.errors import DicerlError
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.runtime.keeper import VARIABLE, Keeper, kept
from faults import Life, arguments, events, processes, scenario
from faults import played as played

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]
FRAMES = 6_000


def supervisor(life, but=()):
    """The keeper's child, once it trains."""

    def training():
        found = processes(life.process.pid)
        mine = [pid for pid, (parent, _) in found.items() if parent == life.process.pid]
        return [pid for pid in mine if pid in life.pids("stepped") and pid not in but]

    return life.find(training, "a supervisor trains")[0]


@scenario
def story(directory):
    """Killed after a checkpoint, started again; Ctrl-C; resumed; SIGTERM to the keeper alone;
    resumed, to its end.
    """
    run, lives = directory / "run", {}
    args = arguments("serial", run=run, frames=FRAMES)
    life = lives["killed"] = Life.start(directory / "1", *args, "--keep-going", run=run)
    first = supervisor(life)
    life.find(lambda: checkpoint.checkpoints_of(run), "a checkpoint")
    os.kill(first, signal.SIGKILL)
    supervisor(life, but=[first])
    os.killpg(life.process.pid, signal.SIGINT)  # as a terminal does it
    life.end()
    resume = ("resume", run, "--keep-going")
    life = lives["terminated"] = Life.start(directory / "2", *resume, run=run)
    supervisor(life)
    os.kill(life.process.pid, signal.SIGTERM)
    life.end()
    lives["last"] = Life.start(directory / "3", *resume, "--json", run=run).end()
    return lives


def test_a_killed_supervisor_is_started_again_and_goes_on(story):
    err = story["killed"].saw["err"]
    assert "the supervisor was killed by SIGKILL; started again" in err.splitlines()
    (event,) = events(story["last"].run, "restarted")
    assert event["reason"] == "the supervisor was killed by SIGKILL"
    assert event["updates"] > 0


@pytest.mark.parametrize(("name", "code"), [("killed", 130), ("terminated", 143)])
def test_a_stop_reaches_the_run_once_and_its_exit_code_comes_back(story, name, code):
    life = story[name]
    assert life.code == code, life.saw["err"]
    assert life.saw["err"].count("stopping after a checkpoint") == 1
    assert life.saw["err"].splitlines()[-1] == f"to continue: dicerl resume {life.run}"
    assert "Traceback" not in life.saw["err"]
    assert life.leftover == {}


def test_the_run_is_whole_in_the_end(story):
    last = story["last"]
    assert last.code == 0, last.saw["err"]
    summary = json.loads(last.saw["out"])
    assert summary["complete"]
    assert summary["healed"] == 1
    lines = read_lines(last.run / "metrics.jsonl")
    trained = [line["updates"] for line in lines if line["kind"] == "train"]
    assert trained == list(range(1, summary["updates"] + 1))
    books = summary["books"]
    assert books["due"] == books["trained"] + books["dropped"] + books["waiting"]


# --- other commands in the run's place: Python starts faster than torch


@pytest.fixture
def keep(monkeypatch, tmp_path):
    """Runs a script in the place of ``dicerl`` under a keeper; returns (exit code, lines said)."""
    (tmp_path / "dicerl").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(script, again=lambda: ["again"], **limits):
        (tmp_path / "dicerl" / "__main__.py").write_text(script)
        said = []
        keeper = Keeper(RuntimeConfig(**limits), said.append)
        return keeper.run(["first"], again), said

    return run


@pytest.mark.parametrize("code", [0, 2, 130, 141, 143])
def test_what_ended_is_not_started_again(keep, code):
    assert keep(f"raise SystemExit({code})") == (code, [])


def test_a_command_that_was_started_with_sigchld_ignored(tmp_path):
    """Every child would seem to have ended well: nothing was started again, and every error was a
    success.
    """
    done = subprocess.run(
        [sys.executable, "-m", "dicerl", "train", "nope", "--keep-going", "--run-dir", "r"],
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_nor_what_was_asked_to_end_before_it_could_listen(keep, number, code):
    # under nohup, SIGHUP would be ignored
    script = f"""
import os, signal
signal.signal(signal.{number}, signal.SIG_DFL)
os.kill(os.getpid(), signal.{number})
"""
    assert keep(script) == (code, [])


CRASHES = """
import os, sys
from pathlib import Path
with open("lives", "a") as file:
    print(*sys.argv[1:], os.environ["DICERL_KEPT"].partition(" ")[2], file=file)
if len(Path("lives").read_text().splitlines()) < 3:
    1 / 0
"""


def test_what_crashed_is_started_again_and_told_why(keep, tmp_path):
    code, said = keep(CRASHES)
    assert code == 0
    reason = "ended with exit code 1"
    assert (tmp_path / "lives").read_text().splitlines() == [
        "first ",
        f"again {reason}",
        f"again {reason}",
    ]
    assert said == [
        f"the supervisor {reason}; started again",
        f"the supervisor {reason}; started again in 0.5 s",
    ]


def test_not_too_often_and_not_where_there_is_nothing_to_go_on_from(keep):
    with pytest.raises(DicerlError, match=r"the supervisor had to be replaced 2 times .* code 1"):
        keep("1 / 0", max_restarts=1)
    assert keep("1 / 0", again=lambda: None) == (1, [])
    assert keep("import os; os.kill(os.getpid(), 9)", again=lambda: None) == (137, [])


SLOW = """
import os, sys, time
from pathlib import Path
with open("lives", "a") as file:
    file.write(".")
lives = len(Path("lives").read_text())
if sys.argv[1] == "saves":
    Path(f"run/checkpoints/{lives}").mkdir(parents=True)
time.sleep(1.0)
if lives < 5:
    1 / 0
"""


@pytest.mark.parametrize("what", ["saves", "does not"])
def test_one_that_saved_nothing_counts_however_long_it_lived(keep, tmp_path, capsys, what):
    """Each life is as long as the window. Those that left a checkpoint go on until it is done."""
    (tmp_path / "dicerl" / "__main__.py").write_text(SLOW)
    args = argparse.Namespace(argv=[what], quiet=False)
    limits = RuntimeConfig(max_restarts=2, restart_window=1.0)

    def run():
        return keep_going(args, limits, tmp_path / "run", lambda: [what], [])

    if what == "saves":
        assert run() == 0
    else:
        with pytest.raises(DicerlError, match="replaced 3 times"):
            run()
    again = capsys.readouterr().err.count("the supervisor ended with exit code 1; started again")
    assert again == (4 if what == "saves" else 2)


def test_a_process_without_a_keeper(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert kept().reason == ""
    kept().heard()
