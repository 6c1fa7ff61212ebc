"""Plotly figures of runs, as plain values: {"data": [...], "layout": {...}}. The report and the
dashboard draw the same ones.

``plotly.graph_objects.Figure(figure)`` takes any of them in a notebook. The page sets the colours
of text, grid and background: it knows whether it is light or dark. ``maps.py`` has the temperature
figures, ``bars.py`` those of bars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dicerl.records.vocabulary import LINES
from dicerl.report.compare import Group, of_seeds
from dicerl.report.data import RunData
from dicerl.report.seeds import Curve, mean_time, over_seeds, smooth

Figure = dict[str, Any]
POINTS = 120  # per curve
RETURN_POINTS = 60  # episodes are noisy: longer means
EVERY_POINT = 1_000_000  # evaluations are scores: each is shown as it is


# --- small parts


def plain(values: Any) -> list[Any]:
    """Six digits, and null for what is unknown: JSON has no NaN.    [...] -> nested lists"""
    values = np.asarray(values, float)
    if values.ndim > 1:
        return [plain(row) for row in values]
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in values.tolist()]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """A Plotly axis with its title; ``more`` are further properties of it."""
    return {"title": {"text": title, "standoff": 8}, "automargin": True, **more}


def frames_axis(last: float | None = None) -> dict[str, Any]:
    """The x axis in frames, from 0 to ``last`` or to the end of the data."""
    return axis(
        "frames",
        tickformat="~s",
        hoverformat=",.0f",
        nticks=8,
        **({"range": [0, last]} if last else {"rangemode": "tozero"}),
    )


def figure(
    data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **layout: Any
) -> Figure:
    """A figure of these traces and axes; the legend is shown if it has more than one entry."""
    named = [trace for trace in data if trace.get("showlegend", True)]
    return {
        "data": data,
        "layout": {
            "xaxis": x,
            "yaxis": y,
            "showlegend": len(named) > 1,
            "hovermode": "x unified",
            "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "maxheight": 400,  # pixels; beyond, it scrolls
            },
            "uirevision": "kept",
            **layout,
        },
    }


def see_through(hex_colour: str, alpha: float) -> str:
    """``hex_colour`` (#rrggbb) with opacity ``alpha``, as CSS rgba(...)."""
    r, g, b = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({r},{g},{b},{alpha})"


# --- curves

Read = Callable[[RunData], Curve]


def band(
    group: Group, read: Read, last: float, name: str = "", points: int = POINTS, **line: Any
) -> list[dict[str, Any]]:
    """The mean over seeds, shaded from the lowest to the highest seed."""
    own = [
        (seed, run, smooth(curve, last, points))
        for seed, run in group.seeds()
        if len((curve := read(run))[0])
    ]
    if not own:
        return []
    seeds = len({seed for seed, _, _ in own})
    x, mean, low, high, count = over_seeds([(s, c) for s, _, c in own], last / POINTS)
    # the page can show time instead of frames, and smooth; a score stays as it is
    times = [
        np.where(x <= curve[0][-1] + last / POINTS, run.seconds(x), np.nan) for _, run, curve in own
    ]
    seconds, smooths = plain(mean_time(np.array(times))), points != EVERY_POINT
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines" if len(x) > 1 else "markers",
            "name": f"{group.label}{of_seeds(seeds, len(own))}{name}",
            "legendgroup": group.label,
            "x": plain(x),
            "y": plain(mean),
            "line": {"color": group.colour, "dash": group.dash, "width": 2, **line},
            "marker": {"color": group.colour},
            "meta": {"seconds": seconds, "smooth": smooths},
        }
    ]
    if (count < seeds).any():  # some ended early
        traces[0] |= {
            "customdata": [f", {n} of {seeds} seeds" if n < seeds else "" for n in count],
            "hovertemplate": "%{y:.6~g}%{customdata}",
        }
    if seeds > 1 and len(x) == 1:  # a shade would have no width
        ends = {"array": plain(high - mean), "arrayminus": plain(mean - low)}
        traces[0]["error_y"] = {"type": "data", "symmetric": False, **ends}
    elif seeds > 1:
        traces.insert(
            0,
            {
                "type": "scatter",
                "mode": "lines",
                "x": plain(np.concatenate([x, x[::-1]])),
                "y": plain(np.concatenate([high, low[::-1]])),
                "fill": "toself",
                "fillcolor": see_through(group.colour, 0.18),
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
                "legendgroup": group.label,
                "meta": {"seconds": seconds + seconds[::-1], "smooth": smooths},
            },
        )
    return traces


def last_frame(runs: Sequence[RunData]) -> float:
    """The largest frame number of any line of these runs; 0.0 without data."""
    ends = [
        x[-1]
        for run in runs
        for x in (run.train("frames")[0], run.episodes("frames")[0], run.evaluations()["frames"])
        if len(x)
    ]
    return float(max(ends, default=0.0))


