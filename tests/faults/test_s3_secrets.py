"""No failure of S3 puts a secret into a message, a repr, a log record or a pickle."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable

import pytest
from faults.engines import sdk_and_auto  # noqa: F401
from faults.s3_server import S3Server, reply
from faults.scripted_server import BROKEN_HTML, Fault, drop_before_storing, html, truncated
from faults.setups import REF, OpenS3

from transcript_backends import ObjectTranscriptStore, TranscriptStoreError

CANARIES = ["AKIACANARYACCESS", "canarysecretsecret", "canarysessiontoken"]
_ECHO = f"<AWSAccessKeyId>{CANARIES[0]}</AWSAccessKeyId><Token-0>{CANARIES[2]}</Token-0>"  # S3 sends such things back


FAULTS: dict[str, Fault] = {
    **{
        code: reply(status, code, _ECHO)
        for status, code in [
            (403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (403, "InvalidAccessKeyId"), (400, "ExpiredToken"),
            (403, "RequestTimeTooSkewed"), (503, "SlowDown"), (412, "PreconditionFailed"), (501, "NotImplemented"),
            (400, "InvalidRequest"), (301, "PermanentRedirect"), (404, "NoSuchBucket"),
        ]
    },
    "page": html(),
    "broken page": html(body=BROKEN_HTML),
    "truncated": truncated(1),
    "dropped": drop_before_storing(),
}  # fmt: skip


def calls(store: ObjectTranscriptStore, key: str) -> list[Callable[[], object]]:
    def read() -> bytes:
        with store.read_segment(key) as stream:
            return stream.read()

    return [
        lambda: store.append_segment(REF, 0, 0, "w", b'{"a":1}'),
        lambda: store.append_segment(REF, 0, 0, "w", b'{"a":2}'),
        lambda: store.list_segments(REF),
        read,
        lambda: list(store.records(REF)),
        lambda: store.delete(REF),
    ]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("proved", [True, False])
def test_no_failure_shows_a_secret(
    open_s3: OpenS3, server: S3Server, caplog: pytest.LogCaptureFixture, fault: Fault, proved: bool
) -> None:
    access, secret, token = CANARIES
    store = open_s3(access_key_id=access, secret_access_key=secret, session_token=token, max_attempts=3)
    key = "p/acme/coder/s1/events/0-0-w.jsonl"
    seen = [repr(store), str(store)]
    with caplog.at_level(logging.DEBUG, "transcript_backends"):
        if proved:
            store.append_segment(REF, 5, 5, "w", b"{}")
        for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE_MANY"):
            server.always(kind, fault)
        for call in calls(store, key):
            try:
                call()
            except TranscriptStoreError as error:
                seen += [str(error), repr(error), "".join(traceback.format_exception(error)), repr(pickle.dumps(error))]
    records = [each for each in caplog.records if each.name.startswith("transcript_backends")]
    seen += [f"{each.getMessage()} {each.args!r} {each.exc_text}" for each in records]
    assert len(seen) > 10
    everything = "\n".join(seen)
    assert [each for each in CANARIES if each in everything] == []
    assert any(access in each.headers["authorization"] for each in server.log), "they were in use"


def test_a_store_that_holds_a_secret_can_not_be_pickled(open_s3: OpenS3) -> None:
    store = open_s3(access_key_id=CANARIES[0], secret_access_key=CANARIES[1], session_token=CANARIES[2], clock=None)
    with pytest.raises(TypeError, match="secret") as caught:
        pickle.dumps(store)
    assert not any(each in str(caught.value) for each in CANARIES)


def test_the_settings_of_a_store_are_not_in_what_it_shows_of_itself(open_s3: OpenS3) -> None:
    store = open_s3(secret_access_key=CANARIES[1])
    driver = store._container.driver
    shown = [repr(store), str(store), repr(store._container), repr(driver), driver.details, driver.location]
    assert not any(each in text for each in CANARIES for text in shown)
