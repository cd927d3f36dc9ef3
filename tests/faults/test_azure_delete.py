"""Deletes on Azure under faults: what is reported gone is gone, what is left is named, and calling again finishes."""

from __future__ import annotations

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
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, drop_after_storing, html
from faults.setups import REF

from transcript_backends import (
    ObjectTranscriptStore,
    PartialDeleteError,
    StoreUnavailableError,
    TranscriptRef,
    UnexpectedResponseError,
)


@pytest.fixture
def keys(store: ObjectTranscriptStore, server: AzureServer) -> list[str]:
    keys = [store.append_segment(REF, number, number, "w", b"{}\n") for number in range(3)]
    server.log.clear()
    return keys


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AuthorizationPermissionMismatch", ""),
        (409, "BlobImmutableDueToPolicy", "retention policy"),
        (409, "SnapshotsPresent", "delete them first"),
        (412, "LeaseIdMissing", "lease"),
        (404, "ContainerNotFound", ""),
        (404, "", ""),
        (200, "", ""),
    ],
)
def test_a_refused_key_is_named_and_calling_again_finishes(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], status: int, code: str, remedy: str
) -> None:
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], status, code))
    with pytest.raises(PartialDeleteError, match=code or f"HTTP {status}") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]
    assert remedy in caught.value.failed[keys[0]]
    assert [each.key for each in store.list_segments(REF)] == [keys[0]]
    assert store.delete(REF).deleted == 1
    assert store.list_segments(REF) == []


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (503, "ServerBusy"), (500, "OperationTimedOut"), (429, "")]
)
def test_a_key_that_failed_for_now_is_tried_again(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], status: int, code: str
) -> None:
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], status, code))
    server.next("DELETE", reply(status, code))  # a single key needs no batch
    assert store.delete(REF).deleted == 3
    assert [each.key for each in server.requests("DELETE")][:3] == [keys[1], keys[1], keys[0]]


@pytest.mark.parametrize("reorder", [reversed, lambda parts: [*parts[1:], parts[0]]], ids=["reversed", "rotated"])
def test_answers_out_of_order_are_told_apart_by_their_numbers(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], reorder: object
) -> None:
    server.dialect.batch_order = reorder  # type: ignore[assignment]
    server.next("DELETE_MANY", server.dialect.refuse(keys[0], 403, "AuthorizationFailure"))
    with pytest.raises(PartialDeleteError) as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]


def test_a_key_that_the_answer_leaves_out_is_named(store: ObjectTranscriptStore, server: AzureServer, keys: list[str]) -> None:
    server.dialect.batch_order = lambda parts: parts[:-1]
    assert list(store._container.driver.delete_many(keys)) == [keys[-1]]


def test_keys_that_are_gone_already_are_no_failure(store: ObjectTranscriptStore, server: AzureServer, keys: list[str]) -> None:
    server.next("DELETE_MANY", drop_after_storing())
    assert store.delete(REF).deleted == 3
    assert store.delete(REF).deleted == 0
    assert store.delete(REF, purge=True).deleted == 0
    assert server.objects == {}


def test_a_batch_is_of_256_keys(store: ObjectTranscriptStore, server: AzureServer) -> None:
    keys = [f"p/{number}" for number in range(600)]
    for key in keys:
        server.dialect.store(key, b"")
    assert store._container.delete(keys) == {}
    assert [each.body.count(b"Content-ID") for each in server.requests("DELETE_MANY")] == [256, 256, 88]
    assert server.objects == {}


@pytest.mark.parametrize("fault", [reply(503, "ServerBusy"), drop_after_storing()], ids=["503", "lost answer"])
def test_a_batch_without_an_answer_is_sent_again(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], fault: Fault
) -> None:
    server.next("DELETE_MANY", fault)
    assert store.delete(REF).deleted == 3
    assert store.list_segments(REF) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (409, "FeatureNotYetSupportedForHierarchicalNamespaceAccounts"),
        (400, "UnsupportedQueryParameter"),
        (400, "InvalidQueryParameterValue"),
        (405, "UnsupportedHttpVerb"),
        (501, ""),
    ],
)
def test_a_server_without_batches_is_served_key_by_key_and_not_asked_again(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], status: int, code: str
) -> None:
    server.always("DELETE_MANY", reply(status, code))
    assert store.delete(REF).deleted == 3
    for number in (8, 9):
        store.append_segment(REF, number, number, "w", b"{}\n")
    assert store.delete(REF).deleted == 2
    assert store.list_segments(REF) == []
    assert len(server.requests("DELETE_MANY")) == 1


def test_an_emulator_that_is_not_this_machine_is_served_key_by_key(open_azure: OpenAzure, server: AzureServer) -> None:
    """In a batch, the SDK leaves the account out of the paths there, and a 404 for that would pass for success."""
    store = open_azure(endpoint_url=server.url.replace("127.0.0.1", "127.1"), allow_http=True)
    for number in range(3):
        store.append_segment(REF, number, number, "w", b"{}\n")
    assert store.delete(REF, purge=True).deleted == 3
    assert server.requests("DELETE_MANY") == []
    assert server.objects == {}


def test_failures_key_by_key_are_named_or_tried_again(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str]
) -> None:
    server.always("DELETE_MANY", reply(501, ""))
    server.next("DELETE", reply(503, "ServerBusy"), reply(403, "AuthorizationFailure"))
    failed = store._container.delete(keys)
    assert {key: "AuthorizationFailure" in reason for key, reason in failed.items()} == {keys[1]: True}
    store.delete(REF)
    assert store.list_segments(REF) == []


@pytest.mark.parametrize("status", [200, 202])
@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""], ids=["xhtml", "broken", "nothing"])
def test_a_page_as_answer_to_a_batch_deletes_nothing_and_claims_nothing(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str], body: bytes, status: int
) -> None:
    server.always("DELETE_MANY", html(status, body))
    with pytest.raises(UnexpectedResponseError):
        store._container.delete(keys)
    server.always("DELETE_MANY", None)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_page_with_status_200_to_a_single_deletion_claims_nothing(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str]
) -> None:
    server.always("DELETE_MANY", reply(501, ""))
    server.always("DELETE", html())
    assert sorted(store._container.delete(keys)) == keys
    with pytest.raises(UnexpectedResponseError):
        store.delete(REF)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_denied_batch_is_a_failure_of_each_key(store: ObjectTranscriptStore, server: AzureServer, keys: list[str]) -> None:
    server.always("DELETE_MANY", reply(403, "AuthorizationPermissionMismatch"))
    failed = store._container.delete(keys)
    assert failed.keys() == set(keys)
    assert all("AuthorizationPermissionMismatch" in reason for reason in failed.values())
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_batch_cut_short_is_sent_again_and_then_given_up(
    store: ObjectTranscriptStore, server: AzureServer, keys: list[str]
) -> None:
    whole = {"Content-Type": "multipart/mixed; boundary=b1", "Content-Length": "1000"}
    server.always("DELETE_MANY", lambda request, serve: Reply(202, b"--b1\r\n", whole, sent=6))
    with pytest.raises(StoreUnavailableError):
        store._container.delete(keys)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_keys_with_unusual_characters_are_deleted_and_counted(store: ObjectTranscriptStore, server: AzureServer) -> None:
    ref = TranscriptRef("a/b", "c&d<e>", "f+g h%2Fi\u00fc")
    for number in range(2):
        store.append_segment(ref, number, number, "w", b"{}\n")
    assert list(store.list_refs()) == [ref]
    assert store.delete(ref, purge=True).deleted == 2
    assert server.objects == {}
