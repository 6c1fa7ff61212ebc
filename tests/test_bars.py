"""report/bars.py: the numbers that bars are drawn with."""

import pytest

from dicerl.report import bars
from dicerl.report.compare import groups
from dicerl.scores import SYSTEMS, hns
from runs import append, figures_of, line, make_run, opened


def test_time_by_stage(tmp_path):
    """Means of the second half; a stage that takes a quarter of the time at 100 frames/s could do
    400.
    """
    directory = make_run(tmp_path / "run")
    append(
        directory,
        line("train", 10, actor_inference=1.0, frames_per_s=1.0),
        *(
            line(
                "train",
                f,
                actor_inference=0.25,
                learner_training=0.5,
                learner_starved=0.0,
                frames_per_s=100.0,
            )
            for f in (60, 100)
        ),
    )
    found = {trace["name"]: trace for trace in bars.stages(groups([opened(directory)]))["data"]}
    assert set(found) == {"inference", "training", "starved"}
    assert (found["inference"]["x"], found["inference"]["customdata"], found["inference"]["y"]) == (
        [0.25],
        [400.0],
        ["dice, actor"],
    )
    assert (found["training"]["x"], found["training"]["y"]) == ([0.5], ["dice, learner"])


def test_hns_bars_against_the_papers_systems(tmp_path):
    directory = make_run(tmp_path / "run", **{"env.id": "ALE/Pong-v5"})
    append(
        directory,
        line("evaluation", 10, mean_return=-20.0),
        line("evaluation", 20, mean_return=9.0, stderr=1.0),
    )
    found = figures_of([opened(directory)])["hns/ALE/Pong-v5"]["data"][0]
    assert len(found["x"]) == len(SYSTEMS) + 1
    assert sorted(found["x"]) == found["x"]
    own = next(i for i, name in enumerate(found["y"]) if "dice</b>" in name)
    assert found["x"][own] == pytest.approx(hns("pong", 9.0), rel=1e-4)


def test_settings_by_score(tmp_path):
    """Where a variant has several: the highest on top, as `dicerl suite` computes it."""
    runs = []
    for rate, scores in ((0.1, (5.0, 6.0)), (0.2, (8.0, 9.0)), (0.3, (1.0, 2.0))):
        for seed, score in enumerate(scores):
            name = f"{rate}-{seed}"
            run = make_run(tmp_path / name, seed=seed, **{"optimizer.learning_rate": rate})
            append(run, line("evaluation", 10, mean_return=0.0))
            append(run, line("evaluation", 20, mean_return=score))
            runs.append(opened(run))
    found, words = bars.settings(groups(runs))
    (trace,) = found["data"]
    assert trace["x"] == [1.5, 5.5, 8.5]
    assert trace["y"] == [f"dice · learning_rate {rate} (2 seeds)" for rate in (0.3, 0.1, 0.2)]
    low, high = (trace["error_x"][end] for end in ("arrayminus", "array"))
    assert low == high == [0.5] * 3  # of two seeds: from the lower to the higher
    assert words.startswith("Best of 3: dice · learning_rate 0.2, 8.5 (95 %: 8 to 9).")
    assert "optimistic" in words
    assert "settings/CartPole-v1" in figures_of(runs)
    assert bars.settings(groups(runs[:2])) == (None, "")
    assert "settings/CartPole-v1" not in figures_of(runs[:2])


def test_actors_by_node(tmp_path):
    """The machines of the newest line; of what they did, the mean over the lines that name them."""
    directory = make_run(tmp_path / "run")

    def of(frames, names, actors, speeds, waiting):
        lists = {"node_actors": actors, "node_steps_per_s": speeds, "node_waiting": waiting}
        return line("train", frames, nodes=names, **lists)

    append(
        directory,
        of(10, ["10.0.0.1", "10.0.0.9"], [1, 7], [100.0, 7.0], [0.0, 0.0]),
        of(20, ["10.0.0.1", "10.0.0.2"], [2, 1], [300.0, 50.0], [0.5, 0.125]),
        of(30, "nonsense", [2], [3], [4]),
        of(40, ["10.0.0.1"], [None], ["x"], [0.5]),
    )
    (found,) = figures_of([opened(directory)])["nodes"]["data"]
    assert found["y"] == ["10.0.0.2: 1 actor, waiting 12%", "10.0.0.1: 2 actors, waiting 25%"]
    assert found["x"] == [50.0, 200.0]


def test_a_run_on_one_machine_has_no_nodes(tmp_path):
    directory = make_run(tmp_path / "run")
    append(directory, line("train", 10, actor_waiting=0.5))
    assert bars.nodes(groups([opened(directory)])) is None
