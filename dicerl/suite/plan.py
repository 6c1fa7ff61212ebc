"""What a suite consists of: games × variants × settings × seeds, from a TOML file, options, or both
(options win).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from dicerl.config import Config, fields_of, flatten, object_fields, override, renamed, validate
from dicerl.config.presets import preset
from dicerl.envs import preset_for
from dicerl.envs.trust import (
    is_listed,
    module_of,
    needs_consent,
    require,
    require_cluster,
    require_wrapper,
)
from dicerl.errors import ConfigError, DicerlError, nearest, shortened
from dicerl.records import files
from dicerl.records.run import run_name
from dicerl.suite.sweep import Setting, check_name, combined, directory_name, search, split

KEYS = ("games", "variants", "seeds", "preset", "dir", "jobs", "against", "config", "search")
MOST_RUNS = 100_000


@dataclass
class SuiteRun:
    """One run of the suite, and how far it has come."""

    game: str
    variant: str
    seed: int
    config: Config
    changes: dict[str, Any]  # the fields given, by dotted name
    setting: str  # what tells it apart from other runs of the variant; a label of the plan's
    directory: Path
    log: Path
    state: str = "queued"  # or waiting (in use elsewhere), running, finished, failed, stopped
    reason: str = ""  # if it failed
    frames: int = 0
    score: float | None = None  # mean return of its newest evaluation

    @property
    def name(self) -> str:
        """The name of its directory: environment, variant and seed."""
        return self.directory.name


@dataclass
class Plan:
    """A checked suite: what was given, and the runs that follow from it."""

    directory: Path
    games: list[str]
    variants: list[str]
    seeds: list[int]
    preset: str | None = None
    jobs: int | None = None
    against: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)  # the fields that all runs share
    settings: dict[str, Setting] = field(default_factory=dict)  # by label; without a sweep {"": {}}
    runs: list[SuiteRun] = field(default_factory=list)
    signal: int = 0  # the number of the one that stopped it


def make_plan(
    given: dict[str, Any], options: dict[str, Any], path: str | None = None, trust: bool = False
) -> Plan:
    """``given`` holds the suite's own keys, ``options`` config fields; a file at ``path`` supplies
    the rest. A field with several values, there or in the file's ``[search]``, is swept. Everything
    is checked here; ``trust`` allows modules that only the file names.
    """
    table = read_file(Path(path)) if path else {}
    in_file = renamed(flatten(table.pop("config", {}), whole=object_fields()))
    table |= {key: value for key, value in given.items() if value is not None}
    changes = in_file | options
    for name in changes:
        check_name("config", name)
    drawn = search(table.get("search", {}), table.get("samples"), options)
    for name in drawn[0]:
        if name in in_file:
            raise ConfigError("search", name, "it is also in [config]; name it in one of them")
    fixed, lists = split(changes)
    settings = combined(lists, drawn)
    games = _words("games", table.get("games"))
    if not games:
        raise DicerlError(
            'a suite needs games: --games pong breakout, or games = ["pong", "breakout"] in its'
            " file"
        )
    if path and given.get("games") is None:
        for game in games:
            require(game, Path(path), trust)
    variants = _words("variants", table.get("variants", ["dice"]))
    against = table.get(
        "against", "baseline" if "baseline" in variants and len(variants) > 1 else None
    )
    if against is not None and against not in variants:
        raise ConfigError(
            "against", against, f"it must be one of the suite's variants: {', '.join(variants)}"
        )
    directory = Path(
        _string("dir", table.get("dir", Path("suites") / (Path(path).stem if path else "suite")))
    )
    named = None if table.get("preset") is None else str(table["preset"])
    plan = Plan(
        directory,
        games,
        variants,
        _seeds(table.get("seeds", 3)),
        named,
        _jobs(table.get("jobs")),
        against,
        fixed,
        settings,
    )
    count = len(plan.seeds) * len(settings) * len(games) * len(variants)
    if count > MOST_RUNS:
        raise DicerlError(
            f"games, variants, settings and seeds make {count:,} runs; a suite has at most"
            f" {MOST_RUNS:,}"
        )
    # seeds outermost, so that early results compare all settings of all variants on all games
    for seed, setting, game, variant in product(plan.seeds, settings, games, variants):
        plan.runs.append(_run(plan, game, variant, seed, setting))
    if path:
        _ask_consent(plan, Path(path), options, trust)
    names = [run.name for run in plan.runs]
    if len(set(names)) < len(names):
        raise ConfigError(
            "games", games, "two of them would share a directory; name each game once"
        )
    return plan


def _ask_consent(plan: Plan, file: Path, options: dict[str, Any], trust: bool) -> None:
    """Refuse wrappers, clusters and torsos that only the file names, unless they are trusted."""
    configs = [run.config for run in plan.runs]
    if "env.wrappers" not in options:
        for wrapper in {name for config in configs for name in config.env.wrappers}:
            require_wrapper(wrapper, file, trust)
    if "ray.address" not in options:
        for config in configs:
            require_cluster(config, file, trust)
    if "network.torso" not in options and not trust:
        for module in {module_of(config.network.torso) for config in configs}:
            if module and not is_listed(module):
                raise needs_consent(file, module)


def _run(plan: Plan, game: str, variant: str, seed: int, setting: str) -> SuiteRun:
    config = preset(plan.preset or preset_for(game), variant)
    if config.variant != variant:
        raise ConfigError(
            "preset",
            plan.preset,
            f"in a suite {config.variant} is one of the variants; name it there",
        )
    changes = plan.changes | plan.settings[setting]
    config = override(config, {"env.id": game, "seed": seed, **changes})
    if config.evaluation.every == 0:
        raise ConfigError("evaluation.every", 0, "a suite compares evaluations; it must be above 0")
    directory = plan.directory / "runs" / run_name(config, directory_name(plan.settings[setting]))
    config = validate(override(config, {"run_dir": str(directory)}))
    return SuiteRun(
        game,
        variant,
        seed,
        config,
        changes,
        setting,
        directory,
        plan.directory / "logs" / f"{directory.name}.log",
    )


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a suite's TOML file; unknown ones are refused by name."""
    try:
        table = tomllib.loads(files.read_bytes(path).decode())
        files.check(table, largest=2**63)
    except FileNotFoundError:
        raise DicerlError(f"there is no suite file {path}") from None
    except (ValueError, RecursionError) as error:
        raise DicerlError(f"{path} is not TOML: {error}") from None
    for key in table:
        if key not in KEYS:
            sections = {name.split(".")[0] for name in fields_of()}
            hint = (
                "; config fields belong below [config]" if key in sections else nearest(key, KEYS)
            )
            raise DicerlError(
                f"{path}: no such key {key!r}{hint} (a suite file has {', '.join(KEYS)})"
            )
    if not isinstance(table.get("config", {}), dict):
        raise DicerlError(
            f"{path}: config is {shortened(table['config'])}; it must be a table: [config]"
        )
    return table


