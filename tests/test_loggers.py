"""records/loggers.py: tables and services, and what they hold of a run that goes back."""

import csv
import json
import shutil
import sys
from collections import Counter
from types import SimpleNamespace as Namespace

import numpy as np
import pytest

import dicerl
from dicerl.envs.toy import Catch
from dicerl.errors import ConfigError, DicerlError
from dicerl.records import checkpoint, loggers, metrics
from dicerl.records.metrics import read_lines
from dicerl.runtime.coordinator import BAD_IN_A_ROW
from runs import debug

KINDS = ("train", "episode", "evaluation")


def config(folder, env="CartPole-v1", **changes):
    small = {"frames": 600, "checkpoint.every": 250, "evaluation.every": 300, "log_every": 1}
    return debug(folder / "run", env, **{"runtime.kind": "serial"} | small | changes)


def lines_of(run, kind):
    return [line for line in read_lines(run / "metrics.jsonl") if line["kind"] == kind]


def killed_after(run, checkpoints):
    """As if the run had been killed: only its first ``checkpoints`` are left."""
    for folder in checkpoint.checkpoints_of(run)[checkpoints:]:
        shutil.rmtree(folder)


class Diverging:
    """Ten updates from the twentieth on cannot be saved: the run goes back, once."""

    def __init__(self):
        self.spoilt = []

    def __call__(self, learner, batch):
        if learner.updates >= 20 and len(self.spoilt) < BAD_IN_A_ROW:
            self.spoilt.append(learner.updates)
            batch["reward"][...] = np.nan


# --- tables ---------------------------------------------------------------------------------------


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_tables_equal_the_metrics(run):
    for kind in KINDS:
        expected = lines_of(run, kind)
        assert expected
        found = rows(run / f"{kind}.csv")
        for name in ("time", "agent_steps", "frames", "updates"):
            assert [float(row[name]) for row in found] == [line[name] for line in expected], name


def test_csv_holds_every_line_once_even_after_a_kill(tmp_path):
    run = dicerl.train(config(tmp_path, log="csv"), quiet=True).directory
    assert_tables_equal_the_metrics(run)
    first = lines_of(run, "episode")[0]
    assert float(rows(run / "episode.csv")[0]["return"]) == first["return"]
    before = (run / "train.csv").read_text()
    killed_after(run, 1)
    with (run / "train.csv").open("a") as file:
        file.write("1795000000.1,6")  # half a row
    dicerl.resume(run, quiet=True)
    assert_tables_equal_the_metrics(run)
    assert (run / "train.csv").read_text() != before  # times differ, at least


@pytest.mark.parametrize(
    "damage", [b"\xff\xfe\n", b"1" * 140_000 + b",6\n", b"\0\n", b'"\n'], ids=lambda b: str(b[:4])
)
def test_a_damaged_table_ends_where_it_is_damaged(tmp_path, damage):
    run = dicerl.train(config(tmp_path, log="csv"), quiet=True).directory
    killed_after(run, 1)
    whole = (run / "train.csv").read_bytes()
    (run / "train.csv").write_bytes(whole + damage)
    dicerl.resume(run, quiet=True)
    assert_tables_equal_the_metrics(run)


@pytest.mark.parametrize(
    "line", ['{"kind": [1]}', '{"kind": "train"}', '{"kind": "train", "time": "x"}']
)
def test_a_line_that_no_run_wrote_has_no_row(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    (tmp_path / "train.csv").write_text("time,agent_steps,frames,updates\n1.5,10,10,4\n")
    log = loggers.CsvLog()
    log.on_start(Namespace(directory=tmp_path), 0)
    log.on_end(None)
    assert rows(tmp_path / "train.csv") == []


def test_csv_is_cut_back_when_a_run_goes_back_in_mid_run(tmp_path):
    settings = config(tmp_path, log="csv", **{"checkpoint.every": 100})
    run = dicerl.train(settings, Catch, quiet=True, on_batch=Diverging()).directory
    assert [line for line in lines_of(run, "event") if line["event"] == "rolled_back"]
    assert_tables_equal_the_metrics(run)


def test_csv_without_a_checkpoint_starts_again(tmp_path):
    run = dicerl.train(config(tmp_path, log="csv"), quiet=True).directory
    killed_after(run, 0)
    dicerl.resume(run, quiet=True)
    assert_tables_equal_the_metrics(run)


def test_a_row_at_the_checkpoint_s_own_frames_is_cut_if_its_line_is(tmp_path):
    """Several updates may have the frames of a checkpoint, some before it and some after."""
    path = tmp_path / "train.csv"
    path.write_text("time,agent_steps,frames,updates\n1.5,10,10,4\n1.5,10,10,5\n1.6,10,10,6\n")
    kept = loggers._rows_kept(path, Counter({(1.5, 10, 4): 1, (1.5, 10, 5): 1}), 0)
    assert [row["updates"] for row in kept] == ["4", "5"]
    path.write_text("time,agent_steps,frames,updates\n1.5,10,10,4\n1.5,10,10,4\n1.5,10,10,4\n")
    assert len(loggers._rows_kept(path, Counter({(1.5, 10, 4): 2}), 0)) == 2


def test_episodes_without_a_line_are_kept_up_to_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "EPISODES", 4)  # then every second, every fourth, ...
    run = dicerl.train(config(tmp_path, log="csv"), quiet=True).directory
    killed_after(run, 1)
    state = checkpoint.newest(run).state
    dicerl.resume(run, quiet=True)
    found = [int(row["frames"]) for row in rows(run / "episode.csv")]
    assert len(found) > len(lines_of(run, "episode"))
    assert found == sorted(found)
    # an episode that ended in the very frame of the checkpoint may be missing
    before = sum(frames < state.frames for frames in found)
    assert before <= state.episodes <= before + 2
    assert len(found) >= checkpoint.newest(run).state.episodes - 2


