"""Listings of S3 under faults: all keys once, or an error; never fewer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import pytest
from faults.s3_server import S3Dialect, S3Server, reply
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, Request, Serve, drop_before_storing, html, truncated
from faults.setups import REF, OpenS3

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ObjectTranscriptStore,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
    open_store,
)

EVENTS = "p/acme/coder/s1/events/"

CALLS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "list_segments": lambda store: store.list_segments(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "delete": lambda store: store.delete(REF),
    "records": lambda store: list(store.records(REF)),
    "list_refs": lambda store: list(store.list_refs()),
}


def fill(server: S3Server, count: int) -> list[str]:
    keys = [f"{EVENTS}{number:019d}-{number:019d}-w.jsonl" for number in range(count)]
    for key in keys:
        server.dialect.store(key, b"{}\n")
    return keys


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""], ids=["xhtml", "broken", "nothing"])
def test_a_page_with_status_200_is_never_an_empty_listing(
    store: ObjectTranscriptStore, server: S3Server, body: bytes, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    fill(server, 2)
    server.always("LIST", html(body=body))
    with pytest.raises(UnexpectedResponseError, match="endpoint"):
        call(store)
    assert len(server.objects) == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_denied_listing_is_an_access_error(
    store: ObjectTranscriptStore, server: S3Server, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    server.always("LIST", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError, match="AccessDenied"):
        call(store)
    assert server.kinds() == ["LIST"]


def test_a_listing_cut_short_is_asked_for_again(store: ObjectTranscriptStore, server: S3Server) -> None:
    keys = fill(server, 5)
    server.next("LIST", truncated(300))
    assert [each.key for each in store.list_segments(REF)] == keys


def test_an_empty_page_that_is_not_the_last_does_not_end_the_listing(store: ObjectTranscriptStore, server: S3Server) -> None:
    keys = fill(server, 5)
    server.next("LIST", server.dialect.page(token="0:"), server.dialect.page(*keys[:2], token="2:"))
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(server.requests("LIST")) == 3


@pytest.mark.parametrize("count", [0, 999, 1000, 1001, 2500])
def test_every_key_is_seen_once_a_thousand_a_request(store: ObjectTranscriptStore, server: S3Server, count: int) -> None:
    keys = fill(server, count)
    assert [each.key for each in store.list_segments(REF)] == keys
    assert store.next_seq(REF) == count
    assert len(server.requests("LIST")) == 2 * max(1, -(-count // 1000))


@pytest.mark.parametrize("count", [1001, 2500])
def test_delete_leaves_nothing_of_many_pages(store: ObjectTranscriptStore, server: S3Server, count: int) -> None:
    fill(server, count)
    assert store.delete(REF, purge=True).deleted == count
    assert server.objects == {}


def test_a_server_with_small_pages_is_read_to_the_end(store: ObjectTranscriptStore, server: S3Server) -> None:
    keys = fill(server, 10)
    server.dialect.page_size = 3
    assert [each.key for each in store.list_segments(REF)] == keys


@pytest.mark.parametrize("order", [lambda keys: sorted(keys, reverse=True), lambda keys: sorted(keys, key=hash)])
def test_unordered_answers_give_segments_in_order_of_their_numbers(
    store: ObjectTranscriptStore, server: S3Server, order: Callable[[Iterable[str]], Iterable[str]]
) -> None:
    keys = fill(server, 20)
    server.dialect.order = order
    server.dialect.page_size = 7
    assert [each.key for each in store.list_segments(REF)] == keys
    assert [each.seq for each in store.records(REF)] == list(range(20))


def test_unpadded_numbers_of_another_program_are_in_order_of_their_values(
    store: ObjectTranscriptStore, server: S3Server
) -> None:
    for number in (10, 9, 100, 1):
        server.dialect.store(f"{EVENTS}{number}-{number}-other.jsonl", b"{}\n")
    assert [each.seq_start for each in store.list_segments(REF)] == [1, 9, 10, 100]


@pytest.mark.parametrize("tokens", [["again"], ["one", "two"]], ids=["same token", "two in turn"])
def test_a_listing_that_goes_in_circles_is_an_error(store: ObjectTranscriptStore, server: S3Server, tokens: list[str]) -> None:
    keys = fill(server, 2)
    server.next("LIST", *[server.dialect.page(*keys, token=token) for token in tokens * 3])
    with pytest.raises(UnexpectedResponseError, match="again and again"):
        store.list_segments(REF)
    assert len(server.requests("LIST")) == len(tokens) + 1


@pytest.mark.parametrize("status", [301, 307])
def test_a_bucket_elsewhere_is_an_error_that_names_bucket_endpoint_and_region(
    store: ObjectTranscriptStore, server: S3Server, status: int
) -> None:
    server.always("LIST", reply(status, "PermanentRedirect"))
    with pytest.raises(TranscriptStoreError, match="another region") as caught:
        store.list_segments(REF)
    for part in ("s3://bucket", server.url, "eu-test-1"):
        assert part in str(caught.value)


@pytest.mark.parametrize("fault", [reply(503, "SlowDown"), drop_before_storing()], ids=["503", "drop"])
def test_a_failure_between_two_pages_is_made_up_for(store: ObjectTranscriptStore, server: S3Server, fault: Fault) -> None:
    keys = fill(server, 2500)
    first = server.dialect.page(*keys[:1000], token="1000:")
    server.next("LIST", first, fault, fault)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_listing_that_stays_unavailable_is_an_error(store: ObjectTranscriptStore, server: S3Server) -> None:
    keys = fill(server, 3)
    server.next("LIST", server.dialect.page(keys[0], token="1:"))
    server.always("LIST", reply(503, "SlowDown"))
    with pytest.raises(StoreUnavailableError):
        store.list_segments(REF)


def test_directory_objects_and_strangers_are_no_segments(store: ObjectTranscriptStore, server: S3Server) -> None:
    keys = fill(server, 2)
    for name in ("", "0-0-w.json", "readme", "x/0-0-w.jsonl"):
        server.dialect.store(EVENTS + name, b"")
    server.dialect.store(EVENTS.rstrip("/"), b"")  # an object with the name of a directory
    assert [each.key for each in store.list_segments(REF)] == keys
    assert store.delete(REF, purge=True).deleted == 2
    assert len(server.objects) == 5


DIRECTORY_BUCKET = "data--use1-az4--x-s3"


def as_of_a_directory_bucket(request: Request, serve: Serve) -> Reply:
    """Refuse what directory buckets refuse; the answer to the rest is in no order."""
    if "start-after" in request.query or not request.query["prefix"].endswith("/"):
        return S3Dialect.error(400, "InvalidRequest")
    return serve()


def test_a_directory_bucket_is_listed_without_counting_on_order_or_asking_for_a_start(
    open_s3: OpenS3, server: S3Server
) -> None:
    server.dialect.bucket = DIRECTORY_BUCKET
    server.dialect.order = lambda keys: sorted(keys, key=lambda key: hashlib.sha256(key.encode()).digest())
    server.dialect.page_size = 3
    server.always("LIST", as_of_a_directory_bucket)
    store = open_s3(DIRECTORY_BUCKET)
    for seq in range(20):
        store.append_segment(REF, seq, seq, "w", b"{}\n")
    assert [record.seq for record in store.records(REF)] == list(range(20))
    assert store.compact(REF, CompactionPolicy(full=True)).segments_after == 1
    assert [record.seq for record in store.records(REF, start_seq=7)] == list(range(7, 20))
    assert list(store.list_refs()) == list(store.list_refs("acme")) == list(store.list_refs("acme", "coder")) == [REF]
    assert store.verify(REF).ok
    assert store.delete(REF, purge=True).deleted == 2
    assert server.objects == {}
    assert "CREATE_SESSION" in server.kinds()
    assert len(server.requests("LIST")) > 20


def test_directory_buckets_of_aws_are_known_for_what_they_do() -> None:
    with open_store(f"s3://{DIRECTORY_BUCKET}", region="us-east-1", access_key_id="A", secret_access_key="S") as store:
        able = store._container.driver.capabilities
    assert (able.create_only, able.ordered_lists, able.start_after) == ("yes", False, False)


def test_minio_is_known_by_its_answers_and_listed_in_parts(store: ObjectTranscriptStore, server: S3Server) -> None:
    def as_minio(request: Request, serve: Serve) -> Reply:
        answer = serve()
        answer.headers["Server"] = "MinIO"
        return answer

    fill(server, 3)
    server.always("LIST", as_minio)
    session, parts = "p/acme/coder/s1/", ["p/acme/coder/s1/events/", "p/acme/coder/s1/index/"]
    assert len(store.list_segments(REF)) == 3
    assert [each.query["prefix"] for each in server.requests("LIST")] == [session, *parts]
    assert store.next_seq(REF) == 3
    assert [each.query["prefix"] for each in server.requests("LIST")] == [session, *parts, *parts]
