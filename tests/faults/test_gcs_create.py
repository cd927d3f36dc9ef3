"""Appends to GCS under faults: acknowledged means stored once, an error means what it says, nothing is overwritten."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
from collections.abc import Callable

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
)
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, Request, drop_after_storing, drop_before_storing, html
from faults.setups import KEY, REF, FakeClock

from transcript_backends import (
    AccessDeniedError,
    ConditionalWritesUnsupportedError,
    ContainerNotFoundError,
    ObjectTranscriptStore,
    SegmentConflictError,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
)
from transcript_backends.drivers.driver import IfMatch

LINE = b'{"a":1}\n'
OTHER = b'{"a":2}\n'


def append(store: ObjectTranscriptStore, line: bytes = LINE) -> str:
    return store.append_segment(REF, 0, 0, "w", line)


def stored(server: GCSServer) -> dict[str, bytes]:
    return {key: found.body for key, found in server.objects.items()}


def condition(sent: Request) -> str | None:
    return sent.query.get("ifGenerationMatch") or sent.headers.get("x-goog-if-generation-match")


# --- lost answers -----------------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_found_by_head_and_stored_once(
    store: ObjectTranscriptStore, server: GCSServer
) -> None:
    server.next("PUT", drop_after_storing())
    assert append(store) == KEY
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


def test_a_lost_answer_followed_by_412_is_success(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("PUT", drop_after_storing())
    server.next("HEAD", reply(503, "backendError"))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT", "HEAD"]  # the second PUT was answered 412
    assert stored(server) == {KEY: LINE}


def test_a_connection_dropped_before_storing_is_made_up_for_by_the_retry(
    store: ObjectTranscriptStore, server: GCSServer
) -> None:
    server.next("PUT", drop_before_storing(), drop_before_storing())
    append(store)
    assert [each for each in server.kinds() if each != "LIST"] == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]
    assert {condition(each) for each in server.requests("PUT")} == {"0"}
    assert stored(server) == {KEY: LINE}


def test_a_large_segment_is_one_request_and_never_deleted_again(store: ObjectTranscriptStore, server: GCSServer) -> None:
    body = os.urandom(9 << 20)  # beyond 8 MiB the SDK would begin a resumable upload, and delete what it takes for damaged
    server.next("PUT", drop_after_storing())
    store._container.create(KEY, body)
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: body}


def test_a_read_time_out_whose_put_landed_is_success(open_gcs: OpenGCS, server: GCSServer) -> None:
    store = open_gcs(read_timeout=0.3)
    append(store)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", server.slow(30))
    append(store)
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


NO_ANSWERS = {
    "xhtml": html(body=XHTML),
    "broken html": html(body=BROKEN_HTML),
    "nothing": html(body=b""),
    "other JSON": json_instead(b'{"hello":1}'),
    "an array": json_instead(b"[]"),
    "a bare kind": json_instead(b'{"kind":"storage#object"}'),
}


@pytest.mark.parametrize("fault", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_status_200_that_is_no_answer_to_an_upload_is_not_taken_for_success(
    store: ObjectTranscriptStore, server: GCSServer, fault: Fault
) -> None:
    server.next("PUT", fault)
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "LIST", "PUT"]  # the listing proves that the bucket is there
    assert stored(server) == {KEY: LINE}


def test_a_proxy_that_answers_every_upload_is_named_as_such(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.always("PUT", html())
    with pytest.raises(UnexpectedResponseError, match=r"may have been stored or not.*check the endpoint"):
        append(store)
    assert stored(server) == {}


# --- what is temporary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "reason", "times"),
    [
        (429, "rateLimitExceeded", 6),  # more than one change a second of one name
        (403, "rateLimitExceeded", 1),
        (403, "userRateLimitExceeded", 1),
        (408, "uploadBrokenConnection", 1),
        (409, "conflict", 2),
        (500, "backendError", 4),
        (502, "", 1),
        (503, "", 3),
        (504, "gatewayTimeout", 1),
    ],
)
def test_what_is_temporary_is_tried_again_with_growing_jittered_pauses(
    store: ObjectTranscriptStore, server: GCSServer, clock: FakeClock, status: int, reason: str, times: int
) -> None:
    server.next("PUT", *[reply(status, reason)] * times)
    append(store)
    assert stored(server) == {KEY: LINE}
    assert len(server.requests("PUT")) == times + 1
    assert len(clock.pauses) == times
    for index, pause in enumerate(clock.pauses):
        assert 0.05 * 2**index <= pause < 0.1 * 2**index


@pytest.mark.parametrize("fault", [reply(503), drop_before_storing()], ids=["503", "drop"])
def test_retries_used_up_say_that_the_outcome_is_unknown_and_calling_again_is_safe(
    store: ObjectTranscriptStore, server: GCSServer, clock: FakeClock, fault: Fault
) -> None:
    server.always("PUT", fault)
    with pytest.raises(StoreUnavailableError, match=r"may have been stored or not, and calling again .* is safe") as caught:
        append(store)
    assert KEY in str(caught.value)
    assert "gs://bucket" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert len(server.requests("PUT")) == 10, "one try a try: nothing below repeats by itself"
    assert clock.now <= 60
    server.always("PUT", None)
    append(store)
    assert stored(server) == {KEY: LINE}


def test_412_without_a_way_to_look_is_unknown_and_no_conflict(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("PUT", drop_after_storing())
    server.always("HEAD", reply(503))
    with pytest.raises(StoreUnavailableError, match="may have been stored or not"):
        append(store)
    assert stored(server) == {KEY: LINE}
    server.always("HEAD", None)
    append(store)


def test_an_object_that_vanishes_between_412_and_head_is_put_again(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("PUT", reply(412, "conditionNotMet"))
    append(store)
    assert len(server.requests("PUT")) == 2
    assert stored(server) == {KEY: LINE}


# --- taken keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("described", [True, False], ids=["with metadata", "without metadata"])
@pytest.mark.parametrize("body", [OTHER, LINE + LINE], ids=["same size", "other size"])
def test_other_content_under_the_key_is_a_conflict_and_stays_untouched(
    store: ObjectTranscriptStore, server: GCSServer, body: bytes, described: bool
) -> None:
    metadata = {"tbwrite": "f" * 32, "tbsha256": hashlib.sha256(body).hexdigest()}
    before = server.dialect.store(KEY, body, {"metadata": metadata} if described else {})
    with pytest.raises(SegmentConflictError, match="nothing was overwritten") as caught:
        append(store)
    assert KEY in str(caught.value)
    assert server.objects == {KEY: before}
    assert len(server.requests("PUT")) == 1


def test_the_same_content_by_another_client_is_success(store: ObjectTranscriptStore, server: GCSServer) -> None:
    before = server.dialect.store(KEY, LINE)
    append(store)
    assert server.objects == {KEY: before}
    assert server.kinds() == ["PUT", "HEAD", "GET"]


def test_the_same_append_again_succeeds_and_overwrites_nothing(store: ObjectTranscriptStore, server: GCSServer) -> None:
    append(store)
    before = server.objects[KEY]
    append(store)
    assert server.objects == {KEY: before}
    assert server.kinds() == ["PUT", "PUT", "HEAD"]


def test_a_conflict_after_a_lost_answer_is_still_a_conflict(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.dialect.store(KEY, OTHER)
    server.next("PUT", drop_before_storing())
    with pytest.raises(SegmentConflictError):
        append(store)
    assert stored(server) == {KEY: OTHER}


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["forbidden", "retentionPolicyNotMet", "accountDisabled", ""])
def test_a_denied_upload_is_an_access_error_at_once(store: ObjectTranscriptStore, server: GCSServer, reason: str) -> None:
    server.always("PUT", reply(403, reason))
    with pytest.raises(AccessDeniedError, match="HTTP 403") as caught:
        append(store)
    assert reason in str(caught.value)
    assert server.kinds() == ["PUT"]


def test_a_denial_after_a_lost_answer_says_that_the_outcome_is_unknown(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("PUT", drop_before_storing(), reply(403, "forbidden"))
    with pytest.raises(AccessDeniedError, match="may have been stored or not"):
        append(store)


def test_a_writer_that_may_not_look_is_told_that_the_outcome_is_unknown(
    store: ObjectTranscriptStore, server: GCSServer
) -> None:
    server.next("PUT", drop_after_storing())
    server.always("HEAD", reply(403, "forbidden"))
    with pytest.raises(AccessDeniedError, match=r"may have been stored or not, and calling again .* is safe"):
        append(store)
    assert server.kinds() == ["PUT", "HEAD"]


# --- stores without conditions ----------------------------------------------------------------------------------------


def test_an_endpoint_that_ignores_conditions_is_refused_and_left_clean(open_gcs: OpenGCS, server: GCSServer) -> None:
    server.dialect.ignore_conditions = True
    with pytest.raises(ConditionalWritesUnsupportedError, match=r"conditional_writes=off") as caught:
        append(open_gcs())
    assert server.url in str(caught.value)
    assert stored(server) == {}


def test_googles_own_service_is_trusted_without_a_probe() -> None:
    from transcript_backends import open_store

    with open_store("gs://bucket", anon=True) as store:
        assert store._container.driver.capabilities.create_only == "yes"


def test_without_conditional_writes_a_read_before_refuses_other_content(open_gcs: OpenGCS, server: GCSServer) -> None:
    store = open_gcs(conditional_writes="off")
    append(store)
    append(store)
    with pytest.raises(SegmentConflictError):
        append(store, OTHER)
    assert stored(server) == {KEY: LINE}
    assert "ifGenerationMatch" not in server.requests("PUT")[0].query


# --- places and requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conditional_writes", ["on", "off"])
def test_a_missing_bucket_is_never_an_empty_transcript(open_gcs: OpenGCS, server: GCSServer, conditional_writes: str) -> None:
    store = open_gcs("nowhere", conditional_writes=conditional_writes)
    calls: list[Callable[[], object]] = [
        lambda: append(store),
        lambda: store.list_segments(REF),
        lambda: store.read_segment(KEY),  # of which GCS says "no such object"
        lambda: store.delete(REF),
        lambda: store.next_seq(REF),
        lambda: list(store.list_refs()),
        lambda: list(store.records(REF)),
    ]
    for call in calls:
        with pytest.raises(ContainerNotFoundError, match="gs://nowhere"):
            call()
    driver = store._container.driver
    for delete in (lambda: driver.delete_many([KEY]),) * 2:
        with pytest.raises(Exception) as caught:
            delete()
        failure = driver.classify(caught.value)
        assert failure is not None
        assert failure.meaning.name == "CONTAINER_NOT_FOUND"
        server.always("DELETE_MANY", reply(501, "notImplemented"))
    assert stored(server) == {}


def test_a_404_in_no_words_of_gcs_is_no_answer(store: ObjectTranscriptStore, server: GCSServer) -> None:
    for kind in ("LIST", "PUT"):
        server.always(kind, html(404))
    with pytest.raises(UnexpectedResponseError):
        store.list_segments(REF)
    with pytest.raises(UnexpectedResponseError):
        append(store)


def test_a_404_of_a_proxy_to_a_look_does_not_make_the_object_absent(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.next("PUT", drop_after_storing())
    for kind in ("HEAD", "LIST"):
        server.always(kind, html(404))
    with pytest.raises(UnexpectedResponseError, match="may have been stored or not"):
        append(store)


def test_an_endpoint_nobody_listens_on_is_unavailable_and_named(open_gcs: OpenGCS, clock: FakeClock) -> None:
    store = open_gcs(endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        store.list_segments(REF)
    assert clock.now <= 60


def test_a_bucket_whose_requester_pays_says_what_to_set(store: ObjectTranscriptStore, server: GCSServer) -> None:
    message = "Bucket is a requester pays bucket but no user project provided."
    server.always("LIST", reply(400, "required", message))
    with pytest.raises(TranscriptStoreError, match="set user_project"):
        store.list_segments(REF)


def test_an_unlisted_error_is_raised_at_once_with_its_reason(store: ObjectTranscriptStore, server: GCSServer) -> None:
    server.always("PUT", reply(400, "cloudKmsDisabledKey"))
    with pytest.raises(TranscriptStoreError, match="cloudKmsDisabledKey"):
        append(store)
    assert server.kinds() == ["PUT"]


@pytest.mark.parametrize("engine", ["sdk"])
def test_an_upload_carries_its_condition_metadata_type_and_checksum(store: ObjectTranscriptStore, server: GCSServer) -> None:
    append(store)
    (sent,) = server.requests("PUT")
    assert sent.query == {"uploadType": "multipart", "ifGenerationMatch": "0", "prettyPrint": "false"}
    facts = server.objects[KEY].facts
    assert facts["contentType"] == "application/x-ndjson"
    assert facts["metadata"]["tbsha256"] == hashlib.sha256(LINE).hexdigest()
    assert facts["md5Hash"] == base64.b64encode(hashlib.md5(LINE).digest()).decode()
    assert "storageClass" not in facts


@pytest.mark.parametrize("engine", ["sdk"])
def test_key_class_and_payer_go_into_the_requests_they_belong_to(open_gcs: OpenGCS, server: GCSServer) -> None:
    store = open_gcs(kms_key_name="projects/p/k", storage_class="NEARLINE", user_project="payer")
    append(store)
    assert server.objects[KEY].facts["storageClass"] == "NEARLINE"
    assert server.objects[KEY].query["kmsKeyName"] == "projects/p/k"
    with store.read_segment(KEY) as stream:
        assert stream.read() == LINE
    store.delete(REF)
    assert set(server.kinds()) == {"PUT", "LIST", "GET", "DELETE_MANY"}
    assert {each.query.get("userProject") for each in server.log} == {"payer"}
    assert b"?userProject=payer HTTP" in server.requests("DELETE_MANY")[0].body
    assert {"kmsKeyName" in each.query for each in server.requests("PUT")} == {True}
    assert not any("kmsKeyName" in each.query for each in server.requests("GET"))


def test_a_generation_guards_a_replacement(store: ObjectTranscriptStore, server: GCSServer) -> None:
    driver = store._container.driver
    first = driver.put("k", b"1", mode="create", metadata={})
    second = driver.put("k", b"2", mode=IfMatch(first), metadata={})
    assert [condition(each) for each in server.requests("PUT")] == ["0", first]
    assert second == server.objects["k"].generation != first


@pytest.mark.parametrize("body", [b"", b"--", b"\r\n\r\n--x--\r\n", bytes(range(256)) * 3], ids=["0", "1", "2", "3"])
def test_a_body_arrives_to_the_byte(store: ObjectTranscriptStore, server: GCSServer, body: bytes) -> None:
    store._container.create("k", body)
    assert stored(server) == {"k": body}


def test_mixed_faults_in_any_order_end_with_one_object(store: ObjectTranscriptStore, server: GCSServer) -> None:
    faults: list[Fault] = [
        drop_after_storing(), drop_before_storing(), reply(503), reply(429, "rateLimitExceeded"), html(), json_instead(b"{}"),
    ]  # fmt: skip
    for number, (first, second) in enumerate(itertools.product(faults, faults)):
        server.next("PUT", first, second)
        key = store.append_segment(REF, number, number, "w", LINE)
        assert server.objects[key].body == LINE
        server.forget("PUT")
    assert len(server.objects) == len(faults) ** 2
