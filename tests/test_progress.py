"""records/progress.py: what the user sees while a run trains."""

import contextlib
import io
import os
import re
import time

import pytest

from dicerl.records.progress import Progress, duration, number
from runs import TINY


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """What time.monotonic() returns, in a list of one."""
    seconds = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def values(frames, **more):
    """What a coordinator passes on."""
    return {
        "frames": frames,
        "total_frames": 10_000,
        "updates": frames // 10,
        "episodes": 3,
        "favoured": lambda: {"inv_temperature": (1.0, 2.5)},
        "at_end": list,
        **more,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0.9, "0s"), (59.9, "59s"), (60, "1m 00s"), (3599, "59m 59s"), (7265, "2h 01m")],
)
def test_a_duration_in_words(seconds, text):
    assert duration(seconds) == text


def test_a_number_that_is_not_known_yet_is_a_dash():
    assert [number(None), number(1234.567), number(0.5, 3)] == ["–", "1,234.57", "0.500"]


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(now):
    stream = io.StringIO()
    progress = Progress("title", stream=stream)
    for second in range(31):
        progress.update(values(100 * second, recent_return=float(second % 20)))
        now[0] += 1.0
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        f"frames {frames:,} of 10,000" for frames in (0, 1000, 2000, 3000)
    ]
    assert "frames/s 0  time left –" in lines[0]  # nothing to measure yet
    assert "frames/s 100  time left 1m 10s" in lines[-1]
    assert "return, recent 10.00  best 10.00" in lines[-1]  # of what was shown
    assert "1/tau favoured 1–2.5" in lines[-1]
    assert "loss –" in lines[-1]
    progress.update(values(3050), force=True)
    assert stream.getvalue().splitlines()[-1].startswith("frames 3,050 of")


def test_on_a_terminal_a_panel_is_drawn_twice_a_second(now, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    progress = Progress("the title", stream=stream)
    drawn = []
    for step in range(11):
        progress.update(values(100 * step))
        drawn.append(stream.getvalue().count("the title"))
        now[0] += 0.1
    progress.close()
    progress.close()
    assert drawn == [1] * 5 + [2] * 5 + [3]
    assert "1,000 of 10,000" in stream.getvalue()


@pytest.mark.parametrize(("width", "pairs"), [(40, 1), (60, 2), (80, 2), (120, 3)])
@pytest.mark.parametrize("family", ["boltzmann", "mixture"])
def test_the_panel_never_cuts_a_value(now, monkeypatch, width, pairs, family):
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    progress = Progress("the title", stream=stream)
    more = {"best_evaluation": 1234.5, "entropy": 1.0, "policy_lag": 1.5, "loss": 0.25}
    if family == "mixture":
        names = ("inv_temperature_low", "inv_temperature_high", "weight_low")
        more["favoured"] = lambda: dict.fromkeys(names, (45.1, 50.0))
    progress.update(values(5), force=True)  # before anything is known, more would fit
    now[0] += 1.0
    progress.update(values(30_233, total_frames=30_000, recent_return=123.4, **more), force=True)
    progress.close()
    panel = stream.getvalue().rpartition("the title")[2].splitlines()[1:]
    text = "\n".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in panel)
    assert "…" not in text
    shown = ("30,233 of 30,000", "time left", "123.40", "evaluation, best", "1,234.50", "0.250")
    for whole in (*shown, "favoured", "50"):
        assert whole in text, text
    if family == "boltzmann":
        (first,) = [row for row in text.splitlines() if "30,233 of" in row]
        assert len(re.findall("frames|frames/s|time left", first)) == pairs


def test_who_asked_for_quiet_is_told_nothing(now):
    stream = io.StringIO()
    progress = Progress("title", quiet=True, stream=stream)
    progress.say("a line")
    progress.update(values(10), force=True)
    progress.close()
    assert stream.getvalue() == ""
    Progress("title", stream=stream).say("a [bold]line[/bold] of 3")
    assert stream.getvalue() == "a [bold]line[/bold] of 3\n"  # as it is


@pytest.mark.parametrize("tty", [False, True])
def test_a_reader_that_vanishes_does_not_end_the_run(monkeypatch, now, tty):
    """`dicerl train ... 2>&1 | head -1`, or a terminal that was closed."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w", buffering=1)
    monkeypatch.setattr(stream, "isatty", lambda: tty)
    shown = Progress("a run", stream=stream)
    shown.say("read")
    os.close(read)
    shown.say("nobody reads this")
    shown.update(values(1_000), force=True)
    shown.close()
    with contextlib.suppress(OSError):
        stream.close()


def test_a_stream_that_an_environment_closed_does_not_end_the_run():
    stream = io.StringIO()
    shown = Progress("a run", stream=stream)
    stream.close()
    shown.say("nobody reads this")


def test_a_stream_that_was_closed_before_the_start(monkeypatch):
    """``dicerl train ... 2>&-``: Python has no sys.stderr then."""
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", None)
        shown = Progress("a run")
        shown.say("nobody reads this")
        shown.update(values(1_000), force=True)
        shown.close()


def test_quiet_and_json(call):
    arguments = ("train", "CartPole-v1", *TINY, "--frames", "40", "--evaluation.every", "0")
    code, out, err = call(*arguments, "--run-dir", "a", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, out, err = call(*arguments, "--run-dir", "b")
    assert (code, out) == (0, "")
    assert "CartPole-v1" in err
    assert "finished at" in err
    assert "checkpoint in b/checkpoints" in err


def test_a_name_is_neither_markup_nor_a_command_to_the_terminal(now, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress("runs/a[/b]\x1b[31m\x07", stream=stream)
    progress.say("writing to runs/[/c]\x1b]0;owned\x07\x9b")
    progress.update(values(100), force=True)
    progress.close()
    text = stream.getvalue()
    assert "runs/a[/b]\\x1b[31m\\x07" in text
    assert "runs/[/c]\\x1b]0;owned\\x07\\x9b" in text
    assert "\x07" not in text
    assert "\x1b]0;" not in text
