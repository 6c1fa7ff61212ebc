"""Progress shown while a run trains: a live panel on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import IO, Any, cast

import rich.progress as rich_progress
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dicerl.errors import printable
from dicerl.records.vocabulary import LINES, label

# fields of a train line shown under their own name -> digits after the point
DIGITS = {"entropy": 3, "policy_lag": 1, "loss": 3}


def duration(seconds: float) -> str:
    """A duration as text: "2h 05m", "3m 10s" or "7s"."""
    seconds = int(max(0, seconds))
    hours, minutes, rest = seconds // 3600, seconds // 60 % 60, seconds % 60
    return (
        f"{hours}h {minutes:02d}m"
        if hours
        else f"{minutes}m {rest:02d}s"
        if minutes
        else f"{rest}s"
    )


def number(value: Any, digits: int = 2) -> str:
    """A number with ``digits`` after the point; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def _cell(name: str, values: dict[str, Any]) -> tuple[str, str]:
    """(label, text) of a field of the train lines."""
    return label(LINES["train"][name].name), number(values.get(name), DIGITS[name])


def pairs_that_fit(cells: list[tuple[str, str]], width: int) -> int:
    """How many of these names with their values, at most 3, stand side by side in ``width`` columns
    without one being cut.
    """
    for pairs in (3, 2):
        columns = [
            max(len(text) for text in part)
            for j in range(pairs)
            for part in zip(*cells[j::pairs], strict=True)
        ]
        if sum(columns) + 2 * (len(columns) - 1) <= width:
            return pairs
    return 1


class Output(Console):
    """A console whose reader may leave: that is an error like that of ``print``."""

    def on_broken_pipe(self) -> None:
        """Raise what rich has caught; cli.py knows how to end."""
        raise BrokenPipeError


def output() -> Console:
    """A console on standard output for tables; wide if that is not a terminal, so that a file holds
    whole lines.
    """
    console = Output(highlight=False)
    return console if console.is_terminal else Output(highlight=False, width=160)


class _Stream:
    """A stream whose reader may vanish (a closed terminal, the other end of a pipe), or that may
    have been closed before the start: what is written then is lost, and the run goes on.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # None: closed before the start

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # or the environment has closed it
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Progress:
    """The progress of a run, on stderr. Call ``update`` as often as you like: it draws at most
    every half second, or without a terminal prints at most every ten seconds.
    """

    def __init__(self, title: str, quiet: bool = False, stream: Any = None) -> None:
        self._console = Console(file=cast(IO[str], _Stream(stream or sys.stderr)))
        self._title, self._quiet = title, quiet
        self._live: Live | None = None
        self._drawn = 0.0
        self._every = 0.5 if self._console.is_terminal else 10.0
        self._rates: deque[tuple[float, int]] = deque(maxlen=60)  # (time, frames)
        self._best: float | None = None
        self._pairs = 3  # of name and value in a row of the panel

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            self._console.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    def update(self, values: dict[str, Any], force: bool = False) -> None:
        """Show ``values`` (see ``Coordinator.show``), even if it is too early with ``force``."""
        now = time.monotonic()
        if self._quiet or (now - self._drawn < self._every and not force):
            return
        self._drawn = now
        self._rates.append((now, values["frames"]))
        (t0, f0), (t1, f1) = self._rates[0], self._rates[-1]
        rate = (f1 - f0) / (t1 - t0) if t1 > t0 else 0.0
        left = duration((values["total_frames"] - values["frames"]) / rate) if rate > 0 else "–"
        recent = values.get("recent_return")
        if recent is not None and (self._best is None or recent > self._best):
            self._best = recent
        at_end = values["at_end"]()
        favoured = [
            (label(name), f"{low:.3g}–{high:.3g}" + " (end)" * (name in at_end))
            for name, (low, high) in values["favoured"]().items()
        ]
        cells = [
            ("frames", f"{values['frames']:,} of {values['total_frames']:,}"),
            ("frames/s", number(rate, 0)),
            ("time left", left),
            ("return, recent", number(recent)),
            ("best", number(self._best)),
            ("evaluation, best", number(values.get("best_evaluation"))),
            _cell("entropy", values),
            *((f"{name} favoured", text) for name, text in favoured),
            _cell("policy_lag", values),
            ("updates", f"{values['updates']:,}"),
            ("episodes", f"{values['episodes']:,}"),
            _cell("loss", values),
        ]
        if not self._console.is_terminal:
            self.say("  ".join(f"{name} {value}" for name, value in cells))
            return
        # never more again than fitted once: the panel would jump
        self._pairs = min(self._pairs, pairs_that_fit(cells, self._console.width - 4))
        grid = Table.grid(expand=True, padding=(0, 2))
        for _ in range(self._pairs):
            grid.add_column(style="dim", no_wrap=self._pairs > 1)
            grid.add_column(no_wrap=self._pairs > 1)
        for i in range(0, len(cells), self._pairs):
            grid.add_row(*[part for cell in cells[i : i + self._pairs] for part in cell])
        outer = Table.grid(expand=True)
        outer.add_row(
            ProgressBar(
                total=values["total_frames"],
                completed=min(values["frames"], values["total_frames"]),
            )
        )
        outer.add_row(grid)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        # a Text: a name in it is neither markup nor a command to the terminal
        title = Text(printable(self._title))
        self._live.update(Panel(outer, title=title, title_align="left"), refresh=True)

    def close(self) -> None:
        """Stop the live panel; it stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Bar:
    """Progress towards ``total`` with a short text: a bar on a terminal, a line every ten seconds
    elsewhere.
    """

    def __init__(self, title: str, total: int, quiet: bool = False) -> None:
        self._console = Console(stderr=True)
        self._title, self._total, self._quiet = printable(title), total, quiet
        self._printed = time.monotonic()
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[word]}"),
            rich_progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task(self._title, total=total, word="")

    def update(self, done: int, word: str) -> None:
        """Show that ``done`` of the total are complete, with the text ``word``."""
        self._bar.update(self._task, completed=done, word=word)
        if not self._quiet and self._bar.disable and time.monotonic() - self._printed > 10.0:
            self._printed = time.monotonic()
            self._console.print(
                f"{self._title}: {done} of {self._total}, {word}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
