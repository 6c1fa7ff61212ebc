"""Plotly figures of runs, as plain values: {"data": [...], "layout": {...}}. The report and the
dashboard draw the same ones.

``plotly.graph_objects.Figure(figure)`` takes any of them in a notebook. The page sets the colours
of text, grid and background: it knows whether it is light or dark. ``maps.py`` has the temperature
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dicerl.records.vocabulary import LINES, STAGES_OF, stage_field
from dicerl.report.compare import PALETTE, Group, groups
from dicerl.report.data import RunData

Figure = dict[str, Any]
POINTS = 120  # per curve
RETURN_POINTS = 60  # episodes are noisy: longer means


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

Curve = tuple[np.ndarray, np.ndarray]  # frames, values
Read = Callable[[RunData], Curve]


def smooth(curve: Curve, last: float, points: int) -> Curve:
    """Means over equal cells of [0, last]; cells without a point are left out."""
    x, y = curve
    if len(x) <= points // 2:
        return x, y
    cell = np.minimum((x / max(last, 1) * points).astype(int), points - 1)
    count = np.bincount(cell, minlength=points)
    used = count > 0
    mean_x, mean_y = (np.bincount(cell, v, points)[used] / count[used] for v in curve)
    return mean_x, mean_y


def over_seeds(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """frames, mean, lowest, highest of several runs' curves; each run counts as far as it got."""
    grid = max((x for x, _ in curves), key=lambda x: (x[-1], len(x)))
    rows = []
    for x, y in curves:
        # seeds are logged at slightly different frames
        near = np.median(np.diff(x)) / 2 if len(x) > 1 else 0.0
        rows.append(
            np.where((grid >= x[0] - near) & (grid <= x[-1] + near), np.interp(grid, x, y), np.nan)
        )
    known = np.isfinite(rows).any(0)
    grid, values = grid[known], np.array(rows)[:, known]
    return grid, np.nanmean(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)


def band(
    group: Group,
    curves: list[Curve],
    last: float,
    name: str = "",
    points: int = POINTS,
    **line: Any,
) -> list[dict[str, Any]]:
    """The mean over seeds, shaded from the lowest to the highest seed."""
    curves = [smooth(c, last, points) for c in curves if len(c[0])]
    if not curves:
        return []
    x, mean, low, high = over_seeds(curves)
    label = f"{group.label}{f' ({len(curves)} seeds)' if len(curves) > 1 else ''}{name}"
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines" if len(x) > 1 else "markers",
            "name": label,
            "legendgroup": group.label,
            "x": plain(x),
            "y": plain(mean),
            "line": {"color": group.colour, "dash": group.dash, "width": 2, **line},
            "marker": {"color": group.colour},
        }
    ]
    if len(curves) > 1:
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
    data = [
        t for g in all_groups for t in band(g, [read(run) for run in g.runs], last, points=points)
    ]
    if not data:
        return None
    positive = all(v is None or v > 0 for trace in data for v in trace["y"])
    y = axis(
        title,
        **({"type": "log", "dtick": 1} if log and positive else {}),
        **({"tickformat": ".0%"} if percent else {}),
    )
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
        evaluated = [run.evaluations() for run in g.runs]
        best = band(g, [_known(e["frames"], e["mean_return"]) for e in evaluated], last)
        greedy = band(
            g,
            [_known(e["frames"], e["greedy_mean_return"]) for e in evaluated],
            last,
            name=", greedy",
            width=1.5,
            dash="dot",
        )[-1:]
        training = band(
            g,
            [run.episodes("return") for run in g.runs],
            last,
            name=", training",
            points=RETURN_POINTS,
            width=1,
        )[-1:]
        if not best:
            continue
        best[-1] |= {"mode": "lines+markers", "marker": {"color": g.colour, "size": 7}}
        errors = np.concatenate([e["stderr"][np.isfinite(e["mean_return"])] for e in evaluated])
        # one seed: the standard error of its own mean
        if len(best) == 1 and len(errors) == len(best[0]["x"]):
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


