"""``dicerl dashboard [RUNS_DIR]``: runs in the browser while they train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dicerl.errors import ConfigError, DicerlError, printable
from dicerl.report.dashboard import PORT, make_server


def add_parser(commands: Any) -> None:
    """Add ``dashboard`` to argparse's subparsers, with host and port."""
    parser = commands.add_parser(
        "dashboard",
        help="watch runs in the browser",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "A live page of the runs below a directory: state, progress, score, and the report's"
            " figures of the runs you pick."
        ),
        epilog=(
            "examples:\n  dicerl dashboard runs\n  dicerl dashboard experiments/ --port 9000\n "
            " dicerl dashboard --host 0.0.0.0      for other machines; prints an address with a"
            " token"
        ),
    )
    parser.add_argument(
        "runs_dir",
        nargs="?",
        default="runs",
        metavar="RUNS_DIR",
        help="where the runs are (default: runs)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1; any other but loopback needs the token)",
    )
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"default: {PORT}; 0 takes a free one"
    )


def run(args: argparse.Namespace) -> int:
    """Print the address and serve until Ctrl-C; return 0."""
    if not 0 <= args.port <= 65535:
        raise ConfigError("port", args.port, "it must lie between 0 and 65535")
    if not Path(args.runs_dir).is_dir():
        what = "is a file" if Path(args.runs_dir).exists() else "does not exist"
        raise DicerlError(
            f"RUNS_DIR {args.runs_dir} {what}; it must be a directory with runs in it"
            " (dicerl train writes to runs)"
        )
    server = make_server(Path(args.runs_dir), args.host, args.port)
    server.warm_up()
    print(
        printable(f"dashboard of {args.runs_dir}: {server.address()}  (Ctrl-C ends it)"),
        file=sys.stderr,
        flush=True,
    )
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0
