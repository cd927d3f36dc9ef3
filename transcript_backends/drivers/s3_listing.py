"""Pages of S3's listings, read at a twentieth of boto3's price.

boto3 makes a tree and then a dictionary of each object; here one pattern takes them all out of the page. Whatever is written
otherwise, and the rest of the page, boto3 reads as ever.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.compat import unquote_str

from transcript_backends.drivers.driver import ObjectInfo

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LISTED = "Listed"  # beside the members of an answer: what was found in it

_ENTRY = re.compile(
    "<Contents><Key>([^<&]+)</Key>"
    r"<LastModified>([0-9-]{10}T[0-9:]{8}(?:\.[0-9]{3})?)Z</LastModified>"
    '<ETag>(?:&quot;|&#34;|")?([0-9A-Za-z-]+)(?:&quot;|&#34;|")?</ETag>'
    "(?:<Checksum[A-Za-z]+>[^<]*</Checksum[A-Za-z]+>)*"
    "<Size>([0-9]+)</Size>"
    "(?:<StorageClass>[A-Z_]+</StorageClass>)?"  # one of those below, and mostly the only one
    "(?:<Owner>(?:<[A-Za-z]+>[^<]*</[A-Za-z]+>)*</Owner>|<[A-Za-z]+>[^<]*</[A-Za-z]+>)*</Contents>"
)
_ENCODED = "<EncodingType>url</EncodingType>"  # boto3 asks for it; without, a key may hold characters written as XML has it


def quicken(client: S3Client) -> None:
    """Have a client's listings read by this module, by a hook that boto3 does not document: without it, they are slower."""
    # With this star it comes before boto3's own, which reads all of the page to see whether it is an error.
    client.meta.events.register("before-parse.*.ListObjectsV2", _read)


def _read(response_dict: MutableMapping[str, Any], customized_response_dict: dict[str, Any], **rest: object) -> None:
    """Take the objects out of a page."""
    try:
        text = response_dict["body"].decode()
        if _ENCODED not in text:
            return
        parts = _ENTRY.split(text)  # between two objects, what the pattern's four groups have of the first
        times = {each: datetime.fromisoformat(f"{each}+00:00") for each in set(parts[2::5])}
    except ValueError:  # no UTF-8, or a time that is none
        return
    found = [
        ObjectInfo(unquote_str(key) if "%" in key else key, int(size), times[modified], f'"{etag}"')
        for key, modified, etag, size in zip(parts[1::5], parts[2::5], parts[3::5], parts[4::5], strict=True)
    ]
    left = "".join(parts[::5])
    if found and "<Contents>" not in left:
        response_dict["body"] = left.encode()
        customized_response_dict[LISTED] = found
