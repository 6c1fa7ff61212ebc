"""report/dashboard.py: its server, over HTTP. In a browser it is in test_browser.py."""

import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from dicerl.records.run import Run
from dicerl.report import dashboard
from dicerl.report.dashboard import Handler, is_loopback, make_server
from faults.life import until
from runs import append, line, one_line


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


def test_a_name_of_any_bytes(runs, serve, trained):
    """As text that a page can send back: the run is shown, its video too, and the others."""
    odd = runs / os.fsdecode(b"odd\xff")
    shutil.copytree(trained / "dice-0", odd)
    (odd / "videos").mkdir()
    (odd / "videos" / os.fsdecode(b"\xfe.mp4")).write_bytes(b"film")
    server = serve(runs)
    listed = state(server)["list"]
    assert len(listed) == 5
    (name,) = {run["id"] for run in listed} - set(os.listdir(trained))
    assert name == "odd\\xff"
    one = state(server, urllib.parse.urlencode({"run": name}))
    assert one["picked"] == [name]
    assert ask(server, "/" + one["runs"][0]["video"]["src"])[2] == b"film"


def test_loopback_answers_only_to_a_loopback_name(runs, serve):
    """A page of somebody else's, whose name resolves to 127.0.0.1, must not read the runs."""
    server = serve(runs)
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert ask(server, "/", Host=host)[0] == 200
    for host in ("evil.example:8770", "", "192.0.2.1"):
        assert ask(server, "/api/state", Host=host)[0] == 403


def raw(server, request):
    """All that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=60) as sock:
        sock.sendall(request)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def get(path="/", *headers, host="localhost"):
    return "\r\n".join(
        [f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", ""]
    ).encode("latin-1")


MALFORMED = {
    "nothing": (b"", b""),
    "garbage": (b"\x00\xff\r\n\r\n", b"400"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    "no version": (b"GET /\r\n\r\n", b"403"),
    "a version of the future": (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"505"),
    "another method": (get().replace(b"GET", b"POST"), b"501"),
    "HEAD": (get().replace(b"GET", b"HEAD"), b"501"),
    "a long address": (get("/" + "a" * 70_000), b"414"),
    "many headers": (get("/", *[f"X-{i}: 1" for i in range(200)]), b"431"),
    "a broken address": (get("http://[/"), b"400"),
    "a broken address of IPv6": (get("//[::1"), b"404"),
    "many fields": (get("/api/state?" + "&".join(["run=a"] * 2000)), b"400"),
    "a host that is none": (get(host="["), b"403"),
    "a host of a port only": (get(host=":80"), b"403"),
    "two hosts": (get("/", "Host: localhost"), b"403"),
    "no host": (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", b"403"),
    "a cookie that is none": (get("/", "Cookie: a[]=1; \xff; =;;"), b"200"),
    "a range of no digits": (get("/video?run=dice-0", "Range: bytes=\xb2-"), b"200"),
    "a range of too many": (get("/video?run=dice-0", f"Range: bytes={'1' * 5000}-"), b"200"),
    "a range that ends before it begins": (get("/video?run=dice-0", "Range: bytes=5-1"), b"206"),
    "percent signs": (get("/api/state?run=%00%ff%zz%"), b"200"),
    "a path upwards": (get("/../../etc/passwd"), b"404"),
    "a path upwards, encoded": (get("/%2e%2e/%2e%2e/etc/passwd"), b"404"),
    "a name with a path": (get("/video?run=../../etc&name=passwd"), b"404"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_refused(runs, serve, capfd, case):
    (runs / "dice-0" / "videos").mkdir()
    (runs / "dice-0" / "videos" / "a.mp4").write_bytes(bytes(range(100)))
    server = serve(runs)
    request, code = MALFORMED[case]
    answer = raw(server, request)
    if code:
        assert answer.startswith(b"HTTP/1.1 " + code), answer[:200]
        assert b"Content-Security-Policy: default-src 'none'" in answer
        assert b"Access-Control" not in answer
    assert ask(server, "/")[0] == 200
    assert capfd.readouterr().err == ""  # no traceback on the terminal


def test_a_malformed_request_has_no_token(runs, serve, capfd):
    server = serve(runs, "0.0.0.0")
    for headers in ("Cookie: a[]=1", "Cookie: \xff\xfe", f"Cookie: {server.cookie}=\xe9"):
        assert raw(server, get("/", headers)).startswith(b"HTTP/1.1 403")
    for query in ("?token=%ff", "?token=%C3%A9", "?token=" + "a" * 10_000):
        assert raw(server, get("/" + query)).startswith(b"HTTP/1.1 403"), query
    assert capfd.readouterr().err == ""


def test_a_cookie_of_backslashes_costs_nothing(runs, serve):
    """Python's own parser takes a time that grows with their square."""
    server = serve(runs, "0.0.0.0")
    began = time.process_time()
    for _ in range(3):
        assert raw(server, get("/", f'Cookie: x="{chr(92) * 60_000}"')).startswith(b"HTTP/1.1 403")
    assert time.process_time() - began < 2  # seconds; a single one took 4


