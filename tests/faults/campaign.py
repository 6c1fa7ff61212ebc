"""The campaign: random faults at random moments of real runs, each checked, all counted.

A story is one run that meets a few faults one after the other. Its draws follow from the campaign's
seed and its number; the moments are those of the machine, so a second time is similar, not equal.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from faults import checks, place
from faults.kinds import KINDS, Kind, Strike
from faults.story import LINGERS, STOPPING, Broken, Interrupted, Skipped, Story

LENGTH = 5  # faults of a story
LANES = 2  # stories at a time
SHARES = {"serial": 0.3, "process": 0.62, "ray": 0.08}
DISK = 24  # megabytes, of stories with a disk of their own
AGAIN = ("start", "resume", "restarted", "rolled_back")  # events from which a run goes on
CALM = 20  # train lines in which nothing changes
SETTLED = 0.3  # seconds after a fault in which what was under way may still be written
_ray = threading.Lock()  # one at a time: it takes both cores to start, and they share a network


@dataclass
class Outcome:
    """What became of one fault."""

    story: int
    runtime: str
    kind: str
    detail: str
    result: str  # healed, ended, broken, skipped
    seconds: float | None = None  # until the run trained again
    redone: int | None = None  # agent steps
    problem: str = ""


def run(
    faults: int,
    seed: int,
    say: Callable[[str], None],
    *,
    kinds: Sequence[str] = (),
    runtimes: Sequence[str] = tuple(SHARES),
    lanes: int = LANES,
    keep: Path | None = None,
) -> list[Outcome]:
    """Play stories until there were ``faults`` faults, of the named ``kinds`` or of all; ``keep``
    is where the folders of broken stories go.
    """
    numbers = range(-(-faults // LENGTH))
    found: list[Outcome] = []
    with (
        # a folder that is still mounted cannot be removed
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(lanes) as pool,
    ):
        before = set(os.listdir("/dev/shm"))

        def draws(number: int) -> tuple[random.Random, str, list[Kind]]:
            rng = random.Random(f"{seed}-{number}")
            return rng, *draw(rng, min(LENGTH, faults - number * LENGTH), kinds, runtimes)

        def stories(some: Sequence[int]) -> None:
            for number in some:
                if STOPPING.is_set():
                    return
                rng, runtime, drawn = draws(number)
                directory = Path(folder) / f"story-{number}"
                found.extend(play(directory, runtime, drawn, rng, say, number=number, keep=keep))

        # those of Ray in a row: a lane that waits for another's does nothing
        with_ray = [number for number in numbers if draws(number)[1] == "ray"]
        others = [[number] for number in numbers if number not in with_ray]
        try:
            list(pool.map(stories, [with_ray, *others]))
        except KeyboardInterrupt:  # what was done so far counts
            STOPPING.set()
            pool.shutdown(cancel_futures=True)
        left = _left_in_shared_memory(before)
        if left:
            found.append(_broken(len(numbers), "all", "the end", f"left in /dev/shm: {left}"))
    return found


def _left_in_shared_memory(before: set[str]) -> list[str]:
    end = time.monotonic() + LINGERS
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < end:
        time.sleep(0.5)
    return sorted(left)


def draw(
    rng: random.Random, length: int, kinds: Sequence[str], runtimes: Sequence[str]
) -> tuple[str, list[Kind]]:
    """A runtime, and faults that it can meet."""
    runtime = rng.choices(list(runtimes), [SHARES[name] for name in runtimes])[0]
    fitting = [k for k in KINDS if runtime in k.runtimes and (not kinds or k.name in kinds)]
    if not fitting:
        return runtime, []
    return runtime, rng.choices(fitting, [k.weight for k in fitting], k=length)


def play(
    directory: Path,
    runtime: str,
    drawn: Sequence[Kind],
    rng: random.Random,
    say: Callable[[str], None],
    *,
    number: int = 0,
    keep: Path | None = None,
) -> list[Outcome]:
    """One run and its faults, in a folder that is removed if all went well."""
    if not drawn:
        return []
    directory.mkdir()
    found: list[Outcome] = []
    alone = _ray if runtime == "ray" else contextlib.nullcontext()
    with alone, place.disk(directory / "disk", DISK) as mounted:
        it = Story(directory, runtime, rng, mounted)
        try:
            it.begin()
            for kind in drawn:
                found.append(_one(it, kind, number))
                say(_line(found[-1]))
            _end(it)
        except Interrupted:
            pass
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            found.append(_broken(number, runtime, _names(drawn, found), problem))
            say(_line(found[-1]))
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                without = shutil.ignore_patterns("tmp")  # Ray's sockets cannot be copied
                shutil.copytree(
                    directory, keep / directory.name, ignore=without, dirs_exist_ok=True
                )
        finally:
            it.clean_up()
    shutil.rmtree(directory, ignore_errors=True)
    return found


def _names(drawn: Sequence[Kind], found: Sequence[Outcome]) -> str:
    return drawn[len(found)].name if len(found) < len(drawn) else "the end of the story"


def _broken(number: int, runtime: str, kind: str, problem: str) -> Outcome:
    return Outcome(number, runtime, kind, "", "broken", problem=problem)


def _line(outcome: Outcome) -> str:
    took = "" if outcome.seconds is None else f", {outcome.seconds:.1f} s"
    again = f", {outcome.redone} steps again" if outcome.redone else ""
    detail = f" ({outcome.detail})" if outcome.detail else ""
    said = f"{outcome.story} {outcome.runtime}: {outcome.kind}{detail}: {outcome.result}"
    return said + took + again + (f": {outcome.problem}" if outcome.problem else "")


def _one(it: Story, kind: Kind, number: int) -> Outcome:
    """One fault at a random moment, and what follows."""
    time.sleep(it.rng.expovariate(1.0))
    if it.life.process.poll() is not None:
        raise Broken(f"it ended with {it.life.process.returncode} by itself: {it.life.err[-2000:]}")
    before = it.steps()
    it.mark = it.metrics.stat().st_size
    it.life.directory.joinpath("taken").unlink(missing_ok=True)
    since = it.struck = it.now()
    try:
        strike = kind.strike(it)
    except Skipped as reason:
        if it.life.process.poll() is not None:
            it.life = it.resume()
            it.wait_trained()
        return Outcome(number, it.runtime, kind.name, str(reason), "skipped")
    if strike.outcome is not None:
        result, seconds = strike.outcome
        return Outcome(
            number,
            it.runtime,
            kind.name,
            strike.detail,
            result,
            seconds,
            _redone(it, before, since),
        )
    began = time.monotonic()
    went_on = _follow(it, strike, it.now())
    if not went_on:
        strike.undo()
        before = max(before, it.steps())  # what it wrote at its end
        it.life = it.resume()
        since = it.life.saw["since"]
        it.wait_trained()
    seconds = time.monotonic() - began
    result = "healed" if went_on else "ended"
    return Outcome(
        number, it.runtime, kind.name, strike.detail, result, seconds, _redone(it, before, since)
    )


def _follow(it: Story, strike: Strike, by_clock: float) -> bool:
    """Wait until the run goes on (True) or ends as it should (False)."""
    over = max(strike.over, by_clock) + SETTLED

    def goes_on() -> bool:
        lines = it.lines_since()
        if strike.awaits:
            told = [
                place
                for place, line in enumerate(lines)
                if any(part in line.get("event", "") for part in strike.awaits)
            ]
            lines = lines[told[0] :] if told else []
        trained = [line for line in lines if line["kind"] == "train"]
        if strike.calm:
            last = [line[strike.calm] for line in trained[-CALM:]]
            if len(last) < CALM or len(set(last)) > 1:
                return False
        if strike.beyond:
            return any(line["agent_steps"] > strike.beyond for line in trained)
        return any(line["time"] > over for line in trained)

    def decided() -> bool:
        return it.life.process.poll() is not None or (not strike.ends and goes_on())

    try:
        it.wait(decided, f"it goes on or ends ({strike.detail})", strike.bound)
        if it.life.process.poll() is None:
            return True
        it.ended(it.life, 1.0)
        said = it.check_end(it.life, killed_by=strike.killed_by)
    except Broken as error:
        raise Broken(f"{strike.detail}: {error}") from None
    if strike.goes_on:
        raise Broken(f"{strike.detail}: the run should have gone on, and ended: {said}")
    return False


def _redone(it: Story, before: int, since: float) -> int:
    """Agent steps that were on disk before the fault and had to be taken again: the run went back
    to a checkpoint, by itself or with a new life.
    """
    begun = [line for line in it.lines() if line.get("event") in AGAIN and line["time"] >= since]
    return max(0, before - begun[-1]["agent_steps"]) if begun else 0


def _end(it: Story) -> None:
    """The story's end: the run finishes, and everything fits."""
    it.finish()
    problems = checks.problems_of(it.run)
    left = [p.name for p in (it.directory / "tmp").iterdir() if it.runtime != "ray"]
    if left:
        problems.append(f"left in the folder for temporary files: {left}")
    if problems:
        raise Broken("; ".join(problems))
