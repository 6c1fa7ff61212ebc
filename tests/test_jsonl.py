"""report/jsonl.py: whole lines out of a file that grows, and tables that stay small."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.report.jsonl import Thinned, parse_lines

quick = settings(max_examples=25, deadline=None, derandomize=True)


def test_lines_are_lines():
    """Two objects on one line are damage, and so are two lines that only together are an object."""
    whole = b'{"a": 1}, {"a": 2}\n{"a": 3}\n{"b": 1\n"c": 2}\n\n{"a": 4}\n'
    assert parse_lines(whole) == ([{"a": 3}, {"a": 4}], 3)


@quick
@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.sampled_from(("mean", "last")))
def test_thinned_stays_small_and_true(sizes, keep):
    table, limit, total = Thinned(2, limit=16, keep=keep), 16, 0
    for size in sizes:
        x = np.arange(total, total + size, dtype=float)
        table.add(np.stack([x, 3 * x + 1], 1))
        total += size
    rows = table.rows()
    assert len(rows) <= 2 * limit
    assert len(rows) == total if total < 2 * limit else len(rows) >= limit
    assert np.allclose(rows[:, 1], 3 * rows[:, 0] + 1)
    assert (np.diff(rows[:, 0]) > 0).all()
    if keep == "last" and total:
        assert rows[-1, 0] == total - 1
    gaps = np.diff(rows[:-1, 0])  # the last row may still be filling
    assert len(gaps) == 0 or gaps.max() <= 4 * gaps.min()


@pytest.mark.parametrize("keep", ["mean", "last"])
def test_rows_of_a_thinned_table_stand_for_equally_many_lines(keep):
    """369 lines at once were thinned with a row left over, which stayed short for ever."""
    table, total = Thinned(1, limit=16, keep=keep), 0
    for size in (369, 1, 400, 3):
        table.add(np.arange(total, total + size, dtype=float)[:, None])
        total += size
        gaps = np.diff(table.rows()[:-1, 0])  # the last row may still be filling
        assert len(set(gaps.tolist())) == 1


def test_thinned_passes_over_what_is_unknown():
    table = Thinned(1, limit=2)
    table.add(np.array([[1.0], [np.nan], [np.nan], [np.nan], [5.0], [7.0], [9.0], [11.0]]))
    assert np.array_equal(table.rows()[:, 0], [1.0, 8.0], equal_nan=True)
