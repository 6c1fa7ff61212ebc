"""runtime/ray.py on a real Ray cluster: three nodes on this machine, one of which leaves in
mid-run, another joins; an actor is killed. What the learner gets is as exact as in
test_pipeline.py, which also runs with this runtime.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.cluster_utils import Cluster

import probe
from dicerl.api import resume, train
from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.errors import ConfigError, NoRoom
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.records.vocabulary import NODE_FIELDS
from dicerl.runtime import ray as runtime_ray
from dicerl.runtime import ray_cluster
from dicerl.runtime.ray_cluster import Node
from dicerl.runtime.setup import plan
from faults import Life, processes
from recorded import BATCH, COMMON, REUSE, assert_consecutive

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="finds actors through /proc"),
]
PATIENCE = 120.0
# the nodes' workers compete with other tests as equals, as those of a run's own Ray do
PROMPT = {"_system_config": {"worker_niceness": 0}}


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.05)
    return found


def children_of(parent):
    found = processes(os.getsid(parent)).items()
    return {pid for pid, (its_parent, _) in found if its_parent == parent}


@dataclass
class Pausing:
    """An ``on_batch`` that keeps every batch, and holds some back until a file says that something
    has happened.
    """

    recorder: probe.Recorder
    pauses: dict[int, str]  # update -> file to wait for

    def __call__(self, learner, batch):
        if learner.updates in self.pauses:
            name = self.pauses[learner.updates]
            (self.recorder.directory / f"at-{name}").touch()
            until((self.recorder.directory / name).exists, name)
        self.recorder(learner, batch)


class Closing(probe.Traced):
    """An environment that leaves a file when it is closed."""

    def __init__(self, stepped):
        super().__init__(stepped)
        self._closed = stepped.with_name(stepped.name.replace("stepped", "closed"))

    def close(self):
        self._closed.touch()


@dataclass
class MakeClosing(probe.MakeTraced):
    def __call__(self):
        return Closing(self.directory / f"stepped-by-{os.getpid()}")


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """One run: an actor is killed, a node leaves, a node joins."""
    folder = tmp_path_factory.mktemp("story")
    batches, run_dir = folder / "batches", folder / "run"
    batches.mkdir()
    saw = SimpleNamespace()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **PROMPT})
    cluster.add_node(num_cpus=3)  # the learner's: it has most CPUs
    leaving = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()

    def events(name):
        path = run_dir / "metrics.jsonl"
        lines = read_lines(path) if path.exists() else []
        return [line for line in lines if line.get("event") == name]

    def acting(but=()):
        found = {int(p.name.split("-")[-1]) for p in batches.glob("stepped-by-*")}
        return sorted(found - {os.getpid(), *but})

    def play():
        until((batches / "at-killed").exists, "the first pause")
        saw.nodes = ray_cluster.nodes()
        saw.actors = len(acting())
        saw.killed = {acting()[0]}
        os.kill(acting()[0], signal.SIGKILL)
        until(lambda: events("actor_replaced"), "the killed actor is replaced")
        (batches / "killed").touch()
        until((batches / "at-left").exists, "the second pause")
        saw.killed |= children_of(leaving.all_processes["raylet"][0].process.pid)
        cluster.remove_node(leaving, allow_graceful=False)
        until(
            lambda: [e for e in events("actor_replaced") if "left the cluster" in e["reason"]],
            "the node is missed",
        )
        (batches / "left").touch()
        until((batches / "at-joined").exists, "the third pause")
        cluster.add_node(num_cpus=2)
        until(lambda: {1, 3} <= {e["actor"] for e in events("actor_added")}, "its actors join")
        (batches / "joined").touch()

    config = preset("debug", **COMMON).replace(
        run_dir=str(run_dir),
        frames=3000,
        **{
            "runtime.kind": "ray",
            "ray.address": cluster.address,
            "runtime.num_envs": 8,
            "checkpoint.every": 1000,
            "evaluation.every": 1500,
        },
    )
    # this process and four actors have stepped before the first batch
    on_batch = Pausing(probe.Recorder(batches, 5), {40: "killed", 80: "left", 120: "joined"})

    def training():
        return train(config, MakeClosing(batches), quiet=True, on_batch=on_batch)

    ray_cluster.connect(config)
    patch = pytest.MonkeyPatch()
    patch.setattr(runtime_ray, "CLOSING", PATIENCE)
    try:
        # Ray starts and ends nodes in the main thread only
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(training)
            try:
                play()
            finally:
                for name in ("killed", "left", "joined"):
                    (batches / name).touch()
            run = running.result(PATIENCE)
    finally:
        patch.undo()
        ray.shutdown()
        cluster.shutdown()
    saw.run, saw.config, saw.events = run, config, events
    saw.closed = {int(p.name.split("-")[-1]) for p in batches.glob("closed-by-*")} - {os.getpid()}
    saw.streams = probe.collect(probe.load_batches(batches))
    return saw


def test_actors_are_spread_over_the_nodes_but_the_head(story):
    assert len(story.nodes) == 3
    assert story.actors == 4  # 3 + 2 CPUs, one of which is the learner's
    head, learner, other = sorted(story.nodes, key=lambda n: (not n.head, -n.cpus))
    assert (head.free, learner.free, other.free) == (2, 1, 0)


def test_the_run_goes_on_whatever_dies(story):
    assert story.run.summary["complete"]
    assert story.run.summary["frames"] >= 3000
    assert len(checkpoint.checkpoints_of(story.run.directory)) == 3
    assert [line["kind"] for line in read_lines(story.run.directory / "evaluations.jsonl")]


def test_who_was_lost_is_told(story):
    replaced = story.events("actor_replaced")
    assert any("died" in e["reason"] for e in replaced)
    left = [e for e in replaced if "has left the cluster" in e["reason"]]
    assert len(left) >= 2  # the node's actors
    assert {e["restarts"] for e in left} <= {0, 1}  # no fault of theirs
    assert len(story.events("actor_added")) >= 2
    # how many sequences were lost with them is chance: who waits for slots has begun none
    # (test_supervisor.py has actors that have)


def test_environments_are_closed_at_the_end(story):
    """Those of the four actors that there were at last, and the evaluator's. An actor of the node
    that left may have had the time, too.
    """
    assert len(story.closed - story.killed) == 5


def test_actors_and_their_speed_are_told_by_node(story):
    """All nodes have this machine's address."""
    lines = read_lines(story.run.directory / "metrics.jsonl")
    told = [
        {name: x.get(name) for name in NODE_FIELDS}
        for x in lines
        # at the end, batches are trained after the actors have gone
        if x["kind"] == "train" and x["agent_steps"] < story.run.summary["agent_steps"]
    ]
    assert all(len(values) == 1 for line in told for values in line.values())
    assert {line["nodes"][0] for line in told} == {story.nodes[0].address}
    assert max(line["node_actors"][0] for line in told) == 4
    assert any(line["node_steps_per_s"][0] > 0 for line in told)
    assert all(0 <= line["node_waiting"][0] <= 1 for line in told)