@pytest.mark.parametrize("given", ["", "x=1; {}", "{}; x=1", 'x="a\\"; {}'])
def test_the_token_among_other_cookies(runs, serve, given):
    server = serve(runs, "0.0.0.0")
    kept = given.format(f"{server.cookie}={server.token}")
    assert ask(server, "/", Cookie=kept)[0] == (200 if given else 403)


def test_a_request_that_drips_in_is_cut_off(runs, serve, monkeypatch):
    monkeypatch.setattr(Handler, "timeout", 2)
    with socket.create_connection(("127.0.0.1", serve(runs).server_address[1])) as drips:
        drips.settimeout(0.2)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                drips.sendall(b"G")
                if not drips.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() < end


def test_more_connections_than_places(runs, serve, monkeypatch, capfd):
    """What is too much is closed; then there is room again."""
    monkeypatch.setattr(dashboard, "CONNECTIONS", 8)
    server = serve(runs)
    address = "127.0.0.1", server.server_address[1]
    silent = [socket.create_connection(address) for _ in range(12)]
    assert [one.recv(1) for one in silent[8:]] == [b""] * 4
    for one in silent:
        one.close()
    until(lambda: raw(server, get("/")).startswith(b"HTTP/1.1 200"), "there is room again", 30)
    assert capfd.readouterr().err == ""


def test_no_thread_is_left(runs, serve, monkeypatch, capfd):
    server = serve(runs)

    def start(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        assert raw(server, get("/")) == b""
    assert raw(server, get("/")).startswith(b"HTTP/1.1 200")
    assert capfd.readouterr().err == ""


def test_the_current_folder_may_be_removed(runs, serve, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    server = serve(os.path.relpath(runs))
    here.rmdir()
    assert [run["id"] for run in state(server)["list"]]
    assert state(server)["runs_dir"] == os.path.relpath(runs, here)


def test_runs_that_cannot_be_read_now_are_an_answer(runs, serve, monkeypatch, capfd):
    server = serve(runs)

    def gone(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(server.board, "runs", gone)
    assert ask(server, "/api/state")[0] == 500
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["", "\u00e4" * 64, "\udcff"])
def test_an_address_that_is_none(runs, call, host):
    one_line(
        call("dashboard", runs, "--host", host), "host is ", "it must be an address to listen on"
    )


def test_a_hundred_pages(runs, serve):
    """Each keeps its connection and asks again."""
    server = serve(runs)
    pages = [
        http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
        for _ in range(100)
    ]
    for _ in range(2):
        for page in pages:
            page.request("GET", "/api/state?default=1")
        for page in pages:
            answer = page.getresponse()
            assert answer.status == 200
            assert b"sections" in gzip.decompress(answer.read())
    for page in pages:
        page.close()


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
        assert "default-src 'none'; script-src 'self';" in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in headers if name.startswith("Access-Control")]
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


def test_links_out_of_the_folder_are_refused(runs, serve, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"kind": "event", "event": "secret", "env": {"id": "secret"}}\n')
    (runs / "dice-0" / "videos").mkdir()
    (runs / "dice-0" / "videos" / "x.mp4").symlink_to(secret)
    for name in ("config.json", "metrics.jsonl"):
        (runs / "dice-1" / name).unlink()
        (runs / "dice-1" / name).symlink_to(secret)
    shutil.copytree(runs / "baseline-0", tmp_path / "elsewhere")
    append(tmp_path / "elsewhere", line("event", 1, event="secret"))
    (runs / "link").symlink_to(tmp_path / "elsewhere")
    (runs / "links").symlink_to(tmp_path)
    server = serve(runs)
    answer = state(server, "run=dice-0&run=dice-1&run=link")
    assert "secret" not in json.dumps(answer)
    problems = {run["id"]: run["problem"] for run in answer["list"]}
    assert "link out of its folder" in problems["dice-1"]
    assert set(problems) == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    assert problems["baseline-0"] == ""
    assert "video" not in answer["runs"][0]
    assert ask(server, "/video?run=dice-0&name=x.mp4")[0] == 404


def test_a_folder_that_is_a_link_shows_its_runs(runs, serve, tmp_path):
    (tmp_path / "link").symlink_to(runs)
    (runs / "newest").symlink_to("dice-0")
    answer = state(serve(tmp_path / "link"), "run=dice-0")
    assert {run["id"] for run in answer["list"]} == {"dice-0", "dice-1", "baseline-0", "baseline-1"}
    assert {run["problem"] for run in answer["list"]} == {""}


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