def _words(name: str, value: Any) -> list[str]:
    """From ["a", "b"], "a b" or "a,b"; each once."""
    if value is None:
        return []
    items: Iterable[Any] = [value] if isinstance(value, str) else value
    if not isinstance(value, str | list) or not all(isinstance(item, str) for item in items):
        raise ConfigError(name, value, "it must be a list of names")
    return list(dict.fromkeys(word for item in items for word in item.replace(",", " ").split()))


def _seeds(value: Any) -> list[int]:
    """A list of seeds; a single number N stands for 0 ... N-1."""
    wrong = ConfigError(
        "seeds", value, "it must be a number of seeds (3 means 0, 1, 2) or a list of them (0,1,7)"
    )
    try:
        # from the command line
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            text = ",".join(value)
            numbers = [int(word) for word in text.replace(",", " ").split()]
            value = numbers if "," in text else numbers[0]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | list)
            or (isinstance(value, list) and any(type(s) is not int for s in value))
        ):
            raise wrong
    except (ValueError, IndexError):
        raise wrong from None
    count = value if isinstance(value, int) else len(value)
    if count > MOST_RUNS:
        raise ConfigError("seeds", count, f"a suite has at most {MOST_RUNS:,} runs")
    seeds = list(range(value)) if isinstance(value, int) else list(dict.fromkeys(value))
    if not seeds or min(seeds) < 0:
        raise wrong
    return seeds


def _jobs(value: Any) -> int | None:
    if value is None:
        return None
    try:
        jobs = int(value)
    except (TypeError, ValueError, OverflowError):
        jobs = 0
    if not 1 <= jobs <= 10_000 or isinstance(value, bool | float):
        raise ConfigError("jobs", value, "it must be a whole number above 0")
    return jobs


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ConfigError(name, value, "it must be a path")
    return str(value)
