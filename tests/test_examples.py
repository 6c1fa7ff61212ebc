"""examples/: each runs, and does what it says."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_catch_wired_by_hand_learns():
    """A random player's mean is about -0.6; every episode counts, also those that explore."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "catch.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert float(done.stdout.rpartition(" ")[2]) > 0.6


def test_the_wiring_fits_on_two_screens():
    assert len((EXAMPLES / "catch.py").read_text().splitlines()) < 100
