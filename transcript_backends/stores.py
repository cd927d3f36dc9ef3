"""Stores from a ready client, for programs that set one up themselves; `open_store` takes a URL instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transcript_backends import urls
from transcript_backends.container import Container
from transcript_backends.extras import needed_by
from transcript_backends.keys import Ids
from transcript_backends.object_store import ObjectTranscriptStore

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]
    from google.cloud import storage  # type: ignore[import-untyped]
    from mypy_boto3_s3 import S3Client


class S3TranscriptStore(ObjectTranscriptStore):
    """Transcripts in an S3 bucket, through a boto3 client of your own, which stays yours to close.

    Args:
        client: ``boto3.client("s3", ...)``. Its retries are harmless: a create whose answer was lost is recognised.
        bucket: the bucket's name.
        prefix: prefix of all keys; may hold placeholders.
        ids: how ids are written in keys, ``escaped`` or ``raw``.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str = "", *, ids: Ids = "escaped") -> None:
        with needed_by("S3TranscriptStore", "s3", "boto3"):
            from transcript_backends.drivers.s3 import S3ObjectStore

        super().__init__(Container(S3ObjectStore(client, bucket)), urls.as_root(prefix), ids=ids)


class GCSTranscriptStore(ObjectTranscriptStore):
    """Transcripts in a Google Cloud Storage bucket, through a client of your own, which stays yours to close.

    Args:
        client: ``google.cloud.storage.Client(...)``: its credentials, endpoint and connections are used.
        bucket: the bucket's name.
        prefix: prefix of all keys; may hold placeholders.
        ids: how ids are written in keys, ``escaped`` or ``raw``.
        user_project: the project that pays for the requests, where the bucket wants the requester to.
    """

    def __init__(
        self,
        client: storage.Client,
        bucket: str,
        prefix: str = "",
        *,
        user_project: str | None = None,
        ids: Ids = "escaped",
    ) -> None:
        with needed_by("GCSTranscriptStore", "gcs", "google-cloud-storage"):
            from transcript_backends.drivers.gcs import GCSObjectStore

        super().__init__(Container(GCSObjectStore(client, bucket, user_project=user_project)), urls.as_root(prefix), ids=ids)


class AzureTranscriptStore(ObjectTranscriptStore):
    """Transcripts in a container of Azure Blob Storage, through a client of your own, which stays yours to close.

    Args:
        client: ``BlobServiceClient(...)``. Its retries are harmless: a create whose answer was lost is recognised. But the
            SDK's own pauses, 15 s and more, come before this package's: make it with ``retry_total=0``.
        container: the container's name.
        prefix: prefix of all keys; may hold placeholders.
        ids: how ids are written in keys, ``escaped`` or ``raw``.
    """

    def __init__(self, client: BlobServiceClient, container: str, prefix: str = "", *, ids: Ids = "escaped") -> None:
        with needed_by("AzureTranscriptStore", "azure", "azure-storage-blob"):
            from transcript_backends.drivers.azure import AzureObjectStore

        endpoint = f"{client.scheme}://{client.primary_hostname}"  # the url would tell a SAS
        driver = AzureObjectStore(client.get_container_client(container), endpoint, container)
        super().__init__(Container(driver), urls.as_root(prefix), ids=ids)


class FsspecTranscriptStore(ObjectTranscriptStore):
    """Transcripts in a directory of an fsspec filesystem of your own.

    Args:
        filesystem: any ``fsspec.AbstractFileSystem``, with its listing cache off (``use_listings_cache=False``).
        path: the directory, bucket or container, as the filesystem names it.
        prefix: prefix of all keys; may hold placeholders.
        ids: how ids are written in keys, ``escaped`` or ``raw``.
    """

    def __init__(self, filesystem: AbstractFileSystem, path: str, prefix: str = "", *, ids: Ids = "escaped") -> None:
        with needed_by("FsspecTranscriptStore", "fsspec", "fsspec"):
            from transcript_backends.drivers.fsspec import as_set_up

        super().__init__(Container(as_set_up(filesystem, path)), urls.as_root(prefix), ids=ids)
