"""Does the dashboard survive the network? Malformed requests by the thousand, a hundred open pages
and connections that dawdle, against the real command on loopback; the result goes to
benchmarks/results/page.json.

    python benchmarks/page.py
    python benchmarks/page.py --requests 1000 --seed 1
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from learn import RESULTS, commit

from dicerl.runtime.machine import hardware

LANES = 8  # requests at a time
SECRET = "what lies beside the folder of runs"
FILES = ("/etc/passwd", "secret.txt", "config.json", "pyproject.toml", "proc/self/environ")
UPWARDS = (
    "..",
    "%2e%2e",
    "%252e%252e",
    "..%2f",
    "..%5c",
    "..\\",
    "....//",
    "%c0%ae%c0%ae",
    "%00..",
    ".%00.",
    "//",
)
METHODS = (
    *("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"),
    *("get", "GET\0", "G" * 5000, "", "PRI", "\x16\x03\x01"),
)
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2", "HTTP/9.9", "HTTP/1.1.1", "HTP", "", "\0")
HEADERS = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 5\r\nContent-Length: 6",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /secret.txt HTTP/1.1\r\nHost: localhost",
    "Host: evil.example",
    "Host: localhost\r\nHost: evil.example",
    "X-Forwarded-Host: evil.example",
    "Origin: http://evil.example\r\nAccess-Control-Request-Method: GET",
    "Range: bytes=-1",
    "Range: bytes=9-1,0-99999999999999999999",
    "Range: bytes=\xb2-",
    "Cookie: dicerl_1=\xff; =; a[]=",
    "Accept-Encoding: \xff",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Expect: 100-continue",
    " folded: header",
    "no colon at all",
    "X: " + "a" * 70_000,
    "\r\n".join(f"X-{i}: 1" for i in range(150)),
    ": empty",
    "\0: \0",
)
QUERIES = (
    "default=1",
    "run=dice-0",
    "run=../../etc&name=passwd",
    "run=%00%ff%zz%",
    "have=" + "9" * 5000,
    "&".join(["run=a"] * 1500),
    "run[]=a&run[b]=c",
    "token=%ff",
    ";" * 500,
    "run=<script>alert(1)</script>",
)
PLACES = ("/", "/api/state", "/video", "/page.js", "/plotly.js", "/nothing", "//", "http://[/", "*")


def request(rng: random.Random) -> bytes:
    """One that no browser sends."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(2000)) + b"\r\n\r\n"
    place = rng.choice(PLACES)
    if kind < 0.5:
        steps = "/".join(rng.choice(UPWARDS) for _ in range(rng.randrange(1, 12)))
        place = f"/{steps}/{rng.choice(FILES)}"
    if rng.random() < 0.4:
        place += "?" + rng.choice(QUERIES)
    method = "GET" if kind < 0.8 else rng.choice(METHODS)
    version = "HTTP/1.1" if kind < 0.8 else rng.choice(VERSIONS)
    headers = [f"Host: {rng.choice(('localhost', 'localhost', '127.0.0.1', '[', 'evil.example'))}"]
    headers += rng.sample(HEADERS, rng.randrange(3))
    text = "\r\n".join([f"{method} {place} {version}", *headers, "", ""])
    whole = bytearray(text.encode("latin-1"))
    for _ in range(rng.choice((0, 0, 1, 4))):  # and bytes changed anywhere
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    return bytes(whole[: rng.randrange(len(whole))] if rng.random() < 0.1 else whole)


def answer(port: int, content: bytes) -> str:
    """The status of the answer to these bytes, or how it ended; what must not be in one is an
    error.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(content)
            sock.shutdown(socket.SHUT_WR)
            found = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    except TimeoutError:
        return "no end"
    except OSError:
        return "connection closed"  # with bytes of ours unread
    for word in (SECRET.encode(), b"root:", b"Access-Control", b"Traceback"):
        if word in found:
            raise SystemExit(f"{word!r} in the answer to {content[:500]!r}")
    heads = re.findall(rb"HTTP/1\.1 ([2-5]\d\d)", found)
    if len(heads) != found.count(b"Content-Security-Policy: default-src 'none'"):
        raise SystemExit(f"an answer without its policy, to {content[:500]!r}")
    if found and not heads:
        raise SystemExit(f"an answer that is no HTTP, to {content[:500]!r}")
    return heads[0].decode() if heads else "closed without an answer"


def ask(port: int) -> float:
    """Seconds until a page's question is answered."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/state?default=1")
    found = connection.getresponse()
    content = json.loads(gzip.decompress(found.read()))
    connection.close()
    if found.status != 200 or not content["sections"]:
        raise SystemExit(f"a page was answered with {found.status}")
    return time.monotonic() - began


