"""Two resumes at once, limits of the machine, a clock that jumps."""

from __future__ import annotations

import time

from faults import place
from faults.kinds.base import Strike, kind, try_life
from faults.story import Broken, Skipped, Story

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
