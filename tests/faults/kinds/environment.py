"""Losses that are not finite, and environments that misbehave."""

from __future__ import annotations

import os
import signal
import time

from faults.kinds.base import PARALLEL, STARTING, Strike, kind
from faults.story import Story

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


@kind("environment exits", ("serial",))
def environment_exits_serial(story: Story) -> Strike:
    where = story.rng.choice(["step", "reset"])
    _ask(story, where, "exit")
    return Strike(where, ends=True)


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
