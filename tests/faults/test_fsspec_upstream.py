"""What docs/backends/fsspec.md says of the filesystems that come with fsspec, checked: what they promise, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.tests.abstract import AbstractFixtures, AbstractOpenTests, AbstractPipeTests

from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.fsspec import FsspecObjectStore


class FsspecsContract(AbstractFixtures, AbstractPipeTests, AbstractOpenTests):
    """The part of fsspec's own contract that tells of creating: one after the other, a second create is refused."""

    def test_two_creators_that_both_looked_first_both_win(
        self, fs: Any, fs_target: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Which is why `pipe_file` is not used here as it is. When this fails, fsspec has mended it."""
        with monkeypatch.context() as patch:
            patch.setattr(type(fs), "exists", lambda *path: False)
            for body in (b"first", b"second"):
                fs.pipe_file(fs_target, body, mode="create")
        assert fs.cat_file(fs_target) == b"second"

    def test_an_exclusive_open_shows_the_name_before_the_bytes(self, fs: Any, fs_target: str) -> None:
        with fs.open(fs_target, "xb") as file:
            assert fs.info(fs_target)["size"] == 0
            file.write(b"bytes")


class TestLocalFileSystem(FsspecsContract):
    @pytest.fixture
    def fs(self) -> Any:
        return LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestMemoryFileSystem(FsspecsContract):
    @pytest.fixture
    def fs(self) -> Any:
        return MemoryFileSystem(skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "/upstream"


@pytest.mark.parametrize("protocol", ["cached", "dbfs", "dir", "ftp", "github", "hdfs", "simplecache", "tar", "webhdfs", "zip"])
def test_no_other_filesystem_of_fsspecs_creates_and_none_is_asked_to(protocol: str) -> None:
    driver = FsspecObjectStore(fsspec.get_filesystem_class(protocol), {}, "", f"{protocol}://host")
    with pytest.raises(Exception) as refused:
        driver.put("a/b", b"x", mode="create", metadata={})
    failure = driver.classify(refused.value)
    assert failure is not None
    assert failure.meaning is Meaning.UNSUPPORTED
