"""What boto3 does besides for each request, and is kept from: a question before a small body, and parsing at length."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import dateutil.parser
import pytest
from botocore.utils import parse_timestamp
from faults.s3_server import S3Server
from faults.setups import KEY, REF, OpenS3

from transcript_backends import ObjectTranscriptStore, S3TranscriptStore
from transcript_backends.drivers.s3_client import parse_time

SMALL, LARGE = b"{}\n", b'{"a":"' + b"x" * 1024 * 1024 + b'"}\n'
NOON = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)


@pytest.fixture(params=["from a URL", "of a ready client"])
def either(request: pytest.FixtureRequest, open_s3: OpenS3, server: S3Server) -> Iterator[ObjectTranscriptStore]:
    if request.param == "from a URL":
        yield open_s3()
        return
    client = boto3.client(
        "s3", endpoint_url=server.url, region_name="eu-test-1", aws_access_key_id="A", aws_secret_access_key="S"
    )
    yield S3TranscriptStore(client, "bucket", "p")
    client.close()


@pytest.mark.parametrize(("body", "asks"), [(SMALL, False), (LARGE, True)], ids=["small", "large"])
def test_only_large_bodies_wait_for_a_word_of_welcome(
    either: ObjectTranscriptStore, server: S3Server, body: bytes, asks: bool
) -> None:
    assert either.append_segment(REF, 0, 0, "w", body) == KEY
    sent = server.requests("PUT")[-1]
    assert (sent.key, sent.body) == (KEY, body)
    assert ("expect" in sent.headers) == asks


def test_no_time_of_a_store_from_a_url_goes_through_the_slow_parser(open_s3: OpenS3, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly: list[Any] = []
    original = dateutil.parser.parse

    def parse(value: Any, *args: Any, **options: Any) -> Any:
        slowly.append(value)
        return original(value, *args, **options)

    monkeypatch.setattr(dateutil.parser, "parse", parse)
    store = open_s3()
    for _ in range(2):  # the second is refused, and looked at
        store.append_segment(REF, 0, 0, "w", SMALL)
    assert len(list(store.records(REF))) == len(store.list_segments(REF)) == 1
    assert slowly == [], "the name under which botocore takes another parser has changed"


@pytest.mark.parametrize(
    ("told", "time"),
    [
        ("2026-11-30T12:00:00Z", NOON),
        ("2026-11-30T12:00:00.250Z", NOON + timedelta(milliseconds=250)),
        ("2026-11-30T12:00:00.123456789Z", NOON + timedelta(microseconds=123456)),
        ("2026-11-30T14:00:00+02:00", NOON),
        ("Mon, 30 Nov 2026 12:00:00 GMT", NOON),
        ("Mon, 30 Nov 2026 14:00:00 +0200", NOON),
        ("1796040000", NOON),
        (1796040000, NOON),
        (1796040000.25, NOON + timedelta(milliseconds=250)),
    ],
)
def test_times_are_read_in_every_form_that_boto3_reads(told: Any, time: datetime) -> None:
    assert parse_time(told) == parse_timestamp(told) == time
    assert parse_time(told).tzinfo is not None


@pytest.mark.parametrize("told", ["", "Z", "GMT", "yesterday", "2026-13-01T00:00:00Z", "Mon, 99 Nov 2026 12:00:00 GMT"])
def test_what_is_no_time_to_boto3_is_none_here(told: str) -> None:
    for parse in (parse_timestamp, parse_time):
        with pytest.raises(ValueError, match="Invalid timestamp"):
            parse(told)
