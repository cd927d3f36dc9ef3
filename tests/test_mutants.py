"""The list of mutations is in order; `make mutants` tries them."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from mutants import table
from mutants.mutations import Mutation, StaleError, load
from mutants.running import ROOT, BaselineError, Result, run

MUTATIONS = load()


@cache
def names(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^ *(?:async )?(?:def|class) (\w+)", path.read_text(), re.MULTILINE))


@cache
def shared_names() -> frozenset[str]:
    """Those of the suites that every backend's tests are derived from."""
    return frozenset().union(*map(names, ROOT.glob("transcript_backends/testing/*.py")))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.area}: {each.name}")
def test_a_mutation_changes_one_place_of_the_product_and_names_tests_that_exist(mutation: Mutation) -> None:
    assert mutation.file.startswith("transcript_backends/")
    assert mutation.old.strip() != mutation.new.strip()
    compile(mutation.apply((ROOT / mutation.file).read_text()), mutation.file, "exec")
    assert mutation.caught_by or mutation.schedules
    for test in mutation.caught_by:
        path, *parts = test.partition("[")[0].split("::")
        for each in parts:
            assert each in names(ROOT / path) or (len(parts) > 1 and each in shared_names()), test


def test_every_rule_has_one_name() -> None:
    found = [each.name for each in MUTATIONS]
    assert len(found) == len(set(found))
    assert not any("|" in each or each != each.strip() for each in found)


def test_hardly_any_mutation_survives() -> None:
    assert sum(bool(each.survives) for each in MUTATIONS) <= 0.03 * len(MUTATIONS)


def test_the_page_shows_every_mutation() -> None:
    assert list(table.read()) == [(each.area, each.name) for each in MUTATIONS]


# --- the runner -------------------------------------------------------------------------------------------------------

PRODUCT = """\
def absolute(number):
    while number < 0:
        number = -number
    return number + 0
"""
TEST = """\
from transcript_backends.numbers import absolute

def test_absolute():
    assert absolute(-2) == absolute(2) == 2
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"transcript_backends/__init__.py": "", "transcript_backends/numbers.py": PRODUCT, "tests/test_numbers.py": TEST}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "tests/mutants").mkdir()
    shutil.copy(ROOT / "tests/mutants/profile.py", tmp_path / "tests/mutants")
    return tmp_path


def mutation(old: str, new: str, *, survives: str = "", test: str = "test_absolute") -> Mutation:
    file, tests = "transcript_backends/numbers.py", (f"tests/test_numbers.py::{test}",)
    return Mutation("numbers", f"{old} is not {new}", file, old, new, tests, survives=survives)


def test_what_tests_notice_is_caught_and_nothing_else_is(root: Path) -> None:
    attempts = [
        (mutation("number + 0", "number + 1"), "caught", True),
        (mutation("number + 0", "number - 0"), "survived", False),
        (mutation("number + 0", "number - 0", survives="it is the same"), "survived", True),
        (mutation("number + 0", "number + 2", survives="it is the same"), "caught", False),
        (mutation("number", "n"), "stale", False),
        (mutation("number < 0", "number > 0"), "caught", True),
        (mutation("number + 0", "number + 3"), "caught", True),
    ]
    results = list(run([each[0] for each in attempts], 2, root=root))
    assert [(each.mutation, each.verdict, each.is_fine) for each in results] == attempts
    assert results[0].by == "test_numbers.py::test_absolute"
    assert (root / "transcript_backends/numbers.py").read_text() == PRODUCT


def test_what_has_tests_run_on_for_ever_is_caught_at_the_time_limit(root: Path) -> None:
    (result,) = run([mutation("= -number", "= number")], 1, root=root, limit=2.0)
    assert (result.verdict, result.is_fine) == ("timeout", True)


def test_where_the_product_as_it_is_fails_its_tests_nothing_counts_as_caught(root: Path) -> None:
    (root / "tests/test_numbers.py").write_text(TEST.replace("== 2", "== 3"))
    with pytest.raises(BaselineError, match="assert 2 == 3"):
        list(run([mutation("number + 0", "number + 1")], 1, root=root))


def test_a_mutation_whose_place_is_gone_or_there_twice_is_stale() -> None:
    with pytest.raises(StaleError, match="has 2 places like 'a'"):
        mutation("a", "b").apply("aa")
    with pytest.raises(StaleError, match="has 0 places"):
        mutation("a", "b").apply("")


def test_results_replace_their_rows_and_leave_the_others(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    first, second, third = (mutation(str(number), "x") for number in range(3))
    table.write([Result(first, "caught", "t.py::test", 1.0), Result(second, "timeout", "", 2.0)], [first, second, third], path)
    table.write([Result(third, "survived", "why", 3.0), Result(first, "caught", "u.py::test", 4.0)], [first, third], path)
    assert list(table.read(path).values()) == [
        "| numbers | 0 is not x | `u.py::test` | 4 |",
        "| numbers | 2 is not x | nothing: why | 3 |",
    ]
