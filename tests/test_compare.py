"""report/compare.py: which runs are seeds of one setting, and in which colour they are drawn."""

import json

from dicerl.config.presets import VARIANTS
from dicerl.report.compare import PALETTE, colour, groups, of_env
from dicerl.report.sections import payload
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


def test_each_variant_and_each_of_its_settings_has_a_colour(tmp_path):
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
    assert plain.colour == colour("dice")
    assert other.colour not in (colour("dice"), colour("baseline"))
    assert {g.dash for g in found.values()} == {"solid"}
    assert "learning_rate 0.5" in other.label
    assert (colour("dice"), colour("baseline")) == PALETTE[:2]
    assert colour("my own variant") in PALETTE
    for id_, figure in figures_of([opened(made[0]), opened(made[1])]).items():
        for trace in figure["data"]:
            if trace.get("name") in ("dice", "baseline"):
                assert trace["line"]["color"] == colour(trace["name"]), id_
    # the list of runs shows the same colours
    shown = [run["colour"] for run in payload([opened(r) for r in made])["runs"]]
    assert shown == [colour("dice"), colour("baseline"), other.colour, colour("dice")]


def test_no_two_groups_look_the_same(tmp_path):
    """Sixteen variants and ten settings of two: more than there are colours."""
    runs = [opened(make_run(tmp_path / f"v{i}", variant=v)) for i, v in enumerate(VARIANTS)]
    for i in range(1, 11):
        for variant in ("dice", "casa"):
            settings = {"optimizer.learning_rate": 0.3**i}
            runs.append(opened(make_run(tmp_path / f"{variant}{i}", variant=variant, **settings)))
    found = groups(runs)
    assert len(found) == len(VARIANTS) + 20
    assert len({(g.colour, g.dash) for g in found}) == len(found)
    assert len({g.label for g in found}) == len(found)
    own = {g.runs[0].variant: g.colour for g in reversed(found)}
    assert [own[v] for v in ("dice", "baseline", "casa")] == list(
        map(colour, ("dice", "baseline", "casa"))
    )


def test_settings_that_differ_in_much_are_still_told_apart(tmp_path):
    changes = {"sequence.length": 7, "optimizer.eps": 1e-3, "loss.q": 3.0, "loss.value": 2.0}
    one = opened(make_run(tmp_path / "one"))
    two, three = (
        opened(make_run(tmp_path / name, **changes, **{"optimizer.warmup": warmup}))
        for name, warmup in (("two", 5.0), ("three", 6.0))
    )
    labels = [g.label for g in groups([one, two, three])]
    assert len(set(labels)) == 3
    assert labels[1].endswith("… as two")


def test_environments_differ_by_line_style_where_they_are_together(tmp_path):
    runs = [
        opened(make_run(tmp_path / f"{env}-{variant}", variant=variant, **{"env.id": env}))
        for env in ("CartPole-v1", "Acrobot-v1")
        for variant in ("dice", "baseline")
    ]
    found = groups(runs)
    assert [g.colour for g in found] == [colour("dice"), colour("baseline")] * 2
    assert [g.dash for g in found] == ["solid", "solid", "dash", "dash"]
    assert found[3].label == "baseline · Acrobot-v1"
    assert [(g.label, g.dash) for g in of_env(found, "Acrobot-v1")] == [
        ("dice", "solid"),
        ("baseline", "solid"),
    ]
