"""envs/trust.py: a module that only a file names is imported with consent, and only then."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import dicerl
from dicerl.envs import trust
from dicerl.errors import DicerlError
from dicerl.suite.plan import make_plan
from hostile import edited
from runs import one_line

PACKAGE = str(Path(dicerl.__file__).parents[1])
TATTLE = "import os\nwith open({path!r}, 'a') as file:\n    file.write(f'{{os.getpid()}}\\n')\n"
QUICK = ("--episodes", "1", "--max-steps", "2", "--quiet")


@pytest.fixture
def stranger(copy, tmp_path, monkeypatch):
    """A run whose config.json names a module in this folder: (run, the module, whether it ran)."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    name = f"evil_{tmp_path.name}".replace("-", "_")
    write_module(tmp_path, name)
    edited("config.json", "env.id", f"{name}:CartPole-v1")(copy)
    return copy, name, (tmp_path / f"{name}.ran").exists


def write_module(folder, name):
    (folder / f"{name}.py").write_text(TATTLE.format(path=str(folder / f"{name}.ran")))


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_stranger_s_module_needs_consent(call, stranger, command):
    run, name, ran = stranger
    more = QUICK if command == "evaluate" else ("--quiet",)
    one_line(call(command, run, *more), f"{run}/config.json", f"module '{name}'", "--trust")
    assert not ran()
    assert call(command, run, *more, "--trust")[0] == 0
    assert ran()


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("env.id", "json:CartPole-v1"),
        ("env.wrappers", ["gymnasium.wrappers.jax_to_numpy:JaxToNumpy"]),
    ],
)
def test_what_needs_no_consent_does_not_open_this_folder_to_others(call, stranger, field, name):
    """To a module that a library would import if it were there, or to one that announces
    environments to Gymnasium.
    """
    run, _, ran = stranger
    folder = Path(run).resolve().parent
    (folder / "array_api_compat.py").write_text(TATTLE.format(path=str(folder / "other.ran")))
    edited("config.json", "env.id", "CartPole-v1")(run)
    edited("config.json", field, name)(run)
    call("evaluate", run, *QUICK)
    assert str(folder) not in sys.path
    assert not (folder / "other.ran").exists()
    assert not ran()


def test_a_list_of_trusted_modules(call, stranger, monkeypatch):
    run, name, ran = stranger
    for value in ("", f"{name}x other", name[:-1]):
        monkeypatch.setenv(trust.VARIABLE, value)
        one_line(call("evaluate", run, *QUICK), "--trust")
    assert not ran()
    monkeypatch.setenv(trust.VARIABLE, f"other,{name}")
    assert call("evaluate", run, *QUICK)[0] == 0
    assert ran()


def test_consent_in_python(stranger, tmp_path, monkeypatch):
    run, _, ran = stranger
    monkeypatch.chdir(tmp_path)
    for door in (dicerl.load_agent, dicerl.resume):
        with pytest.raises(DicerlError, match="trust=True"):
            door(run)
    with pytest.raises(DicerlError, match="trust=True"):
        dicerl.load_agent(run / "checkpoints" / max(os.listdir(run / "checkpoints"), key=int))
    assert not ran()
    dicerl.load_agent(run, lambda: gymnasium.make("CartPole-v1"))  # the module is not needed
    assert not ran()
    dicerl.load_agent(run, trust=True)
    assert ran()
    dicerl.load_agent(run)  # imported before: nothing would run


@pytest.mark.parametrize(
    ("env_id", "trusted"),
    [
        ("CartPole-v1", True),
        ("ALE/Pong-v5", True),
        ("dicerl.envs.toy:Catch-v0", True),
        ("ale_py:ALE/Pong-v5", True),
        ("dicerlx:Catch-v0", False),
        (".relative:Catch-v0", False),
        ("antigravity:Catch-v0", False),
        ("a:b:Catch-v0", False),
    ],
)
def test_what_needs_consent(env_id, trusted):
    assert trust.is_trusted(trust.module_of(env_id)) is trusted


@pytest.mark.parametrize("env_id", [":X-v0", ".a:X-v0", "..:X-v0", "a b:X-v0", "raises:X-v0"])
def test_a_module_that_cannot_be_imported_is_one_line(call, tmp_path, monkeypatch, env_id):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "raises.py").write_text("raise SystemExit('bye')")
    one_line(call("train", env_id), "env.id", env_id)


