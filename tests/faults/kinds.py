"""The kinds of faults: what is done to a run that trains, and what may follow.

Each is a function of a Story that strikes and returns a ``Strike``: how to tell that the run goes
on. ``campaign.py`` then waits for that, or for an end with a reason, and resumes.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dicerl.records import checkpoint
from faults import place
from faults.life import Life, processes
from faults.story import STUCK, Broken, Skipped, Story, living

ALL, PARALLEL = ("serial", "process", "ray"), ("process", "ray")
STARTING = 120.0  # seconds that learners and evaluators have at least (runtime/children.py)


@dataclass
class Strike:
    """A fault that was made."""

    detail: str
    awaits: tuple[str, ...] = ()  # parts of the names of events; one of them must follow
    over: float = 0.0  # by the clock of the run: only training after it shows that the run goes on
    beyond: int = 0  # the same in agent steps, where the clock cannot tell
    calm: str = ""  # a field of the train lines that must have stopped growing
    bound: float = 60.0  # seconds for the run to go on or to end
    killed_by: int = 0  # the signal that may have ended the supervisor
    goes_on: bool = False  # it may not end the run
    ends: bool = False  # it must
    undo: Callable[[], None] = lambda: None  # before a resume
    # of faults that strike while no life trains: it was seen to do right, in so many seconds
    outcome: tuple[str, float] | None = None


@dataclass
class Kind:
    """A kind of fault, the runtimes it is for, and how often it is drawn."""

    name: str
    strike: Callable[[Story], Strike]
    runtimes: tuple[str, ...]
    weight: float


KINDS: list[Kind] = []


def kind(name: str, runtimes: tuple[str, ...] = ALL, weight: float = 1.0) -> Any:
    """Make a function a kind of fault."""

    def register(strike: Callable[[Story], Strike]) -> Callable[[Story], Strike]:
        KINDS.append(Kind(name, strike, runtimes, weight))
        return strike

    return register


# --- signals to one process

HEALED = {
    "actor": ("actor_replaced",),
    "evaluator": ("evaluator_died",),
    "learner": ("learner", "rolled_back", "healed"),
}


def _kill(role: str) -> Callable[[Story], Strike]:
    def strike(story: Story) -> Strike:
        os.kill(story.role(role), signal.SIGKILL)
        if role == "supervisor":
            return Strike(role, killed_by=signal.SIGKILL, ends=True)
        return Strike(role, HEALED[role], goes_on=role != "learner")

    return strike


def _pause(role: str) -> Callable[[Story], Strike]:
    """Stopped for less time than counts as stuck."""

    def strike(story: Story) -> Strike:
        pid, seconds = story.role(role), story.rng.uniform(0.05, 0.6 * STUCK)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return Strike(f"{role} for {seconds:.1f} s", over=story.now(), goes_on=True)

    return strike


def _freeze(role: str, patience: float) -> Callable[[Story], Strike]:
    """Stopped for ever, as in a driver or on a dead network disk."""

    def strike(story: Story) -> Strike:
        if role == "evaluator":
            story.wait(lambda: _evaluates(story), "an evaluation", 60)
        pid = story.role(role)
        os.kill(pid, signal.SIGSTOP)
        bound = patience + 60.0
        # an evaluator that owes nothing is missed when it is next asked
        return Strike(role, HEALED[role], bound=bound, goes_on=role != "learner")

    return strike


def _evaluates(story: Story) -> bool:
    return any(line["kind"] == "evaluation" for line in story.lines())


for _role in ("supervisor", "actor", "learner", "evaluator"):
    _runtimes = ALL if _role == "supervisor" else PARALLEL
    kind(f"{_role} killed", _runtimes, 2.0)(_kill(_role))
    kind(f"{_role} paused", _runtimes, 0.6)(_pause(_role))
kind("actor frozen", PARALLEL)(_freeze("actor", STUCK))
# these two take STARTING seconds each
kind("learner frozen", PARALLEL, 0.12)(_freeze("learner", STARTING))
kind("evaluator frozen", PARALLEL, 0.12)(_freeze("evaluator", STARTING))

# without those of other kinds: kill, stop, Ctrl-C
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHERS = tuple(
    set(signal.Signals)
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)


@kind("any signal", ALL, 2.0)
def any_signal(story: Story) -> Strike:
    """Of all there are, real-time ones among them, to any process."""
    rng = story.rng
    role = rng.choice(["supervisor", "actor", "learner", "evaluator"])
    number = rng.choice([*sorted(OTHERS), *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)])
    pid = story.role(role)
    ignored = int(_status(pid, "SigIgn"), 16) >> (number - 1) & 1
    os.kill(pid, number)
    harmless = bool(ignored) or number in HARMLESS
    if pid == story.life.process.pid:
        if number in STOPPING:
            return Strike(f"{number} to the supervisor", ends=True, bound=40.0)
        return Strike(f"{number} to the supervisor", killed_by=number, over=story.now())
    return Strike(
        f"{number} to the {role}",
        () if harmless else HEALED[role],
        over=story.now(),
        # Ray's workers handle some of them in ways of their own
        goes_on=role != "learner" and story.runtime != "ray",
    )


def _status(pid: int, field: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return text.split(f"{field}:")[1].split()[0]


# --- signals to all of them


@kind("Ctrl-C")
def interrupt(story: Story) -> Strike:
    number = story.rng.choice(STOPPING)
    os.killpg(story.life.process.pid, number)
    return Strike(f"{number} to all", ends=True, bound=40.0)


@kind("Ctrl-C twice")
def interrupt_twice(story: Story) -> Strike:
    pause = story.rng.uniform(0.0, 1.0)
    os.killpg(story.life.process.pid, signal.SIGINT)
    time.sleep(pause)
    if story.life.process.poll() is None:
        os.killpg(story.life.process.pid, signal.SIGINT)
    # the second may come when the run is over and Python ends: 130 for a shell, either way
    return Strike(f"{pause:.2f} s apart", ends=True, bound=40.0, killed_by=signal.SIGINT)


@kind("suspended")
def suspend(story: Story) -> Strike:
    """All of it, for longer than a child may be silent."""
    story.remember()
    own = [pid for pid in story.family if pid in processes(story.life.process.pid)]
    seconds = story.rng.uniform(0.2, 1.6) * STUCK
    for pid in own:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in reversed(own):
        os.kill(pid, signal.SIGCONT)
    return Strike(f"{seconds:.1f} s", over=story.now(), goes_on=True)


# --- disk


@kind("disk full")
def disk_full(story: Story) -> Strike:
    """To the last byte; without a disk of its own, files cannot grow any more."""
    if story.disk:
        ballast = place.fill(story.run.parent)
        return Strike("no space", ends=True, undo=lambda: ballast.unlink())
    size = story.metrics.stat().st_size
    for pid in processes(story.life.process.pid):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
    return Strike("file size", ends=True)


@kind("directory read-only")
def read_only(story: Story) -> Strike:
    if place.obeying_modes() is None:
        raise Skipped("root obeys no modes, and there is no setpriv")
    changed = [story.run, *(p for p in story.run.rglob("*") if p.is_dir())]

    def allow(mode: int) -> None:
        for path in changed:
            if path.exists():
                path.chmod(mode)

    allow(0o555)
    return Strike("no folder may be changed", ends=True, undo=lambda: allow(0o755))


# --- damaged files, between a stop and a resume

CHECKPOINT_FILES = ("state.json", "model.safetensors", "optimizer.safetensors")


def damage(story: Story, path: Path) -> str:
    """Truncate a file or flip a bit of it, at an offset of one of the classes: its first bytes, a
    safetensors header's length and inside, the middle, the last bytes. Return what was done.
    """
    data, rng = bytearray(path.read_bytes()), story.rng
    size = len(data)
    tensors = path.suffix == ".safetensors"
    header = 8 + int.from_bytes(data[:8], "little") if tensors else size
    places = {
        "first bytes": (0, min(8, size)),
        "header" if tensors else "inside": (8, min(header, size)),
        "anywhere": (0, size),
        "last bytes": (max(0, size - 8), size),
    }
    name, (low, high) = rng.choice(sorted(places.items()))
    at = rng.randrange(low, max(low + 1, high))
    if rng.random() < 0.5:
        del data[at:]
        what = f"{path.name} cut at {at} of {size} ({name})"
    else:
        data[at] ^= 1 << rng.randrange(8)
        what = f"{path.name} with a bit flipped at {at} of {size} ({name})"
    path.write_bytes(data)
    return what


@kind("checkpoint damaged", weight=2.5)
def checkpoint_damaged(story: Story) -> Strike:
    """The newest one; the one before is used, and the damaged one named."""
    story.wait(lambda: checkpoint.checkpoints_of(story.run), "a checkpoint")
    story.stop()  # which adds another
    there = checkpoint.checkpoints_of(story.run)
    if len(there) < 2:
        raise Skipped("there is only one checkpoint")
    what = damage(story, there[-1] / story.rng.choice(CHECKPOINT_FILES))
    began, before = time.monotonic(), story.steps()
    story.life = story.resume()
    line = story.wait_trained()
    if "trying the one before" not in story.life.err:
        raise Broken(f"{what}: it was not noticed")
    if line["updates"] > int(there[-1].name) + 100:
        raise Broken(f"{what}: it was used; {before} steps before, {line['agent_steps']} now")
    return Strike(what, outcome=("healed", time.monotonic() - began))


def _copy(story: Story) -> Path:
    """The run again, elsewhere: what is damaged there is not this story's any more."""
    aside = story.directory / "disk" / "aside"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(story.run, aside)
    return aside


