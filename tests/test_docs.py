"""docs/: every test that is named there exists, in the file that is named with it."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAPER = TESTS.parent / "docs" / "paper.md"


def test_every_test_the_paper_s_page_names_is_where_it_says():
    held = {
        path.stem: set(re.findall(r"^def (test_\w+)", path.read_text(), re.M))
        for path in TESTS.glob("test_*.py")
    }
    everywhere = set().union(*held.values())
    named = 0
    for line in PAPER.read_text().splitlines():
        file = None
        for name, function in re.findall(r"\b(test_\w+):|`(test_\w+)`", line):
            if name:
                assert name in held, f"no tests/{name}.py"
                file = name
                continue
            assert function in (held[file] if file else everywhere), f"{file or ''} {function}"
            named += 1
    assert named > 60
