"""Figures of bars: where the time goes, scores beside the paper's, settings by their score."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dicerl.records.vocabulary import STAGES_OF, stage_field
from dicerl.report.compare import PALETTE, Group, of_seeds, text
from dicerl.report.figures import Figure, axis, figure, plain
from dicerl.scores.statistics import Interval, interval, iqm


def bar_chart(data: list[dict[str, Any]], x: dict[str, Any], names: list[str]) -> Figure:
    """Horizontal bars, the first of ``names`` at the bottom. A bar's name stands above it: beside
    it, long names would leave no room on a phone. The page makes a chart of many rows higher.
    """
    y = axis("", type="category", categoryorder="array", categoryarray=names, showticklabels=False)
    drawn = figure(data, x, y, barmode="stack", bargap=0.55, hovermode="closest")
    drawn["layout"] |= {
        "meta": {"rows": len(names)},
        "annotations": [
            {
                "text": name,
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "y": name,
                "yanchor": "bottom",
                "yshift": 7,
                "showarrow": False,
                "font": {"size": 11},
            }
            for name in names
        ],
    }
    return drawn


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
    drawn = bar_chart(data, x, bars)
    drawn["layout"]["legend"]["traceorder"] = "normal"
    return drawn if data else None


def nodes(all_groups: list[Group]) -> Figure | None:
    """How fast the actors of each machine of a cluster are, and how long they wait."""
    rows = []
    for g in all_groups:
        for run in g.runs:
            for node, (actors, speed, waiting) in run.nodes().items():
                of = f"{run.name}, " if len(g.runs) > 1 or len(all_groups) > 1 else ""
                count = f"{actors:.0f} actor{'s' if actors != 1 else ''}"
                rows.append((f"{of}{text(node)}: {count}, waiting {waiting:.0%}", speed, g.colour))
    if not rows:
        return None
    rows = rows[::-1]
    data = {
        "type": "bar",
        "orientation": "h",
        "y": [name for name, *_ in rows],
        "x": plain([speed for _, speed, _ in rows]),
        "marker": {"color": [colour for *_, colour in rows]},
        "hovertemplate": "%{y}: %{x:,.0f} agent steps/s<extra></extra>",
        "showlegend": False,
    }
    return bar_chart([data], axis("agent steps / s"), [name for name, *_ in rows])


def _late_mean(group: Group, name: str) -> float:
    values = [y[x >= x[-1] / 2] for x, y in (run.train(name) for run in group.runs) if len(x)]
    return float(np.mean([v.mean() for v in values])) if values else np.nan


def hns_bars(all_groups: list[Group], game: str) -> Figure | None:
    """Human-normalised score of the last evaluation beside the systems of the paper's table."""
    from dicerl.scores import SYSTEM_TITLES, hns, reference_scores

    row = reference_scores()[game]
    bars = [
        (f"{title}, paper", hns(game, row[name]), "#8c8c8c")
        for name, title in SYSTEM_TITLES.items()
    ]
    own = []
    for g in all_groups:
        last, runs = last_scores(g)
        if last:
            of = of_seeds(len(last), runs)
            score = float(np.mean(last))
            own.append((f"<b>{g.label}</b>{of}, here", hns(game, score), g.colour))
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
    x = axis("human-normalised score (%); 0 random, 100 human")
    return bar_chart(data, x, [name for name, _, _ in bars])


def last_scores(group: Group) -> tuple[list[float], int]:
    """The last evaluation of each seed, of runs of one seed their mean; and the number of runs."""
    last: dict[Any, list[float]] = {}  # by seed
    for seed, run in group.seeds():
        scores = run.evaluations()["mean_return"]
        if len(scores) and np.isfinite(scores[-1]):
            last.setdefault(seed, []).append(scores[-1])
    return [float(np.mean(scores)) for scores in last.values()], sum(map(len, last.values()))


@functools.lru_cache(maxsize=1_000)
def _iqm(scores: tuple[float, ...]) -> Interval:
    """As `dicerl suite` computes it; remembered, since the dashboard asks again and again."""
    return interval(iqm, {"": scores})


def settings(all_groups: list[Group]) -> tuple[Figure | None, str]:
    """The settings of one environment by the IQM of their seeds' last evaluations, with its 95 %
    interval, and a sentence on the best; None unless a variant has several.
    """
    rows = []
    for g in all_groups:
        last, runs = last_scores(g)
        if last:
            rows.append((g, _iqm(tuple(last)), f"{g.label}{of_seeds(len(last), runs)}"))
    variants = [g.runs[0].variant for g, _, _ in rows]
    if len(variants) == len(set(variants)):
        return None, ""
    rows.sort(key=lambda row: row[1].value)
    names = [name for _, _, name in rows]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": plain([score.value for _, score, _ in rows]),
        "y": names,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "color": "#8c8c8c",  # seen in a light and in a dark theme
            "array": plain([score.high - score.value for _, score, _ in rows]),
            "arrayminus": plain([score.value - score.low for _, score, _ in rows]),
        },
        "marker": {"color": [g.colour for g, _, _ in rows], "size": 9},
        "customdata": [f"{score.low:,.5g} to {score.high:,.5g}" for _, score, _ in rows],
        "hovertemplate": "%{y}: %{x:,.5~g} (95 %: %{customdata})<extra></extra>",
        "showlegend": False,
    }
    best, score, _ = rows[-1]
    words = (
        f"Best of {len(rows)}: {best.name}, {score.value:,.5g} (95 %: {score.low:,.5g} to"
        f" {score.high:,.5g}). The highest of several noisy scores is optimistic: run it with new"
        " seeds before you quote it."
    )
    return bar_chart([trace], axis("IQM of the last evaluations, 95 % interval"), names), words
