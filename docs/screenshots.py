"""The pictures of the docs, from real runs: ``python docs/screenshots.py RUNS_DIR`` (needs chromium
and chromedriver).
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from browser import Browser  # noqa: E402
from dicerl.report.dashboard import make_server  # noqa: E402
from dicerl.report.data import find_runs  # noqa: E402
from dicerl.report.report import write_report  # noqa: E402

READY = (
    "const all = [...document.querySelectorAll('.card')]; return all.length > 0 && all.every(c =>"
    " c.card.drawn === c.card.wanted)"
)


def shoot(address: str, path: Path, width: int, height: int, dark: bool = False) -> None:
    browser = Browser(width, height, dark)
    try:
        browser.open(address)
        browser.until(READY, seconds=300)
        browser.screenshot(path)
    finally:
        browser.close()


def main(runs_dir: Path) -> None:
    runs = find_runs(runs_dir)
    with tempfile.TemporaryDirectory() as folder:
        write_report(runs, Path(folder) / "report.html")
        shoot(f"file://{folder}/report.html", DOCS / "report.png", 1200, 1540)
    server = make_server(runs_dir, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"{server.address()}#{','.join(run.name for run in runs)}"
    shoot(address, DOCS / "dashboard.png", 1300, 960)
    shoot(address, DOCS / "dashboard-phone.png", 400, 1400, dark=True)
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