# --- services -------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_named_and_nothing_is_left(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"log is '{package}'; .* pip install {package}"):
        dicerl.train(config(tmp_path, log=package), quiet=True)
    assert list(tmp_path.iterdir()) == []


class Wandb:
    """The calls of wandb that we use. Lines whose step is not higher are dropped, as there."""

    def __init__(self):
        self.runs = {}  # id -> lines
        self.finished = 0

    def init(self, *, id, resume, config, name, dir):
        assert (resume, name) == ("allow", "run")
        self._lines, self.config = self.runs.setdefault(id, []), config
        return self

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "frames")

    def log(self, values, step):
        assert not self._lines or step > self._lines[-1]["step"]
        self._lines.append({**values, "step": step})

    def finish(self):
        self.finished += 1

    def lines(self):
        (lines,) = self.runs.values()
        return lines


class Mlflow:
    """The calls of mlflow that we use. A parameter cannot change, a metric only grow."""

    def __init__(self):
        self.runs, self.begun, self.finished, self.tags, self.ends = {}, 0, 0, {}, []

    def start_run(self, run_id=None, run_name=None):
        if run_id is None:
            assert run_name == "run"
            run_id = f"run-{self.begun}"
            self.begun += 1
            self.runs[run_id] = {"params": {}, "lines": []}
        self._run = self.runs[run_id]
        return self._shown(run_id)

    def get_run(self, run_id):
        return self._shown(run_id)

    def _shown(self, run_id):
        params = {name: str(value) for name, value in self.runs[run_id]["params"].items()}
        return Namespace(info=Namespace(run_id=run_id), data=Namespace(params=params))

    def log_params(self, values):
        assert not self._run["params"].keys() & values.keys()
        self._run["params"].update(values)

    def set_tags(self, tags):
        self.tags.update(tags)

    def log_metrics(self, values, step):
        self._run["lines"].append({**values, "frames": step})

    def end_run(self, status):
        self.finished += 1
        self.ends.append(status)

    def lines(self):
        (run,) = self.runs.values()
        return run["lines"]


@pytest.fixture(params=[Wandb, Mlflow], ids=["wandb", "mlflow"])
def service(request, monkeypatch):
    made = request.param()
    made.package = request.param.__name__.lower()
    monkeypatch.setitem(sys.modules, made.package, made)
    return made


def kind_of(line):
    return next(name for name in line if "/" in name).partition("/")[0]


def assert_no_range_twice(lines):
    for kind in KINDS:
        places = [
            (line["frames"], line.get(f"{kind}/updates", 0))
            for line in lines
            if kind_of(line) == kind
        ]
        assert places == sorted(places)
        if kind == "train":
            assert len(places) == len(set(places))


def test_every_line_reaches_a_service(tmp_path, service):
    run = dicerl.train(config(tmp_path, log=service.package), quiet=True).directory
    assert service.finished == 1
    lines = service.lines()
    for kind in KINDS:
        found = [line["frames"] for line in lines if kind_of(line) == kind]
        assert found == [line["frames"] for line in lines_of(run, kind)]
    names = {name for line in lines for name in line}
    assert {"train/loss", "episode/return", "evaluation/mean_return", "frames"} <= names


def test_a_killed_run_goes_on_in_the_same_one_of_the_service_and_repeats_nothing(tmp_path, service):
    run = dicerl.train(config(tmp_path, log=service.package), quiet=True).directory
    killed_after(run, 1)
    lines = service.lines()
    sent, reached = len(lines), lines[-1]["frames"]
    dicerl.resume(run, quiet=True, changes={"frames": 1000})
    assert service.finished == 2
    assert service.lines() is lines  # of the only run there
    assert len(lines) > sent
    assert_no_range_twice(lines)
    for kind in ("train", "episode"):  # all that follows what had been reached is there
        of_kind = [line for line in lines[sent:] if kind_of(line) == kind]
        written = [x["frames"] for x in lines_of(run, kind) if x["frames"] > reached]
        assert [x["frames"] for x in of_kind if x["frames"] > reached] == written
        assert written
    if service.package == "mlflow":
        assert service.tags == {"resumed.frames": 1000}
        assert service.ends == ["FINISHED", "FINISHED"]


