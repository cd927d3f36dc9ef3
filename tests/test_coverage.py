"""Every row of the coverage page names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = re.split(r"^## ", (ROOT / "docs/coverage.md").read_text(), flags=re.MULTILINE)[1:]
ROWS = [row for section in SECTIONS for row in re.findall(r"^\|(?! what |-)(.*)\|$", section, re.MULTILINE)]


def test_every_document_has_rows() -> None:
    assert len(SECTIONS) >= 2
    assert all(section.count("\n| ") >= 5 for section in SECTIONS)
    assert len(ROWS) == len(set(ROWS)) >= 30


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", row.rpartition(" | ")[2])
    assert named
    assert len(named) == row.rpartition(" | ")[2].count("::")
    for path, name in named:
        assert re.search(rf"def {name.rpartition('::')[2]}\(", (ROOT / path).read_text()), name