def _known(x: np.ndarray, y: np.ndarray) -> Curve:
    return x[np.isfinite(y)], y[np.isfinite(y)]


def gradient_norm(all_groups: list[Group]) -> Figure | None:
    """Gradient norm over frames, with a line at the clip where all runs share one."""
    drawn = train_curves(all_groups, "gradient_norm", "gradient norm before the clip", log=True)
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
        data += band(g, [run.train("rho_clipped") for run in g.runs], last)
        if any(run.setting("loss.rho_bar") != run.setting("loss.c_bar") for run in g.runs):
            data += band(g, [run.train("c_clipped") for run in g.runs], last, name=", c", width=1)
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


def stages(all_groups: list[Group]) -> Figure | None:
    """Where the time of actors and learner goes, in the second half of the runs, and how fast each
    stage is while it works.
    """
    # bar, stage, fraction of the time, frames/s while it works
    rows: list[tuple[str, str, float, float]] = []
    for g in all_groups:
        speed = _late_mean(g, "frames_per_s")
        for who, names in STAGES_OF.items():
            for what in names:
                share = _late_mean(g, stage_field(who, what))
                if np.isfinite(share):
                    rows.append((f"{g.label}, {who}", what, share, speed / max(share, 1e-9)))
    bars = list(dict.fromkeys(bar for bar, *_ in rows))[::-1]
    data = []
    for i, what in enumerate(dict.fromkeys(s for names in STAGES_OF.values() for s in names)):
        own = [(bar, share, speed) for bar, stage, share, speed in rows if stage == what]
        if own:
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": what,
                    "y": [bar for bar, *_ in own],
                    "x": plain([share for _, share, _ in own]),
                    "customdata": plain([speed for *_, speed in own]),
                    "marker": {"color": PALETTE[i % len(PALETTE)]},
                    "hovertemplate": (
                        f"{what}: %{{x:.1%}} of the time, %{{customdata:,.0f}} frames/s while at"
                        " it<extra>%{y}</extra>"
                    ),
                }
            )
    x = axis("share of the time", tickformat=".0%", range=[0, 1.02])
    y = axis("", type="category", categoryorder="array", categoryarray=bars)
    drawn = figure(data, x, y, barmode="stack", hovermode="closest")
    drawn["layout"]["legend"]["traceorder"] = "normal"
    return drawn if data else None


def _late_mean(group: Group, name: str) -> float:
    values = [y[x >= x[-1] / 2] for x, y in (run.train(name) for run in group.runs) if len(x)]
    return float(np.mean([v.mean() for v in values])) if values else np.nan


# --- scores


def hns_bars(runs: Sequence[RunData], game: str) -> Figure | None:
    """Human-normalised score of the last evaluation beside the systems of the paper's table."""
    from dicerl.scores import SYSTEM_TITLES, hns, reference_scores

    row = reference_scores()[game]
    bars = [
        (f"{title}, paper", hns(game, row[name]), "#8c8c8c")
        for name, title in SYSTEM_TITLES.items()
    ]
    own = []
    for g in groups(runs):
        scores = [
            e["mean_return"][-1]
            for run in g.runs
            if len((e := run.evaluations())["frames"]) and np.isfinite(e["mean_return"][-1])
        ]
        if scores:
            own.append(
                (
                    f"<b>{g.label}</b>, {len(scores)} run{'s' if len(scores) > 1 else ''} here",
                    hns(game, float(np.mean(scores))),
                    g.colour,
                )
            )
    if not own:
        return None
    bars = sorted(bars + own, key=lambda bar: bar[1])
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [name for name, _, _ in bars],
            "x": plain([v for _, v, _ in bars]),
            "marker": {"color": [c for _, _, c in bars]},
            "text": [f"{v:,.0f} %" for _, v, _ in bars],
            "textposition": "auto",
            "cliponaxis": False,
            "hovertemplate": "%{y}: %{x:,.1f} %<extra></extra>",
            "showlegend": False,
        }
    ]
    return figure(
        data,
        axis("human-normalised score (%); 0 random, 100 human"),
        axis("", type="category"),
        hovermode="closest",
    )
