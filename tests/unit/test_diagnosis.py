"""Checking a store, and leaving nothing behind."""

from pathlib import Path

import pytest

from transcript_backends import diagnose, open_store


def test_a_good_store_passes_every_check_and_keeps_nothing(tmp_path: Path) -> None:
    checks = list(diagnose(str(tmp_path)))
    assert [check.name for check in checks] == ["the store's URL", "list", "write", "create-only", "find", "read", "delete"]
    assert all(check.passed for check in checks)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize("seen", range(1, 7))
def test_a_caller_that_stops_early_leaves_nothing_behind(tmp_path: Path, seen: int) -> None:
    checks = diagnose(str(tmp_path))
    for _ in range(seen):
        next(checks)
    checks.close()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_a_store_with_placeholders_is_checked_under_values_of_nobody(tmp_path: Path) -> None:
    assert all(check.passed for check in diagnose(f"file://{tmp_path}/{{tenant}}/{{team}}"))
    assert [each.name for each in tmp_path.iterdir()] == ["transcripts-doctor"]


def test_the_first_failure_ends_it_and_says_what_to_do(tmp_path: Path) -> None:
    (checked,) = diagnose("nosuch://nowhere/x")
    assert not checked.passed
    assert "no backend serves nosuch://" in checked.detail
    (tmp_path / "store").mkdir()
    checks = diagnose(str(tmp_path / "store"))
    next(checks)
    (tmp_path / "store").rmdir()
    (checked,) = checks
    assert checked.name == "list"
    assert "create the bucket, container or directory" in checked.detail


def test_a_store_that_changes_what_it_stores_is_found_out(tmp_path: Path) -> None:
    checks = diagnose(str(tmp_path))
    for _ in range(5):
        next(checks)
    (segment,) = tmp_path.rglob("*.jsonl")
    segment.write_bytes(b'{"check":9}\n')
    (checked,) = checks
    assert (checked.name, checked.passed) == ("read", False)
    with open_store(str(tmp_path)) as store:
        assert list(store.list_refs()) == []
