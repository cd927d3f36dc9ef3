"""Stores from a ready client, for programs that set one up themselves; `open_store` takes a URL instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transcript_backends import urls
from transcript_backends.container import Container
from transcript_backends.object_store import ObjectTranscriptStore

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3TranscriptStore(ObjectTranscriptStore):
    """Transcripts in an S3 bucket, through a boto3 client of your own, which stays yours to close.

    Args:
        client: ``boto3.client("s3", ...)``. Its retries are harmless: a create whose answer was lost is recognised.
        bucket: the bucket's name.
        prefix: prefix of all keys; may hold placeholders.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str = "") -> None:
        from transcript_backends.drivers.s3 import S3ObjectStore

        super().__init__(Container(S3ObjectStore(client, bucket)), urls.as_root(prefix))
