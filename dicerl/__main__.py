"""``dicerl``, and ``python -m dicerl``."""

import contextlib
import os
import sys
import threading
import time
from typing import NoReturn

LEAVING = 5.0  # seconds for threads to end after the command


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        from dicerl.cli import main as run  # here: Ctrl-C may come meanwhile

        code = run()
    except KeyboardInterrupt:
        _say("stopped at once")
        code = 130
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            _say(end.code)
    machine = sys.modules.get("dicerl.runtime.machine")
    if machine is not None and machine.leave_at_once:
        _leave(code)
    if _others():
        threading.Thread(target=_end_without, args=(code,), daemon=True).start()
    return code


def _say(line: str) -> None:
    with contextlib.suppress(Exception):  # there may be no stderr
        print(f"dicerl: {line}", file=sys.stderr, flush=True)


def _others() -> list[threading.Thread]:
    """The threads that Python waits for before it ends."""
    return [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]


def _end_without(code: int) -> None:
    """End the process if somebody's thread does not: an environment may have left one."""
    time.sleep(LEAVING)
    if others := _others():
        _say(f"a thread that an environment or a library started does not end: {others[0].name}")
        _leave(code)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":  # not where a config names it as an environment's module
    # `python -m` looks for every module in this folder first. Only what a person names is to be
    # imported from here (envs/trust.py).
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(FileNotFoundError):  # a folder that was removed
        if sys.path[0] == os.getcwd() != home:
            del sys.path[0]
    sys.exit(main())
