"""Reading, listing and deleting through fsspec under faults: all there is, once, or an error; never less."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec.exceptions
import pytest
from azure.core.exceptions import ClientAuthenticationError
from botocore.exceptions import NoCredentialsError, TokenRetrievalError, UnauthorizedSSOTokenError
from faults.fsspec_fakes import Buckets, FakeSFTP, Open, Register, a_registration, an_opener  # noqa: F401 - fixtures
from faults.setups import REF, FakeClock
from google.auth.exceptions import RefreshError, TransportError

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ContainerNotFoundError,
    CorruptSegmentError,
    ObjectTranscriptStore,
    PartialDeleteError,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
    open_store,
)
from transcript_backends.drivers import fsspec as driver_module
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.fsspec_answers import classify, object_info

LINES = [b'{"n":%d}' % number for number in range(30)]
CALLS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "list_segments": lambda store: store.list_segments(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "delete": lambda store: store.delete(REF),
    "records": lambda store: list(store.records(REF)),
    "list_refs": lambda store: list(store.list_refs()),
    "append_segment": lambda store: store.append_segment(REF, 99, 99, "w", LINES[0]),
}


def fill(store: ObjectTranscriptStore, count: int = 3) -> list[str]:
    return [store.append_segment(REF, seq, seq, "w", LINES[seq]) for seq in range(count)]


def failing(error: Callable[[], BaseException], times: int = 1000, member: str = "ls") -> tuple[Any, list[str]]:
    """A member of the filesystem that fails so many times, and what it was asked for."""
    asked: list[str] = []

    def fail(self: Any, path: str, *rest: Any, **more: Any) -> Any:
        asked.append(path)
        if len(asked) <= times:
            raise error()
        return getattr(Buckets, member)(self, path, *rest, **more)

    return fail, asked


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
def test_a_body_cut_short_is_asked_for_again(register: Register, open_fake: Open, times: int) -> None:
    short: list[str] = []

    def cat_file(self: Any, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        whole = Buckets.cat_file(self, path, start, end)
        short.append(path)
        return whole[:-1] if len(short) <= times else whole

    register(cat_file=cat_file)
    store = open_fake()
    fill(store, 1)
    assert [record.line for record in store.records(REF)] == LINES[:1]
    assert len(short) == times + 1


def test_a_body_that_is_always_cut_short_is_an_error_and_no_end(register: Register, open_fake: Open) -> None:
    register(cat_file=lambda self, path, start=0, end=0: Buckets.cat_file(self, path, start, end)[:-1])
    store = open_fake()
    (key,) = fill(store, 1)
    with pytest.raises(StoreUnavailableError, match="7 bytes came in place of 8"):
        store.read_segment(key).read()


@pytest.mark.parametrize("size", [8, 200, 300], ids=["as long", "blocks", "blocks and a part"])
@pytest.mark.parametrize("more", [-3, 5, 1000])
def test_a_file_replaced_between_its_size_and_its_bytes_is_read_again_and_whole(
    register: Register, open_fake: Open, monkeypatch: pytest.MonkeyPatch, size: int, more: int
) -> None:
    monkeypatch.setattr(driver_module, "_BLOCK_BYTES", 100)
    later = b"2" * (size + more)
    pending = [later]

    def info(self: Any, path: str, **options: Any) -> dict[str, Any]:
        told: dict[str, Any] = Buckets.info(self, path, **options)
        if path == "b/p/k" and pending:
            self.pipe_file(path, pending.pop())
        return told

    variant = register(info=info)
    store = open_fake()
    variant.objects["b/p/k"] = (b"1" * size, datetime.now(timezone.utc))
    body, version = store._container.fetch("p/k")
    assert body == later
    assert version == store._container.look("p/k")[0].version


def test_a_large_body_comes_in_blocks_and_a_range_takes_no_more_than_it_needs(
    register: Register, open_fake: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_BLOCK_BYTES", 100)
    asked: list[int] = []

    def cat_file(self: Any, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        asked.append(end - start)
        return Buckets.cat_file(self, path, start, end)

    register(cat_file=cat_file)
    store = open_fake()
    body = b"".join(b'{"n":%d}\n' % number for number in range(30))
    key = store.append_segment(REF, 0, 29, "w", body)
    with store.read_segment(key) as stream:
        assert stream.read() == body
    assert asked == [100, 100, len(body) - 200 + 1], "one more than there was: it might have grown"
    asked.clear()
    assert store._container.open(key, start=120, end=130).read() == body[120:130]
    assert asked == [10]


def test_two_files_of_one_name_are_never_mixed(register: Register, open_fake: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_BLOCK_BYTES", 100_000)  # more than what is read ahead
    variant = register()
    store = open_fake()
    body = b'{"n":"%s"}\n' % (b"x" * 10_000) * 30
    key = store.append_segment(REF, 0, 29, "w", body)
    with store.read_segment(key) as stream:
        assert stream.read(50) == body[:50]
        variant.objects[f"b/{key}"] = (b"y" * len(body), datetime.now(timezone.utc))
        with pytest.raises(CorruptSegmentError, match="deleted and another written while it was being read"):
            stream.read()


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_an_error_and_nothing_empty(register: Register, open_fake: Open, call: str) -> None:
    variant = register()
    store = open_fake()
    fill(store)
    variant.objects.clear()
    with pytest.raises(ContainerNotFoundError, match="'b' does not exist; create the bucket"):
        CALLS[call](store)


@pytest.mark.parametrize("call", CALLS)
def test_a_directory_that_is_gone_is_an_error_and_nothing_empty(tmp_path: Path, call: str) -> None:
    (tmp_path / "store").mkdir()
    with open_store(f"fsspec+file://{tmp_path}/store", clock=FakeClock()) as store:
        (tmp_path / "store").rmdir()
        if call == "append_segment":  # makes it again, as file:// does
            CALLS[call](store)
        else:
            with pytest.raises(ContainerNotFoundError):
                CALLS[call](store)


@pytest.mark.parametrize("call", sorted(CALLS.keys() - {"append_segment"}))
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (PermissionError, AccessDeniedError),
        (lambda: OSError("Forbidden: https://host/b/o\nno access"), AccessDeniedError),
        (lambda: json.JSONDecodeError("Expecting value", "<html>", 0), UnexpectedResponseError),
        (fsspec.exceptions.FSTimeoutError, StoreUnavailableError),
        (lambda: ConnectionResetError(errno.ECONNRESET, "reset"), StoreUnavailableError),
    ],
    ids=["denied", "denied by gcsfs", "a web page", "time-out", "reset"],
)
def test_a_listing_that_fails_is_an_error_and_nothing_empty(
    register: Register, open_fake: Open, call: str, error: Any, raised: type[Exception]
) -> None:
    variant = register()
    store = open_fake()
    fill(store)
    variant.ls, asked = failing(error)
    with pytest.raises(raised):
        CALLS[call](store)
    assert len(asked) == (4 if raised is StoreUnavailableError else 1)


def test_what_is_temporarily_unavailable_is_asked_for_again(register: Register, open_fake: Open) -> None:
    variant = register()
    store = open_fake()
    fill(store)
    variant.ls, asked = failing(TimeoutError, times=2)
    assert [record.line for record in store.records(REF)] == LINES[:3]
    assert len(asked) > 2


def test_no_listing_is_remembered(register: Register, open_fake: Open) -> None:
    register()
    reader, writer = open_fake(), open_fake()
    for seq in range(3):
        assert len(reader.list_segments(REF)) == seq
        writer.append_segment(REF, seq, seq, "w", LINES[seq])
    writer.delete(REF)
    assert reader.list_segments(REF) == []


def test_a_directory_is_listed_once_however_many_pages_it_takes(
    register: Register, open_fake: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transcript_backends.drivers.walks.PAGE_SIZE", 7)
    variant = register()
    store = open_fake()
    fill(store, 30)
    variant.ls, asked = failing(TimeoutError, times=0)
    assert len(store.list_segments(REF)) == 30
    assert asked.count("b/p/acme/coder/s1/events") == 1


def test_a_listing_broken_off_between_two_directories_goes_on_where_it_was(register: Register, open_fake: Open) -> None:
    variant = register()
    store = open_fake()
    fill(store, 20)
    store.compact(REF, CompactionPolicy(min_segments=2))

    failed: list[str] = []

    def ls(self: Any, path: str, **more: Any) -> Any:
        if path.endswith("/index") and len(failed) < 2:
            failed.append(path)
            raise TimeoutError
        return Buckets.ls(self, path, **more)

    variant.ls = ls
    assert [record.line for record in store.records(REF)] == LINES[:20]
    assert len(failed) == 2


@pytest.mark.parametrize("name", ["", "s1/events/", "s1", "s1/events/._x.tmp-1234"])
def test_markers_of_directories_and_temporary_files_are_no_objects(register: Register, open_fake: Open, name: str) -> None:
    variant = register()
    store = open_fake()
    fill(store)
    variant.objects[f"b/p/acme/coder/{name}"] = (b"", datetime.now(timezone.utc))
    variant.ls = lambda self, path, **more: [
        *Buckets.ls(self, path, **more),
        {"name": f"{path}/", "size": 0, "type": "file", "last_modified": datetime.now(timezone.utc)},
    ]
    assert [segment.seq_start for segment in store.list_segments(REF)] == [0, 1, 2]
    assert store.verify(REF).ok


def test_a_link_to_a_directory_is_refused_and_not_taken_for_nothing(tmp_path: Path) -> None:
    with open_store(f"fsspec+file://{tmp_path}/store") as store:
        fill(store)
        session = tmp_path / "store" / "acme" / "coder" / "s1"
        os.rename(session, tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", session)
        with pytest.raises(AccessDeniedError, match="symbolic link"):
            store.list_segments(REF)


def test_a_link_to_a_directory_is_told_and_the_rest_is_listed(
    register: Register, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    register(FakeSFTP)
    with open_store(f"fsspec+fake://host{tmp_path}") as store:
        fill(store)
        (tmp_path / "acme" / "coder" / "s0").symlink_to(tmp_path / "acme" / "coder" / "s1")
        assert list(store.list_refs()) == [REF]
    assert "acme/coder/s0/ can't be read" in caplog.text
    assert "is a link to a directory, which is not followed" in caplog.text


# --- times ------------------------------------------------------------------------------------------------------------

WHEN = datetime(2026, 3, 4, 5, 6, 7, 250000, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "told",
    [
        {"LastModified": WHEN},
        {"last_modified": WHEN.astimezone(timezone(timedelta(hours=5)))},
        {"mtime": WHEN.timestamp(), "created": 1.0},
        {"modified": WHEN.replace(tzinfo=None)},
        {"updated": "2026-03-04T05:06:07.250Z"},
        {"updated": "2026-03-04T05:06:07.250000+00:00"},
        {"modificationTime": int(WHEN.timestamp() * 1000)},
        {"created": WHEN},
        {"LastModified": "", "creation_time": WHEN},
    ],
    ids=str,
)
def test_every_way_to_tell_the_time_is_understood(told: dict[str, Any]) -> None:
    info = object_info("a", {"name": "b/a", "size": 1, "type": "file", **told})
    assert info.created_at == WHEN
    assert info.created_at.utcoffset() == timedelta(0)
    assert info.version


def test_a_time_in_the_words_of_http_is_understood() -> None:
    told = {"name": "b/a", "size": 1, "type": "file", "LastModified": "Wed, 04 Mar 2026 05:06:07 GMT"}
    assert object_info("a", told).created_at == WHEN.replace(microsecond=0)


@pytest.mark.parametrize("conditional_writes", ["on", "off"])
def test_a_filesystem_that_tells_no_time_is_refused_at_the_first_write_and_in_every_listing(
    register: Register, open_fake: Open, conditional_writes: str
) -> None:
    variant = register(_told=lambda self, path: {"name": path, "size": len(self.objects[path][0]), "type": "file"})
    why = "the filesystem does not tell when a file was written, only name, size, type"
    with pytest.raises(TranscriptStoreError, match=why):
        CALLS["append_segment"](open_fake(conditional_writes=conditional_writes))
    variant.objects[f"b/p/{REF.prefix}events/{0:019d}-{0:019d}-w.jsonl"] = (b"{}\n", WHEN)
    for call in CALLS:
        with pytest.raises(TranscriptStoreError, match=why):
            CALLS[call](open_fake(conditional_writes=conditional_writes))


# --- delete -----------------------------------------------------------------------------------------------------------


def test_what_could_not_be_deleted_is_named_and_the_rest_is_gone(register: Register, open_fake: Open) -> None:
    variant = register()
    store = open_fake()
    keys = fill(store)

    def rm_file(self: Any, path: str) -> None:
        if path == f"b/{keys[0]}":
            raise PermissionError(errno.EACCES, "denied")
        Buckets.rm_file(self, path)

    variant.rm_file = rm_file
    with pytest.raises(PartialDeleteError) as partial:
        store.delete(REF)
    assert partial.value.failed == {keys[0]: "Permission denied"}
    assert [segment.key for segment in store.list_segments(REF)] == [keys[0]]
    variant.rm_file = Buckets.rm_file
    assert store.delete(REF).deleted == 1


def test_a_delete_that_is_throttled_is_repeated_for_the_rest(register: Register, open_fake: Open) -> None:
    variant = register()
    store = open_fake()
    fill(store)
    variant.rm_file, asked = failing(lambda: OSError(errno.EBUSY, "slow down"), times=2, member="rm_file")
    assert store.delete(REF).deleted == 3
    assert len(asked) > 4


# --- errors -----------------------------------------------------------------------------------------------------------


class SDKError(Exception):
    """Of a package that is not known, with whatever it tells."""

    def __init__(self, **told: Any) -> None:
        super().__init__("https://host/c4n4ry?sig=c4n4ry")
        self.__dict__.update(told)


class AuthenticationException(SDKError):
    pass


class BadHostKeyException(SDKError):
    pass


class UnknownHostError(Exception):
    """As paramiko says it, by a kind of exception that it also has for lost connections."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def answer(status: int) -> dict[str, Any]:
    return {"Error": {"Code": "Some"}, "ResponseMetadata": {"HTTPStatusCode": status}}


