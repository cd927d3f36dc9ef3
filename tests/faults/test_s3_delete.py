"""Deletes on S3 under faults: what is reported gone is gone, what is left is named, and calling again finishes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faults.s3_server import S3Server, reply
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Reply, Request, Serve, drop_after_storing, html
from faults.setups import REF

from transcript_backends import (
    AccessDeniedError,
    ObjectTranscriptStore,
    PartialDeleteError,
    TranscriptRef,
    UnexpectedResponseError,
)


@pytest.fixture
def keys(store: ObjectTranscriptStore, server: S3Server) -> list[str]:
    keys = [store.append_segment(REF, number, number, "w", b"{}\n") for number in range(3)]
    server.log.clear()
    return keys


def test_a_refused_key_is_named_and_calling_again_finishes(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str]
) -> None:
    server.next("DELETE_MANY", *[server.dialect.refuse(keys[0], "AccessDenied")] * 2)
    with pytest.raises(PartialDeleteError, match="AccessDenied") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]
    assert [each.key for each in store.list_segments(REF)] == [keys[0]]
    assert store.delete(REF).deleted == 1
    assert store.list_segments(REF) == []


def test_a_denial_inside_of_a_success_is_one_too_and_nothing_is_written(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str]
) -> None:
    server.always("DELETE_MANY", server.dialect.refuse(keys[1], "AccessDenied"))
    with pytest.raises(AccessDeniedError):
        store.delete(REF)
    assert server.kinds() == ["LIST", "DELETE_MANY"]
    assert [each.key for each in store.list_segments(REF)] == keys


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_a_key_that_failed_for_now_is_tried_again(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str], code: str
) -> None:
    server.next("DELETE_MANY", *[server.dialect.refuse(keys[0], code)] * 3)
    assert store.delete(REF).deleted == 3
    again = server.requests("DELETE_MANY")[2]
    assert [each.encode() in again.body for each in keys] == [True, False, False]


def test_a_key_that_the_answer_leaves_out_is_named(store: ObjectTranscriptStore, server: S3Server, keys: list[str]) -> None:
    def leave_out(request: Request, serve: Serve) -> Reply:
        reply = serve()
        return replace(reply, body=reply.body.replace(f"<Deleted><Key>{keys[0]}</Key></Deleted>".encode(), b""))

    server.always("DELETE_MANY", leave_out)
    with pytest.raises(PartialDeleteError, match="left this key out") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]


def test_a_key_that_keeps_failing_is_named(store: ObjectTranscriptStore, server: S3Server, keys: list[str]) -> None:
    server.always("DELETE_MANY", server.dialect.refuse(keys[0], "InternalError"))
    with pytest.raises(PartialDeleteError, match="InternalError") as caught:
        store.delete(REF)
    assert list(caught.value.failed) == [keys[0]]


@pytest.mark.parametrize("fault", [reply(503, "SlowDown"), drop_after_storing()], ids=["503", "lost answer"])
def test_a_batch_without_an_answer_is_sent_again(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str], fault: Fault
) -> None:
    server.next("DELETE_MANY", fault)
    assert store.delete(REF).deleted == 3
    assert store.list_segments(REF) == []


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "MissingContentMD5"), (501, "NotImplemented"), (400, "MalformedXML"), (405, "MethodNotAllowed")],
)
def test_a_server_without_batches_is_served_key_by_key_and_not_asked_again(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str], status: int, code: str
) -> None:
    server.always("DELETE_MANY", reply(status, code))
    assert store.delete(REF).deleted == 3
    store.append_segment(REF, 9, 9, "w", b"{}\n")
    assert store.delete(REF).deleted == 1
    assert store.list_segments(REF) == []
    assert len(server.requests("DELETE_MANY")) == 1


def test_failures_key_by_key_are_named_or_tried_again(store: ObjectTranscriptStore, server: S3Server, keys: list[str]) -> None:
    server.always("DELETE_MANY", reply(501, "NotImplemented"))
    server.next("DELETE", reply(503, "SlowDown"), reply(403, "AccessDenied"))
    failed = store._container.delete(keys)
    assert {key: "AccessDenied" in reason for key, reason in failed.items()} == {keys[1]: True}
    assert [each.key for each in store.list_segments(REF)] == [keys[1]]
    store.delete(REF)
    assert store.list_segments(REF) == []


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""], ids=["xhtml", "broken", "nothing"])
def test_a_page_with_status_200_deletes_nothing_and_claims_nothing(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str], body: bytes
) -> None:
    server.always("DELETE_MANY", html(body=body))
    with pytest.raises(UnexpectedResponseError):
        store.delete(REF)
    server.always("DELETE_MANY", None)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_page_with_status_200_to_a_single_deletion_claims_nothing(
    store: ObjectTranscriptStore, server: S3Server, keys: list[str]
) -> None:
    server.always("DELETE_MANY", reply(501, "NotImplemented"))
    server.always("DELETE", html())
    with pytest.raises(PartialDeleteError) as caught:
        store.delete(REF)
    assert sorted(caught.value.failed) == keys


def test_a_denied_batch_is_an_access_error(store: ObjectTranscriptStore, server: S3Server, keys: list[str]) -> None:
    server.always("DELETE_MANY", reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError):
        store.delete(REF)
    assert [each.key for each in store.list_segments(REF)] == keys


def test_a_second_delete_finds_nothing(store: ObjectTranscriptStore, server: S3Server, keys: list[str]) -> None:
    assert store.delete(REF).deleted == 3
    assert store.delete(REF).deleted == 0
    assert store.delete(REF, purge=True).deleted == 0
    assert server.objects == {}


def test_keys_with_unusual_characters_are_deleted_and_counted(store: ObjectTranscriptStore, server: S3Server) -> None:
    ref = TranscriptRef("a/b", "c&d<e>", "f+g h%2Fi\u00fc")
    store.append_segment(ref, 0, 0, "w", b"{}\n")
    assert list(store.list_refs()) == [ref]
    assert store.delete(ref, purge=True).deleted == 1
    assert server.objects == {}
