"""Objects in this process's memory: for tests, simulations and trying things out."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import NamedTuple

from transcript_backends.drivers.driver import Body, Capabilities, Failure, Head, IfMatch, Meaning, ObjectInfo, Page, PutMode


class _Object(NamedTuple):
    info: ObjectInfo
    body: bytes
    metadata: Mapping[str, str]


class _PreconditionFailed(Exception):
    pass


class MemoryObjectStore:
    """An object store that lives as long as this object.

    Args:
        name: shown in messages.
        page_size: keys a listing page holds.
        now: the server's clock, aware and UTC.
    """

    details = ""

    def __init__(
        self,
        name: str = "",
        *,
        page_size: int = 1000,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.location = f"memory://{name}"
        self.identity = self.location if name else f"{self.location} {os.urandom(16).hex()}"
        self.capabilities = Capabilities(conditional_delete=True)
        self._page_size = page_size
        self._now = now
        self._objects: dict[str, _Object] = {}
        self._writes = 0
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        with self._lock:
            present = self._objects.get(key)
            version = present.info.version if present else None
            if (mode == "create" and present) or (isinstance(mode, IfMatch) and version != mode.version):
                raise _PreconditionFailed(key)
            self._writes += 1
            info = ObjectInfo(key, len(body), self._now(), str(self._writes))
            self._objects[key] = _Object(info, bytes(body), dict(metadata))
            return info.version

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        found = self._objects[key]
        return Body(found.info, io.BytesIO(found.body[start:end]), found.metadata)

    def head(self, key: str) -> Head:
        found = self._objects[key]
        return Head(found.info, found.metadata)

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        after = max(start_after, token or "")
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
            found = [self._objects[key].info for key in islice(keys, self._page_size)]
        return Page(found, found[-1].key if len(keys) > len(found) else None, self._now())

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        with self._lock:
            for key in keys:
                present = self._objects.get(key)
                if present and (versions or {}).get(key, present.info.version) == present.info.version:
                    del self._objects[key]
        return {}

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, _PreconditionFailed):
            return Failure(Meaning.PRECONDITION, "precondition failed")
        return Failure(Meaning.NOT_FOUND, "no such object") if isinstance(error, KeyError) else None

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        pass


_named: dict[str, MemoryObjectStore] = {}
_named_lock = threading.Lock()


def named(name: str) -> MemoryObjectStore:
    """The store of this name, one for the whole process; an unnamed one is always new."""
    with _named_lock:
        return _named.setdefault(name, MemoryObjectStore(name)) if name else MemoryObjectStore()
