"""The dashboard: the report's figures, live in the browser while runs train.

A small server from the standard library. The page requests ``api/state`` every few seconds; the
answer holds the list of runs and, if something is new, the picked runs' figures. On any address but
loopback every request needs the token.
"""

from __future__ import annotations

import gzip
import hmac
import http.cookies
import ipaddress
import json
import secrets
import socket
import sys
import threading
import time
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from dicerl.errors import DicerlError

PORT = 8770
PICKED = 40  # runs compared at most
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'"
        " data: blob:; connect-src 'self'; media-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Board:
    """The runs below a directory; after the first read only what is new. One request at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._runs: dict[str, Any] = {}
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Any]:
        """Newest first."""
        from dicerl.report.data import RunData, find_runs

        found = {
            str(path.relative_to(self.root)) if path != self.root else path.resolve().name: path
            for path in reversed(find_runs(self.root))
        }
        self._runs = {
            name: self._runs.get(name) or RunData(path, name) for name, path in found.items()
        }
        return self._runs

    def state(self, wanted: list[str] | None, have: str) -> dict[str, Any]:
        """The list of runs, and the figures of the wanted ones (None: a good default) unless the
        page already has them.
        """
        from dicerl.report.compare import colour
        from dicerl.report.sections import payload

        with self._lock:
            runs = self.runs()
            listed = [{**run.overview(), "colour": colour(run.variant)} for run in runs.values()]
            picked = (
                _good_choice(listed)
                if wanted is None
                else [name for name in runs if name in wanted]
            )[:PICKED]
            chosen = [runs[name] for name in picked]
            # before reading: what comes later counts as new
            version = str(hash((tuple(picked), tuple(run.version() for run in chosen))))
            for run in chosen:
                run.refresh(everything=False)
            answer: dict[str, Any] = {
                "runs_dir": str(self.root),
                "list": listed,
                "picked": picked,
                "version": version,
                "time": time.strftime("%H:%M:%S"),
            }
            if version == have:
                return answer
            content = payload(chosen)
            for described, run in zip(content["runs"], chosen, strict=True):
                video = run.newest_video()
                if video is not None:
                    address = "video?" + urlencode({"run": run.name, "name": video.name})
                    described["video"] = {"name": video.name, "href": address, "src": address}
            return answer | content

    def video(self, name: str) -> Path | None:
        """The newest video of the run ``name``; None if there is no such run, or no video."""
        with self._lock:
            run = self.runs().get(name)
            return run.newest_video() if run else None


def _good_choice(listed: list[dict[str, Any]]) -> list[str]:
    """Runs that are training; else the newest run and the others of its environment."""
    running = [run["id"] for run in listed if run["state"] == "running"]
    return (running or [run["id"] for run in listed if run["env"] == listed[0]["env"]])[:8]


class Server(ThreadingHTTPServer):
    """The dashboard's HTTP server; with a ``token`` it answers only those who have it."""

    daemon_threads = True

    def __init__(self, host: str, port: int, board: Board, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)
        self.host, self.board, self.token = host, board, token
        self.cookie = f"dicerl_{self.server_address[1]}"

    def warm_up(self) -> None:
        """What the first visitor would wait for: imports, and compressing plotly.js."""
        import dicerl.report.sections  # noqa: F401
        from dicerl.report.page import TYPES

        for name in TYPES:
            packed(name)

    def address(self) -> str:
        """The address to open, token included; a wildcard host appears as this machine's name."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
            self.host, self.host
        )
        name = f"[{host}]" if ":" in host else host
        query = f"?token={self.token}" if self.token else ""
        return f"http://{name}:{self.server_address[1]}/{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a failed request, unless the browser only left."""
        if not isinstance(sys.exception(), ConnectionError):  # a browser that left is not an error
            super().handle_error(request, client_address)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is localhost or a loopback address; other names are not looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_server(root: Path, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """A server for the runs below ``root``, bound but not serving yet; port 0 picks a free one, and
    any host but loopback needs a token.
    """
    try:
        return Server(
            host, port, Board(root), None if is_loopback(host) else secrets.token_urlsafe(24)
        )
    except OSError as error:
        hint = (
            "; name another with --port, or 0 for a free one"
            if isinstance(error, PermissionError) or "in use" in str(error)
            else ""
        )
        raise DicerlError(
            f"cannot listen on {host} port {port}: {error.strerror or error}{hint}"
        ) from None


@lru_cache
def packed(name: str) -> bytes:
    """A file of the page, gzipped once; ``name`` is one of ``page.TYPES``."""
    from dicerl.report.page import static

    return gzip.compress(static(name).encode(), 4)


class Handler(BaseHTTPRequestHandler):
    """Answers one request: the page, its files, ``api/state``, a video."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Send what the path names, after a check that the visitor is welcome."""
        from dicerl.report.page import TYPES, linked

        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self._welcome(query):
            return
        if url.path == "/":
            self._send(
                linked("dicerl", "reading the runs ...").encode(), "text/html; charset=utf-8"
            )
        elif url.path[1:] in TYPES:
            self._send(
                packed(url.path[1:]),
                TYPES[url.path[1:]],
                {"Content-Encoding": "gzip", "Cache-Control": "max-age=3600"},
            )
        elif url.path == "/api/state":
            wanted = None if "default" in query else query.get("run", [])
            content = self.server.board.state(wanted, query.get("have", [""])[0])
            self._send(
                gzip.compress(json.dumps(content, allow_nan=False).encode(), 1),
                "application/json",
                {"Content-Encoding": "gzip"},
            )
        elif url.path == "/video":
            self._send_video(self.server.board.video(query.get("run", [""])[0]))
        else:
            self._refuse(404, "no such page")

    def _welcome(self, query: dict[str, list[str]]) -> bool:
        """Loopback: only under a loopback name, so that no foreign page can reach us. Elsewhere:
        only with the token.
        """
        server = self.server
        if server.token is None:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            if not is_loopback(name):
                self._refuse(403, "this dashboard answers on loopback only")
            return is_loopback(name)
        given = query.get("token", [""])[0]
        cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        kept = cookies[server.cookie].value if server.cookie in cookies else ""
        if hmac.compare_digest(given.encode(), server.token.encode()):
            self.send_response(303)  # the token moves from the address into a cookie
            self.send_header("Location", "./")
            self.send_header(
                "Set-Cookie", f"{server.cookie}={server.token}; HttpOnly; SameSite=Strict; Path=/"
            )
            self.send_header("Content-Length", "0")
            self.end_headers()
            return False
        if hmac.compare_digest(kept.encode(), server.token.encode()):
            return True
        self._refuse(
            403, "this dashboard needs its token: open the address that the terminal printed"
        )
        return False

    def _send_video(self, path: Path | None) -> None:
        if path is None:
            return self._refuse(404, "no video")
        data = path.read_bytes()
        start, end, code = 0, len(data) - 1, 200
        unit, _, span = self.headers.get("Range", "").partition("=")
        first, _, last = span.partition("-")
        # range requests: players seek, and Safari insists
        if unit == "bytes" and first.isdigit() and int(first) <= end:
            start, end, code = int(first), min(int(last), end) if last.isdigit() else end, 206
        more = {
            "Accept-Ranges": "bytes",
            **({"Content-Range": f"bytes {start}-{end}/{len(data)}"} if code == 206 else {}),
        }
        self._send(data[start : end + 1], "video/mp4", more, code)

    def _refuse(self, code: int, why: str) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", code=code)

    def _send(
        self, body: bytes, kind: str, more: dict[str, str] | None = None, code: int = 200
    ) -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            **HEADERS,
            **(more or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the terminal shows only the address."""
