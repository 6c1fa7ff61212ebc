"""The kinds of faults: what is done to a run that trains, and what may follow.

Each is a function of a Story that strikes and returns a ``Strike``: how to tell that the run goes
on. ``campaign.py`` then waits for that, or for an end with a reason, and resumes. What a seed draws
depends on the order in which they are listed, here.
"""

# isort: off
from faults.kinds import signals, files, machine, environment, cluster
from faults.kinds.base import KINDS, Kind, Strike

__all__ = ["KINDS", "Kind", "Strike", "cluster", "environment", "files", "machine", "signals"]
