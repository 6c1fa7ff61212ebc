"""Everything a page shows of some runs, in order: the report writes it into a file, the dashboard
sends it to the browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dicerl.games import find_game
from dicerl.records.vocabulary import FAVOURED, LINES, stage_field
from dicerl.report import bars, figures, maps
from dicerl.report.compare import Group, colour, colours, differences, groups, of_env, settings_of
from dicerl.report.data import RunData
from dicerl.report.seeds import Curve
from dicerl.scores import reference_scores

FAVOURED_TEMPERATURE = FAVOURED.name("inv_temperature")
MAPS = 4  # runs whose temperature maps are shown


class Section:
    """Cards with figures; those without data are only named."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.cards: list[dict[str, Any]] = []
        self.missing: list[str] = []

    def add(
        self,
        key: str,
        title: str,
        figure: figures.Figure | None,
        caption: str = "",
        why: str = "no data yet",
    ) -> None:
        """Add a card, or name it as missing because of ``why`` if there is no figure."""
        if figure is None:
            self.missing.append(f"{title}: {why}")
        else:
            self.cards.append({"id": key, "title": title, "caption": caption, "figure": figure})

    def plain(self) -> dict[str, Any]:
        """The section as a JSON value, as page.js takes it."""
        return {"title": self.title, "cards": self.cards, "missing": self.missing}


