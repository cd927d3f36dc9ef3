"""obstore by hand: put with mode create, list, get; threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from benchmarks.clients import AT_ONCE, Threaded, count_lines, parsed, prefix, segment_key
from benchmarks.places import ACCESS_KEY, ACCOUNT, ACCOUNT_KEY, SECRET_KEY, Place


def _open(place: Place) -> ObjectStore:
    plain: Any = {"allow_http": True}
    if place.dialect == "s3":
        return S3Store(
            place.container,
            endpoint=place.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            virtual_hosted_style_request=False,
            client_options=plain,
        )
    if place.dialect == "gcs":
        return GCSStore(place.container, base_url=place.endpoint, bearer_token="any", client_options=plain)
    return AzureStore(
        place.container, account_name=ACCOUNT, account_key=ACCOUNT_KEY, endpoint=place.endpoint, client_options=plain
    )


class Obstore(Threaded):
    """The same bucket."""

    def __init__(self, place: Place) -> None:
        self._store = _open(place)

    def append(self, session: str, seq: int, line: bytes) -> object:
        return obstore.put(self._store, segment_key(session, seq), line, mode="create")

    def _keys(self, session: str) -> list[str]:
        pages = obstore.list(self._store, prefix(session), chunk_size=1000)
        return [key for *_, key in parsed(each["path"] for page in pages for each in page)]

    def list(self, session: str) -> int:
        return len(self._keys(session))

    def get(self, key: str) -> bytes:
        return obstore.get(self._store, key).bytes().to_bytes()

    def read(self, session: str) -> int:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return count_lines(pool.map(self.get, self._keys(session)))
