"""Pages of S3's listings, read at a twentieth of boto3's price.

boto3 makes a tree and then a dictionary of each object; here one pattern finds them all. Whatever is written otherwise, and the
rest of the page, boto3 reads as ever.
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
    "(?:<Owner>(?:<[A-Za-z]+>[^<]*</[A-Za-z]+>)*</Owner>|<[A-Za-z]+>[^<]*</[A-Za-z]+>)*</Contents>"
)
_ENCODED = "<EncodingType>url</EncodingType>"  # boto3 asks for it; without, a key may hold characters written as XML has it


def quicken(client: S3Client) -> None:
    """Have a client's listings read by this module, by a hook that boto3 does not document: without it, they are slower."""
    # With this star it comes before boto3's own, which reads all of the page to see whether it is an error.
    client.meta.events.register("before-parse.*.ListObjectsV2", _read)


def _read(response_dict: MutableMapping[str, Any], customized_response_dict: dict[str, Any], **rest: object) -> None:
    """Take the objects out of a page."""
    found: list[ObjectInfo] = []

    def take(entry: re.Match[str]) -> str:
        key, modified, etag, size = entry.groups()
        created = datetime.fromisoformat(f"{modified}+00:00")
        found.append(ObjectInfo(unquote_str(key) if "%" in key else key, int(size), created, f'"{etag}"'))
        return ""

    try:
        text = response_dict["body"].decode()
        left = _ENTRY.sub(take, text) if _ENCODED in text else text
    except ValueError:  # no UTF-8, or a time that is none
        return
    if found and "<Contents>" not in left:
        response_dict["body"] = left.encode()
        customized_response_dict[LISTED] = found
