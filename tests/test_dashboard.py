"""report/dashboard.py: its server, over HTTP. In a browser it is in test_browser.py."""

import gzip
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from dicerl.records.run import Run
from dicerl.report.dashboard import is_loopback, make_server
from runs import append, line


@pytest.fixture
def serve():
    servers = []

    def start(root, host="127.0.0.1"):
        server = make_server(Path(root), host, 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, path, **headers):
    """(status, headers, body) without following a redirect."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return (
        answer.status,
        dict(answer.getheaders()),
        gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body,
    )


def state(server, query="default=1"):
    return json.loads(ask(server, f"/api/state?{query}")[2])


def test_server_lists_and_compares(runs, serve):
    server = serve(runs)
    answer = state(server)
    assert {r["id"] for r in answer["list"]} == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    assert {r["state"] for r in answer["list"]} == {"finished"}
    assert set(answer["picked"]) == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    one = state(server, "run=dice-0&run=../../etc")
    assert one["picked"] == ["dice-0"]
    assert [r["id"] for r in one["runs"]] == ["dice-0"]
    assert "sections" not in state(server, f"run=dice-0&have={one['version']}")
    append(runs / "dice-0", line("train", 10_000, entropy=0.25))
    fresh = state(server, f"run=dice-0&have={one['version']}")
    entropy = next(c for s in fresh["sections"] for c in s["cards"] if c["id"] == "entropy")[
        "figure"
    ]["data"][0]
    assert (entropy["x"][-1], entropy["y"][-1]) == (10_000, 0.25)
    assert state(server, "")["picked"] == []


def test_running_runs_are_picked_first(runs, serve):
    run = Run.open(runs / "baseline-1")
    run.lock()
    assert state(serve(runs))["picked"] == ["baseline-1"]
    run.unlock()


def test_runs_may_come_and_go(tmp_path, serve, trained):
    server = serve(tmp_path / "later")
    assert state(server)["list"] == []
    shutil.copytree(trained / "dice-0", tmp_path / "later" / "suite" / "dice-0")
    assert [r["id"] for r in state(server)["list"]] == ["suite/dice-0"]
    shutil.rmtree(tmp_path / "later" / "suite")
    assert state(server)["list"] == []


def test_loopback_answers_only_to_a_loopback_name(runs, serve):
    """A page of somebody else's, whose name resolves to 127.0.0.1, must not read the runs."""
    server = serve(runs)
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert ask(server, "/", Host=host)[0] == 200
    for host in ("evil.example:8770", "", "192.0.2.1"):
        assert ask(server, "/api/state", Host=host)[0] == 403


def test_other_addresses_need_the_token(runs, serve):
    server = serve(runs, "0.0.0.0")
    assert len(server.token) >= 32
    assert server.address().endswith(f"/?token={server.token}")
    for path in (
        "/",
        "/api/state?default=1",
        "/page.js",
        "/video?run=dice-0",
        "/?token=",
        "/?token=wrong",
        "/nothing",
    ):
        assert ask(server, path)[0] == 403, path
    assert ask(server, "/", Cookie=f"{server.cookie}=wrong")[0] == 403
    status, headers, _ = ask(server, f"/?token={server.token}")
    assert (status, headers["Location"]) == (303, "./")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert ask(server, "/api/state?default=1", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200
    assert serve(runs, "127.0.0.1").token is None


def test_loopback_names():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.3.2.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.2", "localhost.evil.example", "")))


def test_pages_and_headers(runs, serve):
    server = serve(runs)
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/plotly.js", "text/javascript"),
    ):
        status, headers, body = ask(server, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert len(body) > 500
    for path in ("/static/page.js", "/../pyproject.toml", "/video?run=dice-0", "/api"):
        assert ask(server, path)[0] == 404


def test_videos_can_be_sought(runs, serve):
    (runs / "dice-0" / "videos").mkdir()
    (runs / "dice-0" / "videos" / "a.mp4").write_bytes(bytes(range(100)))
    server = serve(runs)
    video = state(server, "run=dice-0")["runs"][0]["video"]
    status, headers, body = ask(server, "/" + video["src"], Range="bytes=10-19")
    assert (status, body, headers["Content-Range"]) == (
        206,
        bytes(range(10, 20)),
        "bytes 10-19/100",
    )
    assert ask(server, "/" + video["src"])[2] == bytes(range(100))
    assert ask(server, "/" + video["src"], Range="bytes=90-")[2] == bytes(range(90, 100))


def test_a_port_in_use_is_said(runs, serve, call):
    port = serve(runs).server_address[1]
    code, _, err = call("dashboard", runs, "--port", port)
    assert code == 2
    assert f"port {port}" in err
    assert "--port" in err


def test_dashboard_command_serves_and_ends_with_ctrl_c(runs):
    # A test run in the background of a shell ignores Ctrl-C, and so would the child.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from"
        " dicerl.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script, "dashboard", str(runs), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = command.stderr.readline()
        with urllib.request.urlopen(re.search(r"http://\S+", said)[0], timeout=60) as answer:
            assert b"<title>dicerl</title>" in answer.read()
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 0
        assert "Traceback" not in command.stderr.read()
    finally:
        command.kill()
        command.wait()
        command.stderr.close()
