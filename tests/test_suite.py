"""suite/suite.py and its command. Whole suites are in test_scheduler.py."""

import os
import subprocess
import sys

import pytest

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
