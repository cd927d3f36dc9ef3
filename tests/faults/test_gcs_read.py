"""Reads from GCS under faults: the right bytes, or an error."""

from __future__ import annotations

import gc
import gzip
import os
import tracemalloc

import pytest
from faults.engines import sdk_and_obstore  # noqa: F401
from faults.gcs_server import (  # noqa: F401 - fixtures
    GCSServer,
    OpenGCS,
    a_gcs_server,
    a_store,
    an_opener,
    json_instead,
    reply,
    with_headers,
    without_range,
)
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, Request, Serve, drop_before_storing, html, truncated
from faults.setups import KEY, REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    ObjectTranscriptStore,
    SegmentNotFoundError,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
)

BODY = os.urandom(300_000)


@pytest.fixture
def filled(store: ObjectTranscriptStore, server: GCSServer) -> ObjectTranscriptStore:
    server.dialect.store(KEY, BODY)
    return store


def test_a_whole_segment_is_one_request(filled: ObjectTranscriptStore, server: GCSServer, engine: str) -> None:
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert server.kinds() == ["GET"]
    assert server.log[0].headers.get("range") == (None if engine == "sdk" else "bytes=0-")


@pytest.mark.parametrize("cuts", [[100_000], [0], [1, 1, 1], [200_000, 99_999]])
@pytest.mark.parametrize("size", [-1, 70_000, 333])
def test_a_body_cut_short_is_gone_on_with_where_it_stopped(
    filled: ObjectTranscriptStore, server: GCSServer, cuts: list[int], size: int
) -> None:
    server.next("GET", *map(truncated, cuts))
    with filled.read_segment(KEY) as stream:
        got = stream.read() if size < 0 else b"".join(iter(lambda: stream.read(size), b""))
    assert got == BODY
    assert len(server.requests("GET")) == len(cuts) + 1
    starts = [int(each.headers.get("range", "bytes=0-")[6:-1]) for each in server.requests("GET")]
    assert starts == sorted(starts)


def test_a_failure_while_resuming_is_tried_again(filled: ObjectTranscriptStore, server: GCSServer, clock: FakeClock) -> None:
    server.next("GET", truncated(5), reply(503), drop_before_storing())
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert len(clock.pauses) == 3


