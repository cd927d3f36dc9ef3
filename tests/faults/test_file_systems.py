"""A file system need not do everything: what it lacks is done without, or said, and nothing is lost for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import stat
import threading
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.file_systems import failing, fold_names
from faults.setups import REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ConditionalWritesUnsupportedError,
    InvalidRefError,
    JournalError,
    ObjectTranscriptStore,
    SegmentConflictError,
    StoreUnavailableError,
    TranscriptRef,
    TranscriptStoreError,
    VersionConflictError,
    diagnose,
    open_store,
)
from transcript_backends.drivers import local
from transcript_backends.machine import SystemDisk
from transcript_backends.state import StateStore
from transcript_backends.testing.racing import all_at_once

LINE = b'{"a":1}\n'
OTHER = b'{"a":2}\n'
NOT_OFFERED = [errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EACCES, errno.EPERM]
NO_ROOM = [errno.ENOSPC, errno.EDQUOT]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture(params=["file", "fsspec+file"])
def store(request: pytest.FixtureRequest, root: Path) -> ObjectTranscriptStore:
    return open_store(f"{request.param}://{root}", clock=FakeClock())


def append(store: ObjectTranscriptStore, seq: int = 0, line: bytes = LINE, ref: TranscriptRef = REF) -> str:
    return store.append_segment(ref, seq, seq, "w", line)


def on_directories(code: int, call: Callable[..., Any], *, but: bool = False) -> Callable[..., Any]:
    """A call on a descriptor that fails on directories, or on all but those."""

    def either(file: int, *args: Any) -> Any:
        if stat.S_ISDIR(os.fstat(file).st_mode) is not but:
            raise OSError(code, os.strerror(code))
        return call(file, *args)

    return either


# --- flushes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", NOT_OFFERED)
def test_where_a_directory_cannot_be_flushed_everything_works_and_it_is_said_once(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", on_directories(code, os.fsync))
    append(store)
    append(store, 1)
    assert [each.seq for each in store.records(REF)] == [0, 1]
    assert store.delete(REF).deleted == 2
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert os.strerror(code) in caplog.text


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_a_file_cannot_be_flushed_everything_works_and_it_is_said_once(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", on_directories(code, os.fsync, but=True))
    append(store)
    append(store, 1)
    assert len(caplog.records) == 1
    assert "a power cut may lose" in caplog.text


@pytest.mark.parametrize("code", [errno.EIO, *NO_ROOM])
@pytest.mark.parametrize("but", [False, True], ids=["directories", "files"])
def test_a_flush_that_fails_is_no_flush_that_is_not_there(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, code: int, but: bool
) -> None:
    append(store)
    monkeypatch.setattr(os, "fsync", on_directories(code, os.fsync, but=but))
    with pytest.raises(TranscriptStoreError, match=os.strerror(code)):
        append(store, 1)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EBADF])
def test_a_file_whose_content_was_refused_is_not_stored(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    append(store)
    monkeypatch.setattr(os, "fsync", on_directories(code, os.fsync, but=True))
    with pytest.raises(TranscriptStoreError):
        append(store, 1)
    assert store.next_seq(REF) == 1


def test_a_name_that_could_not_be_flushed_is_not_told_to_be_stored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"file://{root}", clock=FakeClock())
    append(store)
    real, flushed = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal flushed
        if stat.S_ISDIR(os.fstat(file).st_mode):
            flushed += 1
            if flushed < 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    append(store, 1)
    assert flushed == 4


def test_what_is_lacking_is_what_the_doctor_says(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", on_directories(errno.EINVAL, os.fsync))
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    checks = list(diagnose(str(root)))
    assert all(each.passed for each in checks)
    said = [each.detail for each in checks if each.name == "remark"]
    for what in ("flush of directories", "hard links", "locks"):
        assert any(what in each for each in said)


@pytest.mark.parametrize("code", NOT_OFFERED)
def test_a_journal_does_without_flushes_of_its_directory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", on_directories(code, os.fsync))
    with open_store(str(root)) as store, store.writer(REF, spool_dir=str(tmp_path / "spool")) as writer:
        writer.append({"a": 1})
        assert store.next_seq(REF) == 0
        writer.flush()
        assert store.next_seq(REF) == 1


@pytest.mark.parametrize("code", NOT_OFFERED)
def test_where_times_cannot_be_set_documents_are_replaced_by_version_all_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr(os, "utime", failing(code))
    state = StateStore(f"file://{root}")
    old = state.save("u", "s", "k", {"n": 1})
    new = state.save_if_version("u", "s", "k", {"n": 2}, old)
    assert new != old
    with pytest.raises(VersionConflictError):
        state.save_if_version("u", "s", "k", {"n": 3}, old)
    assert len(caplog.records) == 1


# --- links ------------------------------------------------------------------------------------------------------------

WITHOUT_LINKS = [errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL]


def without_exclusive_renames(monkeypatch: pytest.MonkeyPatch, code: int | None = errno.EINVAL) -> None:
    class Library:
        def __init__(self, *args: object, **kwargs: object) -> None:
            if code is not None:
                self.renameat2 = self.renamex_np = lambda *args: -1

    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: code)


@pytest.mark.parametrize("renames", [True, False], ids=["exclusive renames", "none"])
@pytest.mark.parametrize("code", WITHOUT_LINKS)
def test_without_hard_links_a_create_is_exclusive_and_whole(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int, renames: bool
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    if not renames:
        without_exclusive_renames(monkeypatch)
    append(store)
    append(store)
    with pytest.raises(SegmentConflictError):
        append(store, line=OTHER)
    assert [each.read_bytes() for each in root.rglob("*") if each.is_file()] == [LINE]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EACCES, None])
def test_of_many_creators_one_wins_also_where_names_are_claimed(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    without_exclusive_renames(monkeypatch, code)
    driver = local.LocalObjectStore(str(root))
    for number in range(20):
        key = f"a/{number}"
        calls = [partial(driver.put, key, b"%d" % each, mode="create", metadata={}) for each in range(4)]
        outcomes = all_at_once(calls)
        won = [each for each, outcome in enumerate(outcomes) if isinstance(outcome, str)]
        refused = [each for each in outcomes if not isinstance(each, str)]
        assert len(won) == 1
        assert {getattr(each, "errno", None) for each in refused} <= {errno.EEXIST, errno.EBUSY}
        assert (root / key).read_bytes() == b"%d" % won[0]
    assert all(not name.startswith(".") for name in os.listdir(root / "a"))


def test_a_claim_that_a_crash_has_left_is_taken_over_a_minute_later_and_not_before(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    without_exclusive_renames(monkeypatch)
    store = open_store(f"file://{root}", clock=FakeClock(), max_attempts=2)
    key = append(store)
    claim = root / os.path.dirname(key) / f".{'0' * 18}1-{'0' * 18}1-w.jsonl.tmp-claim"
    claim.touch()
    with pytest.raises(StoreUnavailableError, match="about to"):
        append(store, 1)
    real = os.lstat

    def lstat(path: Any, **kwargs: Any) -> Any:
        found = real(path, **kwargs)
        if os.fspath(path) != str(claim):
            return found
        return os.stat_result((*found[:9], found.st_ctime - 61))

    monkeypatch.setattr(os, "lstat", lstat)
    append(store, 1)
    assert not claim.exists()
    assert store.next_seq(REF) == 2


def test_a_link_that_fails_for_lack_of_room_is_no_missing_link(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))
    with pytest.raises(StoreUnavailableError, match="No space left"):
        append(store)
    assert not caplog.records


@pytest.mark.parametrize("code", WITHOUT_LINKS)
def test_a_journal_gets_its_name_without_links_and_takes_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    disk = SystemDisk()
    for name, content in (("a", b"1"), ("b", b"2")):
        (tmp_path / name).write_bytes(content)
    disk.link(str(tmp_path / "a"), str(tmp_path / "name"))
    with pytest.raises(FileExistsError):
        disk.link(str(tmp_path / "b"), str(tmp_path / "name"))
    assert (tmp_path / "name").read_bytes() == b"1"


# --- locks ------------------------------------------------------------------------------------------------------------

WITHOUT_LOCKS = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF]


@pytest.mark.parametrize("code", WITHOUT_LOCKS)
def test_without_locks_transcripts_are_stored_compacted_and_deleted(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(code))
    for seq in range(12):
        append(store, seq)
    store.compact(REF, CompactionPolicy(full=True))
    assert [each.seq for each in store.records(REF)] == list(range(12))
    assert len(store.list_segments(REF)) == 1
    for seq in range(12, 14):
        append(store, seq)
    assert store.delete(REF).deleted == 4  # a compacted segment, its index, two segments
    append(store, store.next_seq(REF))
    assert store.delete(REF, purge=True).deleted == 1


@pytest.mark.parametrize("code", WITHOUT_LOCKS)
def test_without_locks_no_document_is_replaced_by_its_version_and_the_remedy_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    state = StateStore(f"file://{root}")
    version = state.save("u", "s", "k", {"n": 1})
    monkeypatch.setattr(fcntl, "flock", failing(code))
    with pytest.raises(ConditionalWritesUnsupportedError, match="this file system has no locks; mount it with them"):
        state.save_if_version("u", "s", "k", {"n": 2}, version)
    with pytest.raises(ConditionalWritesUnsupportedError, match="no locks"):
        state.update("u", "s", "k", dict, lambda _: {"n": 2})
    assert state.get("u", "s", "k", dict) == {"n": 1}
    state.save("u", "s", "k", {"n": 3})  # the last one wins, lock or no lock
    assert state.get("u", "s", "k", dict) == {"n": 3}
    state.delete("u", "s")
    assert not state.exists("u", "s")


@pytest.mark.parametrize("code", WITHOUT_LOCKS)
def test_without_locks_there_is_no_journal_and_the_remedy_is_said(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(code))
    with open_store(str(root)) as store:
        with pytest.raises(JournalError, match=r"no locks; mount it with them .* or use a directory on a local disk"):
            store.writer(REF, spool_dir=str(tmp_path / "spool"))
        with store.writer(REF) as writer:
            writer.append({"a": 1})
        assert store.next_seq(REF) == 1


# --- directories that can't be read -----------------------------------------------------------------------------------


def unreadable(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    """Also for root, who may read everything."""
    real = os.scandir
    denied = set(map(str, directories))

    def scandir(path: Any) -> Any:
        if os.fspath(path).rstrip("/") in denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_what_no_id_can_name_is_not_looked_into(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append(store)
    (root / "lost+found").mkdir()
    unreadable(monkeypatch, root / "lost+found")
    assert list(store.list_refs()) == [REF]
    assert not caplog.records


def test_a_directory_that_cannot_be_read_is_told_and_the_rest_is_listed(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hidden = TranscriptRef("acme", "coder", "s0")
    append(store)
    append(store, ref=hidden)
    append(store, ref=TranscriptRef("zeta", "coder", "s1"))
    for directory in (root / "acme/coder/s0", root / "acme/coder/s0/events"):
        with monkeypatch.context() as patch:
            unreadable(patch, directory)
            caplog.clear()
            assert [each.session_id for each in store.list_refs()] == ["s1", "s1"]
            assert f"acme/coder/s0{'/events' if directory.name == 'events' else ''}/ can't be read" in caplog.text
    for ask in (store.delete, store.list_segments, store.next_seq, lambda ref: list(store.records(ref))):
        with monkeypatch.context() as patch:
            unreadable(patch, root / "acme/coder/s0/events")
            with pytest.raises(AccessDeniedError):
                ask(hidden)
    assert store.next_seq(hidden) == 1


@pytest.mark.parametrize("target", ["outside", "."], ids=["elsewhere", "looping"])
def test_a_linked_directory_is_not_followed_and_the_rest_is_listed(
    store: ObjectTranscriptStore, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    (tmp_path / "outside").mkdir()
    append(store)
    (root / "aaa").symlink_to(tmp_path / "outside" if target == "outside" else root)
    (root / "self").symlink_to(root / "self")
    assert list(store.list_refs()) == [REF]
    assert "aaa/ can't be read" in caplog.text
    assert "symbolic link" in caplog.text
    with pytest.raises(AccessDeniedError):
        store.list_segments(TranscriptRef("aaa", "coder", "s1"))


def test_documents_in_a_directory_that_cannot_be_read_are_not_taken_for_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateStore(f"file://{root}")
    state.save("u", "s", "k", {"n": 1})
    (root / "lost+found").mkdir()
    unreadable(monkeypatch, root / "lost+found", root / "u/s")
    with pytest.raises(AccessDeniedError, match="u/s"):
        state.clear()
    with pytest.raises(AccessDeniedError):
        state.list_session_ids("u")
    monkeypatch.undo()
    unreadable(monkeypatch, root / "lost+found")
    assert state.clear() == 1


# --- no room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "mkdir", "link", "utime"])
@pytest.mark.parametrize("code", [*NO_ROOM, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ENOTCONN])
def test_no_room_for_a_moment_is_waited_for(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    real, failures = getattr(os, call), 3

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, sometimes)
    append(store)
    assert failures == 0
    assert [each.read_bytes() for each in root.rglob("*") if each.is_file()] == [LINE]


@pytest.mark.parametrize("scheme", ["file", "fsspec+file"])
@pytest.mark.parametrize("code", NO_ROOM)
def test_a_writer_goes_on_when_there_is_room_again(root: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, code: int) -> None:
    is_full = threading.Event()
    is_full.set()
    real = os.write

    def write(file: int, data: Any) -> int:
        if is_full.is_set() and os.readlink(f"/proc/self/fd/{file}").startswith(str(root)):
            raise OSError(code, os.strerror(code))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    with open_store(f"{scheme}://{root}", max_attempts=1) as store, store.writer(REF) as writer:
        writer.append({"a": 1})
        with pytest.raises(StoreUnavailableError, match=os.strerror(code)):
            writer.flush()
        writer.append({"a": 2})  # it has not stopped
        is_full.clear()
        writer.flush()
    with open_store(f"{scheme}://{root}") as store:
        assert [each.seq for each in store.records(REF)] == [0, 1]


@pytest.mark.parametrize("code", NO_ROOM)
def test_a_full_disk_can_be_emptied(store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    append(store)
    real = os.write

    def write(file: int, data: Any) -> int:
        if stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(code, os.strerror(code))
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    assert store.delete(REF) == (1, 1)
    assert store.list_segments(REF) == []
    assert store.next_seq(REF) == 0
    monkeypatch.undo()
    append(store)
    monkeypatch.setattr(os, "write", write)
    assert store.delete(REF) == (1, 2)  # the marker of another delete, as empty as ours, is not taken for it


def test_deletes_on_a_full_disk_never_share_a_marker(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"file://{root}", clock=FakeClock())
    append(store)
    real = os.link

    def link(source: str, target: str) -> None:
        (root / "acme/coder/s1/events/deleting-1").touch()  # of another delete, which is faster
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    assert store.delete(REF).generation == 2


def test_a_disk_with_no_room_for_a_name_says_what_to_remove(
    store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(store)
    real = os.open

    def no_new(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", no_new)
    with pytest.raises(StoreUnavailableError, match=rf"no room for the marker .* remove .*{root}/acme/coder/s1/"):
        store.delete(REF)
    assert [each.seq for each in store.records(REF)] == [0]


# --- names that fold --------------------------------------------------------------------------------------------------


@pytest.fixture
def folding(store: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectTranscriptStore:
    fold_names(monkeypatch, str(root))
    return store


UPPER, LOWER = TranscriptRef("acme", "coder", "Fix-Login"), TranscriptRef("acme", "coder", "fix-login")


@pytest.mark.parametrize(
    "other",
    [LOWER, TranscriptRef("ACME", "coder", "Fix-Login"), TranscriptRef("acme", "Coder", "x")],
    ids=["session", "tenant", "agent"],
)
def test_a_transcript_whose_name_folds_into_anothers_is_refused_and_the_other_stays_whole(
    folding: ObjectTranscriptStore, other: TranscriptRef
) -> None:
    append(folding, ref=UPPER)
    calls: list[Callable[[TranscriptRef], object]] = [
        folding.list_segments, folding.next_seq, folding.delete, lambda ref: list(folding.records(ref)),
        lambda ref: append(folding, 1, ref=ref), folding.writer,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidRefError, match=r"is spelled '(Fix-Login|acme|coder)' there"):
            call(other)
    append(folding, 1, ref=UPPER)
    assert [each.seq for each in folding.records(UPPER)] == [0, 1]
    assert list(folding.list_refs()) == [UPPER]
    assert folding.delete(UPPER).deleted == 2


def test_writer_ids_that_fold_do_not_take_one_anothers_segments(folding: ObjectTranscriptStore) -> None:
    key = folding.append_segment(REF, 0, 0, "W1", LINE)
    for line in (LINE, OTHER):
        with pytest.raises(InvalidRefError, match=r"W1.jsonl' there"):
            folding.append_segment(REF, 0, 0, "w1", line)
    with pytest.raises(InvalidRefError):
        folding.read_segment(key.replace("W1", "w1"))
    failed = folding._container.delete([key.replace("W1", "w1")])
    assert "W1.jsonl' there" in next(iter(failed.values()))
    assert [each.writer_id for each in folding.records(REF)] == ["W1"]
    folding.append_segment(REF, 1, 1, "w1", LINE)


def test_state_keys_and_sessions_that_fold_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateStore(f"file://{root}")
    fold_names(monkeypatch, str(root))
    version = state.save("u", "s", "Key", {"n": 1})
    for user, session, key in (("u", "s", "key"), ("u", "S", "Key"), ("U", "s", "Key")):
        calls: list[Callable[[], object]] = [
            partial(state.save, user, session, key, {}), partial(state.get, user, session, key, dict),
            partial(state.save_if_version, user, session, key, {}, version),
            partial(state.update, user, session, key, dict, lambda _: {}),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidRefError, match="there, and this file system takes the two names for one"):
                call()
    with contextlib.suppress(TranscriptStoreError):
        state.delete("u", "s", "key")
    assert state.get("u", "s", "Key", dict) == {"n": 1}


def test_unicode_forms_that_fold_are_told_apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = local.LocalObjectStore(str(root))
    fold_names(monkeypatch, str(root))
    composed, parted = (unicodedata.normalize(form, "café/naïve") for form in ("NFC", "NFD"))
    driver.put(composed, b"1", mode="create", metadata={})
    for call in (driver.head, driver.get, partial(driver.put, body=b"2", mode="overwrite", metadata={})):
        with pytest.raises(local.OtherSpelling):
            call(parted)
    assert driver.head(composed).info.size == 1


def test_two_that_make_folding_directories_at_the_same_moment_do_not_share_one(
    folding: ObjectTranscriptStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir()
    real = os.mkdir

    def just_before(path: str, *args: Any) -> None:
        monkeypatch.setattr(os, "mkdir", real)
        real(path.replace("acme", "ACME"))
        real(path, *args)

    monkeypatch.setattr(os, "mkdir", just_before)
    with pytest.raises(InvalidRefError, match="'ACME' there"):
        append(folding)


def test_telling_spellings_apart_costs_two_looks_for_each_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = local.LocalObjectStore(str(root))
    for number in range(50):
        driver.put(f"a/b/{number}.jsonl", b"x", mode="create", metadata={})
    looks = 0
    real = os.lstat

    def lstat(path: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += ".JSONL" in os.fspath(path)
        return real(path, **kwargs)

    monkeypatch.setattr(os, "lstat", lstat)
    monkeypatch.setattr(os, "listdir", failing(errno.EIO))
    for number in range(50):
        driver.get(f"a/b/{number}.jsonl").stream.close()
    assert looks == 1


# --- names that are not taken -----------------------------------------------------------------------------------------

RESERVED = ["con", "NUL.x", "COM1", "lpt1.txt", "aux", "a ", "a.", "Prn"]


@pytest.mark.parametrize("name", RESERVED)
def test_names_that_a_platform_reserves_are_ordinary_where_it_takes_them(store: ObjectTranscriptStore, name: str) -> None:
    ref = TranscriptRef(name, name, name)
    append(store, ref=ref)
    assert list(store.list_refs()) == [ref]
    assert [each.seq for each in store.records(ref)] == [0]
    assert store.delete(ref).deleted == 1


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ])
def test_a_name_that_the_file_system_does_not_take_is_an_error_of_the_name(
    store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, *args: Any) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(InvalidRefError, match=r"takes no such name.*use another id"):
        append(store)


def test_the_library_says_nothing_of_a_file_system_that_does_all(
    store: ObjectTranscriptStore, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        append(store)
        store.delete(REF)
    assert not caplog.records
    assert [each.name for each in diagnose(f"file://{root}")][-1] == "delete"
