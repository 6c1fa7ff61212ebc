"""What happens to a Ray cluster."""

from __future__ import annotations

import os
import signal
import time

from faults import place
from faults.kinds.base import Strike, kind
from faults.story import Skipped, Story, living

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
