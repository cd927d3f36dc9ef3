"""Deletes on GCS under faults: what is reported gone is gone, what is left is named, and calling again finishes."""

from __future__ import annotations

from typing import Any

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
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, drop_after_storing, html, truncated
from faults.setups import REF

from transcript_backends import (
    AccessDeniedError,
    ObjectTranscriptStore,
    PartialDeleteError,
    TranscriptRef,
    UnexpectedResponseError,
)
from transcript_backends.drivers.gcs import GCSObjectStore


@pytest.fixture
def keys(store: ObjectTranscriptStore, server: GCSServer) -> list[str]:
    keys = [store.append_segment(REF, number, number, "w", b"{}\n") for number in range(3)]
    server.log.clear()
    return keys


@pytest.mark.parametrize("reason", ["forbidden", "retentionPolicyNotMet", "objectUnderActiveHold"])
def test_a_refused_key_is_named_and_calling_again_finishes(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], reason: str
) -> None:
    server.next("DELETE_MANY", *[server.dialect.refuse(keys[0], 403, reason)] * 2)
    with pytest.raises(PartialDeleteError, match=reason) as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]
    assert [each.key for each in store.list_segments(REF)] == [keys[0]]
    assert store.delete(REF).deleted == 1
    assert store.list_segments(REF) == []


@pytest.mark.parametrize(("status", "reason"), [(503, "backendError"), (429, "rateLimitExceeded"), (403, "rateLimitExceeded")])
def test_a_key_that_failed_for_now_is_tried_again_and_no_other(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], status: int, reason: str
) -> None:
    server.next("DELETE_MANY", *[server.dialect.refuse(keys[0], status, reason)] * 3)
    assert store.delete(REF).deleted == 3
    again = server.requests("DELETE_MANY")[2]
    names = [each.rpartition("/")[2].encode() for each in keys]
    assert [name in again.body for name in names] == [True, False, False]


def test_a_key_that_keeps_failing_is_named(store: ObjectTranscriptStore, server: GCSServer, keys: list[str]) -> None:
    server.always("DELETE_MANY", server.dialect.refuse(keys[0], 500, "backendError"))
    with pytest.raises(PartialDeleteError, match="backendError") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]


def test_a_key_that_the_answer_leaves_out_is_named(store: ObjectTranscriptStore, server: GCSServer, keys: list[str]) -> None:
    server.always("DELETE_MANY", server.dialect.leave_out(keys[0]))
    with pytest.raises(PartialDeleteError, match="left this key out") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]


@pytest.mark.parametrize(
    "fault", [reply(503), reply(429, "rateLimitExceeded"), drop_after_storing()], ids=["503", "429", "lost"]
)
def test_a_batch_without_an_answer_is_sent_again_and_what_is_gone_by_then_is_done(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], fault: Fault
) -> None:
    server.next("DELETE_MANY", fault)
    assert store.delete(REF).deleted == 3
    assert store.list_segments(REF) == []
    assert "DELETE" not in server.kinds()


def test_an_answer_cut_short_leaves_no_key_unaccounted_for(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str]
) -> None:
    server.next("DELETE_MANY", truncated(200))
    assert store.delete(REF).deleted == 3
    assert store.list_segments(REF) == []


@pytest.mark.parametrize("batches", [True, False])
def test_only_the_generation_named_is_deleted(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], batches: bool
) -> None:
    if not batches:
        server.always("DELETE_MANY", reply(501, "notImplemented"))
    driver = store._container.driver
    assert isinstance(driver, GCSObjectStore)
    versions = {info.key: info.version for info in driver.list_page("p/").objects}
    driver.delete_many(keys[:1])
    store.append_segment(REF, 0, 0, "w", b"{}\n")
    for _ in range(2):  # the second time all but the first are absent
        assert driver.delete_many(keys, versions={key: versions[key] for key in keys[:2]}) == {}
        assert [each.key for each in store.list_segments(REF)] == keys[:1]


def test_generations_are_named_to_google_alone(server: GCSServer) -> None:
    """Emulators ignore them."""
    client: Any = object()
    for endpoint, can in (("https://storage.googleapis.com", True), (server.url, False)):
        assert GCSObjectStore(client, "b", endpoint=endpoint).capabilities.conditional_delete is can


