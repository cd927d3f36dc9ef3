"""Listings of GCS under faults: all keys once, or an error; never fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

import pytest
from faults.gcs_server import (  # noqa: F401 - fixtures
    GCSServer,
    OpenGCS,
    a_gcs_server,
    a_store,
    an_opener,
    json_instead,
    reply,
)
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, drop_before_storing, html, truncated
from faults.setups import REF

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    ObjectTranscriptStore,
    StoreUnavailableError,
    TranscriptRef,
    UnexpectedResponseError,
)

EVENTS = "p/acme/coder/s1/events/"

CALLS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "list_segments": lambda store: store.list_segments(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "delete": lambda store: store.delete(REF),
    "records": lambda store: list(store.records(REF)),
    "list_refs": lambda store: list(store.list_refs()),
}

NO_ANSWERS = {
    "xhtml": html(body=XHTML),
    "broken html": html(body=BROKEN_HTML),
    "nothing": html(body=b""),
    "other JSON": json_instead(b'{"hello":1}'),
    "an array": json_instead(b"[]"),
    "null": json_instead(b"null"),
    "another kind": json_instead(b'{"kind":"storage#object","name":"x"}'),
    "items without a kind": json_instead(b'{"items":[]}'),
    "an object without facts": json_instead(b'{"kind":"storage#objects","items":[{"name":"p/x"}]}'),
    "204": json_instead(b"", 204),
}


def fill(server: GCSServer, count: int) -> list[str]:
    keys = [f"{EVENTS}{number:019d}-{number:019d}-w.jsonl" for number in range(count)]
    for key in keys:
        server.dialect.store(key, b"{}\n")
    return keys


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("fault", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_success_that_is_no_listing_is_never_an_empty_transcript(
    store: ObjectTranscriptStore, server: GCSServer, fault: Fault, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    fill(server, 2)
    server.always("LIST", fault)
    with pytest.raises(UnexpectedResponseError, match="endpoint"):
        call(store)
    assert len(server.objects) == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_denied_listing_is_an_access_error(
    store: ObjectTranscriptStore, server: GCSServer, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    server.always("LIST", reply(403, "forbidden"))
    with pytest.raises(AccessDeniedError, match="HTTP 403, forbidden"):
        call(store)
    assert server.kinds() == ["LIST"]


def test_a_later_page_without_kind_or_token_does_not_end_the_listing(store: ObjectTranscriptStore, server: GCSServer) -> None:
    fill(server, 5)
    server.dialect.page_size = 2
    server.next("LIST", lambda request, serve: serve(), json_instead(b"{}"))
    with pytest.raises(UnexpectedResponseError):
        store.list_segments(REF)


def test_a_listing_cut_short_is_asked_for_again(store: ObjectTranscriptStore, server: GCSServer) -> None:
    keys = fill(server, 5)
    server.next("LIST", truncated(300))
    assert [each.key for each in store.list_segments(REF)] == keys


def test_an_empty_page_that_is_not_the_last_does_not_end_the_listing(store: ObjectTranscriptStore, server: GCSServer) -> None:
    keys = fill(server, 5)
    server.next("LIST", server.dialect.page(token="0"), server.dialect.page(*keys[:2], token="2"))
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(server.requests("LIST")) == 3


@pytest.mark.parametrize("count", [0, 999, 1000, 1001, 2500])
def test_every_key_is_seen_once_a_thousand_a_request(store: ObjectTranscriptStore, server: GCSServer, count: int) -> None:
    keys = fill(server, count)
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(server.requests("LIST")) == max(1, -(-count // 1000))


def test_a_listing_asks_for_token_and_kind_and_for_no_more_than_it_needs(
    store: ObjectTranscriptStore, server: GCSServer
) -> None:
    store.list_segments(REF)
    (sent,) = server.requests("LIST")
    assert sent.query["fields"] == "kind,nextPageToken,items(name,size,timeCreated,generation)"
    assert "gzip" in sent.headers["accept-encoding"]
    assert "gzip" in sent.headers["user-agent"], "without it GCS sends listings uncompressed"


def test_delete_leaves_nothing_of_many_pages(store: ObjectTranscriptStore, server: GCSServer) -> None:
    fill(server, 1001)
    assert store.delete(REF, purge=True).deleted == 1001
    assert server.objects == {}


@pytest.mark.parametrize("order", [lambda keys: sorted(keys, reverse=True), lambda keys: sorted(keys, key=hash)])
def test_unordered_answers_give_segments_in_order_of_their_numbers(
    store: ObjectTranscriptStore, server: GCSServer, order: Callable[[Iterable[str]], Iterable[str]]
) -> None:
    keys = fill(server, 20)
    server.dialect.order = order
    server.dialect.page_size = 7
    assert [each.key for each in store.list_segments(REF)] == keys


@pytest.mark.parametrize("tokens", [["again"], ["one", "two"]], ids=["same token", "two in turn"])
def test_a_listing_that_goes_in_circles_is_an_error(store: ObjectTranscriptStore, server: GCSServer, tokens: list[str]) -> None:
    keys = fill(server, 2)
    server.next("LIST", *[server.dialect.page(*keys, token=token) for token in tokens * 3])
    with pytest.raises(UnexpectedResponseError, match="again and again"):
        store.list_segments(REF)
    assert len(server.requests("LIST")) == len(tokens) + 1


@pytest.mark.parametrize("fault", [reply(503), drop_before_storing()], ids=["503", "drop"])
def test_a_failure_between_two_pages_is_made_up_for(store: ObjectTranscriptStore, server: GCSServer, fault: Fault) -> None:
    keys = fill(server, 2500)
    server.next("LIST", server.dialect.page(*keys[:1000], token="1000"), fault, fault)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_listing_that_stays_unavailable_is_an_error(store: ObjectTranscriptStore, server: GCSServer) -> None:
    keys = fill(server, 3)
    server.next("LIST", server.dialect.page(keys[0], token="1"))
    server.always("LIST", reply(503))
    with pytest.raises(StoreUnavailableError):
        store.list_segments(REF)


def test_a_start_is_passed_on_with_every_page_and_left_out_itself(store: ObjectTranscriptStore, server: GCSServer) -> None:
    driver = store._container.driver
    keys = fill(server, 5)
    server.dialect.page_size = 2
    found, token = [], None
    while True:
        page = driver.list_page(EVENTS, start_after=keys[1], token=token)
        found += [each.key for each in page.objects]
        token = page.token
        if token is None:
            break
    assert found == keys[2:]
    assert {each.query["startOffset"] for each in server.requests("LIST")} == {keys[1]}


def test_a_long_transcript_is_stepped_over_when_transcripts_are_listed(store: ObjectTranscriptStore, server: GCSServer) -> None:
    fill(server, 3000)
    for number in range(5000):
        server.dialect.store(f"{EVENTS}{number:019d}-{number:019d}-x.jsonl", b"{}\n")
    other = TranscriptRef("acme", "coder", "s2")
    store.append_segment(other, 0, 0, "w", b"{}\n")
    server.log.clear()
    assert list(store.list_refs()) == [REF, other]
    assert len(server.requests("LIST")) < 8


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what the server writes into the header Date."""
    return lambda text: monkeypatch.setattr("faults.scripted_server._Handler.date_time_string", lambda *ignored: text)


