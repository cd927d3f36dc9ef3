"""What S3 says when it refuses: tried again where that helps, else in its own words."""

from __future__ import annotations

import re

import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Dialect, S3Server, reply
from faults.scripted_server import Fault, Reply, Request, Serve, html
from faults.setups import KEY, REF, OpenS3

from transcript_backends import AccessDeniedError, ObjectTranscriptStore, TranscriptStoreError

SENTENCE = (
    "User: arn:aws:iam::123456789012:user/Alice is not authorized to perform: s3:PutObject because no identity-based policy "
    "allows the s3:PutObject action"
)


def saying(status: int, code: str, text: str) -> Fault:
    def fault(request: Request, serve: Serve) -> Reply:
        answer = S3Dialect.error(status, code)
        answer.body = re.sub(b"<Message>.*</Message>", f"<Message>{text}</Message>".encode(), answer.body)
        return answer

    return fault


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "BadDigest"),
        (400, "IncompleteBody"),
        (400, "XAmzContentSHA256Mismatch"),
        (400, "XAmzContentChecksumMismatch"),
        (400, "RequestTimeout"),
        (400, "Throttling"),
        (400, "RequestThrottledException"),
        (403, "RequestLimitExceeded"),
        (503, "SlowDown"),
    ],
)
def test_what_the_sdk_would_try_again_and_what_came_damaged_is_tried_again(
    store: ObjectTranscriptStore, server: S3Server, status: int, code: str
) -> None:
    server.next("PUT", reply(status, code))
    key = store.append_segment(REF, 0, 0, "w", b"{}")
    assert server.dialect.objects[key].body == b"{}\n"
    assert list(store.list_segments(REF))


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_page_of_a_server_that_fails_is_tried_again(store: ObjectTranscriptStore, server: S3Server, status: int) -> None:
    for kind in ("PUT", "LIST", "GET", "DELETE_MANY"):
        server.next(kind, html(status), html(status, b"<!doctype html><br>"))
    key = store.append_segment(REF, 0, 0, "w", b"{}")
    assert [each.key for each in store.list_segments(REF)] == [key]
    assert [each.line for each in store.records(REF)] == [b"{}"]
    assert store.delete(REF).deleted == 1


def test_a_denial_says_what_is_missing_in_the_words_of_the_service(store: ObjectTranscriptStore, server: S3Server) -> None:
    server.always("PUT", saying(403, "AccessDenied", SENTENCE))
    with pytest.raises(AccessDeniedError) as raised:
        store.append_segment(REF, 0, 0, "w", b"{}")
    assert SENTENCE in str(raised.value)


@pytest.mark.parametrize("code", ["KMS.DisabledException", "KMS.NotFoundException"])
def test_a_code_with_a_dot_is_named_with_what_it_means(store: ObjectTranscriptStore, server: S3Server, code: str) -> None:
    server.always("PUT", saying(400, code, "The key is disabled."))
    with pytest.raises(TranscriptStoreError, match=f"{code}, HTTP 400.*The key is disabled"):
        store.append_segment(REF, 0, 0, "w", b"{}")


def test_a_key_a_service_repeats_goes_no_further(store: ObjectTranscriptStore, server: S3Server) -> None:
    told = "The key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY may not perform: s3:PutObject"
    server.always("PUT", saying(403, "AccessDenied", told))
    with pytest.raises(AccessDeniedError) as raised:
        store.append_segment(REF, 0, 0, "w", b"{}")
    assert "The key ... may not perform: s3:PutObject" in str(raised.value)
    assert "wJalrXUtnFEMI" not in str(raised.value)


def test_a_token_contradicts_a_page_that_calls_itself_the_last(store: ObjectTranscriptStore, server: S3Server) -> None:
    def denies(request: Request, serve: Serve) -> Reply:
        page = serve()
        page.body = page.body.replace(b"<IsTruncated>true<", b"<IsTruncated>false<")
        return page

    server.dialect.page_size = 2
    for seq in range(5):
        store.append_segment(REF, seq, seq, "w", b"{}")
    server.always("LIST", denies)
    assert [each.seq_start for each in store.list_segments(REF)] == [0, 1, 2, 3, 4]


def test_a_batch_of_deletes_that_is_denied_is_a_failure_of_each_key(open_s3: OpenS3, server: S3Server) -> None:
    server.dialect.store(KEY, b"{}\n")
    server.always("DELETE_MANY", reply(403, "AccessDenied"))
    store = open_s3(engine="sdk")
    failed = store._container.delete([KEY, f"{KEY}2"])
    assert failed.keys() == {KEY, f"{KEY}2"}
    assert all("AccessDenied" in reason for reason in failed.values())