def test_a_run_that_goes_back_in_mid_run_sends_nothing_twice(tmp_path, service):
    settings = config(tmp_path, log=service.package, **{"checkpoint.every": 100})
    run = dicerl.train(settings, Catch, quiet=True, on_batch=Diverging()).directory
    assert [line for line in lines_of(run, "event") if line["event"] == "rolled_back"]
    assert_no_range_twice(service.lines())
    last = [line["frames"] for line in service.lines() if kind_of(line) == "train"][-1]
    assert last == lines_of(run, "train")[-1]["frames"]


def test_two_runs_of_one_config_are_two_in_the_service(tmp_path, service):
    for name in ("a", "b"):
        dicerl.train(config(tmp_path / name, log=service.package), quiet=True)
    assert len(service.runs) == 2


def test_a_run_that_the_service_no_longer_has_is_begun_anew(tmp_path, monkeypatch):
    api = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", api)
    run = dicerl.train(config(tmp_path, log="mlflow"), quiet=True).directory
    api.runs.clear()
    killed_after(run, 1)
    dicerl.resume(run, quiet=True)
    updates = [line["train/updates"] for line in api.lines() if kind_of(line) == "train"]
    first = checkpoint.read_state(checkpoint.checkpoints_of(run)[0]).updates + 1
    assert updates == list(range(first, lines_of(run, "train")[-1]["updates"] + 1))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"log": "mlflow", "id": "x", "lines": "y"}'])
def test_a_damaged_record_of_what_was_sent_is_one_line(tmp_path, monkeypatch, text):
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow())
    run = dicerl.train(config(tmp_path, log="mlflow"), quiet=True).directory
    (run / "log.json").write_text(text)
    killed_after(run, 1)
    with pytest.raises(DicerlError, match=r"log.json is damaged .* remove it, and") as caught:
        dicerl.resume(run, quiet=True)
    assert "\n" not in str(caught.value)


def test_what_was_sent_is_on_disk_before_it_is_sent(tmp_path):
    path = tmp_path / "log.json"
    sent = loggers.Sent(path, "wandb")
    sent.called("x")
    assert sent.is_new({"kind": "train", "frames": 100, "updates": 7})
    assert sent.is_new({"kind": "evaluation", "frames": 90, "updates": 6})
    assert sent.is_new({"kind": "train", "frames": 100, "updates": 8})
    # as after a kill: nothing was closed
    after = loggers.Sent(path, "wandb")
    assert (after.id, after.lines) == ("x", 3)
    assert not after.is_new({"kind": "train", "frames": 100, "updates": 8})
    assert not after.is_new({"kind": "train", "frames": 90, "updates": 9})
    assert after.is_new({"kind": "evaluation", "frames": 100, "updates": 7})
    assert after.is_new({"kind": "train", "frames": 101, "updates": 7})
    # another service, or another name there, has nothing yet
    assert loggers.Sent(path, "mlflow").id == ""
    again = loggers.Sent(path, "wandb")
    again.called("y")
    assert json.loads(path.read_text())["lines"] == 0
    assert again.is_new({"kind": "train", "frames": 1, "updates": 1})


# --- the real ones, where they are installed ------------------------------------------------------


def test_real_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("dicerl")
    run = dicerl.train(config(tmp_path, log="mlflow"), quiet=True).directory
    killed_after(run, 1)
    dicerl.resume(run, quiet=True, changes={"frames": 1000})
    (found,) = mlflow.search_runs(output_format="list")
    assert found.info.status == "FINISHED"
    assert found.data.params["frames"] == "600"
    assert found.data.tags["resumed.frames"] == "1000"
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "train/updates")
    steps = [(metric.step, metric.value) for metric in history]
    assert sorted(steps) == steps
    assert len({value for _, value in steps}) >= len(steps) - 1
    assert steps[-1] == (
        lines_of(run, "train")[-1]["frames"],
        lines_of(run, "train")[-1]["updates"],
    )


def test_real_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_PROJECT", "dicerl")
    run = dicerl.train(config(tmp_path, log="wandb"), quiet=True).directory
    sent = json.loads((run / "log.json").read_text())
    killed_after(run, 1)
    dicerl.resume(run, quiet=True, changes={"frames": 1000})
    now = json.loads((run / "log.json").read_text())
    assert now["id"] == sent["id"]
    assert now["lines"] > sent["lines"]
    # two lives, two folders of one run
    folders = sorted((run / "wandb").glob(f"offline-run-*-{sent['id']}"))
    assert len(folders) == 2