def pages(port: int, count: int, rounds: int) -> float:
    """``count`` pages keep their connections and ask again; return the slowest answer's seconds."""
    slowest = 0.0
    opened = [http.client.HTTPConnection("127.0.0.1", port, timeout=120) for _ in range(count)]
    for _ in range(rounds):
        began = time.monotonic()
        for page in opened:
            page.request("GET", "/api/state?default=1")
        for page in opened:
            found = page.getresponse()
            if found.status != 200 or b"sections" not in gzip.decompress(found.read()):
                raise SystemExit(f"an open page was answered with {found.status}")
            slowest = max(slowest, time.monotonic() - began)
    for page in opened:
        page.close()
    return slowest


def dawdling(port: int, count: int) -> tuple[float, int]:
    """``count`` connections that never finish their request: (seconds of an answer meanwhile,
    connections that the server has ended by itself after its time limit).
    """
    slow = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(count)]
    for sock in slow:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: local")
    meanwhile = ask(port)
    end = time.monotonic() + 90
    left = list(slow)
    while left and time.monotonic() < end:
        time.sleep(1)
        left = [sock for sock in left if not ended(sock)]
    for sock in slow:
        sock.close()
    return meanwhile, count - len(left)


def ended(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def state_of(pid: int) -> dict[str, int]:
    """Memory, threads and open files of the server."""
    lines = Path(f"/proc/{pid}/status").read_text()
    return {
        "resident_bytes": 1024 * int(re.search(r"VmRSS:\s+(\d+)", lines)[1]),
        "threads": int(re.search(r"Threads:\s+(\d+)", lines)[1]),
        "open_files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--dawdlers", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "page.json")
    args = parser.parse_args()
    command = str(Path(sys.executable).parent / "dicerl")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "secret.txt").write_text(SECRET)
        runs = Path(folder) / "runs"
        for seed in range(2):
            train = f"train CartPole-v1 --preset debug --frames 2000 --seed {seed} --quiet".split()
            subprocess.run([command, *train, "--run-dir", str(runs / f"dice-{seed}")], check=True)
        server = subprocess.Popen(
            [command, "dashboard", str(runs), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        try:
            port = int(re.search(r":(\d+)/", server.stderr.readline())[1])
            pages(port, args.pages, 1)  # what it keeps for so many threads
            time.sleep(2)
            before, rng = state_of(server.pid), random.Random(args.seed)
            contents = [request(rng) for _ in range(args.requests)]
            began = time.monotonic()
            with ThreadPoolExecutor(LANES) as pool:
                answers = Counter(pool.map(lambda content: answer(port, content), contents))
            seconds = time.monotonic() - began
            slowest = pages(port, args.pages, 3)
            meanwhile, cut_off = dawdling(port, args.dawdlers)
            alone = ask(port)
            time.sleep(2)
            after = state_of(server.pid)
        finally:
            server.terminate()
            said = server.communicate(timeout=30)[1]
    result = {
        "command": f"python benchmarks/page.py --requests {args.requests} --seed {args.seed}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
        "requests": args.requests,
        "seconds": round(seconds, 1),
        "answers": dict(answers.most_common()),
        "pages": args.pages,
        "slowest_page_seconds": round(slowest, 2),
        "dawdlers": args.dawdlers,
        "answer_beside_dawdlers_seconds": round(meanwhile, 3),
        "dawdlers_cut_off": cut_off,
        "answer_afterwards_seconds": round(alone, 3),
        "before": before,
        "after": after,
        "said": said,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if said or "no end" in answers or after["threads"] > before["threads"]:
        raise SystemExit("the dashboard did not survive that unharmed")


if __name__ == "__main__":
    main()