def test_every_sequence_is_trained_as_often_as_it_should_and_none_is_lost_on_the_way(story):
    assert_consecutive(story.streams)
    uses = [len(w.updates) for windows in story.streams.values() for w in windows.values()]
    assert max(uses) == REUSE
    assert sum(n < REUSE for n in uses) < 2 * BATCH  # the rest at the end is less than a batch
    steps = sum(
        int(w.fields["valid"][story.config.sequence.burn_in : -1].sum())
        for windows in story.streams.values()
        for w in windows.values()
    )
    assert steps > 0.8 * story.run.summary["agent_steps"]


def test_a_run_can_be_resumed_without_ray(story, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(story.run.directory, copy)
    text = (copy / "config.json").read_text()
    (copy / "config.json").write_text(
        text.replace('"kind": "ray"', '"kind": "serial"').replace(
            '"frames": 3000', '"frames": 3200'
        )
    )
    ended = resume(copy, MakeClosing(tmp_path), quiet=True)
    assert ended.summary["complete"]
    assert ended.summary["updates"] > story.run.summary["updates"]


# --- on one machine, as people start it -----------------------------------------------------------


def started(tmp_path):
    """A run under Ray that trains."""
    run = tmp_path / "run"
    words = "train CartPole-v1 --preset debug --frames 10000000 --tensorboard false --runtime ray"
    life = Life.start(tmp_path / "life", *words.split(), "--run-dir", run, run=run)

    def trains():
        lines = read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
        return lines and lines[-1]["updates"] > 5

    life.find(trains, "it trains")
    return life


def test_ctrl_c_keeps_the_work_and_it_goes_on(tmp_path):
    life = started(tmp_path)
    family = processes(life.process.pid)
    workers = [p for p, (_, line) in family.items() if line.startswith("ray::")]
    niceness = {os.getpriority(os.PRIO_PROCESS, p) for p in workers}
    os.killpg(life.process.pid, signal.SIGINT)
    life.end()
    assert life.code == 130
    assert niceness == {os.getpriority(os.PRIO_PROCESS, 0)}  # as urgent as the command itself
    assert "to continue: dicerl resume" in life.err
    assert int(checkpoint.checkpoints_of(life.run)[-1].name) > 5
    assert not life.leftover


def test_a_stop_that_reaches_ray_s_own_processes_too(tmp_path):
    """They end by it: a closed terminal's SIGHUP, or a service manager's SIGTERM. Whoever asks the
    head for anything then, Ray itself at its end, waits for a minute, and Ray ends the command.
    """
    life = started(tmp_path)
    began = time.monotonic()
    for process in processes(life.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGHUP)
    life.end()
    assert life.code == 129, life.err
    assert "to continue: dicerl resume" in life.err
    assert time.monotonic() - began < 45
    assert not life.leftover


@pytest.mark.slow  # three times Ray's start
def test_a_run_whose_ray_dies_starts_another_and_goes_on(tmp_path):
    """Its head, then its raylet. Ray would end the command for either."""
    run = tmp_path / "run"
    arguments = ["CartPole-v1", "--preset", "debug", "--frames", "10000000", "--runtime", "ray"]
    options = ["--tensorboard", "false", "--run-dir", run]
    life = Life.start(tmp_path / "life", "train", *arguments, *options, run=run)

    def trained(times_back):
        """The updates of its newest train line, if it went back so often and trained since."""
        back = re.findall(r"(Ray's \S+) .*; going back to update ([\d,]+)", life.err)
        lines = read_lines(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
        newest = max((line["updates"] for line in lines if line["kind"] == "train"), default=0)
        updates = [int(n.replace(",", "")) for _, n in back]
        since = len(back) == times_back and newest > max(updates, default=0)
        return (newest, back, updates) if since else None

    before, _, _ = life.find(lambda: trained(0), "it trains")
    for times_back, name in enumerate(["/gcs_server", "/raylet"], 1):
        family = processes(life.process.pid)
        (killed,) = [p for p, (_, line) in family.items() if line.split()[0].endswith(name)]
        os.kill(killed, signal.SIGKILL)
        _, back, updates = life.find(lambda n=times_back: trained(n), f"it trains without {name}")
    os.killpg(life.process.pid, signal.SIGINT)
    life.end()
    assert life.code == 130
    assert [what for what, _ in back] == ["Ray's head", "Ray's raylet"]
    assert before <= updates[0] <= updates[1]  # no checkpoint was due: it saved when it noticed
    assert not life.leftover


# --- what is refused ------------------------------------------------------------------------------


def refused(call, *more):
    code, _, err = call("train", "CartPole-v1", "--preset", "debug", "--runtime", "ray", *more)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    return err


def test_the_client_mode_is_refused_with_the_reason(call):
    assert "ray.address is 'ray://head:10001'; Ray's client mode" in refused(
        call, "--ray.address", "ray://head:10001"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:nonsense", "127.0.0.1:99999"])
def test_an_address_where_nobody_answers(call, address):
    said = refused(call, "--ray.address", address)
    assert f"ray.address is '{address}'; nobody answers there" in said


def test_auto_where_there_is_no_cluster(call, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # another test's cluster may be named in /tmp
    said = refused(call, "--ray.address", "auto")
    assert "ray.address is 'auto'; no cluster was started here" in said


def test_a_run_joins_no_cluster_it_was_not_told_of(monkeypatch, tmp_path):
    """Nor one that another run has started for itself: that ends with it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    assert ray_cluster._address("") == "local"
    assert ray_cluster._address("auto") == "127.0.0.1:6379"
    assert ray_cluster._address("10.0.0.1:6379") == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")  # as `ray job submit` does
    assert ray_cluster._address("") == ray_cluster._address("auto") == "10.0.0.2:6379"
    assert ray_cluster._address("10.0.0.1:6379") == "10.0.0.1:6379"


def test_ray_that_is_not_installed(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "runtime.kind is 'ray'; it needs Ray: pip install 'dicerl[cluster]'" in refused(call)


def test_ray_that_does_not_start(call, monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup.\nIt is slow.")

    monkeypatch.setattr(ray, "init", init)
    said = refused(call)
    assert "Ray did not start here: The current node timed out during startup. It is slow." in said


def test_more_cpus_than_any_node_has(call):
    try:
        said = refused(call, "--ray.cpus-per-actor", "1000")
        assert "ray.cpus_per_actor is 1000.0; no node has as many CPUs free" in said
    finally:
        ray_cluster.disconnect()


# A Python that starts with this finds no dicerl, wherever it is installed.
WITHOUT = """
import sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "dicerl":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The address of a cluster whose only node beside the head has no dicerl."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(WITHOUT)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **PROMPT})
    cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(folder)})
    cluster.wait_for_nodes()
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.parametrize(
    ("name", "value"), [("ray.__version__", "2.1.0"), ("sys.version_info", (3, 99, 0))]
)
def test_a_cluster_of_another_ray_or_python(call, bare, monkeypatch, name, value):
    monkeypatch.setattr(name, value)
    said = refused(call, "--ray.address", bare)
    assert f"ray.address is '{bare}'; no cluster of the same Ray and Python is there" in said
    assert "Version mismatch" in said
    assert ".".join(map(str, value)) in said or value in said


def test_a_node_without_the_package(call, bare, tmp_path):
    said = refused(call, "--ray.address", bare, "--quiet", "--run-dir", tmp_path / "run")
    assert "has no package dicerl: install the same dicerl there as here" in said


def test_no_cpu_is_free(call, bare):
    config = preset("debug", **{"env.id": "CartPole-v1"}).replace(**{"ray.address": bare})
    ray_cluster.connect(config)
    try:
        busy = ray.remote(SimpleNamespace).options(num_cpus=1).remote()
        until(lambda: max(n.free for n in ray_cluster.nodes()) < 1, "it is busy")
        said = refused(call, "--ray.address", bare)
        assert "ray.cpus_per_actor is 1.0; no node has as many CPUs free for an actor" in said
        ray.kill(busy)
    finally:
        ray_cluster.disconnect()


# --- several learners -----------------------------------------------------------------------------


@dataclass
class KillTheSecond:
    """An ``on_batch`` that ends the second learner at some update, once."""

    marker: Path

    def __call__(self, learner, batch):
        if learner.updates == 12 and not learner.replicas.first and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow  # test_healing.py and test_supervisor.py have it without Ray
def test_a_run_that_loses_a_learner_goes_back_to_its_last_checkpoint_by_itself(tmp_path):
    config = preset("debug", **COMMON).replace(
        run_dir=str(tmp_path / "run"),
        **{
            "runtime.kind": "ray",
            "runtime.num_learners": 2,
            "runtime.num_actors": 1,
            "ray.cpus_per_actor": 0.5,
            "checkpoint.every": 100,
        },
    )
    make_env = probe.MakeTraced(tmp_path)
    ended = train(config, make_env, quiet=True, on_batch=KillTheSecond(tmp_path / "marker"))
    assert ended.summary["complete"]
    lines = read_lines(ended.directory / "metrics.jsonl")
    (back,) = [line for line in lines if line.get("event") == "rolled_back"]
    assert back["reason"].startswith("learner ")
    assert 0 < back["updates"] <= 12
    assert back["redone"] > 0
    books = ended.summary["books"]
    assert books["due"] == books["trained"] + books["dropped"] + books["waiting"]
    assert books["trained"] == BATCH * ended.summary["updates"]
    assert ended.summary["healed"] == 1


# --- the documents --------------------------------------------------------------------------------


def documented(language):
    """The code blocks of docs/cluster.md in a language."""
    text = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_ray_accepts_the_file_for_ray_up():
    launched, job = map(yaml.safe_load, documented("yaml"))
    validate_config(prepare_config(launched))  # fills in defaults; raises ValidationError
    assert job["kind"] == "RayJob"
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert any("RAY_AUTH_MODE=token ray start" in line for line in launched[commands])


def test_the_script_for_slurm_is_one_that_bash_reads(tmp_path):
    (script,) = documented("bash")
    (tmp_path / "job.sh").write_text(script)
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0
    assert "export RAY_AUTH_MODE=token" in script


# --- placement ------------------------------------------------------------------------------------


def node(name, cpus, free=None, gpus=0, head=False):
    return Node(name, name, cpus, cpus if free is None else free, gpus, head)


def test_the_learner_goes_to_a_gpu_or_to_most_cpus_and_not_to_the_head():
    head, small, large, gpu = (
        node("h", 64, head=True),
        node("s", 4),
        node("l", 16),
        node("g", 2, gpus=1),
    )
    assert ray_cluster.learner_nodes([head, small, large, gpu]) == [gpu]
    assert ray_cluster.learner_nodes([head, small, large]) == [large]
    assert ray_cluster.learner_nodes([head]) == [head]


def test_several_learners_go_to_nodes_of_their_own_or_to_the_gpus_of_one():
    small, large, gpus = node("s", 4), node("l", 16), node("g", 2, gpus=2)
    assert ray_cluster.learner_nodes([small, large], 3) == [large, small, large]
    assert ray_cluster.learner_nodes([small, gpus, large], 2, on_gpus=True) == [gpus, gpus]
    reserved = ray_cluster.reserved_cpus([small, large], [large, small, large], True, 2, True, 1.0)
    assert reserved == {"l": 4, "s": 2}


def test_actors_go_where_the_fewest_are():
    learner, other = node("a", 4), node("b", 4)
    taken, places = {}, []
    for _ in range(4):
        found = ray_cluster.actor_node([learner, other], {"a": 2.0}, 1.0, taken)
        taken[found.id] = taken.get(found.id, 0) + 1
        places.append(found.id)
    assert sorted(places) == ["a", "a", "b", "b"]
    full = [node("a", 4, free=2), node("b", 4, free=0.5)]
    with pytest.raises(NoRoom, match="no node of the cluster has 1 CPUs free"):
        ray_cluster.actor_node(full, {"a": 2.0}, 1.0, {})


def test_one_actor_always_finds_a_place():
    def reserved(found, threads, small):
        places = ray_cluster.learner_nodes(found)
        return ray_cluster.reserved_cpus(found, places, True, threads, small, 1.0)

    assert reserved([node("h", 1, head=True)], 1, True) == {"h": 0}
    assert reserved([node("h", 2, head=True)], 1, True) == {"h": 1}
    assert reserved([node("h", 2, head=True)], 2, False) == {"h": 0}
    assert reserved([node("h", 1, head=True), node("a", 4), node("b", 2)], 4, False) == {"a": 4}
    assert reserved([node("a", 4), node("b", 2, free=0)], 4, False) == {"a": 3}


def test_a_learner_s_device_must_be_in_the_cluster(monkeypatch):
    monkeypatch.setattr(ray_cluster, "connect", lambda config: None)
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [node("h", 2, head=True), node("w", 8)])
    config = preset("debug", **{"env.id": "CartPole-v1", "runtime.kind": "ray"})
    spec = env_spec(config)
    found = plan(config, spec)
    assert (found.num_actors, found.num_learners, str(found.device)) == (4, 1, "cpu")
    with pytest.raises(ConfigError, match=r"runtime\.device is 'cuda'; no node"):
        plan(config.replace(**{"runtime.device": "cuda"}), spec)
    with pytest.raises(ConfigError, match=r"runtime\.device is 'nonsense'; it can be auto"):
        plan(config.replace(**{"runtime.device": "nonsense"}), spec)
    assert plan(config.replace(**{"runtime.num_learners": 2}), spec).num_learners == 2
    with pytest.raises(ConfigError, match=r"num_learners is 33; .* it can be 0 to \d"):
        plan(config.replace(**{"runtime.num_learners": 33}), spec)
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [node("w", 8), node("g", 8, gpus=1)])
    assert plan(config, spec).device.type == "cuda"
    with pytest.raises(ConfigError, match=r"num_learners is 2; there are 1 GPUs"):
        plan(config.replace(**{"runtime.num_learners": 2}), spec)


def test_helpers_of_ray_that_outlive_it_are_ended(tmp_path):
    """Those of this session, by the folder that their arguments name or where their log is, and no
    others.
    """
    code, processes = "import time; time.sleep(600)", []
    for session in ("session_1", "session_2"):
        folder = tmp_path / session
        folder.mkdir()
        named = [sys.executable, "-c", code, f"--session-dir={folder}/logs"]
        processes.append(subprocess.Popen(named))
        with (folder / "agent.out").open("w") as log:
            agent = ["ray::Agent", "-c", code]
            processes.append(subprocess.Popen(agent, executable=sys.executable, stdout=log))
    try:
        ray_cluster.end_leftovers(str(tmp_path / "session_1") + "/", grace=0.2)
        assert [process.wait(30) for process in processes[:2]] == [-signal.SIGKILL] * 2
        assert [process.poll() for process in processes[2:]] == [None] * 2
    finally:
        for process in processes:
            process.kill()
            process.wait()