def _of_copy(names: tuple[str, ...]) -> Callable[[Story], Strike]:
    def strike(story: Story) -> Strike:
        story.stop()
        aside = _copy(story)
        there = [aside / name for name in names if (aside / name).exists()]
        what = damage(story, story.rng.choice(there))
        result = try_life(story, what, lambda: story.resume(run=aside), aside)
        shutil.rmtree(aside)
        story.life = story.resume()
        story.wait_trained()
        return result

    return strike


kind("config.json damaged")(_of_copy(("config.json",)))
kind("metrics damaged")(_of_copy(("metrics.jsonl", "evaluations.jsonl")))


def try_life(story: Story, what: str, start: Callable[[], Life], run: Path) -> Strike:
    """Start a life that may train ("healed"), or end with a reason and exit code 2 or 0."""
    began = time.monotonic()
    before, story.life = story.life, start()
    life = story.life

    def decided() -> bool:
        # a damaged config may log no updates
        goes_on = story.trained_since(life) or story.trained_since(life, "episode")
        return life.process.poll() is not None or bool(goes_on)

    try:
        story.wait(decided, f"{what}: it trains or ends")
        seconds = time.monotonic() - began
        if life.process.poll() is None:
            life.process.send_signal(signal.SIGTERM)
            story.ended(life, 40.0)
            story.check_end(life)
            return Strike(what, outcome=("healed", seconds))
        story.ended(life, 1.0)
        if life.code == 0:  # a run of fewer frames than it has is complete
            return Strike(what, outcome=("healed", seconds))
        said = story.check_end(life)
        return Strike(f"{what}: {said}", outcome=("ended", seconds))
    except Broken as error:
        raise Broken(f"{what}: {error}") from None
    finally:
        story.life = before


