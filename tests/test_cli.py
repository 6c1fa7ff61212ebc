"""The command line: --help, --json, and what a run leaves on disk. Options are in test_options.py,
mistakes in test_cli_mistakes.py, directories and damaged files in test_run.py and
test_checkpoint.py.
"""

import io
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dicerl
from dicerl import cli
from dicerl.config.presets import VARIANTS
from dicerl.records import checkpoint
from runs import one_line

# --- help


@pytest.mark.parametrize("command", [None, *cli.COMMANDS])
def test_help_shows_an_example(call, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = call(*([command] if command else []), "--help")
    assert code == 0
    assert err == ""
    assert re.search(rf"examples?:\s+dicerl {command or 'train'} [\w-]+", out), out
    for name in cli.COMMANDS if command is None else ():
        assert re.search(rf"^\s+{name}\s", out, re.MULTILINE), name


def test_version_and_no_command(call):
    assert call("--version")[:2] == (0, f"dicerl {dicerl.__version__}\n")
    code, out, _ = call()
    assert code == 0
    assert "train" in out


def test_help_is_quick():
    """It imports no torch."""
    code = (
        "import sys; from dicerl.cli import build_parser; build_parser().format_help();"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# --- a run that is not started


def test_a_dry_run_says_what_a_run_would_be_and_leaves_nothing(call, tmp_path):
    given = ("CartPole-v1", "--frames", "3e5", "--env.kwargs", '{"max_episode_steps": 9}')
    code, out, err = call("train", *given, "--dry-run")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("dicerl: CartPole-v1 with dice (preset classic, seed 0), 300,000 fr")
    assert lines[-4:] == [
        "  would write to runs/CartPole_v1-dice-0",
        "  as preset classic with variant dice, but:",
        "    --frames 300000  (instead of 200000)",
        """    --env.kwargs '{"max_episode_steps": 9}'  (instead of {})""",
    ]
    _, out, _ = call("train", "CartPole-v1", "--dry-run")
    assert out.splitlines()[-1] == "  as preset classic with variant dice"
    code, out, _ = call("train", *given, "--dry-run", "--json")
    found = json.loads(out)
    assert found["changes"] == {"frames": 300_000, "env.kwargs": {"max_episode_steps": 9}}
    assert found["config"]["runtime"]["precision"] == "float32"  # resolved
    assert found["plan"]["runtime"] == "serial"
    assert not list(tmp_path.iterdir())
    # what would be refused is refused
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    one_line(call("train", "CartPole-v1", "--dry-run", "--run-dir", "full"), "is not empty")
    one_line(call("train", "CartPole-v1", "--dry-run", "--init-from", "nowhere"), "no run")
    one_line(call("train", "NoSuchEnv-v0", "--dry-run"), "env.id")


# --- what a run leaves behind

RUNS = {
    "CartPole-v1": (1, ()),
    "MinAtar/Breakout-v1": (
        1,
        ("--frames", "1200", "--checkpoint.every", "500", "--evaluation.every", "500"),
    ),
    # An eighth of the preset's frames, with episodes cut short so that some end.
    "pong": (
        4,
        (
            "--frames",
            "512",
            "--checkpoint.every",
            "250",
            "--evaluation.every",
            "250",
            "--evaluation.max-steps",
            "12",
            "--env.max-episode-frames",
            "40",
        ),
    ),
}


@pytest.mark.parametrize("env", RUNS)
def test_the_debug_preset_end_to_end(call, tmp_path, env):
    repeat, args = RUNS[env]
    code, out, err = call("train", env, "--preset", "debug", "--json", *args)
    assert code == 0, err
    assert "Traceback" not in err
    # One JSON object on standard output, nothing else.
    assert len(out.splitlines()) == 1
    summary = json.loads(out)
    directory = tmp_path / summary["run"]
    assert directory.parent == tmp_path / "runs"
    config = json.loads((directory / "config.json").read_text())
    assert config["env"]["id"] == env
    assert config["preset"] == "debug"
    assert summary["frames"] >= config["frames"]
    assert summary["complete"] is True

    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"train", "episode", "evaluation", "event"}
    for line in lines:
        assert line["frames"] == line["agent_steps"] * repeat
        assert line["time"] > 1.7e9
        assert line["updates"] >= 0
    for name in ("time", "agent_steps", "frames", "updates"):
        values = [line[name] for line in lines]
        assert values == sorted(values), name
    assert lines[0]["event"] == "start"
    trained = [line for line in lines if line["kind"] == "train"]
    assert all(np.isfinite(line["loss"]) for line in trained)
    assert len({line["updates"] for line in trained}) == len(trained)
    assert all(
        line["length"] > 0 and np.isfinite(line["return"])
        for line in lines
        if line["kind"] == "episode"
    )

    evaluations = [
        json.loads(line) for line in (directory / "evaluations.jsonl").read_text().splitlines()
    ]
    assert evaluations == [line for line in lines if line["kind"] == "evaluation"]
    assert len(evaluations) >= 2
    for line in evaluations:
        assert (
            len(line["returns"])
            == len(line["inv_temperatures"])
            == len(line["greedy_returns"])
            == config["evaluation"]["episodes"]
        )
    assert any((directory / "tensorboard").glob("events.out.tfevents.*"))

    saved = checkpoint.checkpoints_of(directory)
    assert int(saved[-1].name) == summary["updates"] == lines[-1]["updates"]
    assert len(saved) >= 2
    for path in saved:
        assert {"model.safetensors", "optimizer.safetensors", "state.json"} <= {
            p.name for p in path.iterdir()
        }
        state = checkpoint.read_state(path)
        assert state.updates == int(path.name)
        assert state.frames == state.agent_steps * repeat
    assert not list((directory / "checkpoints").glob("tmp*"))


def test_variants_lists_all_with_what_they_are(call, monkeypatch):
    """The table and its JSON; characteristics as in the paper's table of ablation settings."""
    code, out, err = call("variants", "--json")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 1
    listed = json.loads(out)
    assert list(listed) == list(VARIANTS)
    printed = {
        "dice": (True, True, True),
        "baseline": (False, False, False),
        "random": (True, True, False),
        "entropy": (True, False, True),
    }
    for name, expected in printed.items():
        assert tuple(listed[name]["characteristics"].values()) == expected
    assert listed["casa/no_stop_v"]["changes"] == {
        "loss.critic": "casa",
        "loss.estimator": "drtrace",
        "loss.auxiliary": 0.1,
        "loss.stop_v": False,
    }

    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = call("variants")
    assert (code, err) == (0, "")
    rows = {
        line.split()[0]: line
        for line in out.splitlines()
        if line.split() and line.split()[0] in VARIANTS
    }
    assert list(rows) == list(VARIANTS)  # one line each
    for name, line in rows.items():
        assert VARIANTS[name][0] in line
        marks = [mark == "✓" for mark in line.replace(VARIANTS[name][0], "").split()[1:]]
        assert marks == list(listed[name]["characteristics"].values()), name
    for title in ("closed-form", "objective-", "adaptive"):
        assert title in out


@pytest.mark.parametrize("width", [60, 80, 120])
def test_variants_can_be_read_on_a_narrow_terminal(capfd, monkeypatch, width):
    """The names and marks whole, and no text over more than three lines."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert cli.main(["variants"]) == 0
    lines = re.sub(r"\x1b\[\d*m", "", capfd.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    rows = [i for i, line in enumerate(lines) if line.split(" ")[0] in VARIANTS]
    assert len(rows) == len(VARIANTS)
    assert max(b - a for a, b in itertools.pairwise(rows)) <= 3


@pytest.mark.parametrize("command", ["variants", "scores"])
def test_a_command_that_needs_no_torch_imports_none(command):
    code = (
        f"import sys; from dicerl.cli import main; main(['{command}', '--json']);"
        " sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], timeout=60, check=False, capture_output=True
        ).returncode
        == 0
    )


@pytest.mark.parametrize("command", ["scores", "scores --json", "variants", "train --help"])
def test_a_reader_that_leaves_is_not_an_error(command):
    """As `dicerl scores | head` does: nothing on stderr, and the code of a command that SIGPIPE
    ended.
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "dicerl", *command.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    # argparse ignores what becomes of its help
    assert (done.returncode, done.stderr) == (0 if "--help" in command else 141, b"")


ASCII = {
    "asked for": ({"PYTHONIOENCODING": "ascii"}, "\\xd7"),
    "locale": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "\\xd7"),
    "another way": ({"PYTHONIOENCODING": "ascii:replace"}, "?"),
    "UTF-8": ({"PYTHONIOENCODING": "utf-8"}, "×"),
}


