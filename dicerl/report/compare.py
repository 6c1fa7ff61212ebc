"""What is compared: runs that differ only in their seed form a group, and a variant has one colour
everywhere.
"""

from __future__ import annotations

import html
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dicerl.config import flatten, renamed
from dicerl.config.presets import VARIANTS
from dicerl.report.data import RunData

# after Okabe and Ito, safe for the colour-blind
PALETTE = ("#1b81c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#7a4fb5")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SETTINGS_ASIDE = (
    "seed",
    "run_dir",
    "preset",
    "variant",
    "env.id",
    "log_every",
    "tensorboard",
    "runtime.",
    "evaluation.",
    "checkpoint.",
)


@dataclass
class Group:
    """Runs that differ only in their seed: one line, shaded over the seeds' range."""

    label: str
    colour: str
    dash: str
    runs: list[RunData] = field(default_factory=list)


def colour_index(variant: str) -> int:
    """The same for the same variant in every figure of every report."""
    # main variants come before ablations
    known = sorted(VARIANTS, key=lambda name: "/" in name)
    return (
        known.index(variant)
        if variant in known
        else len(known) + zlib.crc32(variant.encode()) % (2 * len(PALETTE))
    )


def colour(variant: str) -> str:
    """The variant's colour as #rrggbb; beyond the palette's length colours repeat."""
    return PALETTE[colour_index(variant) % len(PALETTE)]


def settings_of(run: RunData) -> dict[str, Any]:
    """The run's config by dotted name, as this version names the fields."""
    return renamed(flatten(run.config))


def differences(runs: Sequence[RunData]) -> list[str]:
    """Settings that differ between these runs, apart from seeds and book-keeping."""
    configs = [settings_of(run) for run in runs]
    names = {n for c in configs for n in c if not n.startswith(SETTINGS_ASIDE)}
    return sorted(n for n in names if len({json.dumps(c.get(n)) for c in configs}) > 1)


def groups(runs: Sequence[RunData]) -> list[Group]:
    """By environment, variant and settings; colour by variant, line style by what else differs."""
    envs = list(dict.fromkeys(run.env for run in runs))
    found: dict[tuple[str, ...], Group] = {}
    for env in envs:
        for variant in dict.fromkeys(run.variant for run in runs if run.env == env):
            same = [run for run in runs if (run.env, run.variant) == (env, variant)]
            names = differences(same)
            settings: list[tuple[str, ...]] = []
            for run in same:
                its = settings_of(run)
                mine = tuple(f"{n.split('.')[-1]} {its.get(n)}" for n in names)
                if mine not in settings:
                    settings.append(mine)
                style = (
                    colour_index(variant) // len(PALETTE) + settings.index(mine) + envs.index(env)
                )
                label = " · ".join([variant, *mine[:3], *([env] if len(envs) > 1 else [])])
                group = found.setdefault(
                    (env, variant, *mine),
                    Group(text(label), colour(variant), DASHES[style % len(DASHES)]),
                )
                group.runs.append(run)
    return list(found.values())


def text(words: object) -> str:
    """Escape a name: Plotly interprets a few HTML tags."""
    return html.escape(str(words), quote=False)