# --- the machine


@kind("two resumes at once")
def two_resumes(story: Story) -> Strike:
    story.stop()
    pause, began = story.rng.uniform(0.0, 0.5), time.monotonic()
    first = story.resume()
    time.sleep(pause)
    second = story.resume()
    lives = (first, second)
    story.wait(lambda: any(x.process.poll() is not None for x in lives), "one of them is refused")
    loser = next(x for x in lives if x.process.poll() is not None)
    story.life = second if loser is first else first
    loser.code = loser.process.returncode
    if "is in use by another process" not in story.check_end(loser):
        raise Broken(f"the second resume ended otherwise: {loser.err[-2000:]}")
    story.wait_trained()
    return Strike(f"{pause:.2f} s apart", outcome=("healed", time.monotonic() - began))


def _limited(story: Story, what: str, prefix: list[str] | None) -> Strike:
    """A life under a limit, then one without."""
    if prefix is None:
        raise Skipped(f"{what} cannot be made here")
    story.stop()
    tried = try_life(story, what, lambda: story.resume(prefix=prefix), story.run)
    story.life = story.resume()
    story.wait_trained()
    return tried


@kind("few open files", ("serial", "process"))
def few_open_files(story: Story) -> Strike:
    most = story.rng.randrange(10, 80)
    return _limited(story, f"ulimit -n {most}", place.with_limit(nofile=most))


@kind("little memory", ("serial", "process"))
def little_memory(story: Story) -> Strike:
    """Address space, so that anything from the first import to the last tensor may fail."""
    size = int(2 ** story.rng.uniform(27, 33))
    return _limited(story, f"ulimit -v {size >> 10}", place.with_limit(**{"as": size}))


@kind("small /dev/shm", ("process",))
def small_shared_memory(story: Story) -> Strike:
    size = int(2 ** story.rng.uniform(2, 12))
    return _limited(story, f"{size} KiB", place.with_shared_memory(size))