def curves(
    all_groups: list[Group],
    read: Read,
    title: str,
    *,
    points: int = POINTS,
    log: bool = False,
    percent: bool = False,
) -> Figure | None:
    """One quantity over frames, a line per group."""
    last = last_frame([run for g in all_groups for run in g.runs])
    data = [t for g in all_groups for t in band(g, read, last, points=points)]
    if not data:
        return None
    positive = all(v is None or v > 0 for trace in data for v in trace["y"])
    if log and positive:
        # With few ticks and a format of their own, those between powers of ten have numbers that
        # can be read; Plotly's own are single digits.
        y = axis(f"{title} (log)", type="log", tickformat=".3~g", nticks=4)
        drawn = [v for trace in data for v in trace["y"] if v is not None]
        if 5 <= max(drawn) / min(drawn) < 1000:
            y["dtick"] = "D2"  # 1, 2, 5: Plotly would write all digits of a decade over each other
    else:
        y = axis(title, **({"tickformat": ".0%"} if percent else {}))
    return figure(data, frames_axis(), y)


def train_curves(
    all_groups: list[Group], name: str, title: str = "{unit}", **how: Any
) -> Figure | None:
    """One field of the train lines over frames; its unit is on the axis, or in ``title``."""
    axis_title = title.format(unit=LINES["train"][name].unit)
    return curves(all_groups, lambda run: run.train(name), axis_title, **how)


def training_return(all_groups: list[Group]) -> Figure | None:
    """Return of the training episodes over frames, a line per group."""
    return curves(
        all_groups,
        lambda run: run.episodes("return"),
        "return of training episodes",
        points=RETURN_POINTS,
    )


def evaluation(all_groups: list[Group]) -> Figure | None:
    """Evaluation episodes (best region: full line, greedy: open marks) over the training return
    (faint).
    """
    last = last_frame([run for g in all_groups for run in g.runs])
    data = []
    for g in all_groups:
        best = band(g, lambda run: _evaluated(run, "mean_return"), last, points=EVERY_POINT)
        greedy = band(
            g,
            lambda run: _evaluated(run, "greedy_mean_return"),
            last,
            name=", greedy",
            points=EVERY_POINT,
            width=1.5,
            dash="dot",
        )[-1:]
        training = band(
            g,
            lambda run: run.episodes("return"),
            last,
            name=", training",
            points=RETURN_POINTS,
            width=1,
        )[-1:]
        if not best:
            continue
        best[-1] |= {"mode": "lines+markers", "marker": {"color": g.colour, "size": 7}}
        evaluated = g.runs[0].evaluations()
        errors = evaluated["stderr"][np.isfinite(evaluated["mean_return"])]
        # one run: the standard error of its own mean
        if len(g.runs) == 1 and len(errors) == len(best[0]["x"]):
            best[0]["error_y"] = {
                "type": "data",
                "array": plain(errors),
                "thickness": 1,
                "width": 3,
            }
        for trace in greedy:
            trace |= {
                "mode": "lines+markers",
                "marker": {"color": g.colour, "size": 7, "symbol": "circle-open"},
                "showlegend": False,
            }
        for trace in training:
            trace |= {"opacity": 0.45, "showlegend": False}
        data += training + best + greedy
    return figure(data, frames_axis(), axis("mean return")) if data else None


def _evaluated(run: RunData, name: str) -> Curve:
    found = run.evaluations()
    known = np.isfinite(found[name])
    return found["frames"][known], found[name][known]


def gradient_norm(all_groups: list[Group]) -> Figure | None:
    """Gradient norm over frames, with a line at the clip where all runs share one."""
    drawn = train_curves(all_groups, "gradient_norm", "gradient norm", log=True)
    clips = {run.setting("optimizer.clip_norm") for g in all_groups for run in g.runs}
    if drawn is not None and len(clips) == 1 and isinstance(clip := clips.pop(), int | float):
        drawn["layout"]["shapes"] = [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": clip,
                "y1": clip,
                "line": {"dash": "dot", "width": 1, "color": "#8c8c8c"},
            }
        ]
        drawn["layout"]["annotations"] = [
            {
                "xref": "paper",
                "x": 1,
                "xanchor": "right",
                "yanchor": "bottom",
                "showarrow": False,
                "text": "clip",
                "y": (
                    float(np.log10(clip)) if drawn["layout"]["yaxis"].get("type") == "log" else clip
                ),
            }
        ]
    return drawn


def clipped(all_groups: list[Group]) -> Figure | None:
    """How many ratios exceed the bars of rho and c; one line where the bars are the same."""
    last = last_frame([run for g in all_groups for run in g.runs])
    data = []
    for g in all_groups:
        data += band(g, lambda run: run.train("rho_clipped"), last)
        if any(run.setting("loss.rho_bar") != run.setting("loss.c_bar") for run in g.runs):
            data += band(g, lambda run: run.train("c_clipped"), last, name=", c", width=1)
    return (
        figure(
            data,
            frames_axis(),
            axis(
                f"{LINES['train']['rho_clipped'].unit} that are clipped",
                tickformat=".0%",
                rangemode="tozero",
            ),
        )
        if data
        else None
    )
