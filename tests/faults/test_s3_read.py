"""Reads from S3 under faults: the right bytes, or an error."""

from __future__ import annotations

import gc
import os

import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply, without_range
from faults.scripted_server import (
    BROKEN_HTML,
    XHTML,
    Reply,
    Request,
    Serve,
    drop_before_storing,
    honest,
    html,
    truncated,
)
from faults.setups import KEY, REF, FakeClock, OpenS3

from transcript_backends import (
    AccessDeniedError,
    CorruptSegmentError,
    ObjectTranscriptStore,
    SegmentNotFoundError,
    StoreUnavailableError,
    UnexpectedResponseError,
)

BODY = os.urandom(300_000)


@pytest.fixture
def filled(store: ObjectTranscriptStore, server: S3Server) -> ObjectTranscriptStore:
    server.dialect.store(KEY, BODY)
    return store


def test_a_whole_segment_is_one_request(filled: ObjectTranscriptStore, server: S3Server) -> None:
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert server.kinds() == ["GET"]


@pytest.mark.parametrize("cuts", [[100_000], [0], [1, 1, 1], [200_000, 99_999]])
@pytest.mark.parametrize("size", [-1, 70_000, 333])
def test_a_body_cut_short_is_gone_on_with_where_it_stopped(
    filled: ObjectTranscriptStore, server: S3Server, cuts: list[int], size: int
) -> None:
    server.next("GET", *map(truncated, cuts))
    with filled.read_segment(KEY) as stream:
        got = stream.read() if size < 0 else b"".join(iter(lambda: stream.read(size), b""))
    assert got == BODY
    assert len(server.requests("GET")) == len(cuts) + 1
    starts = [int(each.headers.get("range", "bytes=0-")[6:-1]) for each in server.requests("GET")]
    assert starts == sorted(starts)


def test_a_failure_while_resuming_is_tried_again(filled: ObjectTranscriptStore, server: S3Server, clock: FakeClock) -> None:
    server.next("GET", truncated(5), reply(503, "SlowDown"), drop_before_storing())
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert len(clock.pauses) == 3


def test_connections_that_keep_being_lost_end_in_an_error(filled: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("GET", truncated(5))
    server.always("GET", drop_before_storing())
    with filled.read_segment(KEY) as stream:
        with pytest.raises(StoreUnavailableError, match="events/"):
            stream.read()
        server.always("GET", None)
        assert BODY.endswith(stream.read()), "and reading can go on"


@pytest.mark.parametrize("left", [bytes(len(BODY)), b"short", b""], ids=["replaced", "shrunk", "emptied"])
def test_an_object_written_anew_while_it_is_read_is_never_mixed(
    filled: ObjectTranscriptStore, server: S3Server, left: bytes
) -> None:
    def replace(request: Request, serve: Serve) -> Reply:
        server.dialect.store(KEY, left)
        return serve()

    server.next("GET", truncated(100_000), replace)
    with filled.read_segment(KEY) as stream:
        assert stream.read(10) == BODY[:10]
        with pytest.raises(CorruptSegmentError, match="another written"):
            stream.read()


def test_an_object_written_anew_before_any_of_it_was_given_out_is_read_as_it_is_now(
    filled: ObjectTranscriptStore, server: S3Server
) -> None:
    def replace(request: Request, serve: Serve) -> Reply:
        server.dialect.store(KEY, b"anew")
        return serve()

    server.next("GET", truncated(1000), replace)
    with filled.read_segment(KEY) as stream:
        assert stream.read() == b"anew"


def test_an_object_deleted_while_it_is_read_is_not_found(filled: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("GET", truncated(1000))
    with filled.read_segment(KEY) as stream:
        del server.objects[KEY]
        with pytest.raises(SegmentNotFoundError):
            stream.read()


def test_an_object_that_is_gone_for_a_moment_is_read_whole(filled: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("GET", truncated(1000), reply(404, "NoSuchKey"))
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY


@pytest.mark.parametrize("content_range", [None, "bytes 0-4/300000", "bytes 1000-299999/*", "nonsense"])
def test_an_answer_to_another_range_than_asked_for_is_an_error(
    filled: ObjectTranscriptStore, server: S3Server, content_range: str | None
) -> None:
    def other_range(request: Request, serve: Serve) -> Reply:
        answer = serve()
        answer.headers["Content-Range"] = content_range or ""
        return answer

    server.next("GET", truncated(100_000), other_range if content_range else without_range())
    with filled.read_segment(KEY) as stream, pytest.raises(UnexpectedResponseError, match="endpoint"):
        stream.read()
    del stream
    gc.collect()  # a connection left open would be a ResourceWarning, and an error


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""])
def test_a_page_with_status_200_is_no_segment(filled: ObjectTranscriptStore, server: S3Server, body: bytes) -> None:
    server.always("GET", html(body=body))
    with pytest.raises(UnexpectedResponseError):
        filled.read_segment(KEY)
    gc.collect()


def test_a_missing_key_is_not_found_and_a_denial_is_not(filled: ObjectTranscriptStore, server: S3Server) -> None:
    with pytest.raises(SegmentNotFoundError, match="s3://bucket"):
        filled.read_segment(KEY.replace("-w.", "-x."))
    server.next("GET", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError):
        filled.read_segment(KEY)


def test_streams_closed_early_free_their_connections(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(max_pool_connections=2)
    server.dialect.store(KEY, BODY * 10)
    for _ in range(50):
        with store.read_segment(KEY) as stream:
            assert stream.read(10) == BODY[:10]
    gc.collect()
    with store.read_segment(KEY) as stream:
        assert stream.read() == BODY * 10


def test_records_stopped_early_free_their_connection(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(max_pool_connections=1)
    server.dialect.store(KEY.replace("0-w", "9-w"), b'{"a":1}\n' * 10)
    for _ in range(10):
        records = store.records(REF)
        assert next(records).seq == 0
        del records
        gc.collect()


def test_an_empty_segment_is_read_without_a_range(filled: ObjectTranscriptStore, server: S3Server) -> None:
    server.dialect.store(KEY, b"")
    server.next("GET", honest())
    with filled.read_segment(KEY) as stream:
        assert stream.read() == b""
