"""notebooks/: each is executed, shorter, by a Jupyter kernel; what is committed shows its figures
and is small.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SHORT = {"frames": "1_000", "num_episodes": "200"}  # instead of what the cell of parameters says


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def drawn(notebook):
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # not in the user's home
    notebook = nbformat.read(path, as_version=4)
    shown = drawn(notebook)
    (parameters,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    names = [name.strip() for name in re.match(r"([\w, ]+)=", parameters.source)[1].split(",")]
    parameters.source = "\n".join(f"{name} = {SHORT[name]}" for name in names)
    for cell in notebook.cells:
        cell.outputs = []
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert drawn(notebook) == shown > 0
    assert not [x for x in outputs(notebook) if x.get("name") == "stderr"]
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_is_small_and_of_nobody_s_machine(path):
    text = path.read_text()
    assert len(text) < 200_000
    assert "/home/" not in text
    assert "/tmp/" not in text
    nbformat.validate(nbformat.reads(text, as_version=4))


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "temperature_map"]
