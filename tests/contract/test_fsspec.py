"""Filesystems of fsspec against the shipped contract: its own, and stand-ins for those whose packages are not here."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from faults.fsspec_fakes import Buckets, FakeSFTP, Register, a_registration  # noqa: F401 - a fixture

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers import walks
from transcript_backends.drivers.driver import IfMatch, Meaning, ObjectStore
from transcript_backends.drivers.fsspec import open_url
from transcript_backends.testing import DriverContract, SharedStoreContract, StoreContract
from transcript_backends.testing.drivers import read
from transcript_backends.testing.racing import all_at_once
from transcript_backends.urls import parse


class FsspecDriver(DriverContract):
    """What fsspec can't do on any filesystem is refused, not done wrong."""

    @pytest.fixture(autouse=True)
    def _short_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(walks, "PAGE_SIZE", 300)  # so that a long listing has several full pages

    def test_if_match_replaces_only_the_version_it_names(self, driver: ObjectStore, prefix: str) -> None:
        version = self.create(driver, f"{prefix}a", b"first")
        with pytest.raises(Exception) as refused:
            driver.put(f"{prefix}a", b"second", mode=IfMatch(version), metadata={})
        assert self.meaning(driver, refused.value) is Meaning.UNSUPPORTED
        assert read(driver.get(f"{prefix}a")) == b"first"

    def test_if_match_never_creates(self, driver: ObjectStore, prefix: str) -> None:
        with pytest.raises(Exception) as refused:
            driver.put(f"{prefix}a", b"x", mode=IfMatch("1"), metadata={})
        assert self.meaning(driver, refused.value) is Meaning.UNSUPPORTED
        assert list(driver.list_page(prefix).objects) == []

    def test_of_many_replacers_of_one_version_exactly_one_wins(self, driver: ObjectStore, prefix: str) -> None:
        version = self.create(driver, f"{prefix}a", b"start")
        calls = [partial(driver.put, f"{prefix}a", b"other", mode=IfMatch(version), metadata={})] * self.creators
        refused = all_at_once(calls)
        assert {self.meaning(driver, each) for each in refused if isinstance(each, Exception)} == {Meaning.UNSUPPORTED}
        assert len([each for each in refused if isinstance(each, Exception)]) == self.creators
        assert read(driver.get(f"{prefix}a")) == b"start"


class TestMemoryDriver(FsspecDriver):
    @pytest.fixture
    def driver(self) -> ObjectStore:
        return open_url(parse("fsspec+memory://contract"), {})


class TestLocalDriver(FsspecDriver):
    @pytest.fixture
    def driver(self, tmp_path: Path) -> ObjectStore:
        return open_url(parse(f"fsspec+file://{tmp_path}/store"), {})


class TestDriverWithTheRenameOfSFTP(FsspecDriver):
    @pytest.fixture
    def driver(self, register: Register, tmp_path: Path) -> ObjectStore:
        register(FakeSFTP)
        return open_url(parse("fsspec+fake://host"), {})

    @pytest.fixture
    def prefix(self, tmp_path: Path) -> str:
        return f"{str(tmp_path)[1:]}/contract/"


class TestBucketsDriver(FsspecDriver):
    @pytest.fixture
    def driver(self, register: Register) -> ObjectStore:
        register(Buckets)
        return open_url(parse("fsspec+fake://b"), {})


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(f"fsspec+memory://contract-{os.urandom(6).hex()}/{prefix}") as store:
            yield store


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(f"fsspec+file://{tmp_path}/store/{prefix}") as store:
            yield store


class TestSharedLocalStore(SharedStoreContract):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"fsspec+file://{tmp_path}/shared"
