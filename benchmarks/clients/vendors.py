"""The SDKs of Google and of Azure, as their documentation shows them; threads."""

from __future__ import annotations

from typing import Any

from benchmarks.clients import Threaded, parsed, prefix, segment_key
from benchmarks.places import ACCOUNT_KEY, Place


class Google(Threaded):
    """upload_from_string with if_generation_match=0, list_blobs, download_as_bytes."""

    def __init__(self, place: Place) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        options = {"api_endpoint": place.endpoint}
        self._client: Any = storage.Client("project", AnonymousCredentials(), client_options=options)
        self._bucket = self._client.bucket(place.container)

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._bucket.blob(segment_key(session, seq)).upload_from_string(line, if_generation_match=0)

    def list(self, session: str) -> int:
        return len(parsed(blob.name for blob in self._bucket.list_blobs(prefix=prefix(session))))

    def close(self) -> None:
        self._client.close()


class Azure(Threaded):
    """upload_blob, list_blobs, download_blob."""

    def __init__(self, place: Place) -> None:
        from azure.storage.blob import ContainerClient

        self._client: Any = ContainerClient(place.endpoint, place.container, ACCOUNT_KEY)

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self._client.upload_blob(segment_key(session, seq), line, overwrite=False)

    def list(self, session: str) -> int:
        return len(parsed(blob.name for blob in self._client.list_blobs(prefix(session))))

    def close(self) -> None:
        self._client.close()
