"""What is compared: runs that differ only in their seed form a group, and each group has a look of
its own.
"""

from __future__ import annotations

import html
import itertools
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dicerl.config import flatten, renamed
from dicerl.config.options import BOOK_KEEPING, SET_BY_SUITE
from dicerl.config.presets import VARIANTS
from dicerl.report.data import RunData

# the first eight after Okabe and Ito, safe for the colour-blind
PALETTE = (
    *("#1b81c4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c", "#7a4fb5"),
    *("#8c510a", "#8a9a00", "#e7298a", "#a50026"),
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SETTINGS_ASIDE = (*SET_BY_SUITE, *BOOK_KEEPING)


@dataclass
class Group:
    """Runs that differ only in their seed: one line, shaded over the seeds' range."""

    name: str  # variant, and what else differs
    env: str  # empty where all runs are of one
    colour: str
    dash: str
    runs: list[RunData] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What a legend says."""
        return text(" · ".join(filter(None, (self.name, self.env))))

    def seeds(self) -> list[tuple[Any, RunData]]:
        """(seed, run) of each run; one whose seed is unknown counts as a seed of its own."""
        return [(json.dumps(run.setting("seed", [run.name])), run) for run in self.runs]


def of_seeds(seeds: int, runs: int) -> str:
    """What a mean is over, for a legend; nothing for a single run."""
    words = f"{seeds} seed{'s' if seeds > 1 else ''}"
    return "" if runs == 1 else f" ({words})" if runs == seeds else f" ({words}, {runs} runs)"


def colour_index(variant: str) -> int:
    """The same for the same variant everywhere."""
    # main variants come before ablations
    known = sorted(VARIANTS, key=lambda name: "/" in name)
    return (
        known.index(variant)
        if variant in known
        else len(known) + zlib.crc32(variant.encode(errors="replace")) % (2 * len(PALETTE))
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
    """By environment, variant and settings. Variant and settings have a colour, environments a line
    style; a line style is shared where there are more of them than styles.
    """
    envs = list(dict.fromkeys(run.env for run in runs))
    found: dict[tuple[str, str, tuple[str, ...]], list[RunData]] = {}
    for env in envs:
        for variant in dict.fromkeys(run.variant for run in runs if run.env == env):
            same = [run for run in runs if (run.env, run.variant) == (env, variant)]
            names = differences(same)
            for run in same:
                its = settings_of(run)
                mine = tuple(f"{n.split('.')[-1]} {its.get(n)}" for n in names)
                found.setdefault((env, variant, mine), []).append(run)
    numbers = colour_numbers([(variant, mine) for _, variant, mine in found])
    rounds = 1 + max(numbers.values(), default=0) // len(PALETTE)
    out = []
    for (env, variant, mine), same in found.items():
        number = numbers[variant, mine]
        style = envs.index(env) * rounds + number // len(PALETTE)
        # three settings are enough to read; the name of a run tells the rest apart
        words = mine if len(mine) <= 3 else (*mine[:3], f"… as {same[0].name}")
        out.append(
            Group(
                " · ".join((variant, *words)),
                env if len(envs) > 1 else "",
                PALETTE[number % len(PALETTE)],
                DASHES[style % len(DASHES)],
                same,
            )
        )
    return out


def colour_numbers(looks: list[tuple[str, tuple[str, ...]]]) -> dict[tuple[str, Any], int]:
    """A number for each variant with its settings. The first settings of a variant have the
    variant's own, unless another has it already; the rest take what is free.
    """
    numbers: dict[tuple[str, Any], int] = {}
    for variant in dict.fromkeys(variant for variant, _ in looks):
        own = colour_index(variant) % len(PALETTE)
        if own not in numbers.values():
            numbers[next(look for look in looks if look[0] == variant)] = own
    free = (n for n in itertools.count() if n not in numbers.values())
    for look in looks:
        if look not in numbers:
            numbers[look] = next(free)
    return numbers


def of_env(all_groups: list[Group], env: str) -> list[Group]:
    """The groups of one environment, without its name and its line style: the figure has it."""
    own = [group for group in all_groups if group.runs[0].env == env]
    styles = [DASHES.index(group.dash) for group in own]
    return [
        replace(group, env="", dash=DASHES[style - min(styles)])
        for group, style in zip(own, styles, strict=True)
    ]


def colours(all_groups: list[Group]) -> dict[str, str]:
    """The colour of each run by its name."""
    return {run.name: group.colour for group in all_groups for run in group.runs}


def text(words: object) -> str:
    """Escape a name: Plotly interprets a few HTML tags."""
    return html.escape(str(words), quote=False)