def test_connections_that_keep_being_lost_end_in_an_error(filled: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("GET", truncated(5))
    server.always("GET", drop_before_storing())
    with filled.read_segment(KEY) as stream:
        with pytest.raises(StoreUnavailableError, match="events/"):
            stream.read()
        server.always("GET", None)
        assert BODY.endswith(stream.read()), "and reading can go on"


@pytest.mark.parametrize("other", [bytes(len(BODY)), b"", b"short"], ids=["other", "nothing", "short"])
def test_an_object_replaced_while_it_is_read_is_never_mixed(
    filled: ObjectTranscriptStore, server: GCSServer, other: bytes
) -> None:
    def replace(request: Request, serve: Serve) -> Reply:
        server.dialect.store(KEY, other)
        return serve()

    server.next("GET", truncated(1000), replace)
    with filled._container.open(KEY) as stream, pytest.raises(SegmentNotFoundError, match="written anew"):
        stream.read()
    server.next("GET", truncated(1000), replace)
    with filled.read_segment(KEY) as stream:
        assert stream.read() == other


def test_an_object_deleted_while_it_is_read_is_not_found(filled: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("GET", truncated(1000))
    with filled.read_segment(KEY) as stream:
        del server.objects[KEY]
        with pytest.raises(SegmentNotFoundError):
            stream.read()


NOT_WHAT_WAS_ASKED_FOR = {
    "the whole object": without_range(),
    "another range": with_headers(Content_Range="bytes 0-4/300000"),
    "as much from elsewhere": with_headers(Content_Range="bytes 999-299998/300000"),
    "more than the end": with_headers(Content_Range="bytes 1000-300000/300000"),
    "no size": with_headers(Content_Range="bytes 1000-299999/*"),
    "nonsense": with_headers(Content_Range="nonsense"),
    "no range": with_headers(Content_Range=None),
}


@pytest.mark.parametrize("fault", NOT_WHAT_WAS_ASKED_FOR.values(), ids=NOT_WHAT_WAS_ASKED_FOR)
def test_an_answer_to_another_range_than_asked_for_is_an_error(
    filled: ObjectTranscriptStore, server: GCSServer, fault: Fault
) -> None:
    server.next("GET", truncated(1000), fault)
    with filled.read_segment(KEY) as stream, pytest.raises(UnexpectedResponseError, match="endpoint"):
        stream.read()
    del stream
    gc.collect()  # a connection left open would be a ResourceWarning, and an error


NO_DOWNLOADS = {
    "xhtml": html(body=XHTML),
    "broken html": html(body=BROKEN_HTML),
    "nothing": html(body=b""),
    "other JSON": json_instead(b'{"hello":1}'),
    "no generation": with_headers(X_Goog_Generation=None),
    "no time": with_headers(Last_Modified=None),
    "a time of another kind": with_headers(Last_Modified="yesterday"),
}
OTHER_LENGTHS = {
    "a length of its own": with_headers(X_Goog_Stored_Content_Length="300001"),
    "no number": with_headers(X_Goog_Stored_Content_Length="many"),
}


@pytest.mark.parametrize("fault", NO_DOWNLOADS.values(), ids=NO_DOWNLOADS)
def test_a_success_without_the_facts_of_an_object_is_no_segment(
    filled: ObjectTranscriptStore, server: GCSServer, fault: Fault
) -> None:
    server.always("GET", fault)
    with pytest.raises(UnexpectedResponseError):
        filled.read_segment(KEY)
    gc.collect()


@pytest.mark.parametrize("engine", ["sdk"])  # obstore goes by the range
@pytest.mark.parametrize("fault", OTHER_LENGTHS.values(), ids=OTHER_LENGTHS)
def test_a_body_of_another_length_than_was_stored_is_no_segment(
    filled: ObjectTranscriptStore, server: GCSServer, fault: Fault
) -> None:
    server.always("GET", fault)
    with pytest.raises(UnexpectedResponseError):
        filled.read_segment(KEY)
    gc.collect()


@pytest.mark.parametrize("engine", ["sdk"])  # obstore goes by the range
def test_a_length_that_promises_more_than_comes_is_an_error_and_never_an_early_end(
    filled: ObjectTranscriptStore, server: GCSServer
) -> None:
    longer = str(len(BODY) + 10)
    server.always("GET", lambda request, serve: _promising(serve(), longer))
    with filled.read_segment(KEY) as stream, pytest.raises(TranscriptStoreError):
        stream.read()


def _promising(answer: Reply, length: str) -> Reply:
    answer.headers |= {"Content-Length": length, "X-Goog-Stored-Content-Length": length}
    answer.sent = len(answer.body)
    return answer


def test_a_body_without_a_length_that_ends_early_is_noticed(filled: ObjectTranscriptStore, server: GCSServer) -> None:
    def chunked_and_short(request: Request, serve: Serve) -> Reply:
        answer = serve()
        answer.headers |= {"Content-Length": str(len(answer.body)), "Transfer-Encoding": "chunked"}  # the second wins
        answer.body = b"%x\r\n%s\r\n0\r\n\r\n" % (1000, answer.body[:1000])
        answer.sent = len(answer.body)
        return answer

    server.next("GET", chunked_and_short)
    with filled.read_segment(KEY) as stream:
        assert stream.read() == BODY
    assert len(server.requests("GET")) == 2


# --- what is stored compressed ----------------------------------------------------------------------------------------


def test_an_object_stored_compressed_is_received_as_it_is_stored(store: ObjectTranscriptStore, server: GCSServer) -> None:
    packed = gzip.compress(b"{}\n" * 1000)
    server.dialect.store("k", packed, {"contentEncoding": "gzip"})
    for start, end in ((0, None), (5, None), (3, 9), (len(packed) + 5, None)):
        with store._container.open("k", start=start, end=end) as stream:
            assert stream.read() == packed[start:end]


def test_an_object_unpacked_on_the_way_is_refused(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.dialect.store("k", gzip.compress(b"{}\n" * 1000), {"contentEncoding": "gzip"})

    def unpacking(request: Request, serve: Serve) -> Reply:
        request.headers["accept-encoding"] = "identity"
        return serve()

    server.always("GET", unpacking)
    for start in (0, 5):
        with pytest.raises(UnexpectedResponseError):
            store._container.open("k", start=start)
    gc.collect()


# --- what is not there ------------------------------------------------------------------------------------------------


def test_a_missing_key_is_not_found_and_a_denial_is_not(filled: ObjectTranscriptStore, server: GCSServer) -> None:
    with pytest.raises(SegmentNotFoundError, match="gs://bucket"):
        filled.read_segment(KEY.replace("-w.", "-x."))
    server.next("GET", reply(403))
    with pytest.raises(AccessDeniedError):
        filled.read_segment(KEY)


def test_a_missing_key_is_only_told_where_the_bucket_can_be_seen(filled: ObjectTranscriptStore, server: GCSServer) -> None:
    server.always("LIST", reply(403, "forbidden"))
    with pytest.raises(AccessDeniedError):
        filled.read_segment(KEY.replace("-w.", "-x."))


@pytest.mark.parametrize("start", [len(BODY), len(BODY) + 1, 10**12])
def test_a_range_past_the_end_is_empty(filled: ObjectTranscriptStore, server: GCSServer, start: int) -> None:
    with filled._container.open(KEY, start=start) as stream:
        assert stream.read() == b""
    assert server.kinds() == ["GET", "HEAD"]


def test_an_empty_range_of_a_missing_object_is_not_found(store: ObjectTranscriptStore) -> None:
    with pytest.raises(SegmentNotFoundError):
        store._container.open("nothing", start=3, end=3)


# --- connections and memory -------------------------------------------------------------------------------------------


def test_streams_closed_early_free_their_connections(open_gcs: OpenGCS, server: GCSServer) -> None:
    store = open_gcs(max_pool_connections=2)
    server.dialect.store(KEY, BODY * 10)
    for _ in range(50):
        with store.read_segment(KEY) as stream:
            assert stream.read(10) == BODY[:10]
    gc.collect()
    with store.read_segment(KEY) as stream:
        assert stream.read() == BODY * 10


def test_bodies_read_to_their_end_leave_their_connection_to_the_next(
    filled: ObjectTranscriptStore, server: GCSServer, engine: str
) -> None:
    for _ in range(20):
        with filled.read_segment(KEY) as stream:
            assert stream.read() == BODY
    most = 1 if engine == "sdk" else 5  # obstore puts a connection back a moment later, in a thread of its own
    assert len({each.port for each in server.log}) <= most


def test_records_stopped_early_free_their_connection(open_gcs: OpenGCS, server: GCSServer) -> None:
    store = open_gcs(max_pool_connections=1)
    server.dialect.store(KEY.replace("0-w", "9-w"), b'{"a":1}\n' * 10)
    for _ in range(10):
        records = store.records(REF)
        assert next(records).seq == 0
        del records
        gc.collect()


def test_a_large_object_is_received_in_little_memory(store: ObjectTranscriptStore, server: GCSServer) -> None:
    body = bytes(40 << 20)
    server.dialect.store("k", body)
    with store._container.open("k") as stream:
        tracemalloc.start()
        try:
            assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) == len(body)
            assert tracemalloc.get_traced_memory()[1] < 12 << 20
        finally:
            tracemalloc.stop()


def test_an_empty_segment_is_an_empty_body(filled: ObjectTranscriptStore, server: GCSServer, engine: str) -> None:
    server.dialect.store(KEY, b"")
    with filled.read_segment(KEY) as stream:
        assert stream.read() == b""
    assert server.kinds() == (["GET"] if engine == "sdk" else ["GET", "HEAD"])