def test_a_suite_s_file(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text('games = ["evil:CartPole-v1"]\nseeds = 1\npreset = "debug"\n')
    with pytest.raises(DicerlError, match=r"suite\.toml asks to import the module 'evil'"):
        make_plan({}, {}, str(path))
    assert make_plan({}, {}, str(path), trust=True).games == ["evil:CartPole-v1"]
    # named on the command line
    assert make_plan({"games": ["evil:CartPole-v1"]}, {}, str(path)).games == ["evil:CartPole-v1"]


def test_the_wrappers_of_a_suite_s_file(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text(
        'games = ["CartPole-v1"]\nseeds = 1\npreset = "debug"\n[config]\n'
        'env.wrappers = ["gymnasium.wrappers:FlattenObservation", "evil:Wrapper"]\n'
    )
    with pytest.raises(DicerlError, match=r"suite\.toml asks to import the module 'evil'"):
        make_plan({}, {}, str(path))
    (run,) = make_plan({}, {}, str(path), trust=True).runs
    assert trust.listed_with(*trust.names_in(run.config.env)).split()[-2:] == [
        "gymnasium.wrappers",
        "evil",
    ]
    make_plan({}, {"env.wrappers": "evil:Wrapper"}, str(path))  # named on the command line


@pytest.mark.parametrize("command", ["evaluate", "resume"])
def test_a_stranger_s_wrapper_needs_consent(call, stranger, tmp_path, command):
    run, name, ran = stranger
    edited("config.json", "env.id", "CartPole-v1")(run)
    edited("config.json", "env.wrappers", [f"{name}:Wrapper"])(run)
    module = tmp_path / f"{name}.py"
    module.write_text(f"{module.read_text()}\nfrom gymnasium import Wrapper\n")
    more = QUICK if command == "evaluate" else ("--quiet",)
    one_line(call(command, run, *more), f"{run}/config.json", f"module '{name}'", "--trust")
    with pytest.raises(DicerlError, match="trust=True"):  # an own environment is wrapped, too
        dicerl.load_agent(run, lambda: gymnasium.make("CartPole-v1"))
    assert not ran()
    assert call(command, run, *more, "--trust")[0] == 0
    assert ran()


def start(folder, run, *more):
    """``python -m dicerl resume``, in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "dicerl", "resume", str(run), *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PACKAGE},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_consent_reaches_the_actors_and_nothing_else_is_imported(stranger, tmp_path):
    """The folder also holds modules called like Python's own, and like those that libraries try."""
    run, name, _ = stranger
    folder = tmp_path / "folder"
    folder.mkdir()
    others = ("multiprocessing", "pickle", "random", "tensorflow", "triton", "wandb")
    for module in (name, *others):
        write_module(folder, module)
    config = json.loads((run / "config.json").read_text())
    config |= {"frames": 640, "tensorboard": True}
    config["runtime"] |= {"kind": "process", "num_actors": 1, "num_learners": 1}
    config["env"]["id"] = "CartPole-v1"
    (run / "config.json").write_text(json.dumps(config))
    done = start(folder, run)
    assert done.returncode == 0, done.stderr
    assert "finished at" in done.stderr
    assert not list(folder.glob("*.ran"))
    for module in others[1:]:  # with consent the folder is searched, after all others
        (folder / f"{module}.py").unlink()
    config |= {"frames": 700}
    config["env"]["id"] = f"{name}:CartPole-v1"
    (run / "config.json").write_text(json.dumps(config))
    done = start(folder, run, "--trust")
    assert done.returncode == 0, done.stderr
    assert len(set((folder / f"{name}.ran").read_text().split())) >= 2  # supervisor and actor
    assert not (folder / "multiprocessing.ran").exists()


@pytest.mark.parametrize("name", ["builtins:input", "sys:exit", "os:_exit", "subprocess:Popen"])
def test_a_function_of_an_imported_module_is_no_wrapper(call, copy, name):
    """It would be called; what is imported in any program is nobody's consent."""
    edited("config.json", "env.wrappers", [name])(copy)
    for command in (("evaluate", copy, *QUICK), ("resume", copy, "--quiet")):
        one_line(call(*command), f"{copy}/config.json", name.split(":")[0], "--trust")


class Passing(gymnasium.Wrapper):
    """A wrapper that this program has."""


def test_a_wrapper_that_was_imported_needs_no_consent(call, copy):
    edited("config.json", "env.wrappers", [f"{__name__}:Passing"])(copy)
    assert call("evaluate", copy, *QUICK)[0] == 0


def test_the_command_itself_is_no_environment(call, copy):
    """To import it would run this command a second time."""
    edited("config.json", "env.id", "dicerl.__main__:Nothing-v0")(copy)
    one_line(call("evaluate", copy, *QUICK), "dicerl.__main__ registers no environment")


def test_a_stranger_s_cluster_needs_consent(call, copy, tmp_path, monkeypatch):
    """What its nodes send is unpickled. Nobody listens at this address."""
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    edited("config.json", "runtime.kind", "ray")(copy)
    edited("config.json", "ray.address", "127.0.0.1:1")(copy)
    edited("config.json", "frames", 700)(copy)
    asks = "asks to join the Ray cluster at 127.0.0.1:1"
    one_line(call("resume", copy, "--quiet"), asks, "--trust", f"{trust.VARIABLE}=127.0.0.1")
    one_line(call("resume", copy, "--quiet", "--trust"), "nobody answers there")
    named = ("--ray.address", "127.0.0.1:1")
    one_line(call("resume", copy, "--quiet", *named), "nobody answers there")
    monkeypatch.setenv(trust.VARIABLE, "127.0.0.1")
    one_line(call("resume", copy, "--quiet"), "nobody answers there")
    monkeypatch.delenv(trust.VARIABLE)
    assert call("evaluate", copy, *QUICK)[0] == 0  # joins none
    assert call("resume", copy, "--quiet", "--runtime", "serial")[0] == 0
    path = tmp_path / "suite.toml"
    path.write_text(
        'games = ["CartPole-v1"]\npreset = "debug"\n[config]\nruntime.kind = "ray"\n'
        'ray.address = "127.0.0.1:1"\n'
    )
    with pytest.raises(DicerlError, match=asks):
        make_plan({}, {}, str(path))
    run = make_plan({}, {}, str(path), trust=True).runs[0]
    assert trust.listed_with(*trust.named_in(run.config)).split()[-1] == "127.0.0.1"
    make_plan({}, {"ray.address": "127.0.0.1:1"}, str(path))
