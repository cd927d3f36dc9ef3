"""What listings show and no read finds."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.phantoms import Phantoms

INFO = ObjectInfo("a/b", 0, datetime(2026, 1, 1, tzinfo=timezone.utc), "v1")


@pytest.fixture
def phantoms() -> Phantoms:
    """Of a container of which one key was not there once, and was listed after it at 2."""
    phantoms = Phantoms("memory://m")
    phantoms.missed("a/b", 0, 1)
    assert not phantoms.hide(INFO, 2)
    return phantoms


def test_what_is_not_there_again_after_it_was_listed_is_left_out_and_told_of_once(
    phantoms: Phantoms, caplog: pytest.LogCaptureFixture
) -> None:
    assert not phantoms.hide(INFO, 3)
    phantoms.missed("a/b", 4, 5)
    for now in (6, 7):
        assert phantoms.hide(INFO, now)
    assert phantoms.below("a/") == [INFO]
    assert phantoms.below("b/") == []
    assert len(caplog.records) == 1
    assert not phantoms.hide(INFO._replace(key="a/c"), 8)


def test_a_read_that_began_before_the_listing_contradicts_nothing(phantoms: Phantoms) -> None:
    phantoms.missed("a/b", 1.5, 5)
    assert not phantoms.hide(INFO, 6)


def test_another_object_under_the_key_is_shown(phantoms: Phantoms) -> None:
    phantoms.missed("a/b", 4, 5)
    other = INFO._replace(version="v2")
    assert not phantoms.hide(other, 6)
    assert not phantoms.hide(other, 7)
    phantoms.missed("a/b", 8, 9)
    assert phantoms.hide(other, 10)


def test_after_a_while_it_is_looked_at_anew(phantoms: Phantoms) -> None:
    phantoms.missed("a/b", 4, 5)
    assert phantoms.hide(INFO, 600)
    assert not phantoms.hide(INFO, 606)


def test_so_many_keys_are_remembered(phantoms: Phantoms) -> None:
    for number in range(1000):
        phantoms.missed(f"key {number}", 0, 1)
    assert len(phantoms._misses) == 1000
    phantoms.missed("a/b", 4, 5)  # the first time, for all that is known
    assert not phantoms.hide(INFO, 6)
