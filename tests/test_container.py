"""The Dockerfile, without Docker: what it copies is there and is enough, and it installs what the
Makefile does.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def instructions():
    """(instruction, the rest) of each line."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def copied():
    """The sources of every COPY."""
    return [
        source
        for name, rest in instructions()
        if name == "COPY"
        for source in shlex.split(rest)[:-1]
    ]


def shell(command, **variables):
    """The words of a command after the shell's expansion."""
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("index", ["", "file:///wheels"])
def test_it_installs_as_the_makefile_does(index):
    make = (ROOT / "Makefile").read_text()
    chosen = f"--index-url {index}" if index else ""
    expected = []
    for line in re.findall(r"^\t\$\(BIN\)/(python -m pip install .*)$", make, re.M)[:2]:
        line = re.sub(r"\$\(if \$\(TORCH_INDEX\),[^)]*\$\(TORCH_INDEX\)\)", chosen, line)
        expected.append(shlex.split(line.replace("--editable ", "")))
    runs = [rest for name, rest in instructions() if name == "RUN" and "pip" in rest]
    assert [shell(command, TORCH_INDEX=index) for command in runs] == expected
    assert ["torch" in words for words in expected] == [True, False]


def test_it_ends_as_a_user_without_privileges_who_calls_dicerl():
    found = dict(instructions())  # the last of each
    order = [name for name, _ in instructions()]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name == "RUN")
    assert found["USER"] != "root"
    assert f"useradd --create-home --uid 1000 {found['USER']}" in found["RUN"]
    assert found["WORKDIR"] == f"/home/{found['USER']}"
    assert found["ENTRYPOINT"] == '["dicerl"]'
    lowest = re.search(r"requires-python = \">=([\d.]+)\"", (ROOT / "pyproject.toml").read_text())
    version = re.match(r"python:([\d.]+)-slim$", found["FROM"])
    assert version[1] == lowest[1]  # the one the constraints were tested with


def test_what_it_copies_is_sent_to_docker_and_nothing_else():
    for source in copied():
        assert (ROOT / source).exists(), source
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied())


def test_what_it_copies_is_enough_for_the_package(tmp_path):
    """The second RUN without its dependencies: a wheel from these files alone, which starts."""
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, source)
    command = "pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w"
    subprocess.run(
        [sys.executable, "-m", *command.split(), str(tmp_path), "."],
        cwd=source,
        check=True,
        timeout=200,
    )
    (wheel,) = tmp_path.glob("dicerl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("dicerl/")}
        (about,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        assert (ROOT / "README.md").read_text() in archive.read(about).decode()
    wanted = subprocess.run(
        ["git", "ls-files", "dicerl"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert packed == set(wanted)
    done = subprocess.run(
        [sys.executable, "-m", "dicerl", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("dicerl ")
