"""Prints requirements-tested.txt: constraints.txt with the hash of every file that pip chooses for
this Python and machine. To be run on what the tests run on (Python 3.11, Linux, x86-64):

    .venv/bin/python docs/hashes.py > requirements-tested.txt

No package index is named in the file: a hash holds wherever a file is taken from.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HEAD = """\
# constraints.txt with hashes, for {python} on {machine}.
# Made by docs/hashes.py: change it there. How to use it, and about torch: SECURITY.md."""


def chosen() -> list[dict[str, Any]]:
    """What pip would install for all the pins and for building dicerl itself, each as an entry of
    its report.
    """
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", report)
        wheels_only = ("--only-binary", ":all:")
        command = [sys.executable, "-m", "pip", "install", *options, *wheels_only, *pins, *build]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    return sorted(found, key=lambda entry: canonical(entry["metadata"]["name"]))


def canonical(name: str) -> str:
    """The name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    print(HEAD.format(python=python, machine=f"{platform.system()} {platform.machine()}"))
    for entry in chosen():
        about, hashes = entry["metadata"], entry["download_info"]["archive_info"]["hashes"]
        print(f"{about['name']}=={about['version']} --hash=sha256:{hashes['sha256']}")


if __name__ == "__main__":
    main()
