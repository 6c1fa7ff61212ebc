"""A suite's output: a live table while it runs, and the results at the end."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dicerl.config import as_text
from dicerl.errors import printable
from dicerl.records.progress import duration, number
from dicerl.suite import state
from dicerl.suite.plan import Plan, SuiteRun
from dicerl.suite.results import group_name, scores_of
from dicerl.suite.sweep import Setting, short_names

SHOWN = {"iqm": "IQM", "mean": "Mean", "median": "Median"}
AROUND = 9  # lines of the terminal that a live table needs beside its rows


class Progress:
    """Drawn at most every half second on a terminal; elsewhere a line per change, and one a
    minute.
    """

    def __init__(self, plan: Plan, quiet: bool = False) -> None:
        self._console = Console(file=sys.stderr, quiet=quiet, highlight=False)
        self._plan = plan
        self._started = self._drawn = time.monotonic()
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True)
            if self._console.is_terminal and not quiet
            else None
        )
        if self._live is not None:
            self._live.start()
            self._live.update(self._view(), refresh=True)

    def say(self, line: str) -> None:
        """Print a line that stays, above the live table if there is one."""
        self._console.print(printable(line), markup=False, soft_wrap=True)

    def changed(self, run: SuiteRun) -> None:
        """Print what the new state of ``run`` means."""
        done = sum(r.state == "finished" for r in self._plan.runs)
        if run.state == "finished":
            self.say(
                f"{run.name} finished: {number(run.score)} ({done} of {len(self._plan.runs)} runs)"
            )
        elif run.state == "failed":
            self.say(f"{run.name} failed: {run.reason} (log: {run.log})")
        elif run.state == "waiting":
            self.say(f"{run.name} is in use by another process; waiting for it")
        elif run.state == "running" and self._live is None:
            self.say(f"{run.name} {'goes on' if run.frames else 'starts'}")
        elif run.reason:
            self.say(f"{run.name} {run.reason}")

    def tick(self) -> None:
        """Redraw the table, or print the line of the minute, if it is time."""
        every = 0.5 if self._live is not None else 60.0
        if time.monotonic() - self._drawn < every:
            return
        self._drawn = time.monotonic()
        running = [run for run in self._plan.runs if run.state == "running"]
        for run in running:
            run.frames = max(run.frames, int(state.now(run).get("frames", 0)))
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
        else:
            self.say(self._line() + "".join(f"; {run.name} {share(run)}" for run in running))

    def close(self) -> None:
        """Draw the table a last time and remove it: results are printed after it."""
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
            self._live.stop()
            self._live = None

    def _line(self) -> str:
        runs = self._plan.runs
        counts = [
            (name, sum(run.state == name for run in runs))
            for name in ("finished", "running", "waiting", "failed")
        ]
        done = sum(min(run.frames, run.config.frames) for run in runs)
        return (
            f"{', '.join(f'{count} {name}' for name, count in counts if count) or 'nothing yet'} of"
            f" {len(runs)} runs; {done / sum(run.config.frames for run in runs):.0%} of all frames,"
            f" {duration(time.monotonic() - self._started)}"
        )

    def _view(self) -> Table:
        return score_table(self._plan, self._line(), max(1, self._console.height - AROUND))


def share(run: SuiteRun) -> str:
    """How much of the run's frames are done, in percent."""
    return f"{min(1.0, run.frames / run.config.frames):.0%}"