def test_the_time_is_that_of_the_server(store: ObjectTranscriptStore, server: GCSServer, says: Callable[[str], None]) -> None:
    assert store._container.server_time() is None
    says("Sat, 01 Jan 2000 00:00:00 GMT")
    store.list_segments(REF)
    assert store._container.server_time() == datetime(2000, 1, 1, tzinfo=timezone.utc)


def test_the_age_of_segments_is_told_by_the_servers_clock(
    store: ObjectTranscriptStore, server: GCSServer, says: Callable[[str], None]
) -> None:
    for key in fill(server, 20):
        server.objects[key].created = datetime(1999, 12, 31, 23, 59, 50, tzinfo=timezone.utc)
    says("Sat, 01 Jan 2000 00:00:00 GMT")
    assert store.compact(REF, CompactionPolicy(min_age=60)).merged == []
    says("Sat, 01 Jan 2000 00:00:50 GMT")
    assert len(store.compact(REF, CompactionPolicy(min_age=60)).merged) == 1


@pytest.mark.parametrize("text", ["", "yesterday", "Sat, 01 Jan 2000 00:00:00 GMT, Sat, 01 Jan 2000 00:00:00 GMT"])
def test_a_listing_that_tells_no_time_is_a_listing(
    store: ObjectTranscriptStore, server: GCSServer, says: Callable[[str], None], text: str
) -> None:
    keys = fill(server, 3)
    says(text)
    assert [each.key for each in store.list_segments(REF)] == keys
