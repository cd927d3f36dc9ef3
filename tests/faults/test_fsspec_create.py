"""Creates through fsspec: only where a filesystem really has them; elsewhere refused, before anything is overwritten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec.exceptions
import pytest
from faults.fsspec_fakes import Buckets, FakeSFTP, Open, Register, a_registration, an_opener  # noqa: F401 - fixtures
from faults.setups import REF

from transcript_backends import (
    ConditionalWritesUnsupportedError,
    ObjectTranscriptStore,
    SegmentConflictError,
    TranscriptStoreError,
)

KEY = f"b/p/acme/coder/s1/events/{0:019d}-{0:019d}-w.jsonl"
LINE = b'{"n":0}\n'


def append(store: ObjectTranscriptStore, line: bytes = LINE) -> str:
    return store.append_segment(REF, 0, 0, "w", line)


def overwrite(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
    """Takes the mode, and overwrites all the same."""
    Buckets.pipe_file(self, path, value)


def without_mode(self: Any, path: str, value: bytes) -> None:
    Buckets.pipe_file(self, path, value)


def not_implemented(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
    if mode != "overwrite":
        raise NotImplementedError("Exclusive writes")
    Buckets.pipe_file(self, path, value)


def bad_mode(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
    if mode != "overwrite":
        raise ValueError(f"unsupported mode {mode!r}")
    Buckets.pipe_file(self, path, value)


NOT_CREATING = {
    "overwrites": overwrite,
    "takes no mode": without_mode,
    "does not implement it": not_implemented,
    "refuses the mode": bad_mode,
    "looks, then writes": fsspec.AbstractFileSystem.pipe_file,
}


@pytest.mark.parametrize("pipe_file", NOT_CREATING.values(), ids=NOT_CREATING)
def test_a_filesystem_that_can_not_create_is_found_out_before_anything_is_stored(
    register: Register, open_fake: Open, pipe_file: Any
) -> None:
    variant = register(pipe_file=pipe_file)
    for _ in range(2):
        with pytest.raises(ConditionalWritesUnsupportedError, match="conditional_writes=off in the store URL"):
            append(open_fake())
    assert list(variant.objects) == ["b/.keep"]


def test_of_the_one_that_looks_and_then_writes_not_even_a_probe_is_written(register: Register, open_fake: Open) -> None:
    made = []
    register(pipe_file=fsspec.AbstractFileSystem.pipe_file, __init__=lambda self: made.append(self))
    with pytest.raises(ConditionalWritesUnsupportedError, match="can't create a file only where it is absent"):
        append(open_fake())
    assert made == []


@pytest.mark.parametrize("how", [{"url": "fsspec+fake://b/p?conditional_writes=off"}, {"conditional_writes": "off"}])
def test_it_can_be_written_to_by_whoever_accepts_the_risk(register: Register, open_fake: Open, how: dict[str, str]) -> None:
    register(pipe_file=overwrite)
    store = open_fake(**how)
    key = append(store)
    assert append(store) == key
    with pytest.raises(SegmentConflictError):
        append(store, b'{"n":1}\n')
    assert [record.line for record in store.records(REF)] == [LINE[:-1]]


def test_one_that_creates_proves_it_once(register: Register, open_fake: Open) -> None:
    modes = []

    def pipe_file(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        modes.append((mode, ".probe-" in path))
        Buckets.pipe_file(self, path, value, mode)

    variant = register(pipe_file=pipe_file)
    store = open_fake()
    append(store)
    store.append_segment(REF, 1, 1, "w", LINE)
    with pytest.raises(SegmentConflictError):
        append(store, b'{"n":1}\n')
    assert modes == [("create", True)] * 2 + [("create", False)] * 3
    assert sorted(variant.objects) == ["b/.keep", KEY, KEY.replace("0-", "1-")]


@pytest.mark.parametrize("stored", [True, False])
def test_a_create_whose_answer_is_lost_is_resolved(register: Register, open_fake: Open, stored: bool) -> None:
    lost = []

    def pipe_file(self: Any, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if path == KEY and not lost:
            lost.append(path)
            if stored:
                Buckets.pipe_file(self, path, value, mode)
            raise fsspec.exceptions.FSTimeoutError
        Buckets.pipe_file(self, path, value, mode)

    variant = register(pipe_file=pipe_file)
    append(open_fake())
    assert variant.objects[KEY][0] == LINE
    assert lost == [KEY]


def test_a_segment_that_is_merged_as_soon_as_it_is_stored_was_stored(register: Register, open_fake: Open) -> None:
    def info(self: Any, path: str, **kwargs: Any) -> dict[str, Any]:
        if path == KEY:
            raise FileNotFoundError(path)
        return Buckets.info(self, path)

    register(info=info)
    assert f"b/{append(open_fake())}" == KEY


# --- SFTP -------------------------------------------------------------------------------------------------------------


@pytest.fixture(name="directory")
def an_sftp_directory(register: Register, tmp_path: Path) -> Path:
    register(FakeSFTP)
    return tmp_path / "not" / "there yet"


def files(directory: Path) -> list[str]:
    return sorted(str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file())


def test_over_sftp_a_key_never_shows_a_part_of_its_bytes(directory: Path, open_fake: Open, monkeypatch: Any) -> None:
    seen = []

    def rename(self: Any, source: str, target: str) -> None:
        seen.append((os.path.exists(target), Path(source).read_bytes()))
        FakeSFTP._rename(self, source, target)

    open_fake(f"fsspec+fake://host{directory}").append_segment(REF, 0, 0, "w", LINE)
    monkeypatch.setattr(fsspec.get_filesystem_class("fake"), "_rename", rename)
    open_fake(f"fsspec+fake://host{directory}").append_segment(REF, 1, 1, "w", LINE)
    assert seen[-1] == (False, LINE)
    assert [Path(each).name[-8:] for each in files(directory)] == ["-w.jsonl"] * 2


def test_over_sftp_what_a_failed_write_left_is_removed_or_at_least_not_listed(
    directory: Path, open_fake: Open, monkeypatch: Any
) -> None:
    store = open_fake(f"fsspec+fake://host{directory}")
    append(store)
    variant = fsspec.get_filesystem_class("fake")

    def fail(self: Any, source: str, target: str) -> None:
        raise OSError("Failure")

    monkeypatch.setattr(variant, "_rename", fail)
    for removes in (True, False):
        if not removes:
            monkeypatch.setattr(variant, "rm_file", fail)
        with pytest.raises(TranscriptStoreError):
            store.append_segment(REF, 1, 1, "w", LINE)
        assert len(files(directory)) == (1 if removes else 5)
    assert [segment.seq_start for segment in store.list_segments(REF)] == [0]


def test_an_sftp_server_whose_rename_replaces_is_found_out(directory: Path, open_fake: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr(fsspec.get_filesystem_class("fake"), "_rename", lambda self, *names: os.replace(*names))
    with pytest.raises(ConditionalWritesUnsupportedError, match="a second create of one key was accepted"):
        append(open_fake(f"fsspec+fake://host{directory}"))
    assert files(directory) == []


def test_without_conditional_writes_sftp_still_writes_whole_files(directory: Path, open_fake: Open) -> None:
    store = open_fake(f"fsspec+fake://host{directory}?conditional_writes=off")
    append(store)
    assert [record.line for record in store.records(REF)] == [LINE[:-1]]
    assert len(files(directory)) == 1
