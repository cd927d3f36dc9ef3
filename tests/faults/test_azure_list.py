"""Listings of Azure under faults: all keys once, or an error; never fewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

import pytest
from faults.azure_server import (  # noqa: F401 - fixtures
    AzureServer,
    a_store,
    an_azure_server,
    an_opener,
    reply,
    without_an_account,
)
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, drop_before_storing, html, truncated
from faults.setups import REF

from transcript_backends import AccessDeniedError, ObjectTranscriptStore, StoreUnavailableError, UnexpectedResponseError

EVENTS = "p/acme/coder/s1/events/"
XML = b'<?xml version="1.0"?><EnumerationResults><Blobs>%b</Blobs>%b</EnumerationResults>'

CALLS: dict[str, Callable[[ObjectTranscriptStore], object]] = {
    "list_segments": lambda store: store.list_segments(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "delete": lambda store: store.delete(REF),
    "records": lambda store: list(store.records(REF)),
    "list_refs": lambda store: list(store.list_refs()),
}


def fill(server: AzureServer, count: int) -> list[str]:
    keys = [f"{EVENTS}{number:019d}-{number:019d}-w.jsonl" for number in range(count)]
    for key in keys:
        server.dialect.store(key, b"{}\n")
    return keys


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "body",
    [XHTML, BROKEN_HTML, b"", b"<Error/>", XML % (b"", b""), XML % (b"<Blob/>", b"<NextMarker/>"),
     XML % (b"<Blob><Name>x</Name></Blob>", b"<NextMarker/>")],
    ids=["xhtml", "broken", "nothing", "other", "no marker", "no name", "no facts"],
)  # fmt: skip
def test_an_answer_that_is_no_listing_is_never_an_empty_one(
    store: ObjectTranscriptStore, server: AzureServer, body: bytes, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    fill(server, 2)
    server.always("LIST", html(body=body))
    with pytest.raises(UnexpectedResponseError, match="endpoint"):
        call(store)
    assert len(server.objects) == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_denied_listing_is_an_access_error(
    store: ObjectTranscriptStore, server: AzureServer, call: Callable[[ObjectTranscriptStore], object]
) -> None:
    server.always("LIST", reply(403, "AuthorizationPermissionMismatch"))
    with pytest.raises(AccessDeniedError, match="AuthorizationPermissionMismatch"):
        call(store)
    assert server.kinds() == ["LIST"]


@pytest.mark.parametrize("fault", [truncated(300), reply(503, "ServerBusy"), drop_before_storing()], ids=["cut", "503", "drop"])
def test_a_listing_that_failed_is_asked_for_again(store: ObjectTranscriptStore, server: AzureServer, fault: Fault) -> None:
    keys = fill(server, 5)
    server.next("LIST", fault, fault)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_an_empty_page_that_is_not_the_last_does_not_end_the_listing(store: ObjectTranscriptStore, server: AzureServer) -> None:
    keys = fill(server, 5)
    server.next("LIST", server.dialect.page(marker="0"), server.dialect.page(*keys[:2], marker="2"))
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(server.requests("LIST")) == 3


@pytest.mark.parametrize("count", [0, 4999, 5000, 5001])
def test_every_key_is_seen_once_five_thousand_a_request(store: ObjectTranscriptStore, server: AzureServer, count: int) -> None:
    keys = fill(server, count)
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(server.requests("LIST")) == max(1, -(-count // 5000))


def test_delete_leaves_nothing_of_many_pages(store: ObjectTranscriptStore, server: AzureServer) -> None:
    fill(server, 1001)
    server.dialect.page_size = 100
    assert store.delete(REF, purge=True).deleted == 1001
    assert server.objects == {}


@pytest.mark.parametrize("order", [lambda keys: sorted(keys, reverse=True), lambda keys: sorted(keys, key=hash)])
def test_unordered_answers_give_segments_in_order_of_their_numbers(
    store: ObjectTranscriptStore, server: AzureServer, order: Callable[[Iterable[str]], Iterable[str]]
) -> None:
    keys = fill(server, 20)
    server.dialect.order = order
    server.dialect.page_size = 7
    assert [each.key for each in store.list_segments(REF)] == keys
    assert [each.seq for each in store.records(REF)] == list(range(20))


def test_the_order_of_a_hierarchical_namespace_finds_every_transcript(
    store: ObjectTranscriptStore, server: AzureServer
) -> None:
    from transcript_backends import TranscriptRef

    refs = [TranscriptRef(tenant, "a", "s") for tenant in ("A", "A-B", "A.C", "A0", "a")]
    for ref in refs:
        store.append_segment(ref, 0, 0, "w", b"{}\n")
    server.dialect.order = lambda keys: sorted(keys, key=lambda key: key.split("/"))
    server.dialect.page_size = 2
    assert set(store.list_refs()) == set(refs)
    assert list(store.list_refs("A")) == refs[:1]


def test_directories_of_a_hierarchical_namespace_are_no_objects(store: ObjectTranscriptStore, server: AzureServer) -> None:
    keys = fill(server, 2)
    folders = ["p", "p/acme", "p/acme/coder", "p/acme/coder/s1", EVENTS[:-1]]
    server.always("LIST", server.dialect.page(*keys, marker="", directories=folders))
    assert [each.key for each in store._container.driver.list_page("p/").objects] == keys
    assert [each.key for each in store.list_segments(REF)] == keys
    assert len(list(store.list_refs())) == 1


def test_folder_blobs_of_other_tools_and_strangers_are_no_segments(store: ObjectTranscriptStore, server: AzureServer) -> None:
    keys = fill(server, 2)
    for name in ("", "0-0-w.json", "readme", "x/0-0-w.jsonl"):
        server.dialect.store(EVENTS + name, b"")
    server.dialect.store(EVENTS.rstrip("/"), b"", {"x-ms-meta-hdi_isfolder": "true"})
    assert [each.key for each in store.list_segments(REF)] == keys
    assert store.delete(REF, purge=True).deleted == 2
    assert len(server.objects) == 5


def test_a_name_that_xml_can_not_hold_is_decoded(store: ObjectTranscriptStore, server: AzureServer) -> None:
    facts = (
        b"<Properties><Last-Modified>Sat, 01 Jan 2000 00:00:00 GMT</Last-Modified><Etag>0x1</Etag>"
        b"<Content-Length>1</Content-Length></Properties>"
    )
    names = b'<Blob><Name Encoded="true">p/a%EF%BF%BFb</Name>%b</Blob><Blob><Name>p/a%25b&amp;c</Name>%b</Blob>'
    body = XML % (names.replace(b"%EF%BF%BF", b"%%EF%%BF%%BF").replace(b"%25", b"%%25") % (facts, facts), b"<NextMarker/>")
    server.always("LIST", lambda request, serve: Reply(200, body))
    found = store._container.driver.list_page("p/").objects
    assert [each.key for each in found] == ["p/a\uffffb", "p/a%25b&c"]
    assert found[0].version == '"0x1"'


@pytest.mark.parametrize("markers", [["again"], ["one", "two"]], ids=["same marker", "two in turn"])
def test_a_listing_that_goes_in_circles_is_an_error(
    store: ObjectTranscriptStore, server: AzureServer, markers: list[str]
) -> None:
    keys = fill(server, 2)
    server.next("LIST", *[server.dialect.page(*keys, marker=marker) for marker in markers * 3])
    with pytest.raises(UnexpectedResponseError, match="again and again"):
        store.list_segments(REF)
    assert len(server.requests("LIST")) == len(markers) + 1


def test_a_listing_that_stays_unavailable_is_an_error(store: ObjectTranscriptStore, server: AzureServer) -> None:
    keys = fill(server, 3)
    server.next("LIST", server.dialect.page(keys[0], marker="1"))
    server.always("LIST", reply(503, "ServerBusy"))
    with pytest.raises(StoreUnavailableError):
        store.list_segments(REF)


def test_a_listing_tells_the_servers_time(store: ObjectTranscriptStore, server: AzureServer) -> None:
    store.list_segments(REF)
    now = store._container.server_time()
    assert now is not None
    assert abs(now - datetime.now(timezone.utc)) < timedelta(seconds=5)
