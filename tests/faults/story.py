"""A run under the campaign: one directory, trained in as many lives (processes) as its faults take.

After each fault it must go on by itself, or end with a reason and a known exit code and go on with
``resume``. Progress is what metrics.jsonl shows, seen from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dicerl.records import files
from faults import place
from faults.life import Life, arguments, kill, named, processes

MOODY = Path(__file__).with_name("moody.py")
TAIL = 1 << 18  # bytes at the end of metrics.jsonl that are looked at
# Bounds are for two free cores; on a busy machine they grow by this factor.
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "1"))
PROGRESS = 90.0  # seconds until a run that was started must train
ENDS = 30.0  # seconds for a run to end that was asked to
# seconds for a process, or a file in shared memory, to vanish after its run
LINGERS = 12.0 * PATIENCE
RAY_LINGERS = 90.0  # two agents of Ray's own end a minute after it was killed
STUCK = 5.0  # runtime.stuck_seconds
# what every run of the campaign has in common
SETTINGS = {
    "frames": 10**9,
    "runtime__stuck_seconds": STUCK,
    "runtime__max_restarts": 1000,
    "checkpoint__every": 500,
    "evaluation__every": 1_500,
    "evaluation__episodes": 2,
    "evaluation__max_steps": 30,
    "env__reward_shape": "none",  # so that a huge reward makes a loss that is not finite
}
RAY = {"ray__cpus_per_actor": 0.5, "runtime__num_actors": 1}
STOPPED = {128 + n for n in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}


class Broken(AssertionError):
    """A promise that was not kept."""


class Interrupted(Exception):
    """The campaign is, by Ctrl-C."""


STOPPING = threading.Event()  # it was interrupted


class Skipped(Exception):
    """A fault that cannot be made here."""


def lines_of(path: Path, start: int = 0) -> list[dict[str, Any]]:
    """The whole lines at the end of a .jsonl file, from byte ``start`` if it is as long."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, start if start <= size else 0, size - TAIL))
            content = file.read()
    except OSError:
        return []
    found = []
    for raw in content.splitlines():
        with contextlib.suppress(ValueError):
            line = files.parse_json(raw)
            if isinstance(line, dict) and "agent_steps" in line:
                found.append(line)
    return found