def refusal(code: str) -> dict[str, Any]:
    return {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 403}}


@pytest.mark.parametrize(
    ("error", "meaning", "detail"),
    [
        (FileExistsError(), Meaning.PRECONDITION, "FileExistsError"),
        (caused(OSError(errno.EINVAL, "c4n4ry"), SDKError(response=answer(412))), Meaning.PRECONDITION, "HTTP 412"),
        (caused(OSError(errno.EIO, "c4n4ry"), SDKError(response=answer(409))), Meaning.TRY_AGAIN, "HTTP 409"),
        (caused(OSError(errno.EIO, "c4n4ry"), SDKError(response=answer(400))), Meaning.OTHER, "HTTP 400"),
        (caused(PermissionError("c4n4ry"), SDKError(response=answer(403))), Meaning.DENIED, "HTTP 403"),
        (caused(PermissionError("c4n4ry"), SDKError(response=refusal("InvalidAccessKeyId"))), Meaning.UNAUTHENTICATED, "403"),
        (caused(PermissionError("c4n4ry"), SDKError(response=refusal("ExpiredToken"))), Meaning.EXPIRED, "HTTP 403"),
        (SDKError(status_code=403, error_code="AuthenticationFailed"), Meaning.UNAUTHENTICATED, "HTTP 403"),
        (NoCredentialsError(), Meaning.UNAUTHENTICATED, "NoCredentialsError"),
        (UnauthorizedSSOTokenError(), Meaning.UNAUTHENTICATED, "UnauthorizedSSOTokenError"),
        (TokenRetrievalError(provider="sso", error_msg="c4n4ry"), Meaning.UNAUTHENTICATED, "TokenRetrievalError"),
        (TransportError("c4n4ry"), Meaning.TRY_AGAIN, "TransportError"),
        (RefreshError("c4n4ry"), Meaning.UNAUTHENTICATED, "RefreshError"),
        (ClientAuthenticationError("c4n4ry"), Meaning.UNAUTHENTICATED, "ClientAuthenticationError"),
        (FileNotFoundError("c4n4ry"), Meaning.NOT_FOUND, "FileNotFoundError"),
        (SDKError(status_code=404), Meaning.NOT_FOUND, "SDKError, HTTP 404"),
        (SDKError(code=401), Meaning.EXPIRED, "HTTP 401"),
        (SDKError(code=403), Meaning.DENIED, "HTTP 403"),
        (SDKError(status=429), Meaning.TRY_AGAIN, "HTTP 429"),
        (SDKError(code=503), Meaning.TRY_AGAIN, "HTTP 503"),
        (SDKError(code=501), Meaning.UNSUPPORTED, "HTTP 501"),
        (SDKError(code="503"), Meaning.TRY_AGAIN, "SDKError"),
        (SDKError(response=SimpleNamespace(status=1)), Meaning.TRY_AGAIN, "SDKError"),
        (AuthenticationException(), Meaning.DENIED, "AuthenticationException"),
        (BadHostKeyException(), Meaning.DENIED, "BadHostKeyException"),
        (UnknownHostError("Server 'host' not found in known_hosts"), Meaning.DENIED, "UnknownHostError"),
        (fsspec.exceptions.FSTimeoutError(), Meaning.TRY_AGAIN, "FSTimeoutError"),
        (EOFError(), Meaning.TRY_AGAIN, "EOFError"),
        (OSError("Socket is closed"), Meaning.TRY_AGAIN, "OSError"),
        (OSError(errno.EBUSY, "c4n4ry"), Meaning.TRY_AGAIN, os.strerror(errno.EBUSY)),
        (OSError(errno.ENOSPC, "c4n4ry"), Meaning.TRY_AGAIN, os.strerror(errno.ENOSPC)),
        (OSError(errno.EROFS, "c4n4ry"), Meaning.DENIED, os.strerror(errno.EROFS)),
        (OSError(errno.ENOTSUP, "c4n4ry"), Meaning.UNSUPPORTED, os.strerror(errno.ENOTSUP)),
        (NotImplementedError(), Meaning.UNSUPPORTED, "NotImplementedError"),
        (ValueError("unsupported mode"), Meaning.UNSUPPORTED, "ValueError"),
        (json.JSONDecodeError("c4n4ry", "<html>", 0), Meaning.NO_ANSWER, "JSONDecodeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_kind_of_failure_has_its_meaning_and_no_secret(error: Exception, meaning: Meaning, detail: str) -> None:
    failure = classify(error)
    assert failure is not None
    assert failure.meaning is meaning
    assert detail in failure.detail
    assert "c4n4ry" not in failure.detail


def test_credentials_that_are_refused_are_read_anew_by_another_instance(register: Register, open_fake: Open) -> None:
    made: list[Any] = []

    def __init__(self: Any) -> None:
        Buckets.__init__(self)
        made.append(self)

    def ls(self: Any, path: str, **more: Any) -> Any:
        if self is made[0]:
            raise caused(PermissionError("c4n4ry"), SDKError(response=refusal("InvalidAccessKeyId")))
        return Buckets.ls(self, path, **more)

    register(__init__=__init__, ls=ls)
    store = open_fake()
    assert store.list_segments(REF) == []
    assert len(made) == 2


@pytest.mark.parametrize("error", [TypeError("typo"), KeyError("typo"), RuntimeError("typo"), RecursionError()])
def test_a_bug_is_no_failure(error: Exception) -> None:
    assert classify(error) is None
