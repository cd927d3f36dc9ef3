"""Appends to S3 under faults: acknowledged means stored once, an error means what it says, nothing is overwritten."""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply
from faults.scripted_server import BROKEN_HTML, XHTML, Fault, drop_after_storing, drop_before_storing, honest, html
from faults.setups import KEY, REF, FakeClock, OpenS3

from transcript_backends import (
    AccessDeniedError,
    ConditionalWritesUnsupportedError,
    ContainerNotFoundError,
    ObjectTranscriptStore,
    S3TranscriptStore,
    SegmentConflictError,
    StoreUnavailableError,
    TranscriptStoreError,
    UnexpectedResponseError,
)

LINE = b'{"a":1}\n'
OTHER = b'{"a":2}\n'


def append(store: ObjectTranscriptStore, line: bytes = LINE) -> str:
    return store.append_segment(REF, 0, 0, "w", line)


def stored(server: S3Server) -> dict[str, bytes]:
    return {key: found.body for key, found in server.objects.items()}


# --- lost answers -----------------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_found_by_head_and_stored_once(
    store: ObjectTranscriptStore, server: S3Server
) -> None:
    server.next("PUT", drop_after_storing())
    assert append(store) == KEY
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


def test_a_lost_answer_followed_by_412_is_success(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", drop_after_storing())
    server.next("HEAD", reply(503, "SlowDown"))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT", "HEAD"]  # the second PUT was answered 412
    assert stored(server) == {KEY: LINE}


def test_a_412_that_an_sdk_met_in_its_own_retry_is_success(server: S3Server) -> None:
    client = boto3.client(
        "s3", endpoint_url=server.url, region_name="eu-test-1", aws_access_key_id="A", aws_secret_access_key="S"
    )  # retries by itself
    store = S3TranscriptStore(client, "bucket", "p")
    append(store, OTHER)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", drop_after_storing())
    assert append(store) == KEY
    assert server.kinds() == ["PUT", "PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}
    client.close()


def test_a_connection_dropped_before_storing_is_made_up_for_by_the_retry(
    store: ObjectTranscriptStore, server: S3Server
) -> None:
    server.next("PUT", drop_before_storing(), drop_before_storing())
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}
    sent = {(each.body, each.headers["x-amz-meta-tbwrite"], each.headers["if-none-match"]) for each in server.requests("PUT")}
    assert len(sent) == 1, "every try sends the same bytes, write id and condition"


def test_a_read_time_out_whose_put_landed_is_success(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(read_timeout=0.3)
    append(store, LINE)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", server.slow(30))
    append(store)
    assert server.kinds() == ["PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize("body", [XHTML, BROKEN_HTML, b""])
def test_a_page_with_status_200_as_answer_to_put_is_not_taken_for_success(
    store: ObjectTranscriptStore, server: S3Server, body: bytes
) -> None:
    server.next("PUT", html(body=body))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}


def test_a_proxy_that_answers_every_put_is_named_as_such(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.always("PUT", html())
    with pytest.raises(UnexpectedResponseError, match=r"may have been stored or not.*check the endpoint"):
        append(store)
    assert stored(server) == {}


# --- what is temporary ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "times"),
    [
        (409, "ConditionalRequestConflict", 1),
        (409, "OperationAborted", 2),
        (500, "InternalError", 4),
        (503, "SlowDown", 6),
        (503, "ServiceUnavailable", 1),
        (429, "TooManyRequests", 3),
        (400, "RequestTimeout", 1),
        (502, "", 1),
    ],
)
def test_what_is_temporary_is_tried_again_with_growing_jittered_pauses(
    store: ObjectTranscriptStore, server: S3Server, clock: FakeClock, status: int, code: str, times: int
) -> None:
    server.next("PUT", *[reply(status, code)] * times)
    append(store)
    assert stored(server) == {KEY: LINE}
    assert len(server.requests("PUT")) == times + 1
    assert len(clock.pauses) == times
    for index, pause in enumerate(clock.pauses):
        assert 0.05 * 2**index <= pause < 0.1 * 2**index
    assert clock.now < 60


def test_a_retry_waits_as_chance_has_it(open_s3: OpenS3, server: S3Server) -> None:
    waited = []
    for seed in (1, 2):
        clock = FakeClock(seed)
        store = open_s3(clock=clock)
        server.next("PUT", *[reply(503, "SlowDown")] * 5)
        append(store, LINE)
        server.objects.clear()
        waited.append(clock.pauses)
    assert len(waited[0]) == len(waited[1]) == 5
    assert waited[0] != waited[1]


@pytest.mark.parametrize(
    "fault",
    [reply(503, "SlowDown"), drop_before_storing()],
    ids=["503", "drop"],
)
def test_retries_used_up_say_that_the_outcome_is_unknown_and_calling_again_is_safe(
    store: ObjectTranscriptStore, server: S3Server, clock: FakeClock, fault: Fault
) -> None:
    server.always("PUT", fault)
    with pytest.raises(StoreUnavailableError, match=r"may have been stored or not, and calling again .* is safe") as caught:
        append(store)
    assert KEY in str(caught.value)
    assert "s3://bucket" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert len(server.requests("PUT")) == 10
    assert clock.now <= 60
    server.always("PUT", None)
    append(store)
    assert stored(server) == {KEY: LINE}


def test_no_try_begins_after_the_deadline(open_s3: OpenS3, server: S3Server, clock: FakeClock) -> None:
    store = open_s3(retry_deadline=2, max_attempts=1000)
    append(store)
    server.objects.clear()
    server.always("PUT", reply(503, "SlowDown"))
    with pytest.raises(StoreUnavailableError):
        append(store)
    assert clock.now <= 2


def test_412_without_a_way_to_look_is_unknown_and_no_conflict(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", drop_after_storing())
    server.always("HEAD", reply(503, "SlowDown"))
    with pytest.raises(StoreUnavailableError, match="may have been stored or not"):
        append(store)
    assert stored(server) == {KEY: LINE}
    server.always("HEAD", None)
    append(store)


def test_an_object_that_vanishes_between_412_and_head_is_put_again(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", reply(412, "PreconditionFailed"))
    append(store)
    assert server.kinds() == ["PUT", "HEAD", "PUT"]
    assert stored(server) == {KEY: LINE}


# --- taken keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("described", [True, False], ids=["with metadata", "without metadata"])
@pytest.mark.parametrize("body", [OTHER, LINE + LINE], ids=["same size", "other size"])
def test_other_content_under_the_key_is_a_conflict_and_stays_untouched(
    store: ObjectTranscriptStore, server: S3Server, body: bytes, described: bool
) -> None:
    described_by = {"x-amz-meta-tbwrite": "f" * 32, "x-amz-meta-tbsha256": hashlib.sha256(body).hexdigest()}
    before = server.dialect.store(KEY, body, described_by if described else {})
    with pytest.raises(SegmentConflictError, match="nothing was overwritten") as caught:
        append(store)
    assert KEY in str(caught.value)
    assert server.objects == {KEY: before}
    assert len(server.requests("PUT")) == 1


@pytest.mark.parametrize("described", [True, False], ids=["with metadata", "without metadata"])
def test_the_same_content_by_another_client_is_success(store: ObjectTranscriptStore, server: S3Server, described: bool) -> None:
    described_by = {"x-amz-meta-tbwrite": "f" * 32, "x-amz-meta-tbsha256": hashlib.sha256(LINE).hexdigest()}
    before = server.dialect.store(KEY, LINE, described_by if described else {})
    append(store)
    assert server.objects == {KEY: before}
    assert server.kinds() == (["PUT", "HEAD"] if described else ["PUT", "HEAD", "GET"])


def test_the_same_append_again_succeeds_and_overwrites_nothing(store: ObjectTranscriptStore, server: S3Server) -> None:
    append(store)
    before = dict(server.objects)
    append(store)
    assert server.objects == before
    assert server.objects[KEY] is before[KEY]
    assert server.kinds() == ["PUT", "PUT", "HEAD"]


def test_a_conflict_after_a_lost_answer_is_still_a_conflict(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.dialect.store(KEY, OTHER)
    server.next("PUT", drop_before_storing())
    with pytest.raises(SegmentConflictError):
        append(store)
    assert stored(server) == {KEY: OTHER}


# --- credentials and permissions --------------------------------------------------------------------------------------


def test_a_skewed_clock_is_forgiven_once(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", reply(403, "RequestTimeTooSkewed"))
    append(store)
    assert len(server.requests("PUT")) == 2
    assert stored(server) == {KEY: LINE}


def test_a_clock_that_stays_skewed_is_an_access_error_that_says_so(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", *[reply(403, "RequestTimeTooSkewed")] * 2)
    with pytest.raises(AccessDeniedError, match="clock"):
        append(store)
    assert server.kinds() == ["PUT", "PUT"]


def test_expired_credentials_are_fetched_anew_once(
    open_s3: OpenS3, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def log_in(name: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = x\naws_session_token = y\n")

    def expire(request: object, serve: object) -> object:
        log_in("NEWKEY")
        return reply(400, "ExpiredToken")(request, serve)  # type: ignore[arg-type]

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    log_in("OLDKEY")
    store = open_s3(access_key_id=None, secret_access_key=None)
    append(store, LINE)
    server.objects.clear()
    server.log.clear()
    server.next("PUT", expire)  # type: ignore[arg-type]
    append(store)
    signed = [re.search(r"Credential=(\w+)", each.headers["authorization"]) for each in server.requests("PUT")]
    assert [found and found.group(1) for found in signed] == ["OLDKEY", "NEWKEY"]
    assert stored(server) == {KEY: LINE}


def test_credentials_that_expire_between_a_lost_answer_and_the_look_are_renewed_too(
    store: ObjectTranscriptStore, server: S3Server
) -> None:
    server.next("PUT", drop_after_storing())
    server.next("HEAD", reply(400, ""))
    append(store)
    # boto3 itself asks for the bucket's region after such a 400
    assert [kind for kind in server.kinds() if kind != "HEAD_BUCKET"] == ["PUT", "HEAD", "PUT", "HEAD"]
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize("proved", [True, False])
def test_credentials_that_stay_expired_are_an_access_error_after_one_renewal(
    open_s3: OpenS3, server: S3Server, proved: bool
) -> None:
    store = open_s3()
    if proved:
        append(store)
        server.log.clear()
    server.always("PUT", reply(400, "ExpiredToken"))
    with pytest.raises(AccessDeniedError, match="expired"):
        append(store)
    assert server.kinds() == ["PUT", "PUT"]


def test_a_ready_client_is_not_renewed(server: S3Server) -> None:
    client = boto3.client(
        "s3", endpoint_url=server.url, region_name="eu-test-1", aws_access_key_id="A", aws_secret_access_key="S"
    )
    server.always("PUT", reply(400, "ExpiredToken"))
    with pytest.raises(AccessDeniedError, match="expired"):
        append(S3TranscriptStore(client, "bucket", "p"))
    assert server.kinds() == ["PUT"]
    client.close()


@pytest.mark.parametrize("proved", [True, False])
@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", ""])
def test_a_denied_put_is_an_access_error_at_once(open_s3: OpenS3, server: S3Server, code: str, proved: bool) -> None:
    store = open_s3()
    if proved:
        append(store)
        server.log.clear()
    server.always("PUT", reply(403, code))
    with pytest.raises(AccessDeniedError, match="credentials"):
        append(store)
    assert server.kinds() == ["PUT"]


def test_missing_credentials_are_an_access_error_without_a_request(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(access_key_id=None, secret_access_key=None)
    with pytest.raises(AccessDeniedError, match="no usable AWS credentials"):
        append(store)
    assert server.kinds() == []


@pytest.mark.parametrize("operation", ["append", "list", "read", "delete"])
def test_an_unknown_profile_is_an_access_error(open_s3: OpenS3, server: S3Server, operation: str) -> None:
    store = open_s3(access_key_id=None, secret_access_key=None, profile="nobody")
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: append(store),
        "list": lambda: store.list_segments(REF),
        "read": lambda: store.read_segment(KEY),
        "delete": lambda: store.delete(REF),
    }
    with pytest.raises(AccessDeniedError):
        calls[operation]()
    assert server.kinds() == []


@pytest.mark.parametrize("fault", [drop_after_storing(), reply(412, "PreconditionFailed")], ids=["lost answer", "412"])
def test_a_refused_look_leaves_the_outcome_unknown_and_says_so(
    store: ObjectTranscriptStore, server: S3Server, fault: Fault
) -> None:
    server.next("PUT", fault)
    server.always("HEAD", reply(403, ""))
    with pytest.raises(AccessDeniedError, match=r"may have been stored or not, and calling again .* is safe"):
        append(store)
    assert server.kinds() == ["PUT", "HEAD"]


def test_a_denial_after_a_lost_answer_says_that_the_outcome_is_unknown(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.next("PUT", drop_before_storing(), reply(403, "AccessDenied"))
    with pytest.raises(AccessDeniedError, match="may have been stored or not"):
        append(store)


# --- stores without conditions ----------------------------------------------------------------------------------------


def test_an_endpoint_that_ignores_conditions_is_refused_and_left_clean(open_s3: OpenS3, server: S3Server) -> None:
    server.dialect.ignore_conditions = True
    store = open_s3()
    for _ in range(2):
        with pytest.raises(ConditionalWritesUnsupportedError, match=r"conditional_writes=off") as caught:
            append(store)
        assert server.url in str(caught.value)
    assert stored(server) == {}
    assert {"/.probe-" in each.key for each in server.requests("PUT")} == {True}


def test_the_probe_happens_once_a_store_and_is_removed(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3()
    for number in range(3):
        store.append_segment(REF, number, number, "w", LINE)
    assert server.kinds() == ["PUT", "PUT", "DELETE_MANY", "PUT", "PUT", "PUT"]
    assert len(server.objects) == 3
    assert ["/.probe-" in each.key for each in server.requests("PUT")] == [True, True, False, False, False]


def test_the_probe_survives_lost_answers(open_s3: OpenS3, server: S3Server) -> None:
    server.next("PUT", drop_after_storing())
    append(open_s3())
    assert stored(server) == {KEY: LINE}


def test_a_writer_that_may_not_delete_can_append_and_is_told_of_the_probe(
    open_s3: OpenS3, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.always("DELETE_MANY", reply(403, "AccessDenied"))
    with caplog.at_level(logging.WARNING, "transcript_backends"):
        append(open_s3())
    assert KEY in server.objects
    assert "probe object" in caplog.text


def test_a_probe_that_gets_no_answer_leaves_nothing_and_no_verdict(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(max_attempts=3)
    server.next("PUT", *[drop_before_storing()] * 3)
    with pytest.raises(StoreUnavailableError):
        append(store)
    append(store)
    assert stored(server) == {KEY: LINE}


@pytest.mark.parametrize("proved", [True, False])
def test_a_put_answered_501_means_no_conditional_writes(open_s3: OpenS3, server: S3Server, proved: bool) -> None:
    store = open_s3()
    if proved:
        append(store)
        server.objects.clear()
    server.always("PUT", reply(501, "NotImplemented"))
    with pytest.raises(ConditionalWritesUnsupportedError, match=r"NotImplemented.*conditional_writes=off"):
        append(store)
    assert stored(server) == {}


def test_without_conditional_writes_a_read_before_refuses_other_content(open_s3: OpenS3, server: S3Server) -> None:
    server.dialect.ignore_conditions = True
    store = open_s3(conditional_writes="off")
    append(store)
    append(store)
    with pytest.raises(SegmentConflictError):
        append(store, OTHER)
    assert stored(server) == {KEY: LINE}
    assert server.kinds() == ["HEAD", "PUT", "HEAD", "HEAD"]
    assert "if-none-match" not in server.requests("PUT")[0].headers


def test_without_conditional_writes_a_lost_answer_is_found_by_head(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(conditional_writes="off")
    server.next("PUT", drop_after_storing())
    append(store)
    assert server.kinds() == ["HEAD", "PUT", "HEAD"]


def test_without_conditional_writes_retries_used_up_say_that_the_outcome_is_unknown(open_s3: OpenS3, server: S3Server) -> None:
    store = open_s3(conditional_writes="off")
    server.always("PUT", drop_after_storing())
    server.next("HEAD", honest(), reply(503, ""))
    server.always("HEAD", reply(503, ""))
    with pytest.raises(StoreUnavailableError, match="may have been stored or not"):
        append(store)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conditional_writes", ["on", "off"])
def test_a_missing_bucket_is_never_an_empty_transcript(open_s3: OpenS3, server: S3Server, conditional_writes: str) -> None:
    store = open_s3("nowhere", conditional_writes=conditional_writes)
    calls: list[Callable[[], object]] = [
        lambda: append(store),
        lambda: store.list_segments(REF),
        lambda: store.read_segment(KEY),
        lambda: store.delete(REF),
        lambda: store.next_seq(REF),
        lambda: list(store.list_refs()),
        lambda: list(store.records(REF)),
    ]
    for call in calls:
        with pytest.raises(ContainerNotFoundError, match="s3://nowhere"):
            call()
    assert stored(server) == {}


def test_a_404_that_names_no_bucket_is_no_answer_of_s3(open_s3: OpenS3, server: S3Server) -> None:
    server.always("LIST", html(404))
    with pytest.raises(UnexpectedResponseError):
        open_s3().list_segments(REF)


def test_an_endpoint_nobody_listens_on_is_unavailable_and_named(open_s3: OpenS3, clock: FakeClock) -> None:
    store = open_s3(endpoint_url="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        store.list_segments(REF)
    assert clock.now <= 60


def test_an_unlisted_error_is_raised_at_once_with_its_code(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.always("PUT", reply(400, "KeyTooLongError"))
    with pytest.raises(TranscriptStoreError, match="KeyTooLongError"):
        append(store)
    assert server.kinds() == ["PUT"]


def test_a_put_carries_its_condition_metadata_and_type_and_no_newer_checksum_headers(
    store: ObjectTranscriptStore, server: S3Server
) -> None:
    append(store)
    (sent,) = server.requests("PUT")
    assert sent.headers["if-none-match"] == "*"
    assert sent.headers["content-type"] == "application/x-ndjson"
    assert sent.headers["x-amz-meta-tbsha256"] == hashlib.sha256(LINE).hexdigest()
    assert sent.body == LINE
    assert [name for name in sent.headers if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer"))] == []


def test_mixed_faults_in_any_order_end_with_one_object(store: ObjectTranscriptStore, server: S3Server) -> None:
    faults: list[Fault] = [
        drop_after_storing(), drop_before_storing(), reply(503, "SlowDown"), reply(409, "ConditionalRequestConflict"), html(),
    ]  # fmt: skip
    for number, (first, second) in enumerate(itertools.product(faults, faults)):
        server.next("PUT", first, second)
        key = store.append_segment(REF, number, number, "w", LINE)
        assert server.objects[key].body == LINE
        server.forget("PUT")
    assert len(server.objects) == len(faults) ** 2