def score_table(plan: Plan, caption: str = "", most: int | None = None) -> Table:
    """Games and settings down, variants across: mean ± standard error of the finished seeds, their
    number, and progress. Of more rows than ``most``, those that run, then the highest.
    """
    table = Table(
        title=Text(printable(f"{plan.directory}: evaluation return")),
        title_justify="left",
        caption=caption or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("Game")
    add_settings(table, plan.settings)
    for variant in plan.variants:
        table.add_column(variant, no_wrap=True)
    by_cell: dict[tuple[str, str, str], list[SuiteRun]] = {}
    for run in plan.runs:
        by_cell.setdefault((run.game, run.setting, run.variant), []).append(run)
    rows = [(game, setting) for game in plan.games for setting in plan.settings]
    if most is not None and len(rows) > most:
        runs = {row: [r for v in plan.variants for r in by_cell[*row, v]] for row in rows}
        shown = sorted(rows, key=lambda row: _interest(runs[row]), reverse=True)[:most]
        table.caption = f"… {len(rows) - most} more rows\n{caption}"
        rows = [row for row in rows if row in shown]
    for game, setting in rows:
        table.add_row(
            Text(printable(game)),
            *setting_cells(plan.settings, setting),
            *(_cell(by_cell[game, setting, variant]) for variant in plan.variants),
        )
    return table


def _interest(runs: list[SuiteRun]) -> tuple[bool, float]:
    scores = [run.score for run in runs if run.score is not None]
    running = any(run.state == "running" for run in runs)
    return running, float(np.mean(scores)) if scores else -np.inf


def add_settings(table: Table, settings: dict[str, Setting]) -> None:
    """A narrow column for each field that is swept."""
    for name in short_names(next(iter(settings.values()))).values():
        table.add_column(name.replace("_", "\n").replace(".", "\n"), overflow="fold")


def setting_cells(settings: dict[str, Setting], setting: str) -> list[Text]:
    """The values of ``add_settings``' columns."""
    return [Text(printable(as_text(value))) for value in settings[setting].values()]


def _cell(runs: list[SuiteRun]) -> str:
    scores = [run.score for run in runs if run.score is not None]
    words = []
    if scores:
        error = f" ± {np.std(scores, ddof=1) / np.sqrt(len(scores)):.2f}" if len(scores) > 1 else ""
        words.append(f"{np.mean(scores):,.2f}{error}")
    finished = sum(run.state == "finished" for run in runs)
    words.append(f"[dim]{finished}/{len(runs)}[/]")
    words += [f"[cyan]{share(run)}[/]" for run in runs if run.state == "running"]
    failed = sum(run.state == "failed" for run in runs)
    if failed:
        words.append(f"[red]{failed} failed[/]")
    return " ".join(words)


def result_table(found: dict[str, Any]) -> Table:
    """Variants down: IQM, mean, median with 95 % intervals, probability of improvement. Of a sweep,
    settings down, the highest first; their mean and median are in the JSON.
    """
    unit = "HNS, %" if found["unit"] == "hns" else "evaluation return"
    table = Table(
        title=f"{unit}, with 95 % stratified bootstrap intervals",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    settings = found.get("settings", {"": {}})
    shown = ("iqm",) if len(settings) > 1 else ("iqm", "mean", "median")
    table.add_column("Variant")
    add_settings(table, settings)
    for name in ("Runs", *(SHOWN[name] for name in shown)):
        table.add_column(name)
    if found["against"]:
        table.add_column(f"P(> {found['against']})")
    for variant in found["variants"]:
        for setting in sorted(settings, key=lambda s: _value(found, variant, s), reverse=True):
            values = found["statistics"][group_name(variant, setting)]
            cells = [_interval(values[name]) for name in shown]
            if found["against"]:
                cells.append(_interval(values.get("probability_of_improvement")))
            table.add_row(variant, *setting_cells(settings, setting), str(values["runs"]), *cells)
    return table


def _value(found: dict[str, Any], variant: str, setting: str) -> float:
    value = found["statistics"][group_name(variant, setting)]["iqm"]
    return -np.inf if value is None else float(value["value"])


def _interval(value: dict[str, float] | None) -> str:
    return (
        "–"
        if value is None
        else f"{short(value['value'])}\n{short(value['low'])} – {short(value['high'])}"
    )


def short(value: float) -> str:
    """About four digits: three intervals side by side fit into 80 columns."""
    return f"{value:,.{2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0}f}"


def notes(found: dict[str, Any]) -> list[str]:
    """What to know before quoting these numbers."""
    lines = []
    if found["unit"] == "hns":
        lines.append(
            "Scores are normalised: HNS, 0 is random play and 100 a human. Reference:"
            f" {found['reference']}."
        )
    else:
        lines.append(
            "Scores are raw evaluation returns: HNS is defined for the 57 Atari games only."
            + (
                " Games are weighed by the size of their returns; look at each game too."
                if len(found["games"]) > 1
                else ""
            )
        )
    counts = {
        len(scores_of(found, variant, setting).get(game, []))
        for game in found["games"]
        for variant in found["variants"]
        for setting in found.get("settings", [""])
    }
    if counts & {0, 1, 2}:
        lines.append(
            "With one or two finished seeds a game the intervals are too narrow to say anything;"
            " run more seeds."
        )
    if any(run["state"] == "finished" and run["score"] is None for run in found["runs"]):
        lines.append("Some finished runs have no evaluation and are left out.")
    return lines


def best_lines(found: dict[str, Any]) -> list[str]:
    """Of a sweep: each variant's best setting, and what its score is worth."""
    lines = []
    for variant, best in found.get("best", {}).items():
        if best is None:
            lines.append(f"{variant}: fewer than two settings have finished all their runs.")
            continue
        iqm, count = best["iqm"], best["settings"]
        options = " ".join(
            f"--{name.replace('_', '-')} {as_text(value)}" for name, value in best["config"].items()
        )
        line = (
            f"{variant}, best of {count} settings: {options}; IQM {short(iqm['value'])} (95 %:"
            f" {short(iqm['low'])} to {short(iqm['high'])})"
        )
        if best["held_out"] is not None:
            line += (
                f", {short(best['held_out'])} where each seed is scored with the setting that is"
                " best in the others"
            )
        overlap = best["not_told_apart"]
        line += f"; the intervals of {overlap} of the others overlap it." if overlap else "."
        lines.append(line)
    if any(found.get("best", {}).values()):
        lines.append(
            "The highest of several noisy scores is optimistic, and so is its interval: run a best"
            " setting with new seeds before you quote it."
        )
    return lines
