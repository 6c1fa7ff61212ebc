"""suite/suite.py and its command. Whole suites are in test_scheduler.py."""

import subprocess
import sys


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
