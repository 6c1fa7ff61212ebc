"""report/compare.py: which runs are seeds of one setting, and in which colour they are drawn."""

import json

from dicerl.report.compare import PALETTE, colour, groups
from runs import append, figures_of, line, make_run, opened


def test_a_run_of_before_a_renaming_is_a_seed_like_the_others(tmp_path):
    """config.json of older runs has collector.capacity among the sequence's fields."""
    made = [
        make_run(tmp_path / f"s{seed}", seed=seed, **{"collector.capacity": capacity})
        for seed, capacity in enumerate((50, 50, 60, 60))
    ]
    for directory in made[1:3]:
        config = json.loads((directory / "config.json").read_text())
        config["sequence"]["capacity"] = config["collector"].pop("capacity")
        (directory / "config.json").write_text(json.dumps(config))
    runs = [opened(directory) for directory in made]
    found = [(g.label, [run.name for run in g.runs]) for g in groups(runs)]
    assert found == [("dice · capacity 50", ["s0", "s1"]), ("dice · capacity 60", ["s2", "s3"])]


def test_a_variant_keeps_its_colour_and_other_settings_get_another_line(tmp_path):
    made = [
        make_run(tmp_path / "a", variant="dice"),
        make_run(tmp_path / "b", variant="baseline"),
        make_run(tmp_path / "c", variant="dice", **{"optimizer.learning_rate": 0.5}),
        make_run(tmp_path / "d", variant="dice", seed=7),
    ]
    for run in made:
        append(run, line("episode", 1), line("train", 1, entropy=1.0))
    found = {g.label: g for g in groups([opened(r) for r in made])}
    assert [len(g.runs) for g in found.values()] == [2, 1, 1]
    plain, other = (g for g in found.values() if g.label.startswith("dice"))
    assert plain.colour == other.colour == colour("dice") != colour("baseline")
    assert plain.dash != other.dash
    assert "learning_rate 0.5" in other.label
    assert (colour("dice"), colour("baseline")) == PALETTE[:2]
    assert colour("my own variant") in PALETTE
    for id_, figure in figures_of([opened(made[0]), opened(made[1])]).items():
        for trace in figure["data"]:
            if trace.get("name") in ("dice", "baseline"):
                assert trace["line"]["color"] == colour(trace["name"]), id_
