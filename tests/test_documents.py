"""What the documents say about the code is true: the layout, the names of tests and functions, the
run header, links.
"""

import ast
import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from dicerl.agent.actor_critic import ActorCritic
from dicerl.config.presets import PRESETS, VARIANTS, preset
from dicerl.envs import env_spec
from dicerl.records.run import Run
from dicerl.runtime.launch import describe
from dicerl.runtime.setup import plan

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("docs/**/*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    ROOT / "benchmarks/README.md",
]
ids = [str(page.relative_to(ROOT)) for page in PAGES]


def sources():
    """Every Python file but this one."""
    folders = ("dicerl", "tests", "benchmarks", "docs", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if path != Path(__file__) and ".venvs" not in path.parts]


def listed_modules():
    """The files of the layout in docs/architecture.md, in order; a folder's __init__.py last."""
    text = (ROOT / "docs/architecture.md").read_text()
    block = text[text.index("## Layout") :].split("```")[1]
    files, folder = [], ""
    for line in block.splitlines():
        indent, name = re.match(r"( *)(\S*)", line).groups()
        if len(indent) == 2:
            if folder:
                files.append(f"{folder}__init__.py")
            folder = name if name.endswith("/") else ""
        if name.endswith(".py"):
            files.append((folder if len(indent) == 4 else "") + name)
    return [*files, "__init__.py"]


def imports(path, modules):
    """The package's own modules that a file imports, inside functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "dicerl")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dicerl":
            for alias in node.names:
                if alias.name != "__version__":
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in modules else node.module


def module_of(file):
    return ".".join(("dicerl", *Path(file).with_suffix("").parts)).removesuffix(".__init__")


def test_the_layout_lists_every_file_once():
    there = {str(p.relative_to(ROOT / "dicerl")) for p in (ROOT / "dicerl").rglob("*.py")}
    listed = listed_modules()
    assert sorted(listed) == sorted(there)


def test_imports_go_up_the_layout_s_list():
    place = {module_of(file): number for number, file in enumerate(listed_modules())}
    wrong = [
        f"{file} imports {name}, which stands below it"
        for file in listed_modules()
        for name in imports(ROOT / "dicerl" / file, place)
        if place[name] >= place[module_of(file)]
    ]
    assert not wrong


def test_every_room_has_a_sentence_at_its_door():
    doors = list((ROOT / "dicerl").rglob("__init__.py"))
    assert len(doors) >= 14
    for door in doors:
        assert ast.get_docstring(ast.parse(door.read_text())), door


def functions_by_file():
    return {
        path.stem: set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
        for path in (ROOT / "tests").glob("test_*.py")
    }


def test_every_test_that_a_page_names_is_where_it_says():
    """ "test_policy: `test_x`, `test_y`": both are in that file. Without a file: in any."""
    known = functions_by_file()
    everywhere = set().union(*known.values()) | known.keys()
    named = 0
    for page in PAGES:
        for line in page.read_text().splitlines():
            file = None
            for name, function in re.findall(r"\b(test_\w+):|`(test_\w+)`", line):
                if name:
                    assert name in known, (page, name)
                    file = name
                    continue
                assert function in (known[file] if file else everywhere), (page, file, function)
                named += 1
    assert named > 60


def test_every_function_named_with_its_file_exists():
    """`vtrace` in `core/targets.py`."""
    found = []
    for page in PAGES:
        for names, file in re.findall(
            r"((?:`[\w.]+`(?:, | and )?)+) in `((?:\w+/)+\w+\.py)`", page.read_text()
        ):
            path = next((p for p in (ROOT / "dicerl" / file, ROOT / file) if p.is_file()), None)
            assert path is not None, (page, file)
            source = path.read_text()
            for name in re.findall(r"`([\w.]+)`", names):
                found.append(name)
                last = name.split(".")[-1]
                assert re.search(rf"\b(def|class) {last}\b|^{last}\b", source, re.M), (page, name)
    assert len(found) > 50


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_file_that_a_page_names_or_links_is_there(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:[\w.-]+/)+[a-z][\w.-]*\.(?:py|md|json|csv|txt))`", text):
        places = (ROOT, ROOT / "dicerl", page.parent)
        assert any((place / name).exists() for place in places), name


def names_in(element, room=""):
    """(room, name) of every file and folder in the text of an SVG element. A group with
    ``data-room`` is the inside of that room: its files are named without the folder.
    """
    if not element.tag.endswith("}style"):
        room = element.get("data-room", room)
        words = element.text or ""
        for name in re.findall(r"(?:[a-z]\w*/)*[a-z_]\w*\.py\b|(?:[a-z]\w*/)+(?!\w)", words):
            yield room, name
        for child in element:
            yield from names_in(child, room)


def test_the_drawing_names_every_room_and_only_files_that_are_there():
    found = set(names_in(ET.parse(ROOT / "docs/dataflow.svg").getroot()))
    house = ROOT / "dicerl"
    wrong = [
        (room, name)
        for room, name in found
        if not ((house / name).is_dir() if name.endswith("/") else (house / room / name).is_file())
    ]
    assert not wrong
    rooms = {f"{door.parent.name}/" for door in house.glob("*/__init__.py")}
    assert rooms <= {name for _, name in found}
    assert {("", "api.py"), ("", "cli.py"), ("runtime", "roles.py")} <= found


def test_no_document_or_comment_points_outside_the_repository():
    """To a specification that only its authors have."""
    for path in [*PAGES, *sources()]:
        assert not re.search(r"\bSPEC \d", path.read_text()), path


def test_every_section_of_the_paper_s_page_that_a_comment_names_is_there():
    text = (ROOT / "docs/paper.md").read_text()
    sections = set(re.findall(r"^#+ (\d(?:\.\d)?) ", text, re.M))
    assert len(sections) > 10
    for path in sources():
        for name in re.findall(r"docs/paper\.md (\d(?:\.\d+)?)", path.read_text()):
            assert name in sections, (path, name)


def test_the_readme_s_run_header_is_what_the_code_prints(monkeypatch):
    text = (ROOT / "README.md").read_text()
    shown = text[text.index("dicerl: CartPole-v1 with dice") :].split("╭")[0].splitlines()
    monkeypatch.setattr("dicerl.runtime.setup.cores", lambda: 2)
    config = preset("classic", frames=30_000, **{"env.id": "CartPole-v1"})
    spec = env_spec(config)
    run = Run(Path("runs/CartPole_v1-dice-0"), config)
    assert shown == describe(config, spec, plan(config, spec), ActorCritic(config, spec), run)


def test_the_readme_s_sample_of_the_core_runs():
    text = (ROOT / "README.md").read_text()
    names = {}
    exec(text[text.index("import torch\nfrom dicerl.core") :].split("```")[0], names)
    assert names["vote"].counts().sum() == 1  # it was taught the one return
    for tensor in (names["target"].value, names["target"].advantage):
        assert tensor.shape == names["reward"].shape
        assert tensor.isfinite().all()


def test_the_readme_s_variants_and_presets_exist():
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| preset | for |") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(PRESETS)
    words = {16: "sixteen", 17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty"}
    assert f"`dicerl variants` lists all {words[len(VARIANTS)]}" in text


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_make_takes_torch_from_the_index_that_is_named():
    def torch_is_installed_with(*arguments):
        command = ["make", "--dry-run", "--always-make", "train", *arguments]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in said.splitlines() if line.endswith(" torch")]
        return line

    assert "index" not in torch_is_installed_with()
    assert "--index-url file:///wheels torch" in torch_is_installed_with(
        "TORCH_INDEX=file:///wheels"
    )


def test_the_licences_are_those_of_what_is_installed(monkeypatch):
    """Those of the extra `bench` need not be."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import licences

    text = (ROOT / "docs/licences.md").read_text()
    rows = dict(re.findall(r"^\| ([\w.-]+) \| (.+) \|$", text, re.M))
    assert list(rows)[2:] == licences.pinned()  # after the head
    compared = 0
    for package in licences.pinned():
        assert licences.is_free(rows[package]) or package in licences.LOOKED_AT, package
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            assert licences.licence(package) == rows[package], package
            compared += 1
    assert compared > 30
    assert not licences.is_free("GPL-3.0-only AND MIT")


