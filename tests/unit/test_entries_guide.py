"""The examples of the guide to session entries run, one after the other, and print what it shows."""

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).resolve().parent.parent.parent / "docs/entries.md").read_text()


def test_the_examples_of_the_guide_print_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    examples = re.findall(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```)?", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    for code, shown in examples:
        exec(compile(code, "docs/entries.md", "exec"), names)
        assert capsys.readouterr().out == shown