@kind("clock jump", ("serial", "process"))
def clock_jump(story: Story) -> Strike:
    """Of what the processes read as the time; the machine's own clock stays."""
    seconds = story.rng.choice([-1, 1]) * 10 ** story.rng.uniform(0, 9)
    (story.life.directory / "clock.new").write_text(str(seconds))
    (story.life.directory / "clock.new").rename(story.life.directory / "clock")
    story.offset = seconds
    return Strike(f"{seconds:.0f} s", goes_on=True, beyond=story.steps() + 1_500)


# --- what is computed


@kind("bad losses")
def bad_losses(story: Story) -> Strike:
    """Rewards whose squares are infinite: updates are skipped; of many, the run goes back."""
    count = story.rng.choice([1, 8, 80, 400])
    _ask(story, "step", f"huge x {count}")
    awaits = ("update_skipped", "rolled_back")
    return Strike(f"{count} steps", awaits, over=story.now(), calm="updates_skipped")


# --- environments that misbehave


def _ask(story: Story, where: str, what: str) -> None:
    path = story.life.directory / f"mood-{where}"
    path.with_suffix(".new").write_text(what)
    path.with_suffix(".new").rename(path)


@kind("environment raises")
def environment_raises(story: Story) -> Strike:
    where, what = story.rng.choice(["step", "reset"]), story.rng.choice(["raise", "system exit"])
    _ask(story, where, what)
    return Strike(f"{what} in {where}", ends=True)


WRONG = ("wrong shape", "wrong kind", "nothing", "NaN", "NaN reward", "text as reward")
WRONG += ("four values",)


@kind("environment gives the wrong thing", weight=1.5)
def environment_wrong(story: Story) -> Strike:
    what = story.rng.choice(WRONG)
    _ask(story, "step", what)
    return Strike(what, ends=True)


@kind("environment exits", PARALLEL)
def environment_exits(story: Story) -> Strike:
    where = story.rng.choice(["step", "reset"])
    _ask(story, where, "exit")
    return Strike(where, awaits=("actor_replaced", "evaluator_died"), goes_on=True)


@kind("environment hangs", PARALLEL)
def environment_hangs(story: Story) -> Strike:
    where = story.rng.choice(["step", "reset"])
    _ask(story, where, "hang")
    return Strike(
        where, awaits=("actor_replaced", "evaluator_died"), bound=STARTING + 60.0, goes_on=True
    )


@kind("environment hangs", ("serial",))
def environment_hangs_serial(story: Story) -> Strike:
    """There is no other process to notice: a person does, with Ctrl-C twice."""
    where = story.rng.choice(["step", "reset"])
    _ask(story, where, "hang")
    story.wait((story.life.directory / "taken").exists, "the environment hangs", 30)
    for _ in range(2):
        os.killpg(story.life.process.pid, signal.SIGINT)
        time.sleep(0.5)
    return Strike(f"{where}, Ctrl-C twice", ends=True, bound=20.0)


@kind("environment hangs in close", ("process",))
def environment_hangs_in_close(story: Story) -> Strike:
    _ask(story, "close", "hang")
    os.kill(story.life.process.pid, signal.SIGTERM)
    return Strike("at a stop", ends=True, bound=40.0)


@kind("environment forks, prints or dawdles", ("serial", "process"))
def environment_talks(story: Story) -> Strike:
    what = story.rng.choice(["fork x 4", "print x 300", "sleep x 2", "sleep x 3.5"])
    _ask(story, story.rng.choice(["step", "reset"]), what)
    story.wait((story.life.directory / "taken").exists, "an environment is asked", 30)
    return Strike(what, over=story.now(), goes_on=True)


# --- a cluster


@kind("network cut", ("ray",))
def network_cut(story: Story) -> Strike:
    if not place.isolated():
        raise Skipped("the network is not this campaign's own")
    seconds = story.rng.uniform(0.5, 8.0)
    place.loopback(False)
    try:
        time.sleep(seconds)
    finally:
        place.loopback(True)
    return Strike(f"{seconds:.1f} s", over=story.now(), bound=120.0)


FELT = 75.0  # seconds; Ray waits for 60 for its GCS to come back


@kind("Ray's own process killed", ("ray",))
def ray_killed(story: Story) -> Strike:
    name = story.rng.choice(["raylet/raylet", "gcs/gcs_server"])
    story.remember()
    found = [p for p, (_, line, _) in living().items() if p in story.family and _runs(line, name)]
    if not found:
        raise Skipped(f"no {name}")
    os.kill(found[0], signal.SIGKILL)
    # what needs neither goes on for a while: only later does a run feel that it is gone
    return Strike(name, over=story.now() + FELT, bound=180.0)


def _runs(command_line: bytes, name: str) -> bool:
    return command_line.split(b"\0")[0].decode().endswith(name)