def started(pid: int) -> str:
    """When a process was started; "" if it is gone or a zombie. Numbers are used again."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def living() -> dict[int, tuple[int, bytes, bytes]]:
    """{pid: (parent, command line, environment)} of all living processes."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and started(int(path.name)):
            with contextlib.suppress(OSError, IndexError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                command = (path / "cmdline").read_bytes()
                found[int(path.name)] = (parent, command, (path / "environ").read_bytes())
    return found


def described(pid: int) -> str:
    """A process for a report: what it calls itself, its state (proc_pid_stat(5); a process without
    memory is one that the kernel is taking down) and the kernel function that it waits in.
    """
    words = []
    for name in ("comm", "cmdline", "status", "wchan"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
        except OSError as error:
            text = f"no {name}: {error.strerror}"
        if name == "status":
            kept = ("State", "VmRSS", "SigPnd", "ShdPnd")
            text = ", ".join(x for x in text.splitlines() if x.startswith(kept)).replace("\t", " ")
        words.append(text.replace("\0", " ").strip()[:160])
    return "; ".join(words)


@dataclass
class Story:
    """A run in ``directory``, under a ``runtime``; ``disk`` says whether it has a disk of its
    own.
    """

    directory: Path
    runtime: str
    rng: random.Random
    disk: bool = False
    life: Life = field(init=False)
    lives: int = 0
    family: dict[int, str] = field(default_factory=dict)  # every process seen, and its start
    offset: float = 0.0  # of the clock in the present life
    mark: int = 0  # bytes of the metrics before the last fault
    struck: float = 0.0  # when that was, by the clock of that life

    @property
    def run(self) -> Path:
        return self.directory / "disk" / "run"

    @property
    def metrics(self) -> Path:
        return self.run / "metrics.jsonl"

    # --- lives

    def begin(self) -> None:
        """Train until it has a checkpoint."""
        more = SETTINGS | (RAY if self.runtime == "ray" else {})
        settings = {"run": self.run, **more}
        self.life = self.launch(*arguments(self.runtime, "moody:Moody-v0", **settings))
        self.wait_trained()

    def launch(self, *args: Any, prefix: list[str] | None = None, run: Path | None = None) -> Life:
        """Start a command as the next life."""
        self.lives += 1
        self.offset = 0.0
        folder = self.directory / f"life-{self.lives}"
        obeying = place.obeying_modes()
        temporary = self.directory / "tmp"
        temporary.mkdir(exist_ok=True)
        folder.mkdir()
        shutil.copy(MOODY, folder)  # where Life has modules found
        variables = {"DICERL_TRUST": "moody", "TMPDIR": str(temporary)}
        life = Life.start(
            folder,
            *args,
            run=run or self.run,
            prefix=[*(obeying or []), *(prefix or [])],
            variables=variables,
        )
        life.saw["since"] = time.time()
        return life

    def resume(self, *args: Any, prefix: list[str] | None = None, run: Path | None = None) -> Life:
        """Start ``dicerl resume``."""
        return self.launch("resume", run or self.run, *args, prefix=prefix, run=run)

    def now(self) -> float:
        """The time by the clock of the present life."""
        return time.time() + self.offset

    def lines(self, run: Path | None = None, start: int = 0) -> list[dict[str, Any]]:
        """The last lines of the metrics."""
        return lines_of((run or self.run) / "metrics.jsonl", start)

    def lines_since(self) -> list[dict[str, Any]]:
        """Those since the last fault: by their time, since a run that goes back cuts the file; by
        their place where the clock jumped.
        """
        if self.offset:
            if self.metrics.stat().st_size < self.mark:  # it went back
                self.mark = 0
            return self.lines(start=self.mark)
        return [line for line in self.lines() if line["time"] >= self.struck]

    def steps(self) -> int:
        """Agent steps at the end of the metrics."""
        return max((line["agent_steps"] for line in self.lines()), default=0)

    def wait(self, done: Callable[[], Any], what: str, seconds: float = PROGRESS) -> Any:
        """Wait until ``done()``; remember the processes that are seen meanwhile."""
        end, looked = time.monotonic() + seconds * PATIENCE, 0.0
        while not (found := done()):
            if STOPPING.is_set():
                raise Interrupted
            if time.monotonic() > end:
                raise Broken(f"not within {seconds * PATIENCE:.0f} s: {what}")
            if time.monotonic() - looked > 1.0:
                self.remember()
                looked = time.monotonic()
            time.sleep(0.05)
        return found

    def remember(self) -> None:
        """Note the processes that belong to this story: of its lives' sessions, their descendants,
        and those that have its folder among their variables.
        """
        everything, mark = living(), str(self.directory).encode()
        own = {pid for pid in self.family if started(pid) == self.family[pid]}
        own |= {pid for pid, (_, _, around) in everything.items() if mark in around}
        if hasattr(self, "life"):
            own |= processes(self.life.process.pid).keys()
        own.discard(os.getpid())
        while more := {p for p, (parent, _, _) in everything.items() if parent in own} - own:
            own |= more
        self.family |= {pid: started(pid) for pid in own if started(pid)}

    def trained_since(self, life: Life, kind: str = "train") -> dict[str, Any] | None:
        """The first line of this kind that a life wrote."""
        for line in reversed(found := self.lines(life.run)):
            if line.get("event") in ("start", "resume"):
                break
        else:
            return None
        if line["time"] < life.saw["since"]:
            return None
        later = found[found.index(line) :]
        return next((x for x in later if x["kind"] == kind), None)

    def wait_trained(self, life: Life | None = None) -> dict[str, Any]:
        """Wait until a life trains; it must not end before."""
        life = life or self.life

        def trained() -> dict[str, Any] | None:
            if life.process.poll() is not None:
                raise Broken(f"it ended with {life.process.returncode}: {life.err[-2000:]}")
            return self.trained_since(life)

        line: dict[str, Any] = self.wait(trained, "a new life trains")
        return line

    # --- who is who

    def role(self, name: str) -> int:
        """The process of a role: supervisor, actor, learner, evaluator or fork server."""
        if name == "supervisor" or self.runtime == "serial":
            return self.life.process.pid
        pid: int = self.wait(lambda: self._find(name), f"there is a process for the {name}", 60.0)
        return pid

    def _find(self, name: str) -> int | None:
        known = {
            int(path.name.split("-")[1]): path.read_text()
            for path in self.life.directory.glob("role-*")
        }
        if self.life.process.poll() is not None:
            raise Broken(f"it ended with {self.life.process.returncode}: {self.life.err[-2000:]}")
        if name in ("learner", "fork server"):  # others are known by their environments
            self.remember()
            alive = {p: c for p, (_, c, _) in living().items() if p in self.family}
            if self.runtime == "process":
                workers = [p for p in alive if named(p) == f"dicerl {name}"[:15]]
            else:
                workers = [p for p, c in alive.items() if b"ray::Child" in c and p not in known]
            # the oldest: an evaluator that starts is not known yet
            workers.sort(key=lambda pid: int(started(pid) or 0))
            return workers[0] if workers and known else None
        return next((p for p, role in known.items() if role == name and started(p)), None)

    # --- the end of a life

    def stop(self) -> None:
        """A clean stop of the present life."""
        self.life.process.send_signal(signal.SIGTERM)
        self.ended(self.life, ENDS)
        if self.life.code != 143:
            raise Broken(f"SIGTERM ended it with {self.life.code}: {self.life.err[-2000:]}")

    def ended(self, life: Life, seconds: float) -> None:
        """Wait for the end of a life, then for its processes'."""
        try:
            self.wait(lambda: life.process.poll() is not None, "the run ends", seconds)
            life.code = life.process.returncode
            self.check_no_orphan(life)
        finally:
            kill(life.process)

    def check_no_orphan(self, life: Life) -> None:
        """No process of this story is left, apart from those of the present life."""

        def left() -> dict[int, str]:
            self.remember()
            return {pid: since for pid, since in self.family.items() if started(pid) == since}

        end = time.monotonic() + (RAY_LINGERS if self.runtime == "ray" else LINGERS)
        while (found := left()) and time.monotonic() < end:
            time.sleep(0.2)
        if found and life is self.life:
            words = {pid: described(pid) for pid in found}
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise Broken(f"processes outlived the run: {words}")

    def check_end(self, life: Life, *, killed_by: int = 0) -> str:
        """A life ended as the documents say; return its last line."""
        err = life.err
        lines = [line for line in err.splitlines() if not line.startswith("noise ")] or [""]
        if "Traceback" in err:
            raise Broken(f"a traceback, exit code {life.code}: {err[-3000:]}")
        if life.code == 2:
            if not lines[-1].startswith("dicerl: "):
                raise Broken(f"exit code 2 without a reason: {err[-2000:]}")
        elif life.code in STOPPED:
            if "stopped at once" not in lines[-1] and "to continue: " not in lines[-1]:
                raise Broken(f"exit code {life.code} without how to go on: {err[-2000:]}")
        elif not (killed_by and life.code == -killed_by):
            raise Broken(f"exit code {life.code}, which no document names: {err[-2000:]}")
        return lines[-1]

    # --- the end of the story

    def finish(self) -> None:
        """Go on to the end of the run: a few hundred steps more, then everything must fit."""
        if self.life.code is None:
            self.stop()
        last = self.resume("--frames", self.steps() + 400, "--json")
        self.life = last
        self.ended(last, PROGRESS)
        if last.code != 0:
            raise Broken(f"the last life ended with {last.code}: {last.err[-2000:]}")
        if not json.loads(last.out[last.out.index("{") :])["complete"]:
            raise Broken(f"the run is not complete: {last.out}")

    def clean_up(self) -> None:
        """End what still lives, whatever happened."""
        self.remember()
        for pid, since in self.family.items():
            if started(pid) == since:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if hasattr(self, "life"):
            kill(self.life.process)