def test_many_keys_go_a_hundred_to_a_batch(store: ObjectTranscriptStore, server: GCSServer) -> None:
    for number in range(250):
        server.dialect.store(f"p/acme/coder/s1/events/{number}-{number}-w.jsonl", b"{}\n")
    assert store.delete(REF, purge=True).deleted == 250
    assert server.objects == {}
    counts = [each.body.count(b"\r\nDELETE /") for each in server.requests("DELETE_MANY")]
    assert counts[:4] == [1, 100, 100, 49]
    assert max(counts) <= 100


NO_BATCHES: dict[str, Fault] = {
    "400": reply(400, "badRequest"),
    "404": html(404),
    "405": reply(405),
    "501": reply(501, "notImplemented"),
    "xhtml": html(body=XHTML),
    "broken html": html(body=BROKEN_HTML),
    "nothing": html(body=b""),
    "JSON": json_instead(b"{}"),
}


@pytest.mark.parametrize("fault", NO_BATCHES.values(), ids=NO_BATCHES)
def test_a_server_without_batches_is_served_key_by_key_and_not_asked_again(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], fault: Fault
) -> None:
    server.always("DELETE_MANY", fault)
    assert store.delete(REF).deleted == 3
    store.append_segment(REF, 9, 9, "w", b"{}\n")
    assert store.delete(REF).deleted == 1
    assert store.list_segments(REF) == []
    assert len(server.requests("DELETE_MANY")) == 1


def test_failures_key_by_key_are_named_or_tried_again(store: ObjectTranscriptStore, server: GCSServer, keys: list[str]) -> None:
    server.always("DELETE_MANY", reply(501, "notImplemented"))
    server.next("DELETE", reply(503), reply(403, "forbidden"))
    failed = store._container.delete(keys)
    assert {key: "forbidden" in reason for key, reason in failed.items()} == {keys[1]: True}
    assert [each.key for each in store.list_segments(REF)] == [keys[1]]
    store.delete(REF)
    assert store.list_segments(REF) == []


def test_an_answer_to_a_single_deletion_that_was_lost_is_made_up_for(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str]
) -> None:
    server.always("DELETE_MANY", reply(501, "notImplemented"))
    server.next("DELETE", drop_after_storing())
    assert store.delete(REF).deleted == 3
    assert store.list_segments(REF) == []


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""], ids=["xhtml", "broken", "nothing"])
def test_a_page_with_status_200_to_every_deletion_claims_nothing(
    store: ObjectTranscriptStore, server: GCSServer, keys: list[str], body: bytes
) -> None:
    for kind in ("DELETE_MANY", "DELETE"):
        server.always(kind, html(body=body))
    assert sorted(store._container.driver.delete_many(keys)) == keys
    with pytest.raises(UnexpectedResponseError):
        store.delete(REF)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_denied_batch_is_an_access_error(store: ObjectTranscriptStore, server: GCSServer, keys: list[str]) -> None:
    server.always("DELETE_MANY", reply(403, "forbidden"))
    with pytest.raises(AccessDeniedError):
        store.delete(REF)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_second_delete_finds_nothing(store: ObjectTranscriptStore, server: GCSServer, keys: list[str]) -> None:
    assert store.delete(REF).deleted == 3
    assert store.delete(REF).deleted == 0
    assert store.delete(REF, purge=True).deleted == 0
    assert server.objects == {}


def test_keys_with_unusual_characters_are_deleted_and_counted(store: ObjectTranscriptStore, server: GCSServer) -> None:
    ref = TranscriptRef("a/b", "c&d<e>", "f+g h%2Fi\u00fc")
    store.append_segment(ref, 0, 0, "w", b"{}\n")
    assert list(store.list_refs()) == [ref]
    assert store.delete(ref, purge=True).deleted == 1
    assert server.objects == {}


def test_a_prefix_with_unusual_characters_is_kept_in_every_request(server: GCSServer) -> None:
    from transcript_backends import open_store

    with open_store(f"gs://bucket/a b%3F%23%25/\u00fc?endpoint_url={server.url}&anon=true") as store:
        key = store.append_segment(REF, 0, 0, "w", b"{}\n")
        assert key.startswith("a b?#%/\u00fc/")
        assert list(server.objects) == [key]
        with store.read_segment(key) as stream:
            assert stream.read() == b"{}\n"
        assert store.delete(REF, purge=True).deleted == 1
    assert server.objects == {}
