"""records/progress.py: what the user sees while a run trains."""

import io
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


def test_who_asked_for_quiet_is_told_nothing(now):
    stream = io.StringIO()
    progress = Progress("title", quiet=True, stream=stream)
    progress.say("a line")
    progress.update(values(10), force=True)
    progress.close()
    assert stream.getvalue() == ""
    Progress("title", stream=stream).say("a [bold]line[/bold] of 3")
    assert stream.getvalue() == "a [bold]line[/bold] of 3\n"  # as it is


def test_quiet_and_json(call):
    arguments = ("train", "CartPole-v1", *TINY, "--frames", "40", "--evaluation.every", "0")
    code, out, err = call(*arguments, "--run-dir", "a", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, out, err = call(*arguments, "--run-dir", "b")
    assert (code, out) == (0, "")
    assert "CartPole-v1" in err
    assert "finished at" in err
    assert "checkpoint in b/checkpoints" in err