def sections(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """All sections of a page about these runs, in order, as JSON values."""
    together = groups(runs)
    return [
        part.plain()
        for part in (
            _returns(together),
            _temperatures(runs, together),
            _learning(together),
            _data(together),
            _speed(together),
        )
    ]


def _returns(together: list[Group]) -> Section:
    part = Section("Return")
    for env in dict.fromkeys(group.runs[0].env for group in together):
        compared = of_env(together, env)
        part.add(
            f"return/{env}",
            f"{env}: training",
            figures.training_return(compared),
            "Raw return of the episodes the actors play, exploration included. Shade: lowest to"
            " highest seed.",
        )
        part.add(
            f"evaluation/{env}",
            f"{env}: evaluation",
            figures.evaluation(compared),
            "Separate episodes. Full line: τ from the bandits' best region. Open marks: greedy."
            " Faint: training.",
        )
        by_score, words = bars.settings(compared)
        if by_score is not None:
            part.add(f"settings/{env}", f"{env}: settings by score", by_score, words)
        game = _atari_game(env)
        if game:
            part.add(
                f"hns/{env}",
                f"{env}: human-normalised score",
                bars.hns_bars(compared, game),
                "Last evaluation here beside the paper's table (200M frames and more).",
                "no evaluation yet",
            )
    return part


def _atari_game(env: str) -> str | None:
    """The game's name in the paper's table; None for any other environment."""
    return find_game(env, reference_scores())


def _temperatures(runs: Sequence[RunData], together: list[Group]) -> Section:
    part = Section("Temperature")
    part.add(
        "entropy",
        "Entropy",
        figures.train_curves(together, "entropy", "entropy of π<sub>τ</sub> ({unit})"),
        "Of the policies that acted, each at its own τ: no bonus holds it up.",
    )
    part.add(
        "favoured",
        "Favoured temperature",
        figures.curves(together, _favoured, LINES["train"][FAVOURED_TEMPERATURE].unit),
        "Middle of the tile the bandits value most; of a trainable τ, its value. Higher is"
        " greedier.",
    )
    drawing = [
        run
        for run in runs
        if run.setting("behaviour.source", "bandit") in ("bandit", "distribution")
    ]
    if not drawing:
        part.missing.append("Temperature map: these runs do not draw temperatures")
    for run in drawing[:MAPS]:
        _maps(part, run, run.name if len(runs) > 1 else "")
    if len(drawing) > MAPS:
        part.missing.append(
            f"temperature maps of {len(drawing) - MAPS} more runs: the first {MAPS} are shown"
        )
    return part


def _title(run: str, words: str) -> str:
    return f"{run}: {words}" if run else words[0].upper() + words[1:]


def _favoured(run: RunData) -> Curve:
    learned = run.train("trainable_inv_temperature")
    return learned if len(learned[0]) else run.train(FAVOURED_TEMPERATURE)


def _maps(part: Section, run: RunData, name: str) -> None:
    """The temperature map of one run, and its bandits."""
    votes = run.votes()
    aside = (
        ""
        if run.setting("behaviour.source", "bandit") == "bandit"
        else " This variant keeps the vote but draws from the initial one."
    )
    for p in run.numbers:
        of = f" of {maps.SYMBOL[p]}" if p != "inv_temperature" else ""
        why = "no data yet"
        part.add(
            f"values/{run.name}/{p}",
            _title(name, f"temperature map{of}, value"),
            maps.value_map(run, p),
            "Value the bandits give each tile over time (blank: not visited yet). Dots: drawn for"
            " single episodes.",
            why,
        )
        part.add(
            f"visits/{run.name}/{p}",
            _title(name, f"temperature map{of}, visits"),
            maps.visits_map(run, p),
            f"Share of the latest episodes (at least {maps.RECENT}) that fell into each tile.",
            why,
        )
        why = "no checkpoint yet"
        part.add(
            f"bandits/{run.name}/{p}",
            _title(name, f"each bandit's value{of}"),
            maps.bandit_values(run, p, votes[p]) if p in votes else None,
            "Newest checkpoint. Thick: their average, which evaluation goes by." + aside,
            why,
        )
        part.add(
            f"votes/{run.name}/{p}",
            _title(name, f"each bandit's vote{of}"),
            maps.bandit_votes(run, p, votes[p]) if p in votes else None,
            "Newest checkpoint. A bandit: how it chooses, width of its window, learning rate."
            " Score: value plus a bonus for rare tiles; dots: the best. A random bandit draws with"
            f" the scores as logits.{aside}",
            why,
        )


def _learning(together: list[Group]) -> Section:
    part = Section("Learning")
    part.add("loss_value", "Value loss", figures.train_curves(together, "loss_value", log=True))
    part.add("loss_q", "Q loss", figures.train_curves(together, "loss_q", log=True))
    part.add("loss_policy", "Policy loss", figures.train_curves(together, "loss_policy"))
    part.add(
        "gradient_norm",
        "Gradient norm",
        figures.gradient_norm(together),
        "Of one batch, before it is clipped.",
    )
    part.add(
        "value_explained",
        "Value explained",
        figures.train_curves(together, "value_explained"),
        "1: V predicts its targets; 0: no better than their mean.",
    )
    return part


def _data(together: list[Group]) -> Section:
    part = Section("Data")
    part.add(
        "policy_lag",
        "Policy lag",
        figures.train_curves(together, "policy_lag"),
        "Updates between acting and training, mean over every batch.",
    )
    part.add(
        "ratio",
        "Importance ratio",
        figures.train_curves(together, "ratio_mean"),
        "Near 1: the data is nearly on-policy.",
    )
    part.add(
        "clipped",
        "Clipped ratios",
        figures.clipped(together),
        "Ratios above ρ̄ (and c̄, where it differs).",
    )
    part.add(
        "age",
        "Age of the data",
        figures.train_curves(together, "sequence_age"),
        "From acting to training.",
    )
    return part


def _speed(together: list[Group]) -> Section:
    part = Section("Speed")
    part.add(
        "throughput",
        "Throughput",
        figures.train_curves(together, "frames_per_s"),
        "All stages together. `dicerl bench` measures each stage alone.",
    )
    part.add(
        "stages",
        "Time by stage",
        bars.stages(together),
        "Second half of the run. Waiting: actors for a free slot. Starved: the learner for data."
        " Blank: everything else.",
    )
    part.add(
        "starved",
        "Learner waits for data",
        figures.train_curves(together, stage_field("learner", "starved"), percent=True),
        "High: the actors are the slow stage. Near 0: the learner is.",
        "the serial runtime has nothing that waits",
    )
    part.add(
        "nodes",
        "Actors by node",
        bars.nodes(together),
        "Of a cluster, lately. Waiting: for a free slot, so the learner is the slow stage.",
        "only the ray runtime has nodes",
    )
    part.add(
        "queue",
        "Windows that wait for the learner",
        figures.train_curves(together, "queued_sequences"),
        "A full collector makes the actors wait.",
    )
    return part


def listed(run: RunData) -> dict[str, Any]:
    """A run's entry in the list. Whatever its files hold: one bad run is one marked entry, and the
    others are shown.
    """
    try:
        return {**run.overview(), "colour": colour(run.variant)}
    except Exception as error:
        return {
            "id": run.name,
            "name": run.name,
            "env": "unknown environment",
            "variant": "unknown variant",
            "seed": None,
            "state": "unreadable",
            "frames": 0,
            "colour": colour(""),
            "problem": _unreadable(error),
        }


def _unreadable(error: Exception) -> str:
    return f"it cannot be read: {type(error).__name__}: {error}"


def shown_colours(runs: Sequence[RunData]) -> dict[str, str]:
    """The colours in which figures show these runs, by name; none where one cannot be read."""
    try:
        return colours(groups(runs))
    except Exception:
        return {}


def describe(run: RunData, shown: dict[str, str]) -> dict[str, Any]:
    """What a page shows of a run beside its figures."""
    events = [
        f"{e.get('event')}{': ' + str(e['reason']) if e.get('reason') else ''}"
        for e in run.events
        if e.get("event") not in (None, "start", "checkpoint")
    ]
    return {
        **listed(run),
        **run.software(),
        **({"colour": shown[run.name]} if run.name in shown else {}),
        "damaged": run.damaged,
        "events": events[-10:],
        "config": settings_of(run),
    }


def payload(runs: Sequence[RunData]) -> dict[str, Any]:
    """All of a page's content for these runs; one without figures, because its files cannot be
    understood, says so.
    """
    try:
        shown = shown_colours(runs)
        return {
            "runs": [describe(run, shown) for run in runs],
            "differences": differences(runs),
            "sections": sections(runs) if runs else [],
        }
    except Exception:
        good = [run for run in runs if _has_figures(run) is None]
        shown = shown_colours(good)
        return {
            "runs": [
                describe(run, shown) if run in good else _without_figures(run) for run in runs
            ],
            "differences": differences(good),
            "sections": sections(good) if good else [],
        }


def _has_figures(run: RunData) -> Exception | None:
    """Why a run alone has no figures; None if it has."""
    try:
        describe(run, {})
        sections([run])
        return None
    except Exception as error:
        return error


def _without_figures(run: RunData) -> dict[str, Any]:
    error = _has_figures(run)
    problem = _unreadable(error) if error is not None else ""
    return {**listed(run), "damaged": 0, "events": [], "config": {}, "problem": problem}
