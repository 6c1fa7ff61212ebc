"""The tables of 57 games: the paper's numbers, its misprints, own runs, and every form of
output.
"""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dicerl.scores
from dicerl.config.presets import preset
from dicerl.envs.atari import ATARI_57
from dicerl.errors import DicerlError
from dicerl.records.run import Run
from dicerl.scores import hns, reference_scores, saber, summary
from dicerl.scores.own import own_scores
from dicerl.scores.table import build

# The paper's summary numbers, from its tables: HNS mean, HNS median, SABER mean, SABER median.
PRINTED = {
    "dice": (6456.63, 477.17, 50.11, 13.90),
    "baseline": (1929.95, 195.54, 35.91, 8.73),
    "rainbow": (873.97, 230.99, 28.39, 4.92),
    "impala": (957.34, 191.82, 29.45, 4.31),
    "laser": (1741.36, 454.91, 36.78, 8.08),
    "r2d2": (3374.31, 1342.27, 60.43, 33.62),
    "ngu": (3169.90, 1208.11, 50.47, 21.19),
    "agent57": (4763.69, 1933.49, 76.26, 43.62),
}
SUMMARY = ("hns_mean", "hns_median", "saber_mean", "saber_median")
# (game, system, cell): (printed, right)
MISPRINTS = {
    ("crazy_climber", "", "human"): (36829.4, 35829.4),
    ("jamesbond", "rainbow", "hns"): (72.24, 7224.25),
    ("phoenix", "r2d2", "hns"): (125.11, 12511.15),
    ("gravitar", "ngu", "hns"): ("441/32", 441.32),
    ("alien", "laser", "score"): (976.51, 35565.9),
    ("alien", "baseline", "score"): (13729.0, 13720.0),
}