def test_the_hashed_set_is_the_tested_set(monkeypatch):
    """Every pin has a hash, and besides them there is only what builds dicerl."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from hashes import canonical

    def pins(name, pattern):
        lines = (ROOT / name).read_text().splitlines()
        found = [re.fullmatch(pattern, x) for x in lines if not x.startswith("#")]
        assert all(found), name
        return {canonical(m[1]): m[2] for m in found if m}

    pinned = pins("constraints.txt", r"([\w.-]+)==(\S+)")
    hashed = pins(
        "requirements-tested.txt", r"([\w.-]+)==([^+\s]+)(?:\+cpu)? --hash=sha256:[0-9a-f]{64}"
    )
    assert hashed.items() >= pinned.items()
    assert hashed.keys() - pinned.keys() == {"setuptools"}
    assert "://" not in (ROOT / "requirements-tested.txt").read_text()


def test_every_pinned_package_takes_the_oldest_python_we_promise():
    """pip 23.0 with Python 3.11.2 (Debian 12) never ended over one pin that wanted 3.11.5."""
    from packaging.specifiers import SpecifierSet

    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest, compared = promised.removeprefix(">="), 0
    for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]:
        name, version = line.split("==")
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            package = importlib.metadata.metadata(name)
            if package["Version"].split("+")[0] == version:
                assert SpecifierSet(package["Requires-Python"] or "").contains(oldest), line
                compared += 1
    assert compared > 30