@pytest.mark.parametrize("case", ASCII)
def test_a_terminal_without_the_character_shows_its_number(case):
    """On stdout; Python does so by itself on stderr."""
    variables, shown = ASCII[case]
    code = r"""
import sys
from dicerl import cli
cli.COMMANDS["variants"].run = lambda args: print("3 \u00d7 4") or 0
sys.exit(cli.main(["variants"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | variables,
    )
    assert (ended.returncode, ended.stdout.decode()) == (0, f"3 {shown} 4\n")


@pytest.mark.parametrize("command", ["variants", "scores", "envs"])
def test_tables_of_a_terminal_that_shows_ascii_only(command):
    ended = subprocess.run(
        [sys.executable, "-m", "dicerl", command],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.isascii()


def test_ctrl_c_before_a_command_has_begun_is_one_line():
    """While its modules are loaded."""
    code = """
import sys
from dicerl.__main__ import main
class Interrupt:
    def find_spec(name, *_):
        if name == "dicerl.commands":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    stopped = (130, "", "dicerl: stopped at once\n")
    assert (ended.returncode, ended.stdout, ended.stderr) == stopped
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"dicerl": "dicerl.__main__:main"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ulimit -v limits nothing")
def test_too_little_address_space_for_torch_is_one_line(tmp_path):
    """Loading torch under it would end in a traceback, or crash."""
    limited = ["prlimit", f"--as={600 << 20}", sys.executable, "-m", "dicerl"]
    command = [*limited, "train", "CartPole-v1", "--run-dir", str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    one_line((ended.returncode, ended.stdout, ended.stderr), "ulimit -v", "614400 KiB", "1048576")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator:\ncan't allocate memory: you tried to allocate 1 bytes"),
        RuntimeError("can't start new thread"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_no_more_memory_or_threads_is_one_line(call, monkeypatch, error):
    def run(args):
        raise error

    monkeypatch.setattr(cli.COMMANDS["variants"], "run", run)
    one_line(call("variants"), "no more memory or threads to give")


def test_a_bug_keeps_its_traceback(call, monkeypatch):
    def run(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli.COMMANDS["variants"], "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        call("variants")


def test_an_error_of_any_length_is_a_line_of_some(call):
    error = one_line(call("train", "x" * 1_000_000), "xxx")
    assert len(error) < 5000


@pytest.mark.parametrize("end", ["sys.stderr.close()", "os.close(2)", "sys.stderr = None"])
def test_an_error_that_cannot_be_printed_has_its_exit_code(end):
    code = f"import os, sys; from dicerl import cli; {end}; cli.main(['report', 'nowhere'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == b""


@pytest.mark.parametrize("end", ["sys.stdout.close()", "sys.stdout = None"])
def test_a_closed_output_is_no_error(call, monkeypatch, end):
    """An environment may have closed it."""
    monkeypatch.setattr(cli.COMMANDS["variants"], "run", lambda args: exec(end) or 0)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert cli.main(["variants"]) == 0


def test_a_thread_that_an_environment_left_does_not_keep_the_command(tmp_path):
    (tmp_path / "threads.py").write_text(
        """
import threading
import gymnasium
from dicerl.envs.toy import Catch

class Threads(Catch):
    def __init__(self):
        super().__init__()
        threading.Thread(target=threading.Event().wait, name="left over").start()

gymnasium.register("Threads-v0", Threads)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "dicerl", "train", "threads:Threads-v0", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].endswith("does not end: left over")


def test_closed_streams_are_not_the_run_s_files(tmp_path):
    """Its files would be stdout and stderr, and what a library writes there would go into them."""
    (tmp_path / "loud.py").write_text(
        textwrap.dedent("""
            import os
            import gymnasium
            from dicerl.envs.toy import Catch

            class Loud(Catch):
                def step(self, action):
                    os.write(1, b"environment says 1\\n")
                    os.write(2, b"environment says 2\\n")
                    return super().step(action)

            gymnasium.register("Loud-v0", Loud)
        """)
    )
    words = "train loud:Loud-v0 --preset debug --frames 300 --runtime.kind serial --run-dir r"
    done = subprocess.run(
        [sys.executable, "-m", "dicerl", *words.split()],
        cwd=tmp_path,
        preexec_fn=lambda: os.closerange(0, 3),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    for path in (tmp_path / "r").rglob("*"):
        assert not path.is_file() or b"environment says" not in path.read_bytes(), path


@pytest.mark.parametrize("text", ["a run that begins", ""])
def test_a_start_that_was_killed_leaves_a_place_for_the_next(tmp_path, call, text):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.json.new").write_text(text)
    words = (
        "train CartPole-v1 --preset debug --frames 300 --runtime.kind serial --run-dir r --quiet"
    )
    code, _, err = call(*words.split())
    assert code == 0, err
