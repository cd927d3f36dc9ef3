"""A page of S3's listing says the same however it is read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from transcript_backends.drivers.driver import ObjectInfo, Page
from transcript_backends.drivers.s3 import S3ObjectStore
from transcript_backends.drivers.s3_listing import LISTED, quicken

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>'
    "<Prefix>p%2F</Prefix><EncodingType>url</EncodingType><KeyCount>1</KeyCount><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>next</NextContinuationToken>"
)
TAIL = "</ListBucketResult>"
TIME = "<LastModified>2026-11-30T15:52:01.000Z</LastModified>"
ETAG = "<ETag>&quot;5d41-2&quot;</ETag>"
PLAIN = f"<Contents><Key>p/a%3D20b</Key>{TIME}{ETAG}<Size>7</Size><StorageClass>STANDARD</StorageClass></Contents>"
INFO = ObjectInfo("p/a=20b", 7, datetime(2026, 11, 30, 15, 52, 1, tzinfo=timezone.utc), '"5d41-2"')

AS_EVER = {
    "AWS": PLAIN,
    "several": PLAIN * 3,
    "with checksums": PLAIN.replace(
        "<Size>", "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>"
    ),
    "with an owner": PLAIN.replace("<StorageClass>", "<Owner><ID>1</ID><DisplayName>me</DisplayName></Owner><StorageClass>"),
    "without a class": PLAIN.replace("<StorageClass>STANDARD</StorageClass>", ""),
    "whole seconds": PLAIN.replace(".000Z", "Z"),
    "milliseconds": PLAIN.replace(".000Z", ".123Z"),
    "a plain quote": PLAIN.replace("&quot;", '"'),
    "a quote by number": PLAIN.replace("&quot;", "&#34;"),
    "large": PLAIN.replace("<Size>7", f"<Size>{2**63}"),
    "letters": PLAIN.replace("a%3D20b", "m%C3%A4ggi+%2B"),
}
OTHERWISE = {
    "in another order": PLAIN.replace(f"{TIME}{ETAG}", f"{ETAG}{TIME}"),
    "indented": PLAIN.replace("><", ">\n  <"),
    "an entity in a key": PLAIN.replace("a%3D20b", "a&amp;b"),
    "microseconds": PLAIN.replace(".000Z", ".123456Z"),
    "some": PLAIN + PLAIN.replace("<Size>7</Size>", "").replace("</Contents>", "<Size>7</Size></Contents>"),
    "the owner first": PLAIN.replace("<Key>", "<Owner><ID>1</ID></Owner><Key>"),
}


def answer(client: Any, body: str) -> dict[str, Any]:
    """What the client makes of this answer to a listing."""

    class Raw(io.BytesIO):
        def stream(self) -> Iterator[bytes]:
            yield self.read()

    def reply(request: Any, **rest: object) -> AWSResponse:
        return AWSResponse(request.url, 200, {}, Raw(body.encode()))

    client.meta.events.register("before-send.s3.ListObjectsV2", reply)
    try:
        found: dict[str, Any] = client.list_objects_v2(Bucket="b")
        return found
    finally:
        client.meta.events.unregister("before-send.s3.ListObjectsV2", reply)


def pages(body: str) -> tuple[Page, Page, bool]:
    """The page as the SDK reads it and as it is read with the hook, and whether that was needed."""
    found = []
    for with_hook in (False, True):
        client = boto3.client("s3", region_name="r", aws_access_key_id="A", aws_secret_access_key="S")
        if with_hook:
            quicken(client)
        told = answer(client, body)
        client.list_objects_v2 = lambda told=told, **rest: told  # type: ignore[method-assign, misc]
        found.append((S3ObjectStore(client, "b").list_page("p/"), LISTED in told))
        client.close()
    (slow, _), (quick, used) = found
    return slow, quick, used


@pytest.mark.parametrize("contents", AS_EVER.values(), ids=AS_EVER)
def test_what_services_write_is_read_quickly_and_says_the_same(contents: str) -> None:
    slow, quick, used = pages(HEAD + contents + TAIL)
    assert quick == slow
    assert (len(quick.objects), quick.token, used) == (contents.count("<Key>"), "next", True), "the hook has its effect"


def test_an_object_is_told_by_its_facts() -> None:
    _, quick, _ = pages(HEAD + PLAIN + TAIL)
    assert quick.objects == [INFO]


@pytest.mark.parametrize("contents", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_written_otherwise_is_left_to_the_sdk(contents: str) -> None:
    slow, quick, used = pages(HEAD + contents + TAIL)
    assert (quick, used) == (slow, False)
    assert len(quick.objects) == contents.count("<Key>")


def test_keys_that_are_not_encoded_are_left_to_the_sdk() -> None:
    slow, quick, used = pages((HEAD + PLAIN + TAIL).replace("<EncodingType>url</EncodingType>", ""))
    assert (quick, used) == (slow, False)
    assert quick.objects[0].key == "p/a%3D20b"


def test_an_empty_page_is_empty() -> None:
    slow, quick, used = pages(HEAD + TAIL)
    assert (quick, used, quick.objects) == (slow, False, [])


@pytest.mark.parametrize("lacking", ["<IsTruncated>true</IsTruncated>", "<NextContinuationToken>next</NextContinuationToken>"])
def test_objects_do_not_make_a_page_of_what_is_none(lacking: str) -> None:
    with pytest.raises(Exception, match="a success without"):
        pages((HEAD + PLAIN + TAIL).replace(lacking, ""))


def test_a_time_that_is_none_is_left_to_the_sdk() -> None:
    with pytest.raises(Exception, match="time"):
        pages(HEAD + PLAIN.replace("2026-11-30", "2026-99-30") + TAIL)
