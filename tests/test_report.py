"""report/report.py: the HTML file, the command, and what both pages do without."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dicerl.report.report import EMBEDDED, write_report
from runs import append, line, make_run, one_line


def test_report_is_one_file_that_asks_for_no_other(runs, tmp_path):
    write_report([runs / "dice-0", runs / "baseline-0"], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    head = text.split("<script>", 1)[0]
    assert not re.search(r'(src|href)="(?!data:)', head)
    assert "plotly.js v" in text
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', head)[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert f"script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}';" in policy
    assert policy.startswith("default-src 'none';")
    content = json.loads(re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1])
    assert [r["name"] for r in content["runs"]] == ["dice-0", "baseline-0"]
    assert content["runs"][0]["version"]
    assert content["differences"] == ["behaviour.source"]
    assert content["runs"][0]["config"]["optimizer.warmup"] == 10.0


def test_a_name_cannot_break_out_of_the_page(tmp_path):
    directory = make_run(tmp_path / "run", variant="</script><script>alert(1)</script>")
    append(directory, line("episode", 1))
    write_report([directory], tmp_path / "out.html")
    assert "<script>alert" not in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize("name", ["{{script}}", "{{style}}{{title}}", "a[b]\x1b[31m", "\udcff"])
def test_a_run_of_any_name_has_a_report(tmp_path, call, name):
    directory = make_run(tmp_path / name)
    append(directory, line("episode", 1))
    code, _, err = call("report", directory, "-o", "out.html")
    assert (code, err) == (0, "")
    text = (tmp_path / "out.html").read_text()
    content = json.loads(re.search(r'id="payload">(.*?)</script>', text, re.DOTALL)[1])
    assert content["runs"][0]["name"] == name
    assert text.count("</html>") == 1


def test_a_video_that_leads_elsewhere_is_not_embedded(runs, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (runs / "dice-0" / "videos").mkdir()
    (runs / "dice-0" / "videos" / "x.mp4").symlink_to(tmp_path / "secret")
    write_report([runs / "dice-0"], tmp_path / "out.html")
    assert "data:video" not in (tmp_path / "out.html").read_text()


def test_the_latest_video_is_embedded_or_linked(runs, tmp_path):
    videos = runs / "dice-0" / "videos"
    videos.mkdir()
    (videos / "old.mp4").write_bytes(b"old")
    (videos / "new.mp4").write_bytes(b"new video")
    os.utime(videos / "old.mp4", (1, 1))
    write_report([runs / "dice-0"], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "data:video/mp4;base64,bmV3IHZpZGVv" in text
    assert '"href": "./runs/dice-0/videos/new.mp4"' in text
    (videos / "new.mp4").write_bytes(b"x" * (EMBEDDED + 1))
    write_report([runs / "dice-0"], tmp_path / "out.html")
    assert "data:video" not in (tmp_path / "out.html").read_text()


def test_report_command(runs, call, monkeypatch):
    monkeypatch.chdir(runs.parent)
    append(runs / "dice-0", "half a li")
    (runs / "dice-0" / "metrics.jsonl").open("a").write("ne\n")
    code, out, err = call("report", "runs/dice-0")
    assert (code, out.split()[0]) == (0, "runs/dice-0/report.html")
    assert err == "runs/dice-0/metrics.jsonl: 1 damaged line passed over\n"
    code, out, err = call("report", "runs", "runs/dice-0")
    assert (code, out.split()[0]) == (0, "report.html")
    assert "4 runs of" in Path("report.html").read_text()


def test_a_report_follows_links_to_runs_each_once(runs, call, monkeypatch, tmp_path):
    """A folder of links is how some pick runs from several disks."""
    (tmp_path / "picked").mkdir()
    for name, target in (("a", "dice-0"), ("b", "dice-1"), ("c", "dice-1"), ("evil", "x" * 300)):
        (tmp_path / "picked" / name).symlink_to(runs / target)
    assert call("report", tmp_path / "picked", "-o", tmp_path / "r.html")[0] == 0
    assert "2 runs of" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (["report"], "RUN"),
        (["report", "nowhere"], "nowhere is not a run directory"),
        (["report", "."], ". holds no run (no config.json)"),
        (["report", "runs/dice-0", "-o", "runs"], "output runs is a directory"),
        (
            ["report", "runs/dice-0", "-o", "no/such/dir.html"],
            "output is 'no/such/dir.html'; there is no folder no/such; make it first",
        ),
        (["dashboard", "nothere"], "RUNS_DIR nothere does not exist; it must be a directory"),
        (["dashboard", "runs/dice-0/config.json"], "is a file"),
        (["dashboard", "--port", "70000"], "port is 70000"),
        (["dashboard", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_mistakes_are_one_line(runs, call, monkeypatch, args, fragment):
    (runs / "empty").mkdir()
    monkeypatch.chdir(runs / "empty" if args == ["report", "."] else runs.parent)
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert err.startswith("dicerl: ")
    assert len(err.splitlines()) == 1
    assert fragment in err
    assert not Path("no").exists()


HEAVY = ("torch", "ale_py", "gymnasium")
LIGHT_PAGES = f"""
import sys
from pathlib import Path
from dicerl.cli import main
from dicerl.report.dashboard import Board
runs, page = sys.argv[1:]
assert main(["report", runs, "--output", page]) == 0
Board(Path(runs)).state(None, "")
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_pages_load_neither_torch_nor_an_emulator(runs, tmp_path):
    """A dashboard beside a training run must be light, also where runs are compared with the
    paper's table of Atari games.
    """
    directory = make_run(runs / "atari", **{"env.id": "ALE/MsPacman-v5"})
    append(directory, line("evaluation", 10, mean_return=9.0))
    page = tmp_path / "r.html"
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_PAGES, str(runs), str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "hns/ALE/MsPacman-v5" in page.read_text()


def test_a_report_is_not_written_to_what_is_no_file(runs, call, monkeypatch):
    """Nobody may ever read from a FIFO; whoever made the run made it."""
    monkeypatch.chdir(runs.parent)
    os.mkfifo(runs / "dice-0" / "report.html")
    one_line(call("report", "runs/dice-0"), "report.html is not a regular file", "-o")


def test_a_link_to_a_video_is_never_an_address_of_its_own(runs, tmp_path):
    run = runs.rename(tmp_path / "javascript:alert(1)#%") / "dice-0"
    (run / "videos").mkdir()
    (run / "videos" / "x.mp4").write_bytes(b"x" * (EMBEDDED + 1))
    write_report([run], tmp_path / "out.html")
    assert (
        '"href": "./javascript%3Aalert%281%29%23%25/dice-0/videos/x.mp4"'
        in (tmp_path / "out.html").read_text()
    )
