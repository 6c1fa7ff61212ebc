"""The documentation as a site (mkdocs.yml, docs/hooks.py, docs/commands.py): it builds without a
warning, needs nothing from elsewhere, and fits a phone.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from browser import CHROMIUM, DRIVER, Browser
from dicerl.cli import COMMANDS
from dicerl.config.options import fields_of

ROOT = Path(__file__).parent.parent
WIDE = ("paper.html", "variants.html", "reference/commands.html", "reference/core.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "mkdocs", "build", "--strict", "-d", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0, said
    assert not [line for line in said if not line.startswith("INFO")], said
    assert not re.search(r"\| +torch$", done.stderr, re.M), "torch was imported"
    return folder


def test_nothing_is_fetched_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in [*pages, *site.rglob("*.css")]:
        fetched = re.findall(
            r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\" >]+)"
            r"|<link[^>]+href=\"?(https?:[^\" >]+)|url\(\"?(https?:[^)]+)",
            page.read_text(),
        )
        assert not fetched, (page, fetched)


def test_the_reference_has_the_docstrings_and_every_command_and_field(site):
    python = (site / "reference/python.html").read_text()
    assert "Train a new run to its end or until Ctrl-C" in python
    assert "A trained network that acts" in python
    commands = (site / "reference/commands.html").read_text()
    for name in COMMANDS:
        assert f"dicerl {name}" in commands
    for short in ("--stop-at", "--variant NAME", "--checkpoint"):
        assert f">{short}" in commands, short
    for name in fields_of():
        assert f">{name}</code>" in commands, name
    assert "<!-- fields -->" not in commands


def test_files_outside_the_folder_are_pages_of_the_site(site):
    example = (site / "repository/examples/memory.py.html").read_text()
    assert "short_maze" in example
    notebook = (site / "repository/notebooks/first_run.ipynb.html").read_text()
    assert "data:image/png;base64," in notebook
    assert 'href="../../metrics.html"' in notebook
    assert 'href="repository/examples/memory.py.html"' in (site / "examples.html").read_text()
    assert not list(site.glob("*.py"))


def test_links_are_those_of_the_site(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    def translated(text, origin="docs/howto/memory.md", uri="howto/memory.md"):
        return hooks.translated(text, ROOT / origin, uri)

    assert translated("[a](../paper.md#x)") == "[a](../paper.md#x)"
    assert translated("[a](../../SECURITY.md)") == "[a](../repository/SECURITY.md)"
    assert translated("[a](../../examples/catch.py)") == "[a](../repository/examples/catch.py.md)"
    assert translated("see [a](../../examples).") == "see a."
    for unchanged in ("[a](../../none.md)", "[a](https://x.org/y.md)", "f[0](x)", "[a](#x)"):
        assert translated(unchanged) == unchanged
    outside = ("CONTRIBUTING.md", "repository/CONTRIBUTING.md")
    assert translated("![a](docs/report.png)", *outside) == "![a](../report.png)"
    assert translated(r"| `log\|A\| < 1` |") == "| <code>log&#124;A&#124; &lt; 1</code> |"


@pytest.mark.skipif(not (DRIVER and CHROMIUM), reason="no chromium and chromedriver here")
def test_no_page_is_wider_than_a_phone_or_complains(site):
    browser = Browser(375, 800)
    try:
        for page in ("index.html", "tutorial.html", *WIDE):
            browser.open((site / page).as_uri())
            wide = browser.js("return document.documentElement.scrollWidth")
            assert wide <= 375, (page, wide)
            # the search has to be served; the rest works from a disk
            assert not [e for e in browser.errors() if "search" not in e and "CORS" not in e]
    finally:
        browser.close()
