"""benchmarks/: scripts that are run by hand, and seldom; what they import must still be there."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
# not below: benchmarks/peers/.venvs has the peers' own packages
SCRIPTS = [p for folder in ("", "cluster", "peers") for p in (BENCHMARKS / folder).glob("*.py")]


@pytest.mark.parametrize("path", sorted(SCRIPTS), ids=lambda p: p.stem)
def test_what_a_script_imports_of_us_is_there(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dicerl":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):  # it may be a module
                    importlib.import_module(f"{node.module}.{alias.name}")
