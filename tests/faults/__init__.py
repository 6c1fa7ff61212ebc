"""Runs of real processes and what goes wrong with them: ``life.py`` for the tests of single faults,
the rest is the campaign of random ones (``python -m faults``, ``make soak``).
"""

from faults.life import (
    FRAMES,
    Life,
    arguments,
    events,
    failed_with_one_line,
    kill,
    played,
    processes,
    scenario,
    until,
    use_faulty_environments,
)

__all__ = [
    "FRAMES",
    "Life",
    "arguments",
    "events",
    "failed_with_one_line",
    "kill",
    "played",
    "processes",
    "scenario",
    "until",
    "use_faulty_environments",
]
