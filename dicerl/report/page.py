"""The HTML page around the figures: everything inside it (report), or links to its parts
(dashboard).
"""

from __future__ import annotations

import html
from importlib.resources import files

TYPES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "plotly.js": "text/javascript; charset=utf-8",
}


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
    text = static("page.html")
    for name, value in parts.items():
        text = text.replace("{{" + name + "}}", value)
    return text


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
    return page(
        "report",
        title,
        subtitle,
        f"<style>\n{static('page.css')}</style>",
        f'<script type="application/json" id="payload">{safe}</script>\n'
        f"<script>{static('plotly.js')}</script>\n<script>\n{static('page.js')}</script>",
    )
