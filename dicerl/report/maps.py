"""Temperature figures: what the bandits value, visit and vote for. One map for each number an
episode draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dicerl.core import family
from dicerl.core.bandit import BanditVote
from dicerl.records.vocabulary import FAVOURED, NUMBERS
from dicerl.report.compare import DASHES, PALETTE
from dicerl.report.data import RunData
from dicerl.report.figures import Figure, axis, figure, frames_axis, plain, see_through

SCALE = "Cividis"  # the same order of brightness for any colour vision
RECENT = 50  # episodes counted in a column of the visits map
SYMBOL = {number.name: number.unit for number in NUMBERS}
TICKS = {"epsilon": (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01), "weight_low": (0, 0.25, 0.5, 0.75, 1)}


def tiles_of(
    run: RunData, number: str, tiles: int
) -> tuple[np.ndarray, dict[str, Any], list[float]]:
    """Centres of the tiles in x, the axis of x labelled with the number's values, and the value
    at each centre.
    """
    most = run.setting("bandit.max_inv_temperature", 50.0)
    right = family.largest_x(number, most if isinstance(most, int | float) and most > 0 else 50.0)
    centres = (np.arange(tiles) + 0.5) * right / tiles
    shown = [
        v
        for v in TICKS.get(number, (0, 1, 2, 5, 10, 20, 50, 100, 200, 500))
        if family.to_x(number, v) <= right + 1e-9
    ]
    ticks = {
        "tickvals": plain(family.to_x(number, np.array(shown))),
        "ticktext": [f"{v:g}" for v in shown],
        "range": [0, right],
        "tickangle": 0,
    }
    symbol = SYMBOL[number]
    scale = (
        ""
        if number == "weight_low"
        else " (log scale)"
        if number == "epsilon"
        else f" (scale log(1 + {symbol}))"
    )
    return (
        centres,
        axis(symbol + scale, **ticks),
        [float(f"{v:.3g}") for v in family.from_x(number, centres)],
    )


def heat_map(
    x: Any, y: Any, z: np.ndarray, labels: list[list[float]], unit: str, hover: str, **more: Any
) -> dict[str, Any]:
    """A Plotly heat map of z; ``labels`` are what ``hover`` shows as customdata.    z: [len(y),
    len(x)]
    """
    return {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": plain(z),
        "customdata": labels,
        "colorscale": SCALE,
        "showlegend": False,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 10, "outlinewidth": 0},
        "hovertemplate": f"{hover}<extra></extra>",
        **more,
    }


def value_map(run: RunData, number: str) -> Figure | None:
    """The bandits' value of every visited tile over time, with what single episodes drew on top."""
    found = run.tile_map(number)
    if found is None:
        return None
    frames, values, visits = found
    centres, y, labels = tiles_of(run, number, values.shape[1])
    symbol = SYMBOL[number]
    data = [
        heat_map(
            plain(frames),
            plain(centres),
            np.where(visits > 0, values, np.nan).T,
            [[v] * len(frames) for v in labels],
            "value (return)",
            f"frames %{{x:,.0f}}<br>{symbol} %{{customdata}}<br>value %{{z:.4~g}}",
            meta={"seconds": plain(run.seconds(frames))},
        )
    ]
    x, chosen = run.episodes(number, "last")
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(x):
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"{symbol} chosen for single episodes",
                    "x": plain(x),
                    "meta": {"seconds": plain(run.seconds(x))},
                    "y": plain(family.to_x(number, chosen)),
                    "hoverinfo": "skip",
                    "marker": {
                        "size": 4,
                        "color": "rgba(255,255,255,0.75)",
                        "line": {"width": 0.5, "color": "rgba(0,0,0,0.6)"},
                    },
                }
            )
        x, favoured = run.train(FAVOURED.name(number))
        if len(x):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"most valued {symbol}",
                    "x": plain(x),
                    "meta": {"seconds": plain(run.seconds(x))},
                    "y": plain(family.to_x(number, favoured)),
                    "hoverinfo": "skip",
                    "line": {"color": PALETTE[1], "width": 1.5, "shape": "hv"},
                }
            )
    return figure(
        data, frames_axis(float(frames[-1])), y | {"showgrid": False}, hovermode="closest"
    )


