"""A listing of a directory tree that runs while the first compaction makes ``index/`` hides nothing.

The names in a session's directory are read before those in its ``events/``, and those before the files they are of: all
that was there may be gone when its turn comes, into a segment and a directory that are new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.setups import REF
from fsspec.implementations.local import LocalFileSystem

from transcript_backends import CompactionPolicy, ObjectTranscriptStore, open_store


@pytest.fixture(params=["file", "fsspec+file"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["new", "deleted before"])
def store(
    request: pytest.FixtureRequest, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectTranscriptStore]:
    """One that holds two segments, which become one while the names of their files are read."""
    with open_store(f"{scheme}://{tmp_path}") as store, open_store(str(tmp_path)) as other:
        if request.param:  # whose markers are in the directory too
            store.append_segment(REF, 0, 0, "zero", b"{}")
            store.delete(REF)
        for writer in ("one", "two"):
            store.append_segment(REF, 0, 0, writer, b"{}")
        to_come = [CompactionPolicy(full=True)]

        def compact() -> None:
            if to_come:
                other.compact(REF, to_come.pop())

        lstat, info = os.lstat, LocalFileSystem.info

        def late_lstat(path: str) -> os.stat_result:
            if str(path).endswith("-one.jsonl"):
                compact()
            return lstat(path)

        def late_info(self: LocalFileSystem, path: os.DirEntry[str] | str, **options: object) -> dict[str, object]:
            if isinstance(path, os.DirEntry) and path.name.endswith(".jsonl"):
                compact()
            return info(self, path, **options)

        monkeypatch.setattr("transcript_backends.drivers.local.os.lstat", late_lstat)
        monkeypatch.setattr(LocalFileSystem, "info", late_info)
        yield store
        assert to_come == []


def test_records(store: ObjectTranscriptStore) -> None:
    assert [record[:2] for record in store.records(REF)] == [(0, "one"), (0, "two")]


def test_sessions(store: ObjectTranscriptStore) -> None:
    assert list(store.list_refs()) == [REF]
