"""Reads from Azure under faults: the right bytes, or an error."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest
from faults.azure_server import (  # noqa: F401 - fixtures
    AzureServer,
    OpenAzure,
    a_store,
    an_azure_server,
    an_opener,
    reply,
    without_an_account,
)
from faults.engines import sdk_and_auto  # noqa: F401
from faults.scripted_server import BROKEN_HTML, XHTML, Reply, Request, Serve, drop_before_storing, truncated
from faults.setups import KEY, REF, FakeClock

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
def filled(store: ObjectTranscriptStore, server: AzureServer) -> ObjectTranscriptStore:
    server.dialect.store(KEY, BODY)
    return store


@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(40 << 20)], ids=["empty", "one", "some", "40 MiB"])
def test_a_whole_segment_is_one_request_whatever_its_size(
    store: ObjectTranscriptStore, server: AzureServer, body: bytes, engine: str
) -> None:
    server.dialect.store(KEY, body)
    with store.read_segment(KEY) as stream:
        assert stream.read() == body
    looks_again = engine != "sdk" and not body  # obstore asks for all from the first byte on, which an empty one has not
    assert server.kinds() == ["GET"] + ["HEAD"] * looks_again
    assert server.requests("GET")[0].headers.get("x-ms-range", "bytes=0-") == "bytes=0-"


def test_a_large_segment_is_never_held_whole(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.dialect.store(KEY, bytes(40 << 20))
    tracemalloc.start()
    with store.read_segment(KEY) as stream:
        assert sum(len(piece) for piece in iter(lambda: stream.read(1 << 16), b"")) == 40 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_range_is_one_request(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    for start, end in [(5, 10), (5, None), (0, 10), (299_999, None), (0, 10**9)]:
        with filled._container.open(KEY, start=start, end=end) as stream:
            assert stream.read() == BODY[start:end]
    assert server.kinds() == ["GET"] * 5


@pytest.mark.parametrize(("size", "end"), [(0, 500), (10, None), (10, 500)])
def test_past_the_end_is_an_empty_body(store: ObjectTranscriptStore, server: AzureServer, size: int, end: int | None) -> None:
    server.dialect.store(KEY, bytes(size))
    got = store._container.driver.get(KEY, start=size, end=end)
    assert (got.stream.read(10), got.info.size) == (b"", size)
    assert server.kinds() == ["GET", "HEAD"]


@pytest.mark.parametrize("cuts", [[100_000], [0], [1, 1, 1], [200_000, 99_999]])
@pytest.mark.parametrize("size", [-1, 70_000, 333])
def test_a_body_cut_short_is_gone_on_with_where_it_stopped(
    filled: ObjectTranscriptStore, server: AzureServer, clock: FakeClock, cuts: list[int], size: int
) -> None:
    server.next("GET", *map(truncated, cuts))
    with filled.read_segment(KEY) as stream:
        got = stream.read() if size < 0 else b"".join(iter(lambda: stream.read(size), b""))
    assert got == BODY
    assert len(server.requests("GET")) == len(cuts) + 1, "and the SDK asks for nothing by itself"
    starts = [int(each.headers.get("x-ms-range", "bytes=0-")[6:-1]) for each in server.requests("GET")]
    assert starts == sorted(starts)


def test_a_content_length_beyond_the_body_is_never_taken_for_its_size(
    filled: ObjectTranscriptStore, server: AzureServer, engine: str
) -> None:
    def lie(request: Request, serve: Serve) -> Reply:
        answer = serve()
        answer.headers["Content-Length"] = str(len(BODY) + 1)
        answer.sent = len(BODY)
        return answer

    server.next("GET", lie)
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert len(server.requests("GET")) > 1 or engine != "sdk"  # obstore goes by the range


def test_a_failure_while_resuming_is_tried_again(filled: ObjectTranscriptStore, server: AzureServer, clock: FakeClock) -> None:
    server.next("GET", truncated(5), reply(503, "ServerBusy"), drop_before_storing())
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert len(clock.pauses) == 3


def test_connections_that_keep_being_lost_end_in_an_error(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    server.next("GET", truncated(5))
    server.always("GET", drop_before_storing())
    with filled.read_segment(KEY) as stream:
        with pytest.raises(StoreUnavailableError, match="events/"):
            stream.read()
        server.always("GET", None)
        assert BODY.endswith(stream.read()), "and reading can go on"


@pytest.mark.parametrize("left", [bytes(len(BODY)), b"short", b""], ids=["replaced", "shrunk", "emptied"])
def test_a_blob_written_anew_while_it_is_read_is_never_mixed(
    filled: ObjectTranscriptStore, server: AzureServer, left: bytes
) -> None:
    def replace(request: Request, serve: Serve) -> Reply:
        server.dialect.store(KEY, left)
        return serve()

    server.next("GET", truncated(100_000), replace)
    with filled.read_segment(KEY) as stream:
        assert stream.read(10) == BODY[:10]
        with pytest.raises(CorruptSegmentError, match="another written"):
            stream.read()


def test_a_blob_deleted_while_it_is_read_is_not_found(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    server.next("GET", truncated(1000))
    with filled.read_segment(KEY) as stream:
        del server.objects[KEY]
        with pytest.raises(SegmentNotFoundError):
            stream.read()


@pytest.mark.parametrize("content_range", [None, "bytes 0-4/300000", "bytes 1000-299999/*", "nonsense"])
def test_an_answer_to_another_range_than_asked_for_is_an_error(
    filled: ObjectTranscriptStore, server: AzureServer, content_range: str | None
) -> None:
    def other_range(request: Request, serve: Serve) -> Reply:
        if content_range is None:
            request.headers.pop("x-ms-range", None)
        answer = serve()
        if content_range is not None:
            answer.headers["Content-Range"] = content_range
        return answer

    server.next("GET", truncated(1000), other_range)
    with filled.read_segment(KEY) as stream, pytest.raises(UnexpectedResponseError, match="endpoint"):
        stream.read()
    del stream
    gc.collect()  # a connection left open would be a ResourceWarning, and an error


def test_a_part_is_never_taken_for_the_whole(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    def part(request: Request, serve: Serve) -> Reply:
        request.headers["x-ms-range"] = "bytes=0-999"
        return serve()

    server.always("GET", part)
    with pytest.raises(UnexpectedResponseError, match=r"a part where the whole was|without the headers"):
        filled.read_segment(KEY)
    gc.collect()


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""])
@pytest.mark.parametrize("kind", ["GET", "HEAD"])
def test_a_page_with_status_200_is_no_segment(
    filled: ObjectTranscriptStore, server: AzureServer, body: bytes, kind: str
) -> None:
    page = {"Content-Type": "text/html", "ETag": '"1"', "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
    server.always(kind, lambda request, serve: Reply(200, body, page))
    with pytest.raises(UnexpectedResponseError):
        filled.read_segment(KEY) if kind == "GET" else filled._container.exists(KEY)
    gc.collect()


def test_a_compressed_segment_is_given_as_it_is_stored(store: ObjectTranscriptStore, server: AzureServer) -> None:
    server.dialect.store(KEY, b"\x1f\x8bnot really", {"Content-Encoding": "gzip"})
    with store.read_segment(KEY) as stream:
        assert stream.read() == b"\x1f\x8bnot really"


def test_a_missing_key_is_not_found_and_a_denial_is_not(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    with pytest.raises(SegmentNotFoundError, match="az://container"):
        filled.read_segment(KEY.replace("-w.", "-x."))
    server.next("GET", reply(403, "AuthorizationPermissionMismatch"))
    with pytest.raises(AccessDeniedError):
        filled.read_segment(KEY)


def test_streams_closed_early_free_their_connections(open_azure: OpenAzure, server: AzureServer) -> None:
    store = open_azure(max_pool_connections=2)
    server.dialect.store(KEY, BODY * 10)
    for _ in range(50):
        with store.read_segment(KEY) as stream:
            assert stream.read(10) == BODY[:10]
    gc.collect()
    with store.read_segment(KEY) as stream:
        assert stream.read() == BODY * 10


@pytest.mark.parametrize("engine", ["sdk"])  # obstore gives a connection back in a thread of its own, perhaps too late
def test_streams_read_to_the_end_use_one_connection(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    for _ in range(10):
        with filled.read_segment(KEY) as stream:
            assert len(stream.read()) == len(BODY)
    assert len({each.port for each in server.requests("GET")}) == 1


def test_a_listing_a_head_and_a_get_tell_the_same_facts(filled: ObjectTranscriptStore, server: AzureServer) -> None:
    driver = filled._container.driver
    got = driver.get(KEY)
    got.stream.close()
    (listed,) = driver.list_page("p/").objects
    assert got.info == driver.head(KEY).info == listed
    assert filled.list_segments(REF)[0].created_at == listed.created_at
