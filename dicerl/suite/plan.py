"""What a suite consists of: games × variants × seeds, from a TOML file, options, or both (options
win).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dicerl.config import Config, fields_of, flatten, object_fields, override, renamed, validate
from dicerl.config.elsewhere import suggestion
from dicerl.config.options import SET_BY_SUITE
from dicerl.config.presets import preset
from dicerl.envs import preset_for
from dicerl.envs.trust import require
from dicerl.errors import ConfigError, DicerlError, nearest
from dicerl.records.run import run_name

KEYS = ("games", "variants", "seeds", "preset", "dir", "jobs", "against", "config")


@dataclass
class SuiteRun:
    """One run of the suite, and how far it has come."""

    game: str
    variant: str
    seed: int
    config: Config
    changes: dict[str, Any]  # the fields given, by dotted name
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
    changes: dict[str, Any] = field(default_factory=dict)
    runs: list[SuiteRun] = field(default_factory=list)
    signal: int = 0  # the number of the one that stopped it


def make_plan(
    given: dict[str, Any], changes: dict[str, Any], path: str | None = None, trust: bool = False
) -> Plan:
    """``given`` holds the suite's own keys, ``changes`` config fields; a file at ``path`` supplies
    the rest. Everything is checked here; ``trust`` allows modules that only the file names.
    """
    table = read_file(Path(path)) if path else {}
    in_file = renamed(flatten(table.pop("config", {}), whole=object_fields()))
    table |= {key: value for key, value in given.items() if value is not None}
    wrappers_typed = "env.wrappers" in changes
    changes = in_file | changes
    for name in changes:
        if name in SET_BY_SUITE:
            raise ConfigError(
                "config",
                name,
                "the suite sets this field itself; use games, variants, seeds, preset or dir",
            )
        if name not in fields_of():
            raise ConfigError(
                "config",
                name,
                f"no such field{suggestion(name, fields_of()) or '; see dicerl train --help'}",
            )
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
        changes,
    )
    for seed in plan.seeds:  # outermost, so that early results compare all variants on all games
        for game in games:
            for variant in variants:
                plan.runs.append(_run(plan, game, variant, seed))
    if path and not wrappers_typed:
        for wrapper in {name for run in plan.runs for name in run.config.env.wrappers}:
            require(wrapper, Path(path), trust)
    names = [run.name for run in plan.runs]
    if len(set(names)) < len(names):
        raise ConfigError(
            "games", games, "two of them would share a directory; name each game once"
        )
    return plan


def _run(plan: Plan, game: str, variant: str, seed: int) -> SuiteRun:
    config = preset(plan.preset or preset_for(game), variant)
    if config.variant != variant:
        raise ConfigError(
            "preset",
            plan.preset,
            f"in a suite {config.variant} is one of the variants; name it there",
        )
    config = override(config, {"env.id": game, "seed": seed, **plan.changes})
    if config.evaluation.every == 0:
        raise ConfigError("evaluation.every", 0, "a suite compares evaluations; it must be above 0")
    directory = plan.directory / "runs" / run_name(config)
    config = validate(override(config, {"run_dir": str(directory)}))
    return SuiteRun(
        game,
        variant,
        seed,
        config,
        plan.changes,
        directory,
        plan.directory / "logs" / f"{directory.name}.log",
    )


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a suite's TOML file; unknown ones are refused by name."""
    try:
        table = tomllib.loads(path.read_text())
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
        raise DicerlError(f"{path}: config is {table['config']!r}; it must be a table: [config]")
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
    seeds = list(range(value)) if isinstance(value, int) else list(dict.fromkeys(value))
    if not seeds or min(seeds) < 0:
        raise wrong
    return seeds


def _jobs(value: Any) -> int | None:
    if value is None:
        return None
    try:
        jobs = int(value)
    except (TypeError, ValueError):
        jobs = 0
    if not 1 <= jobs <= 10_000 or isinstance(value, bool | float):
        raise ConfigError("jobs", value, "it must be a whole number above 0")
    return jobs


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise ConfigError(name, value, "it must be a path")
    return str(value)