def visits_map(run: RunData, number: str) -> Figure | None:
    """Where the latest episodes were played."""
    found = run.tile_map(number)
    if found is None:
        return None
    frames, _, visits = found
    total = visits.sum(1)
    # the column that is RECENT episodes older; 0: the start
    before = np.searchsorted(total, total - RECENT, side="right")
    new = visits - np.concatenate([np.zeros_like(visits[:1]), visits])[before]
    share = new / np.maximum(new.sum(1, keepdims=True), 1.0)
    centres, y, labels = tiles_of(run, number, visits.shape[1])
    data = [
        heat_map(
            plain(frames),
            plain(centres),
            100 * share.T,
            [[v] * len(frames) for v in labels],
            "episodes (%)",
            f"frames %{{x:,.0f}}<br>{SYMBOL[number]} %{{customdata}}<br>%{{z:.1f}} % of the"
            " episodes",
            zmin=0,
            meta={"seconds": plain(run.seconds(frames))},
        )
    ]
    return figure(
        data, frames_axis(float(frames[-1])), y | {"showgrid": False}, hovermode="closest"
    )


def bandit_names(vote: BanditVote) -> list[str]:
    """One line for each bandit: its number, mode, width and learning rate."""
    return [
        f"{i + 1}: {b['mode']}, ±{b['width']}, {b['learning_rate']:g}"
        for i, b in enumerate(vote.describe())
    ]


def bandit_values(run: RunData, number: str, vote: BanditVote) -> Figure:
    """V of each bandit over the number, and their average."""
    centres, x, _ = tiles_of(run, number, len(vote.values()))
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": str(i + 1),
            "x": plain(centres),
            "y": plain(bandit.values()),
            "hovertemplate": f"{name}: %{{y:.4~g}}<extra></extra>",
            "line": {
                "width": 1.2,
                "color": PALETTE[i % len(PALETTE)],
                "dash": DASHES[i // len(PALETTE) % len(DASHES)],
            },
        }
        for i, (name, bandit) in enumerate(zip(bandit_names(vote), vote.bandits, strict=True))
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "average",
            "x": plain(centres),
            "y": plain(vote.values()),
            "line": {"width": 4, "color": see_through("#8c8c8c", 0.7)},
        }
    )
    return figure(data, x, axis("value of the tile (return)"), hovermode="closest")


def bandit_votes(run: RunData, number: str, vote: BanditVote) -> Figure:
    """Each bandit's score of each tile; dots mark the d best, an argmax bandit's candidates."""
    names, scores = bandit_names(vote), np.stack([b.scores() for b in vote.bandits])  # [M, K]
    centres, x, labels = tiles_of(run, number, scores.shape[1])
    best = [
        (centres[k], names[i])
        for i, b in enumerate(vote.bandits)
        for k in np.argsort(-scores[i])[: b.num_candidates]
    ]
    hover = f"%{{y}}<br>{SYMBOL[number]} %{{customdata}}<br>score %{{z:.3~g}}"
    data = [
        heat_map(plain(centres), names, scores, [labels] * len(names), "score", hover),
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"the {vote.bandits[0].num_candidates} best",
            "x": plain([x for x, _ in best]),
            "y": [name for _, name in best],
            "hoverinfo": "skip",
            "showlegend": False,
            "marker": {
                "size": 6,
                "color": "rgba(255,255,255,0.85)",
                "line": {"width": 1, "color": "#000"},
            },
        },
    ]
    return figure(
        data,
        x | {"showgrid": False},
        axis("", type="category", autorange="reversed"),
        hovermode="closest",
    )
