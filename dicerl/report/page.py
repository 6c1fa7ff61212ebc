"""The HTML page around the figures: everything inside it (report), or links to its parts
(dashboard).
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib.resources import files

TYPES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plotly.js": "text/javascript; charset=utf-8",
}


def policy(script: str, own: str = "") -> str:
    """The Content-Security-Policy of a page: it may do nothing but this, whatever a name in it
    says. ``script`` are the sources of its scripts, ``own`` of its style, pictures and videos.
    Plotly writes style attributes, and saves pictures by way of a blob.
    """
    return (
        f"default-src 'none'; script-src {script}; style-src {own}'unsafe-inline'; img-src"
        f" {own}data: blob:; media-src {own}data:; base-uri 'none'; form-action 'none'"
    )


def inline(script: str) -> str:
    """The source of exactly this inline script."""
    sha = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(sha).decode()}'"


def static(name: str) -> str:
    """page.css, page.js, page.html, or plotly.js as the plotly package ships it."""
    if name == "plotly.js":
        return files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    return files("dicerl.report").joinpath("static", name).read_text(encoding="utf-8")


def page(kind: str, title: str, subtitle: str, style: str, script: str) -> str:
    """page.html with its places filled; ``style`` and ``script`` are inserted as they are."""
    parts = {
        "kind": kind,
        "title": html.escape(title),
        "subtitle": html.escape(subtitle),
        "style": style,
        "script": script,
    }
    # all in one pass: a title may itself look like a place
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], static("page.html"))


def linked(title: str, subtitle: str) -> str:
    """The dashboard's page; it requests the runs while plotly.js is still loading."""
    return page(
        "dashboard",
        title,
        subtitle,
        '<link rel="stylesheet" href="page.css">\n<script async id="plotly"'
        ' src="plotly.js"></script>',
        '<script src="page.js"></script>',
    )


def inlined(title: str, subtitle: str, payload: str) -> str:
    """A report: opens without a network."""
    safe = payload.replace("<", "\\u003c")  # no name in it can end the script element
    style, plotly, script = static("page.css"), static("plotly.js"), static("page.js")
    allowed = policy(f"{inline(plotly)} {inline(script)}")
    return page(
        "report",
        title,
        subtitle,
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n<style>{style}</style>',
        f'<script type="application/json" id="payload">{safe}</script>\n'
        f"<script>{plotly}</script>\n<script>{script}</script>",
    )