def answer(call, *args):
    code, out, err = call("scores", *args, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def make_run(directory, game="pong", variant="dice", seed=0, returns=(1.0,), **changes):
    """A run on disk with evaluations, as training leaves it."""
    config = preset("debug", variant).replace(
        **{"env.id": game, "seed": seed, "run_dir": str(directory)}, **changes
    )
    Run.create(config).unlock()
    lines = [
        json.dumps({"kind": "evaluation", "frames": 1000 * i, "mean_return": r})
        for i, r in enumerate(returns)
    ]
    (Path(directory) / "evaluations.jsonl").write_text("".join(line + "\n" for line in lines))


# --- the numbers


@pytest.mark.parametrize("system", PRINTED)
def test_every_summary_number_of_the_paper(call, system):
    found = answer(call)["systems"][system]
    assert set(found) == set(SUMMARY)
    assert [found[name] for name in SUMMARY] == pytest.approx(PRINTED[system], abs=0.05)


def test_the_shape_of_the_answer(call):
    data = answer(call)
    assert {"reference", "systems", "games"} <= set(data)
    assert "2106.00707" in data["reference"]
    assert "corrected" in data["reference"]
    assert list(data["systems"]) == list(PRINTED)
    assert sorted(data["games"]) == sorted(ATARI_57)
    for game in data["games"].values():
        assert list(game) == ["random", "human", "human_world_record", *PRINTED]
        assert all(list(game[system]) == ["score", "hns", "saber"] for system in PRINTED)


def test_every_cell_follows_from_the_scores(call):
    with (Path(dicerl.scores.__file__).parent / "atari57.csv").open() as file:
        rows = list(csv.DictReader(file))
    games = answer(call)["games"]
    assert len(rows) == 57
    for row in rows:
        game, low = games[row["game"]], float(row["random"])
        for system in PRINTED:
            gain = float(row[system]) - low
            assert game[system]["score"] == float(row[system])
            assert game[system]["hns"] == pytest.approx(100 * gain / (float(row["human"]) - low))
            assert game[system]["saber"] == pytest.approx(
                min(200, 100 * gain / (float(row["human_world_record"]) - low))
            )


def test_cells_by_hand():
    assert hns("pong", 21) == pytest.approx(118.13, abs=0.005)
    assert hns("kangaroo", 14286) == pytest.approx(477.17, abs=0.005)
    assert saber("defender", 837750) == pytest.approx(13.90, abs=0.005)
    assert saber("jamesbond", 567020) == 200
    assert hns("crazy_climber", 35829.4) == pytest.approx(100)


@given(st.sampled_from(ATARI_57), st.floats(-10, 100))
def test_normalised_scores(game, share):
    """0 is random play and 1 the human or the record; SABER is cut at twice the record."""
    row = reference_scores()[game]
    assert hns(game, row["random"] + share * (row["human"] - row["random"])) == pytest.approx(
        100 * share, abs=1e-6
    )
    top = row["random"] + share * (row["human_world_record"] - row["random"])
    assert saber(game, top) == pytest.approx(min(200, 100 * share), abs=1e-6)


def test_a_summary_of_some_games():
    found = summary({"pong": 14.6, "breakout": 1.7, "freeway": 14.8})
    assert found["hns_mean"] == pytest.approx(50)
    assert found["hns_median"] == pytest.approx(50)
    assert found["saber_mean"] == pytest.approx((100 * 35.3 / 41.7 + 0 + 100 * 14.8 / 38) / 3)


@pytest.mark.parametrize("name", ["pong", "Pong", "ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_a_game_goes_by_any_of_its_names(name):
    assert hns(name, 14.6) == pytest.approx(100)


def test_what_cannot_be_scored():
    with pytest.raises(DicerlError, match=r"'pnog'.*did you mean pong\?"):
        hns("pnog", 1)
    with pytest.raises(DicerlError, match="CartPole"):
        saber("CartPole-v1", 1)
    for value in (float("nan"), float("inf")):
        with pytest.raises(DicerlError, match="finite"):
            saber("pong", value)
    with pytest.raises(DicerlError, match="at least one game"):
        summary({})


def test_nobody_can_spoil_the_table():
    reference_scores()["pong"]["human"] = 0.0
    assert reference_scores()["pong"]["human"] == 14.6


# --- misprints


@pytest.mark.parametrize("place", MISPRINTS, ids=lambda place: "-".join(filter(None, place)))
def test_misprints_are_corrected_and_named(place):
    game, system, cell = place
    printed, right = MISPRINTS[place]
    for as_printed in (False, True):
        data = build(as_printed=as_printed)
        shown = data["games"][game][system][cell] if system else data["games"][game][cell]
        if as_printed:
            assert shown == printed
        else:
            assert shown == pytest.approx(right, abs=0.005)
        noted = [c for c in data["corrections"] if (c["game"], c["system"], c["cell"]) == place]
        assert [(c["printed"], c["corrected"]) for c in noted] == [(printed, right)]


def test_as_printed_differs_nowhere_else(call):
    right, printed = answer(call), answer(call, "--as-printed")
    noted = {(c["game"], c["system"], c["cell"]) for c in right["corrections"]}
    assert noted >= set(MISPRINTS)
    for game, row in right["games"].items():
        for system in PRINTED:
            for cell, value in row[system].items():
                if (game, system, cell) not in noted:
                    assert printed["games"][game][system][cell] == pytest.approx(value, abs=0.0051)
    assert printed["games"]["tennis"]["rainbow"]["saber"] == 53.13  # 53.125
    assert "as printed" in printed["reference"]
    assert {s: tuple(values.values()) for s, values in printed["systems"].items()} == PRINTED


# --- own runs


def test_own_runs_are_columns(call, tmp_path):
    make_run(tmp_path / "a", seed=0, returns=(-20, 20))  # the newest counts
    make_run(tmp_path / "b", seed=1, returns=(18,))
    make_run(tmp_path / "c", "ALE/Breakout-v5", returns=(30.5,))
    make_run(tmp_path / "d", variant="baseline", returns=(14.6,))
    data = answer(call, "a", "b", "c", "d")
    assert data["games"]["pong"]["own dice"] == {
        "score": 19.0,
        "hns": pytest.approx(hns("pong", 19)),
        "saber": pytest.approx(saber("pong", 19)),
        "runs": 2,
    }
    assert data["systems"]["own dice"]["hns_mean"] == pytest.approx((hns("pong", 19) + 100) / 2)
    assert data["systems"]["own dice"]["games"] == 2
    assert data["systems"]["own baseline"]["hns_mean"] == pytest.approx(100)
    assert "own dice" not in data["games"]["alien"]
    assert data["games"]["pong"]["dice"]["score"] == 21  # the paper's is still there


def test_a_directory_of_runs_and_one_named_twice(tmp_path):
    make_run(tmp_path / "suite" / "runs" / "a", returns=(1,))
    make_run(tmp_path / "suite" / "b", seed=1, returns=(2,))
    own, notes = own_scores([tmp_path / "suite", tmp_path / "suite" / "b"])
    assert {game: sorted(scores) for game, scores in own["own dice"].items()} == {
        "pong": [1.0, 2.0]
    }
    assert notes == []


def test_a_link_that_cannot_be_followed_hides_no_run(tmp_path):
    make_run(tmp_path / "runs" / "a", returns=(1,))
    make_run(tmp_path / "other", seed=1, returns=(2,))
    (tmp_path / "runs" / "evil").symlink_to("x" * 300)
    (tmp_path / "runs" / "link").symlink_to("../other")
    own, _ = own_scores([tmp_path / "runs"])
    assert sorted(own["own dice"]["pong"]) == [1.0, 2.0]


def test_runs_without_a_score_are_left_out_aloud(call, tmp_path):
    make_run(tmp_path / "good", returns=(1,))
    make_run(tmp_path / "young", returns=())
    make_run(tmp_path / "other", "CartPole-v1", returns=(500,))
    make_run(tmp_path / "long", seed=1, returns=(3,), frames=9_000)
    code, out, err = call("scores", "good", "young", "other", "long", "--json")
    assert code == 0
    assert json.loads(out)["games"]["pong"]["own dice"]["runs"] == 2
    assert "young is left out: it has no evaluation yet" in err
    assert "other is left out: CartPole-v1" in err
    assert "different length: 4,000, 9,000 frames" in err


def test_a_sweep_s_settings_are_not_averaged_in_silence(tmp_path):
    rate = "optimizer.learning_rate"
    make_run(tmp_path / "a", **{rate: 0.1})
    make_run(tmp_path / "b", "breakout", **{rate: 0.2})  # another game's may differ
    assert own_scores([tmp_path])[1] == []
    make_run(tmp_path / "c", seed=1, **{rate: 0.3, "runtime.num_envs": 3})
    (note,) = own_scores([tmp_path])[1]
    assert note.startswith(f"own dice holds runs of pong that differ in {rate};")


def test_a_damaged_line_is_passed_over(tmp_path):
    make_run(tmp_path / "run", returns=(7.0,))
    with (tmp_path / "run" / "evaluations.jsonl").open("a") as file:
        file.write('null\n{"frames": 9, "mean_return": null}\n{"frames": 9, "mean_ret')
    assert own_scores([tmp_path / "run"])[0] == {"own dice": {"pong": [7.0]}}


@pytest.mark.parametrize(
    ("args", "fragments"),
    [
        (["nowhere"], ["nowhere holds no run"]),
        (["--games", "pnog"], ["'pnog'", "did you mean pong?"]),
        (["young"], ["young", "no evaluation yet"]),
        (["broken"], ["broken/config.json is damaged"]),
        (["--as-printed", "--games", "pong"], ["as-printed", "57"]),
        (["--metric", "elo"], ["--metric", "elo"]),
        (["--json", "--csv"], ["--csv"]),
        (["--jsn"], ["--jsn", "did you mean --json?"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, list) else "",
)
def test_mistakes(call, tmp_path, args, fragments):
    make_run(tmp_path / "young", returns=())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text('{"frames": "many"}')
    code, out, err = call("scores", *args)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for fragment in fragments:
        assert fragment in err


# --- forms


def test_terminal_shows_everything_in_any_width(call, monkeypatch):
    from rich.console import Console

    from dicerl.scores import render

    page = render.sheet(build(), "hns")
    for width in (60, 80, 120, 200):
        console = Console(file=io.StringIO(), width=width)
        render.terminal(console, page)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        for row in page.rows:
            assert all(cell.text in text for cell in row)
    code, out, _ = call("scores")
    assert code == 0
    assert "Reference: Xiao et al. 2021" in out
    assert "35829.4†" in out
    assert "35829.4 (printed 36829.4)" in out
    assert re.search(r"DiCE\s+200M\s+57\s+6456.6\d\s+477.17\s+50.11\s+13.90", out)
    assert "36829.4† " in call("scores", "--as-printed")[1]


def test_markdown(call, tmp_path):
    make_run(tmp_path / "run", returns=(19.5,))
    code, out, _ = call("scores", "run", "--markdown")
    assert code == 0
    tables = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    # score, HNS, SABER with mean and median, the systems
    assert [len(table) - 2 for table in tables] == [57, 59, 59, 9]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    row = next(line for line in tables[1] if line.startswith("| pong |"))
    assert "**118.13**" in row
    assert f"{hns('pong', 19.5):.2f}" in row
    assert "7224.25†" in out
    assert "own dice" in tables[0][0]


def test_latex(call):
    code, out, _ = call("scores", "--latex", "--metric", "hns")
    assert code == 0
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") == 2
    body = out[: out.index(r"\end{tabular}")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 1 + 57 + 2
    assert {line.count("&") for line in lines} == {10}
    assert r"7224.25$^\dagger$" in body
    assert r"\textbf{207082.18}" in body
    assert not re.search(r"(?<!\\)[_%]", "\n".join(lines))


def test_comma_separated(call):
    code, out, _ = call("scores", "--csv")
    assert code == 0
    rows = {row["game"]: row for row in csv.DictReader(io.StringIO(out))}
    assert sorted(rows) == sorted(ATARI_57)
    assert float(rows["pong"]["dice_score"]) == 21
    assert float(rows["alien"]["laser_saber"]) == 14.04
    assert rows["crazy_climber"]["misprinted"] == "human"
    assert rows["alien"]["misprinted"] == "laser_score;baseline_score"


def test_some_games_only(call):
    data = answer(call, "--games", "pong,Breakout", "freeway")
    assert list(data["games"]) == ["pong", "breakout", "freeway"]
    assert data["systems"]["dice"]["hns_median"] == pytest.approx(118.13, abs=0.005)
