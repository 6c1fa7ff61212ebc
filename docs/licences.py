"""Prints docs/licences.md: the licence of every package in constraints.txt, as its own metadata
states it, and refuses one that nobody looked at. Needs all of them installed.

    .venv/bin/python -m pip install --constraint constraints.txt --editable '.[test,bench,soak]'
    .venv/bin/python docs/licences.py > docs/licences.md
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# what a licence may consist of; the others are named one by one
FREE = re.compile(
    r"(MIT|MIT-CMU|0BSD|BSD|BSD-[23]-Clause|3-Clause BSD|Apache|Apache-2\.0|Apache 2\.0|"
    r"Apache Software|BSL-1\.0|ISC|ISC License \(ISCL\)|"
    r"Zlib|CC0-1\.0|PSF-2\.0|Python Software Foundation|MPL-2\.0|"
    r"Mozilla Public License 2\.0 \(MPL 2\.0\)|LLVM-exception)( License)?"
)
LOOKED_AT = {
    "ale-py": "plays Atari; its wheel holds the emulator and the ROMs",
    "MinAtar": "the environments `MinAtar/...`",
    "atheris": "only for `make soak`; its metadata states none, its repository Apache-2.0",
    "pygame": "only for tests, and to film classic control",
}
HEAD = """\
# Licences of dependencies

<!-- Made by docs/licences.py: change it there. -->

dicerl itself is under the Apache License 2.0 and contains no code of these packages. The table
lists all of `constraints.txt`: what dicerl and its extras need, and what those need in turn, as
each package's own metadata states it. `tests/test_documents.py` compares it with what is installed.

Whoever passes on dicerl *together* with them should read these first:

{special}
- **imageio-ffmpeg** (BSD-2-Clause) ships a binary of ffmpeg, which is under the GPL.
- **torch** and **numpy** bundle libraries under further licences; their wheels list them.

| package | licence |
| --- | --- |"""


def pinned() -> list[str]:
    """The names in constraints.txt, in its order."""
    lines = CONSTRAINTS.read_text().splitlines()
    return [line.split("==")[0].strip() for line in lines if "==" in line]


def licence(package: str) -> str:
    """What an installed package says about itself: the expression, the classifiers or the text."""
    about = importlib.metadata.metadata(package)
    classifiers = [
        entry.split("::")[-1].strip()
        for entry in about.get_all("Classifier", [])
        if entry.startswith("License ::") and "DFSG" not in entry
    ]
    stated = about.get("License-Expression") or ", ".join(classifiers) or about.get("License") or ""
    return stated.strip().splitlines()[0] if stated.strip() else "not stated"


def is_free(stated: str) -> bool:
    """Whether a licence asks for little more than to be named."""
    return all(FREE.fullmatch(part) for part in re.split(r" AND | OR | WITH |, ", stated))


def main() -> None:
    stated = {package: licence(package) for package in pinned()}
    unknown = [name for name in stated if not is_free(stated[name]) and name not in LOOKED_AT]
    if unknown:
        raise SystemExit(f"look at the licence of {unknown[0]}: {stated[unknown[0]]}")
    special = "\n".join(
        f"- **{name}** ({stated[name]}): {text}." for name, text in LOOKED_AT.items()
    )
    print(HEAD.format(special=special))
    for package in pinned():
        print(f"| {package} | {stated[package]} |")


if __name__ == "__main__":
    main()
