"""What every driver must do, raced as well as asked."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from queue import Queue
from threading import Thread

import pytest

from transcript_backends.drivers.driver import Body, IfMatch, Meaning, ObjectInfo, ObjectStore, delete_versions
from transcript_backends.testing.racing import Racing, all_at_once, many_at_a_time

_MANY = 1001


def read(body: Body, size: int = 1 << 20) -> bytes:
    """All the bytes of a body, ``size`` at a time."""
    try:
        return b"".join(iter(lambda: body.stream.read(size), b""))
    finally:
        body.stream.close()


def pages(driver: ObjectStore, prefix: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
    """A listing, one page for each step."""
    token: str | None = None
    while True:
        page = driver.list_page(prefix, start_after=start_after, token=token)
        yield page.objects
        token = page.token
        if token is None:
            return


def list_all(driver: ObjectStore, prefix: str, start_after: str = "") -> list[ObjectInfo]:
    """A whole listing, page by page."""
    return [info for page in pages(driver, prefix, start_after) for info in page]


class DriverContract(Racing):
    """Inherit, and give a fixture ``driver``. Every test works below a prefix of its own, so a container may be shared."""

    @pytest.fixture
    def driver(self) -> ObjectStore:
        pytest.fail("give a fixture `driver`")

    @pytest.fixture
    def prefix(self) -> str:
        return f"contract-{os.urandom(6).hex()}/"

    def create(self, driver: ObjectStore, key: str, body: bytes = b"body") -> str:
        return driver.put(key, body, mode="create", metadata={})

    def meaning(self, driver: ObjectStore, error: Exception) -> Meaning:
        failure = driver.classify(error)
        assert failure is not None, f"{error!r} is not classified"
        return failure.meaning

    # --- put ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)), os.urandom(1 << 20)], ids=["empty", "one", "all", "large"])
    def test_what_is_created_comes_back(self, driver: ObjectStore, prefix: str, body: bytes) -> None:
        version = driver.put(f"{prefix}a", body, mode="create", metadata={"tbwrite": "w1"})
        got = driver.get(f"{prefix}a")
        assert read(got) == body
        assert got.info.key == f"{prefix}a"
        assert got.info.size == len(body)
        assert got.info.version == version != ""

    def test_a_head_tells_the_facts_and_the_metadata(self, driver: ObjectStore, prefix: str) -> None:
        driver.put(f"{prefix}a", b"12345", mode="create", metadata={"tbwrite": "w1", "tbsha256": "0" * 64})
        info, metadata = driver.head(f"{prefix}a")
        assert info == driver.get(f"{prefix}a").info
        assert info.created_at.utcoffset() == timedelta(0)
        assert abs(datetime.now(timezone.utc) - info.created_at) < timedelta(minutes=15)
        assert metadata in ({}, {"tbwrite": "w1", "tbsha256": "0" * 64}) or metadata.items() >= {("tbwrite", "w1")}

    @pytest.mark.parametrize(("start", "end"), [(0, None), (1, 3), (2, None), (2, 2), (9, None)])
    def test_metadata_that_comes_with_a_body_is_that_of_a_head(
        self, driver: ObjectStore, prefix: str, start: int, end: int | None
    ) -> None:
        driver.put(f"{prefix}a", b"12345", mode="create", metadata={"tbwrite": "w1", "tbsha256": "0" * 64})
        body = driver.get(f"{prefix}a", start=start, end=end)
        body.stream.close()
        assert body.metadata in (None, driver.head(f"{prefix}a").metadata)

    def test_a_second_create_is_refused_and_changes_nothing(self, driver: ObjectStore, prefix: str) -> None:
        self.create(driver, f"{prefix}a", b"first")
        before = driver.head(f"{prefix}a")
        for body in (b"second", b"first"):
            with pytest.raises(Exception) as refused:  # noqa: PT011 - an exception of the driver's own kind
                self.create(driver, f"{prefix}a", body)
            assert self.meaning(driver, refused.value) is Meaning.PRECONDITION
        assert driver.head(f"{prefix}a") == before
        assert read(driver.get(f"{prefix}a")) == b"first"

    def test_a_key_can_be_created_again_after_its_deletion(self, driver: ObjectStore, prefix: str) -> None:
        self.create(driver, f"{prefix}a", b"first")
        driver.delete_many([f"{prefix}a"])
        self.create(driver, f"{prefix}a", b"second")
        assert read(driver.get(f"{prefix}a")) == b"second"

    def test_overwrite_replaces(self, driver: ObjectStore, prefix: str) -> None:
        first = self.create(driver, f"{prefix}a", b"first")
        second = driver.put(f"{prefix}a", b"second", mode="overwrite", metadata={})
        assert read(driver.get(f"{prefix}a")) == b"second"
        assert first != second

    def test_if_match_replaces_only_the_version_it_names(self, driver: ObjectStore, prefix: str) -> None:
        first = self.create(driver, f"{prefix}a", b"first")
        second = driver.put(f"{prefix}a", b"second", mode=IfMatch(first), metadata={})
        assert driver.head(f"{prefix}a").info.version == second
        with pytest.raises(Exception) as refused:  # noqa: PT011
            driver.put(f"{prefix}a", b"third", mode=IfMatch(first), metadata={})
        assert self.meaning(driver, refused.value) is Meaning.PRECONDITION
        assert read(driver.get(f"{prefix}a")) == b"second"

    def test_if_match_never_creates(self, driver: ObjectStore, prefix: str) -> None:
        version = self.create(driver, f"{prefix}a")
        driver.delete_many([f"{prefix}a"])
        with pytest.raises(Exception) as refused:  # noqa: PT011
            driver.put(f"{prefix}a", b"x", mode=IfMatch(version), metadata={})
        assert self.meaning(driver, refused.value) in (Meaning.PRECONDITION, Meaning.NOT_FOUND)
        assert list_all(driver, prefix) == []

    # --- get ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("start", "end"), [(0, None), (0, 4), (2, 5), (3, None), (9, 10), (9, None), (0, 99), (4, 4), (10, None), (12, 20)]
    )
    def test_a_range_is_what_it_says(self, driver: ObjectStore, prefix: str, start: int, end: int | None) -> None:
        self.create(driver, f"{prefix}a", b"0123456789")
        got = driver.get(f"{prefix}a", start=start, end=end)
        assert read(got) == b"0123456789"[start:end]
        assert got.info.size == 10

    def test_a_body_can_be_read_in_small_pieces(self, driver: ObjectStore, prefix: str) -> None:
        body = os.urandom(10_000)
        self.create(driver, f"{prefix}a", body)
        assert read(driver.get(f"{prefix}a"), 7) == body

    def test_bodies_closed_early_leave_the_driver_usable(self, driver: ObjectStore, prefix: str) -> None:
        self.create(driver, f"{prefix}a", os.urandom(300_000))
        for _ in range(100):
            stream = driver.get(f"{prefix}a").stream
            assert stream.read(10)
            stream.close()
            stream.close()
        assert len(read(driver.get(f"{prefix}a"))) == 300_000

    def test_a_body_is_closed_also_where_a_thread_is_at_the_pool_of_connections(self, driver: ObjectStore, prefix: str) -> None:
        """As where the garbage collector runs in that thread, and finds a reader that was dropped."""
        self.create(driver, f"{prefix}a", os.urandom(3_000_000))
        stream = driver.get(f"{prefix}a").stream
        assert stream.read(10)
        pools = [each for each in gc.get_objects() if issubclass(type(each), Queue)]
        closing = Thread(target=stream.close, daemon=True)
        with ExitStack() as held:
            for each in pools:
                held.enter_context(each.mutex)
            closing.start()
            closing.join(10)
            assert not closing.is_alive()
        assert len(read(driver.get(f"{prefix}a"))) == 3_000_000

    def test_a_missing_object_is_not_found(self, driver: ObjectStore, prefix: str) -> None:
        for ask in (driver.get, driver.head, partial(driver.get, start=3, end=5)):
            with pytest.raises(Exception) as missing:  # noqa: PT011
                ask(f"{prefix}nothing/here")
            assert self.meaning(driver, missing.value) is Meaning.NOT_FOUND

    @pytest.mark.parametrize(
        "key", ["a=20b", "=2E=2E", "A.b-c_d=3D", "d/e/f/g/h", "n" * 240, "/".join(["s" * 200] * 4)], ids=lambda key: key[:12]
    )
    def test_keys_come_back_as_they_are(self, driver: ObjectStore, prefix: str, key: str) -> None:
        self.create(driver, prefix + key)
        assert [info.key for info in list_all(driver, prefix)] == [prefix + key]
        assert read(driver.get(prefix + key)) == b"body"

    # --- list ---------------------------------------------------------------------------------------------------------

    def test_nothing_is_an_empty_page(self, driver: ObjectStore, prefix: str) -> None:
        assert list_all(driver, prefix) == []

    def test_a_prefix_shows_just_what_is_below_it(self, driver: ObjectStore, prefix: str) -> None:
        for key in ("s1/a", "s1/b/c", "s10/a", "s1.x/a", "s1-x/a", "s/1"):
            self.create(driver, prefix + key)
        assert sorted(info.key for info in list_all(driver, f"{prefix}s1/")) == [f"{prefix}s1/a", f"{prefix}s1/b/c"]

    def test_a_listing_tells_the_facts(self, driver: ObjectStore, prefix: str) -> None:
        self.create(driver, f"{prefix}a", b"12345")
        (listed,) = list_all(driver, prefix)
        told = driver.head(f"{prefix}a").info
        assert listed[:2] == told[:2]
        assert listed.created_at.replace(microsecond=0) == told.created_at.replace(microsecond=0)
        assert listed.version in ("", told.version)

    def test_a_listing_shows_what_was_just_written_and_not_what_was_just_deleted(
        self, driver: ObjectStore, prefix: str
    ) -> None:
        for number in range(20):
            self.create(driver, f"{prefix}{number}")
            assert [info.key for info in list_all(driver, prefix)] == [f"{prefix}{number}"]
            driver.delete_many([f"{prefix}{number}"])
            assert list_all(driver, prefix) == []

    def test_keys_come_in_byte_order_where_the_driver_says_so(self, driver: ObjectStore, prefix: str) -> None:
        keys = [
            prefix + key for key in ("A/x", "A-B/x", "A.C/x", "A=41/x", "A0/x", "a/x", "10", "9", "Z", "_", "A/b/c", "A/b.c")
        ]
        for key in keys:
            self.create(driver, key)
        listed = [info.key for info in list_all(driver, prefix)]
        assert sorted(listed) == sorted(keys)
        able = driver.capabilities
        assert listed == sorted(keys) or not able.start_after
        assert listed in (sorted(keys), sorted(keys, key=lambda key: key.split("/"))) or not able.ordered_lists

    def test_start_after_leaves_out_nothing_past_it(self, driver: ObjectStore, prefix: str) -> None:
        keys = [f"{prefix}{name}" for name in ("a", "b", "c/d", "d-e", "d/e")]
        for key in keys:
            self.create(driver, key)
        for after in (*keys, f"{prefix}bb", f"{prefix}d~", f"{prefix}z"):
            listed = {info.key for info in list_all(driver, prefix, start_after=after)}
            expected = {key for key in keys if key > after}
            assert listed >= expected
            assert listed == expected or not driver.capabilities.start_after

    def test_every_page_of_a_long_listing_is_there_whoever_lists_beside_it_and_can_be_deleted(
        self, driver: ObjectStore, prefix: str
    ) -> None:
        keys = [f"{prefix}events/{number:05d}" for number in range(_MANY)]
        many_at_a_time(lambda number: self.create(driver, keys[number], b""), _MANY)
        assert sorted(info.key for info in list_all(driver, prefix)) == keys

        older = pages(driver, prefix)
        start = max(info.key for info in next(older))
        self.create(driver, late := f"{prefix}events/late", b"")
        younger = pages(driver, prefix, start)  # is one page ahead of the other, and ends where that ends
        found = list(next(younger))
        beside = list(next(older, []))
        found += [info for page in younger for info in page]
        beside += [info for page in older for info in page]
        expected = [key for key in keys if key > start]
        assert sorted(info.key for info in found if info.key > start) == [*expected, late]
        assert sorted(info.key for info in beside if info.key != late) == expected

        driver.delete_many([late])
        size = driver.capabilities.delete_batch
        for first in range(0, _MANY, size):
            assert driver.delete_many(keys[first : first + size]) == {}
        assert list_all(driver, prefix) == []

    # --- delete -------------------------------------------------------------------------------------------------------

    def test_deleting_what_is_not_there_is_no_failure(self, driver: ObjectStore, prefix: str) -> None:
        self.create(driver, f"{prefix}a")
        for _ in range(2):
            assert driver.delete_many([f"{prefix}a", f"{prefix}never/was"]) == {}
            assert list_all(driver, prefix) == []

    def test_only_the_named_keys_are_deleted(self, driver: ObjectStore, prefix: str) -> None:
        for key in ("a", "ab", "a/b", "b"):
            if key != "a/b":  # a file system can't hold a and a/b
                self.create(driver, prefix + key)
        driver.delete_many([f"{prefix}a"])
        assert sorted(info.key for info in list_all(driver, prefix)) == [f"{prefix}ab", f"{prefix}b"]

    @pytest.mark.parametrize("told_by", ["put", "list_page", "head", "get"])
    def test_the_version_that_is_there_is_deleted_whoever_told_it(self, driver: ObjectStore, prefix: str, told_by: str) -> None:
        versions = {f"{prefix}{name}": self.create(driver, f"{prefix}{name}") for name in "abc"}
        if told_by == "list_page":
            versions = {info.key: info.version for info in list_all(driver, prefix) if info.version}
        elif told_by == "head":
            versions = {key: driver.head(key).info.version for key in versions}
        elif told_by == "get":
            bodies = {key: driver.get(key) for key in versions}
            versions = {key: body.info.version for key, body in bodies.items() if read(body)}
        for keys in ([f"{prefix}a"], [f"{prefix}b", f"{prefix}c"]):  # which some services do by different requests
            assert delete_versions(driver, keys, versions) == {}
        assert list_all(driver, prefix) == []

    def test_another_version_than_the_one_to_be_deleted_stays_where_the_driver_says_so(
        self, driver: ObjectStore, prefix: str
    ) -> None:
        keys = [f"{prefix}{name}" for name in ("again", "alone", "there", "gone", "any")]
        again, alone, _, gone, whichever = keys
        versions = {key: self.create(driver, key) for key in keys}
        driver.delete_many([again, alone, gone])
        for key in (again, alone):
            self.create(driver, key)  # of the same content
        del versions[whichever]
        for late in (keys[:1] + keys[2:], [alone]):
            for _ in range(2):
                assert delete_versions(driver, late, versions) == {}
        left = {info.key for info in list_all(driver, prefix)}
        assert left == ({again, alone} if driver.capabilities.conditional_delete else set())

    # --- races --------------------------------------------------------------------------------------------------------

    def test_of_many_creators_of_one_key_exactly_one_wins(self, driver: ObjectStore, prefix: str) -> None:
        for number in range(self.rounds):
            key = f"{prefix}{number}"
            bodies = [f"creator {creator} of {number}".encode() * 20 for creator in range(self.creators)]
            results = all_at_once([partial(self.create, driver, key, body) for body in bodies])
            winners = [body for body, result in zip(bodies, results, strict=True) if not isinstance(result, Exception)]
            losers = {self.meaning(driver, result) for result in results if isinstance(result, Exception)}
            assert winners == [read(driver.get(key))]
            assert losers <= {Meaning.PRECONDITION, Meaning.TRY_AGAIN}

    def test_of_many_replacers_of_one_version_exactly_one_wins(self, driver: ObjectStore, prefix: str) -> None:
        version = self.create(driver, f"{prefix}a", b"start")
        for number in range(min(self.rounds, 20)):
            bodies = [f"replacer {each} of {number}".encode() for each in range(self.creators // 2)]
            calls = [partial(driver.put, f"{prefix}a", body, mode=IfMatch(version), metadata={}) for body in bodies]
            results = all_at_once(calls)
            winners = [(body, result) for body, result in zip(bodies, results, strict=True) if isinstance(result, str)]
            assert len(winners) == 1
            got = driver.get(f"{prefix}a")
            assert (read(got), got.info.version) == winners[0]
            version = got.info.version

    # --- errors -------------------------------------------------------------------------------------------------------

    def test_a_bug_is_not_taken_for_an_answer(self, driver: ObjectStore) -> None:
        assert driver.classify(ZeroDivisionError()) is None
        assert driver.classify(AttributeError("typo")) is None
