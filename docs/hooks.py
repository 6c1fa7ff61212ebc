"""What MkDocs does not do by itself for the site (mkdocs.yml).

A page links to a file outside docs/ as in the repository: ``../examples/catch.py``. Each file that
is linked so becomes a part of the site: Markdown, Python and notebooks as pages, the rest as it is.
So every link works in both places. A link to a folder becomes its words.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from pathlib import Path

from commands import tables
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ELSEWHERE = "repository/"  # where the site has what lies outside docs/
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
BAR = "\\|"  # Python-Markdown keeps the backslash inside code
CODE_WITH_BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
origins: dict[str, Path] = {}  # of the pages that lie outside docs/, by their place in the site


def place(path: Path) -> str:
    """Where the site has a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    suffix = ".md" if path.suffix in (".py", ".ipynb") else ""
    return f"{ELSEWHERE}{path.relative_to(ROOT).as_posix()}{suffix}"


def linked(page: Path) -> list[Path]:
    """The files that a page links to."""
    targets = ((page.parent / found[2]).resolve() for found in LINK.finditer(page.read_text()))
    return [path for path in targets if path.is_file() and path.is_relative_to(ROOT)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/, and what is linked there in turn."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        for path in linked(waiting.pop()):
            if path in known:
                continue
            known.add(path)
            if path.suffix in (".md", ".ipynb"):
                waiting.append(path)
            if not path.is_relative_to(DOCS):
                files.append(_file(path, config))
                origins[place(path)] = path
    return files


def _file(path: Path, config: MkDocsConfig) -> File:
    name = path.relative_to(ROOT)
    if path.suffix == ".py":
        source = path.read_text()
        return File.generated(config, place(path), content=f"# `{name}`\n\n{fenced(source)}")
    if path.suffix == ".ipynb":
        return File.generated(config, place(path), content=notebook(path))
    return File.generated(config, place(path), abs_src_path=str(path))


def fenced(text: str, language: str = "python") -> str:
    """``text`` as a block of code."""
    return f"````{language}\n{text.rstrip()}\n````\n"


def notebook(path: Path) -> str:
    """A notebook as Markdown: its text, its code, and what that printed and drew."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(fenced(source) if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in shown:
                png = "".join("".join(shown["image/png"]).split())
                parts.append(f"![what the code above draws](data:image/png;base64,{png})")
            else:
                parts.append(fenced("".join(shown["text/plain"]), "text"))
    return "\n\n".join([*parts, f"(`{path.relative_to(ROOT)}` in the repository.)"])


def translated(markdown: str, origin: Path, uri: str) -> str:
    """Text of the repository's file ``origin`` as the site's page ``uri`` needs it: other links,
    and bars inside tables as GitHub reads them.
    """

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        path = (origin.parent / target).resolve()
        if path.is_dir():
            return words
        if not path.is_file() or not path.is_relative_to(ROOT):
            return found[0]  # for MkDocs to complain about
        return f"[{words}]({posixpath.relpath(place(path), posixpath.dirname(uri))}{anchor})"

    def bars(found: re.Match[str]) -> str:
        return f"<code>{html.escape(found[1]).replace(BAR, '&#124;')}</code>"

    return CODE_WITH_BAR.sub(bars, LINK.sub(link, markdown))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Translate a page, and fill in the tables that are made from the code."""
    uri = page.file.src_uri
    markdown = translated(markdown, origins.get(uri, DOCS / uri), uri)
    for name, make in tables.items():
        mark = f"<!-- {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown
