"""Report and dashboard in a real browser: figures are drawn, runs can be picked, new metrics
appear, nothing complains.
"""

import json
import shutil
import threading
from pathlib import Path

import pytest

from browser import CHROMIUM, DRIVER, Browser
from dicerl.report.dashboard import make_server
from dicerl.report.report import write_report
from runs import append, line, make_run

pytestmark = [
    pytest.mark.skipif(
        not (DRIVER and CHROMIUM),
        reason="no chromium and chromedriver here (Debian: chromium, chromium-driver)",
    ),
    pytest.mark.timeout(600),
]

READY = (
    "const all = [...document.querySelectorAll('.card')]; return all.length > 0 && all.every(c =>"
    " c.card.drawn === c.card.wanted)"
)
# Marks in each card's plot: lines and points with a shape, bars, heat maps with pixels.
MARKS = """
  const shape = path => (path.getAttribute('d') || '').length > 10;
  const pixels = image => image.href.baseVal.length > 100;
  return Object.fromEntries([...document.querySelectorAll('.card')].map(card => [card.dataset.id,
    [...card.querySelectorAll('.scatterlayer path, .barlayer path')].filter(shape).length
    + [...card.querySelectorAll('.heatmaplayer image')].filter(pixels).length]))"""
NAMES = (
    "return [...new Set([...document.querySelectorAll('.card .plot')].flatMap(p => (p.data ||"
    " []).map(t => t.name)))]"
)
BRIGHTNESS = """
  const style = getComputedStyle(document.querySelector(arguments[0]))[arguments[1]];
  const [r, g, b] = style.match(/\\d+/g).map(Number);
  return (r + g + b) / 3"""


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def serve(browser):
    servers = []

    def start(root):
        server = make_server(Path(root), port=0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.address()

    yield start
    browser.open("about:blank")  # before the server goes, or the page complains
    for server in servers:
        server.shutdown()
        server.server_close()
    browser.errors()


def drawn(browser):
    """Every card's figure is drawn, not only there."""
    browser.until(READY, seconds=240)
    marks = browser.js(MARKS)
    assert all(marks.values()), marks
    return marks


def test_report(browser, runs, tmp_path):
    write_report([runs / n for n in ("dice-0", "dice-1", "baseline-0")], tmp_path / "report.html")
    browser.devtools("Network.enable")
    browser.devtools(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=0,
        uploadThroughput=0,
    )
    try:
        browser.open(f"file://{tmp_path}/report.html")
        marks = drawn(browser)
    finally:
        browser.devtools(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
    assert len(marks) >= 20
    maps = {
        f"{kind}/{run}/inv_temperature"
        for kind in ("values", "visits", "bandits", "votes")
        for run in ("dice-0", "dice-1")
    }
    assert maps | {"entropy", "gradient_norm", "clipped", "throughput"} <= set(marks)
    names = browser.js(NAMES)
    assert "dice (2 seeds)" in names
    assert "baseline" in names
    text = browser.js("return document.body.innerText")
    assert "What differs between these runs" in text
    assert "Left out: Learner waits for data" in text
    assert "network.hidden" in browser.js("return document.body.textContent")
    assert browser.errors() == []


def test_report_on_a_phone_and_in_the_dark(browser, runs, tmp_path):
    write_report([runs / "dice-0"], tmp_path / "report.html")
    browser.size(400, 800)
    try:
        browser.open(f"file://{tmp_path}/report.html")
        drawn(browser)
        assert browser.js("return document.documentElement.scrollWidth") <= 400
        assert browser.js(
            "return [...document.querySelectorAll('.main-svg')].every(s =>"
            " s.getBoundingClientRect().width <= 400)"
        )
        assert browser.js(BRIGHTNESS, "body", "backgroundColor") > 200
        assert browser.js(BRIGHTNESS, ".card .xtitle", "fill") < 80
        browser.devtools(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark"}],
        )
        browser.until(READY)
        # drawn again, without a reload
        browser.until(BRIGHTNESS + " > 180", ".card .xtitle", "fill")
        assert browser.js(BRIGHTNESS, "body", "backgroundColor") < 60
        assert browser.errors() == []
    finally:
        browser.devtools(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "light"}],
        )
        browser.size(1200, 900)


LOOK = """
  const plot = document.querySelector(`[data-id="${arguments[0]}"] .plot`);
  const line = plot.data.find(t => t.name);
  return {x: line.x, y: line.y, title: plot.querySelector('.xtitle').textContent,
          shade: plot.data.find(t => t.fill)?.y}"""
# height of the area inside a plot's axes, of every card
ROOM = """return [...document.querySelectorAll('.card .plot')].map(p => p._fullLayout._size.h)"""
TICKS = """
  return [...document.querySelectorAll(`[data-id="${arguments[0]}"] .ytick text`)].map(
    t => t.textContent)"""


def test_time_and_smoothing(browser, tmp_path):
    """The reader's choice changes every curve: x becomes time, y a mean over a part of the axis."""
    directories = []
    for seed in range(2):
        run = make_run(tmp_path / f"s{seed}", seed=seed)
        directories.append(run)
        for i in range(1, 21):
            values = {
                "entropy": float(i % 2 + seed),
                "elapsed": 60.0 * i,
                "loss_value": 0.4 + i / 99,
            }
            append(
                run, line("train", 1000 * i, **values), line("evaluation", 1000 * i, mean_return=i)
            )
    write_report(directories, tmp_path / "report.html")
    browser.open(f"file://{tmp_path}/report.html")
    drawn(browser)
    before = browser.js(LOOK, "entropy")
    assert before["title"] == "frames"
    assert before["x"] == [1000 * i for i in range(1, 21)]
    browser.js("document.querySelector('#controls input[value=time]').click()")
    browser.until(READY)
    timed = browser.js(LOOK, "entropy")
    assert timed["title"] == "training time (min)"
    assert timed["x"] == [float(i) for i in range(1, 21)]
    assert timed["y"] == before["y"]
    assert browser.js(LOOK, "evaluation/CartPole-v1")["title"] == "training time (min)"
    browser.js(
        "const s = document.querySelector('#controls input[type=range]'); s.value = 10;"
        " s.dispatchEvent(new Event('input'))"
    )
    browser.until(READY)
    smooth = browser.js(LOOK, "entropy")
    # each with its neighbours: 2 of 20 minutes
    assert smooth["y"][1:-1] == pytest.approx(
        [(before["y"][i % 2] + 2 * before["y"][1 - i % 2]) / 3 for i in range(1, 19)]
    )
    assert max(smooth["shade"]) < max(before["shade"])
    # scores stay as they are
    assert browser.js(LOOK, "evaluation/CartPole-v1")["y"] == [float(i) for i in range(1, 21)]
    assert len(browser.js(TICKS, "loss_value")) >= 2  # less than a decade
    assert browser.errors() == []


@pytest.mark.parametrize("width", [375, 1280])
def test_many_groups_leave_the_plots_their_room(browser, tmp_path, width):
    directories = []
    for i in range(12):
        settings = {"optimizer.learning_rate": 0.3**i, "sequence.length": 20 + i}
        run = make_run(tmp_path / f"run{i}", **settings)
        directories.append(run)
        lines = (line("train", f, entropy=0.1 * i, actor_inference=0.5) for f in (100, 200))
        append(run, *lines, line("episode", 50), line("episode", 200))
    write_report(directories, tmp_path / "report.html")
    browser.size(width, 900)
    try:
        browser.open(f"file://{tmp_path}/report.html")
        drawn(browser)
        assert min(browser.js(ROOM)) >= 150
        assert browser.js("return document.documentElement.scrollWidth") <= width
        assert browser.errors() == []
    finally:
        browser.size(1200, 900)


def test_report_of_damaged_metrics_opens(browser, runs, tmp_path):
    path = runs / "dice-0" / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:2000] + b"\x00" * 500 + whole[2500:-40])
    empty = make_run(runs / "empty")
    (runs / "dice-1" / "config.json").write_text('{"env"')
    write_report([runs / "dice-0", runs / "dice-1", empty], tmp_path / "report.html")
    browser.open(f"file://{tmp_path}/report.html")
    drawn(browser)
    text = browser.js("return document.body.textContent")
    assert "of metrics.jsonl passed over" in text
    assert "config.json is missing or damaged" in text
    assert browser.errors() == []


def test_picking_runs_changes_the_plots(browser, runs, serve):
    browser.open(serve(runs))
    drawn(browser)
    # all of one environment, as none is running
    assert {"dice (2 seeds)", "baseline (2 seeds)"} <= set(browser.js(NAMES))
    click = 'document.querySelector(`[data-run="${arguments[0]}"] input`).click()'
    for name in ("dice-1", "baseline-0", "baseline-1"):
        browser.until('return !!document.querySelector(`[data-run="${arguments[0]}"] input`)', name)
        browser.js(click, name)
        browser.until("return !location.hash.includes(arguments[0])", name)
    browser.until("return document.querySelectorAll('#list input:checked').length === 1")
    browser.until(
        "return !" + NAMES.removeprefix("return ") + ".some(n => (n || '').startsWith('baseline'))"
    )
    browser.until(READY)
    assert "dice" in browser.js(NAMES)
    assert set(drawn(browser)) >= {"values/dice-0/inv_temperature", "votes/dice-0/inv_temperature"}
    browser.js(click, "baseline-1")
    browser.until("return " + NAMES.removeprefix("return ") + ".includes('baseline')")
    kept = browser.js("return location.href")
    browser.open("about:blank")
    browser.open(kept)  # the address keeps what was picked
    drawn(browser)
    picked = browser.js(
        "return [...document.querySelectorAll('#list input:checked')].map(i =>"
        " i.getAttribute('aria-label'))"
    )
    assert set(picked) == {"baseline-1", "dice-0"}
    browser.js(
        "[...document.querySelectorAll('#list button')].find(b => b.textContent === 'none').click()"
    )
    browser.until("return document.body.innerText.includes('Pick one or more runs')")
    assert browser.js("return document.querySelectorAll('.card').length") == 0
    assert browser.errors() == []


def test_new_metrics_appear_without_a_reload(browser, runs, serve):
    browser.open(serve(runs) + "#dice-0")
    drawn(browser)
    browser.js("window.same = true")
    last = "document.querySelector('[data-id=\"entropy\"] .plot').data[0].x.at(-1)"
    before = browser.js(f"return {last}")
    path = browser.js(
        'return document.querySelector(\'[data-id="entropy"] .scatterlayer'
        " path.js-line').getAttribute('d')"
    )
    # the second one is half-written
    append(
        runs / "dice-0", line("train", 5000, entropy=0.7), '{"kind": "train", "frames": 6000, "entr'
    )
    browser.until(f"return {last} === 5000")
    browser.until(
        'return document.querySelector(\'[data-id="entropy"] .scatterlayer'
        " path.js-line').getAttribute('d') !== arguments[0]",
        path,
    )
    append(
        runs / "dice-0",
        'opy": 0.6}\n',
        "\x00\x00 damaged\n",
        line("evaluation", 7000, mean_return=0.5, stderr=0.1),
    )
    browser.until(f"return {last} === 6000")
    assert before < 5000
    assert browser.until(
        "return document.querySelector('#details').textContent.includes('1 damaged line')"
    )
    assert browser.js("return window.same")
    assert browser.errors() == []


def test_an_empty_directory_is_friendly_and_fills(browser, tmp_path, trained, serve):
    browser.open(serve(tmp_path / "runs"))
    browser.until("return document.body.innerText.includes('No runs yet')")
    assert "dicerl train CartPole-v1" in browser.js("return document.body.innerText")
    shutil.copytree(trained / "dice-0", tmp_path / "runs" / "dice-0")
    browser.until("return document.querySelectorAll('#list .run').length === 1")
    drawn(browser)
    assert browser.js("return document.querySelector('#message').hidden")
    facts = browser.js("return document.querySelector('#list .run').innerText")
    assert "finished" in facts
    assert "frames" in facts
    assert "evaluation" in facts
    assert browser.errors() == []


def test_a_name_is_text_and_nothing_else(browser, tmp_path, serve):
    run = make_run(tmp_path / "runs" / "<img src=x onerror=alert(1)>", variant="<b>bold</b>")
    append(run, line("episode", 1), line("episode", 50), line("train", 60, entropy=1.0))
    (run / "config.json").write_text(
        json.dumps(json.loads((run / "config.json").read_text()) | {"seed": "<script>"})
    )
    browser.open(serve(tmp_path / "runs"))
    browser.until("return document.querySelectorAll('.card').length > 0")
    browser.until(READY)
    assert (
        browser.js("return document.querySelectorAll('#content img, #list img, #content b').length")
        == 0
    )
    assert browser.errors() == []
