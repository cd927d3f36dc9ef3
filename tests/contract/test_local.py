"""Directories against the shipped contract."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers import local, walks
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.testing import DriverContract, SharedStoreContract, StoreContract


class TestLocalDriver(DriverContract):
    @pytest.fixture
    def driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
        monkeypatch.setattr(walks, "PAGE_SIZE", 300)  # so that a long listing has several full pages
        return LocalObjectStore(str(tmp_path / "store"))

    def test_a_large_directory_is_read_once_however_many_pages_it_takes(
        self, driver: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(walks, "PAGE_SIZE", 2)
        for number in range(9):
            driver.put(f"a/{number}", b"x", mode="create", metadata={})
        with mock.patch.object(local.os, "scandir", wraps=local.os.scandir) as scandir:
            pages = [driver.list_page("a/")]
            while pages[-1].token is not None:
                pages.append(driver.list_page("a/", token=pages[-1].token))
        assert [each.key for page in pages for each in page.objects] == [f"a/{number}" for number in range(9)]
        assert scandir.call_count == 1

    def test_a_page_asked_for_again_or_after_many_other_listings_is_the_same(
        self, driver: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(walks, "PAGE_SIZE", 2)
        for directory in range(20):
            for number in range(5):
                driver.put(f"{directory}/{number}", b"x", mode="create", metadata={})
        tokens = [driver.list_page(f"{directory}/").token for directory in range(20)]
        for _ in range(2):
            for directory, token in enumerate(tokens):
                page = driver.list_page(f"{directory}/", token=token)
                assert [each.key for each in page.objects] == [f"{directory}/2", f"{directory}/3"]

    def test_pages_of_nested_directories_by_as_many_processes_show_each_key_once_in_order(
        self, driver: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = [f"a/{directory}/{number}" for directory in ("b", "b-c", "b.c", "b0") for number in range(3)] + ["a/b1"]
        for key in keys:
            driver.put(key, b"x", mode="create", metadata={})
        monkeypatch.setattr(walks, "PAGE_SIZE", 2)
        page = driver.list_page("a/")
        found = [each.key for each in page.objects]
        while page.token is not None:
            page = LocalObjectStore(str(tmp_path / "store")).list_page("a/", token=page.token)
            found += [each.key for each in page.objects]
        assert found == sorted(keys)

    def test_a_file_whose_name_begins_with_a_dot_is_no_object(self, driver: ObjectStore, tmp_path: Path) -> None:
        driver.put("a/b", b"x", mode="create", metadata={})
        (tmp_path / "store/a/.b.tmp-1-2").write_bytes(b"x")
        assert [each.key for each in driver.list_page("a/").objects] == ["a/b"]


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(str(tmp_path / prefix / "store")) as store:
            yield store


class TestSharedLocalStore(SharedStoreContract):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/shared"
