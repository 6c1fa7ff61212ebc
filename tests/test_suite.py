"""suite/suite.py and its command. Whole suites are in test_scheduler.py."""

import os
import subprocess
import sys

import pytest

from dicerl.suite import results, suite
from runs import one_line


def test_help_has_an_example(call):
    code, out, _ = call("suite", "--help")
    assert code == 0
    assert "dicerl suite --games CartPole-v1 --variants dice baseline" in out
    assert "--optimizer.learning-rate" in out


def test_one_suite_at_a_time(call, tmp_path):
    from dicerl.records.lock import hold

    (tmp_path / "s").mkdir()
    held = hold(tmp_path / "s" / "suite.lock")
    assert call("suite", "--games", "CartPole-v1", "--dir", "s")[0] == 2
    held.close()


@pytest.mark.parametrize("complete", [True, False])
def test_what_a_log_or_a_folder_says_is_no_command_of_the_terminal(call, monkeypatch, complete):
    """The reason of a failure is the last line of a run's log, whoever wrote it."""

    def run_suite(plan, quiet):
        plan.runs[0].state, plan.runs[0].reason = "failed", "\x1b]0;owned\x07"
        plan.signal = 15
        return results.results(plan), complete

    monkeypatch.setattr(suite, "run_suite", run_suite)
    folder = "s\x1b[31m"
    command = ("suite", "--games", "CartPole-v1", "--preset", "debug", "--seeds", 1)
    code, out, err = call(*command, "--dir", folder)
    assert code == (1 if complete else 143)
    assert all(line.isprintable() for line in (out + err).splitlines())
    assert (r"\x1b]0;owned\x07" if complete else r"s\x1b[31m") in err


def test_a_suite_imports_no_torch():
    """Its runs do, each in a process of its own."""
    code = (
        "import sys, dicerl.suite.suite, dicerl.runtime.machine; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["logs/CartPole_v1-dice-0.log", "logs", "suite.tmp", "suite.json"])
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_nothing_is_written_outside_a_suite_s_folder(call, tmp_path, name, kind):
    path, outside = tmp_path / "s" / name, tmp_path / "outside"
    path.parent.mkdir(parents=True)
    outside.write_text("mine")
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(outside)
    one_line(
        call("suite", "--games", "CartPole-v1", "--seeds", 1, "--preset", "debug", "--dir", "s"),
        name.split("/")[-1],
    )
    assert outside.read_text() == "mine"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["runs", "runs/CartPole_v1-dice-0"])
def test_no_run_of_a_suite_is_a_link_to_elsewhere(call, tmp_path, name):
    """A run without a checkpoint would be cleared away there."""
    outside, link = tmp_path / "outside", tmp_path / "s" / name
    victim = outside if name != "runs" else outside / "CartPole_v1-dice-0"
    victim.mkdir(parents=True)
    (victim / "config.json").write_text("{}")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    one_line(
        call("suite", "--games", "CartPole-v1", "--seeds", 1, "--preset", "debug", "--dir", "s"),
        link.name,
        "is a link out of the suite's directory",
    )
    assert [p.name for p in victim.iterdir()] == ["config.json"]
