"""commands/envs.py: what ``dicerl envs`` prints, and that it starts quickly."""

import json
import subprocess
import sys

import pytest

from runs import one_line


def test_json(call):
    code, out, _ = call("envs", "pong", "--json")
    assert code == 0
    (env,) = json.loads(out)["environments"]
    assert (env["id"], env["source"], env["trainable"], env["preset"]) == (
        "pong",
        "atari57",
        True,
        "laptop",
    )


def test_the_table(call):
    code, out, _ = call("envs", "Pend*")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].split() == ["Pendulum-v1", "3", "float32", "1", "float32", "×", "1"]
    assert "× 1: continuous actions" in out
    code, out, _ = call("envs", "alien")
    assert "alien * 4×84×84 uint8 up to 18 ✓" in " ".join(out.split())
    assert "*: one of the 57 games" in out


def test_brackets_in_a_reason_are_not_taken_for_colours(call):
    code, out, _ = call("envs", "GymV21")
    assert code == 0
    assert "shimmy[gym-v21]" in " ".join(out.split())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("nothing like it", "no environment is called"), ("no_module:", "cannot be imported")],
)
def test_mistakes_are_one_line(call, pattern, words):
    one_line(call("envs", pattern), words)


def test_neither_torch_nor_minatar_is_imported():
    code = (
        "import sys; from dicerl import cli; cli.main(['envs', '--json']);"
        " assert not {'torch', 'minatar', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["environments"]) > 120
