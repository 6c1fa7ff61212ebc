import os
import shutil
import threading
import time
from pathlib import Path

import hypothesis
import pytest

import dicerl
from dicerl import cli
from dicerl.records import checkpoint
from dicerl.runtime import forkserver, processes

# so that a failing assertion in a helper shows its values, too
pytest.register_assert_rewrite("books", "faults", "probe", "recorded", "runs", "serial_runs")

from runs import TINY, debug, trained_runs  # noqa: E402

# HYPOTHESIS_PROFILE=soak for many examples of what test_bad_input.py invents
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Several tests run at a time: threads that wait busily would take the core of another.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# `make test` hands out whole files; those that take longest go first, in an order in which some
# wait (for Ray, for faults) while others compute.
SLOWEST = (
    "ray",
    "serial",
    "pipeline_variants",
    "faults",
    "learning",
    "browser",
    "pipeline",
    "campaign",
    "bench",
    "healing",
    "graph",
    "scheduler",
    "examples",
    "full_disk",
    "notebooks",
    "faulty_environments",
    "keeper",
    "processes",
    "atari",
    "envs",
    "serial_variants",
    "video",
    "supervisor",
    "evaluate",
)


def pytest_collection_modifyitems(items):
    order = {f"test_{name}": place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))  # stable


class Lent:
    """A ForkServer that goes on after the run it is lent to."""

    def __init__(self, server):
        self._server, self.start = server, server.start

    @property
    def closed(self):
        return self._server.closed

    @property
    def pid(self):
        return self._server.pid

    def close(self):
        pass


@pytest.fixture(scope="session", autouse=True)
def lent_fork_server():
    """Runs of the main thread, with which a server ends, borrow one fork server: one of their own
    would import torch anew, two seconds of a core for each. One that was lost is not replaced.
    """
    servers, make = [], processes._fork_server

    def lend(patient=True):
        if not forkserver.available() or threading.current_thread() is not threading.main_thread():
            return make(patient)
        if not servers:
            servers.append(make())
        return make(patient) if servers[0] is None or servers[0].closed else Lent(servers[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_fork_server", lend)
        yield make
    for server in servers:
        if server is not None:
            server.close()


@pytest.fixture(autouse=True)
def own_fork_server(request, lent_fork_server, monkeypatch):
    """For tests of the server of a run itself."""
    if request.node.get_closest_marker("own_fork_server"):
        monkeypatch.setattr(processes, "_fork_server", lent_fork_server)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Four short real runs, two variants and two seeds: dice-0, dice-1, baseline-0, baseline-1. Not
    to be changed.
    """
    return trained_runs(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def runs(trained, tmp_path):
    """A copy of them."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A small finished run; copy it before changing it."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    assert cli.main(["train", "CartPole-v1", *TINY, "--run-dir", str(directory), "--quiet"]) == 0
    assert len(checkpoint.checkpoints_of(directory)) >= 3
    return directory


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """Train ``debug`` runs by environment, each only once, and give their directories."""
    directories = {}

    def train(env, **changes):
        if env not in directories:
            directory = tmp_path_factory.mktemp("evaluate") / env.replace("/", "_")
            directories[env] = dicerl.train(debug(directory, env, **changes), quiet=True).directory
        return directories[env]

    return train


@pytest.fixture
def cartpole(trained_once):
    return trained_once("CartPole-v1")


@pytest.fixture
def minatar(trained_once):
    """Without evaluations."""
    return trained_once("MinAtar/Breakout-v1", evaluation__every=0)


@pytest.fixture(params=["pong", "breakout"])
def atari(request, trained_once):
    return trained_once(
        request.param,
        frames=160,
        evaluation__every=0,
        checkpoint__every=0,
        network__torso="impala_shallow",
        runtime__learner_threads=1,
    )


@pytest.fixture
def call(capfd, tmp_path, monkeypatch):
    """Run a command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*args):
        capfd.readouterr()
        try:
            code = cli.main([str(a) for a in args])
        except SystemExit as ended:
            code = ended.code
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture
def single_threaded():
    """Small tensors, and tests that run beside others."""
    import torch  # here: some tests need none

    torch.set_num_threads(1)


@pytest.fixture
def clock(monkeypatch):
    """What time.perf_counter() returns, in a list of one."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now
