"""The dashboard: the report's figures, live in the browser while runs train.

A small server from the standard library. The page requests ``api/state`` every few seconds; the
answer holds the list of runs and, if something is new, the picked runs' figures. On any address but
loopback every request needs the token.
"""

from __future__ import annotations

import contextlib
import gzip
import hmac
import ipaddress
import json
import os
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

from dicerl.errors import ConfigError, DicerlError
from dicerl.records.files import open_regular
from dicerl.report.page import policy

PORT = 8770
PICKED = 40  # runs compared at most
KEPT = 4  # answers, for other pages
FIELDS = 1000  # of a query
CONNECTIONS = 1000  # at a time, at most: a hundred pages, with some each
LARGEST_VIDEO = 1 << 28  # bytes
HEADERS = {
    "Content-Security-Policy": (
        policy("'self'", "'self' ") + "; connect-src 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # no other page may embed or read any of it; no header of CORS says otherwise
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Board:
    """The runs below a directory; after the first read only what is new. One request at a time."""

    def __init__(self, root: Path) -> None:
        self.shown = text_of(root)
        self.root = Path(os.path.abspath(root))  # the current folder may be removed
        self._runs: dict[str, Any] = {}
        self._content: dict[str, dict[str, Any]] = {}  # by version: many pages may show the same
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Any]:
        """Newest first."""
        from dicerl.report.data import RunData, find_runs

        found = {
            text_of(path.relative_to(self.root) if path != self.root else path.resolve().name): path
            for path in reversed(find_runs(self.root, outside=False))
        }
        self._runs = {
            name: self._runs.get(name) or RunData(path, name, self.root)
            for name, path in found.items()
        }
        return self._runs

    def state(self, wanted: list[str] | None, have: str) -> dict[str, Any]:
        """The list of runs, and the figures of the wanted ones (None: a good default) unless the
        page already has them.
        """
        from dicerl.report.sections import listed, payload, shown_colours

        with self._lock:
            runs = self.runs()
            entries = [listed(run) for run in runs.values()]
            picked = (
                _good_choice(entries)
                if wanted is None
                else [name for name in runs if name in wanted]
            )[:PICKED]
            chosen = [runs[name] for name in picked]
            shown = shown_colours(chosen)
            for line in entries:
                line["colour"] = shown.get(line["id"], line["colour"])
            # before reading: what comes later counts as new
            version = str(hash((tuple(picked), tuple(run.version() for run in chosen))))
            for run in chosen:
                run.refresh(everything=False)
            answer: dict[str, Any] = {
                "runs_dir": self.shown,
                "list": entries,
                "picked": picked,
                "version": version,
                "time": time.strftime("%H:%M:%S"),
            }
            if version == have:
                return answer
            if version in self._content:
                return answer | self._content[version]
            content = payload(chosen)
            for described, run in zip(content["runs"], chosen, strict=True):
                video = run.newest_video()
                if video is not None:
                    film = text_of(video.name)
                    address = "video?" + urlencode({"run": run.name, "name": film})
                    described["video"] = {"name": film, "href": address, "src": address}
            self._content = {**dict(list(self._content.items())[1 - KEPT :]), version: content}
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
    request_queue_size = 128  # pages that ask at once

    def __init__(self, host: str, port: int, board: Board, token: str | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Handler)
        self.host, self.board, self.token = host, board, token
        self.cookie = f"dicerl_{self.server_address[1]}"
        self._places = threading.BoundedSemaphore(most_connections())
        # connections whose request is not read yet, and until when it must be
        self.reading: dict[socket.socket, float] = {}

    def get_request(self) -> Any:
        """The next connection; where the system has none to give, a pause."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or not at all where there are too many."""
        if not self._places.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread left
            self._places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As its parent; then there is room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def service_actions(self) -> None:
        """Twice a second: end connections whose request takes too long to come."""
        now = time.monotonic()
        for connection, until in list(self.reading.items()):
            if now > until:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

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


def most_connections() -> int:
    """How many connections are answered at a time: for half of the files that may be open."""
    try:
        import resource
    except ImportError:  # Windows
        return CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft < 0 else max(4, min(CONNECTIONS, soft // 2))


def text_of(path: Path | str) -> str:
    """The name of a file as text that a browser can send back: a name may hold any bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is localhost or a loopback address; other names are not looked up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(hosts: list[str]) -> str:
    """The name in a request's Host headers, of which there must be one; empty if it is none."""
    try:
        return urlsplit(f"//{hosts[0]}").hostname or "" if len(hosts) == 1 else ""
    except ValueError:
        return ""


def cookie(header: str, name: str) -> str:
    """The value of a cookie; empty if there is none."""
    for pair in reversed(header.split(";")):
        found, _, value = pair.strip().partition("=")
        if found == name:
            return value
    return ""


def _is_place(digits: str) -> bool:
    """Whether this is a number of bytes in a Range header."""
    return digits.isascii() and digits.isdigit() and len(digits) < 16


def make_server(root: Path, host: str = "127.0.0.1", port: int = PORT) -> Server:
    """A server for the runs below ``root``, bound but not serving yet; port 0 picks a free one, and
    any host but loopback needs a token.
    """
    if not host:
        raise ConfigError(
            "host", host, "it must be an address to listen on; 0.0.0.0 is all of them"
        )
    try:
        return Server(
            host, port, Board(root), None if is_loopback(host) else secrets.token_urlsafe(24)
        )
    except (TypeError, UnicodeError) as error:  # no encoding for names of machines has it
        raise ConfigError("host", host, f"it must be an address to listen on ({error})") from None
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
    timeout = 60  # seconds for each read and write, and for all of a request to come

    def handle_one_request(self) -> None:
        """Read a request and answer it; one that drips in is cut off as one that never ends."""
        self.server.reading[self.connection] = time.monotonic() + self.timeout
        try:
            super().handle_one_request()
        finally:
            self._was_read()

    def _was_read(self) -> None:
        self.server.reading.pop(self.connection, None)

    def do_GET(self) -> None:
        """Send what the path names, after a check that the visitor is welcome."""
        from dicerl.report.page import TYPES, linked

        self._was_read()
        try:
            url = urlsplit(self.path)
            query = parse_qs(url.query, max_num_fields=FIELDS)
        except ValueError:
            return self._refuse(400, "no such address")
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
            try:
                content = self.server.board.state(wanted, query.get("have", [""])[0])
            except OSError as error:
                return self._refuse(500, f"the runs cannot be read: {error.strerror}")
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
            known = is_loopback(host_name(self.headers.get_all("Host", [])))
            if not known:
                self._refuse(403, "this dashboard answers on loopback only")
            return known
        given = query.get("token", [""])[0]
        kept = cookie(self.headers.get("Cookie", ""), server.cookie)
        if hmac.compare_digest(given.encode(), server.token.encode()):
            # the token moves from the address into a cookie
            moved = f"{server.cookie}={server.token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(b"", "text/plain", {"Location": "./", "Set-Cookie": moved}, 303)
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
        try:
            with open_regular(path, self.server.board.root) as file:
                data = file.read(LARGEST_VIDEO)
        except OSError:  # removed or replaced meanwhile
            return self._refuse(404, "no video")
        start, end, code = 0, len(data) - 1, 200
        unit, _, span = self.headers.get("Range", "").partition("=")
        first, _, last = span.partition("-")
        # range requests: players seek, and Safari insists
        if unit == "bytes" and _is_place(first) and int(first) <= end:
            start, code = int(first), 206
            end = min(max(int(last), start), end) if _is_place(last) else end
        more = {
            "Accept-Ranges": "bytes",
            **({"Content-Range": f"bytes {start}-{end}/{len(data)}"} if code == 206 else {}),
        }
        self._send(data[start : end + 1], "video/mp4", more, code)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no GET, or none at all; the standard page would lack our
        headers.
        """
        self.close_connection = True
        self._refuse(code, "this dashboard answers GET requests only")

    def version_string(self) -> str:
        """What the answers call the server: not which Python it is."""
        return "dicerl"

    def _refuse(self, code: int, why: str) -> None:
        self._send(f"{why}\n".encode(), "text/plain; charset=utf-8", code=code)

    def _send(
        self, body: bytes, kind: str, more: dict[str, str] | None = None, code: int = 200
    ) -> None:
        if self.request_version == "HTTP/0.9":  # or what cannot be read: nobody is without headers
            self.request_version = "HTTP/1.0"
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
