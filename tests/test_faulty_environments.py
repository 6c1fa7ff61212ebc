"""Environments that raise or give what is not finite, with real processes."""

import re
import sys

import pytest

from dicerl import cli
from dicerl.records.run import Run
from faults import Life, arguments, events, failed_with_one_line, scenario, use_faulty_environments
from faults import played as played

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]


@scenario
def raises(directory):
    return Life.start(directory, *arguments("process", "Raises-v0"), "--quiet").end()


@scenario
def not_finite(directory):
    return Life.start(directory, *arguments("process", "Nan-v0"), "--quiet").end()


@scenario
def blind(directory):
    return Life.start(directory, *arguments("process", "Blind-v0"), "--quiet").end()


def test_an_environment_that_raises_ends_the_run(raises):
    failed_with_one_line(
        raises, "faulty:Raises-v0 raised in step", "RuntimeError: the engine is on fire"
    )
    assert re.search(r"\(actor \d, step \d+\)$", raises.saw["err"].strip())
    assert "raised in step" in events(raises.run, "failed")[0]["reason"]


def test_rewards_that_are_not_finite_end_the_run(not_finite):
    failed_with_one_line(not_finite, "faulty:Nan-v0 gave the reward nan", "must be finite")


def test_observations_that_are_not_finite_end_the_run(blind):
    failed_with_one_line(blind, "faulty:Blind-v0 gave the observed value nan", "must be finite")
    assert "observed value nan" in events(blind.run, "failed")[0]["reason"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "Raises",
            "faulty:Raises-v0 raised in step (environment 0): RuntimeError: the engine is on fire",
        ),
        ("Nan", "faulty:Nan-v0 gave the reward nan; rewards must be finite"),
        ("Blind", "faulty:Blind-v0 gave the observed value nan; observed values must be finite"),
    ],
    ids=["raises", "not finite", "blind"],
)
def test_broken_environments_in_the_serial_runtime(tmp_path, monkeypatch, capfd, env, message):
    use_faulty_environments(tmp_path, monkeypatch)
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments("serial", f"{env}-v0"), "--quiet"])
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(rf"dicerl: {re.escape(message)} \(actor 0, step \d+\)\n", err), err
    assert events(tmp_path / "run", "failed")
    Run.open(tmp_path / "run").lock()  # nobody holds it any more
