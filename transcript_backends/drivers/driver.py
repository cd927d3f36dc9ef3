"""What a backend implements: the contract every driver keeps, in prose and types.

A driver talks to one container of one service and knows nothing of transcripts. It does not retry, does not log, and
raises what its SDK raises; `ObjectStore.classify` says what such an exception means, and `transcript_backends.container`
acts on it, once for all backends. Keys reach a driver checked: non-empty segments between single slashes, no ``.`` or
``..``, at most 1,024 bytes. A driver is shared by threads.

Mistakes to avoid, each seen in the field: reporting a denial or a missing bucket as "not found" or as an empty page; an
"overwrite" where "create" was asked; a create that shows the key before all its bytes; reading a whole body to answer a
`head`; a page that ends the listing although the service said there is more; per-key failures of a batch delete dropped.
"""

from __future__ import annotations

import enum
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple, Protocol, cast


class ObjectInfo(NamedTuple):
    """What a listing or a head tells of an object.

    Attributes:
        key: relative to the container.
        size: bytes.
        created_at: aware, UTC, the server's clock.
        version: changes with every write of the key (ETag, generation); empty where a listing does not tell it.
    """

    key: str
    size: int
    created_at: datetime
    version: str = ""


class Unread(NamedTuple):
    """A directory below the prefix of a listing that is there and can't be read; what is in it is not known.

    Attributes:
        key: its prefix, with the slash at its end.
        error: why not.
    """

    key: str
    error: Exception


class Page(NamedTuple):
    """One page of a listing. A page may be empty and not the last.

    Attributes:
        objects: what is on it.
        token: gets the next one; None after the last.
        now: the time by the server's clock, where the answer tells it.
        unread: what the page should show besides, and can't.
    """

    objects: Sequence[ObjectInfo]
    token: str | None
    now: datetime | None = None
    unread: Sequence[Unread] = ()


class ByteStream(Protocol):
    """A body being received."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes, ``b""`` at the end only. A body cut short is an error, never an early end."""

    def close(self) -> None:
        """Give the connection back, also in the middle of the body. Calling it again does nothing.

        It takes no lock that a request takes, and waits for nothing: a finalizer may call it, in any thread.
        """


class Head(NamedTuple):
    """An object's facts and its metadata (lower-case names)."""

    info: ObjectInfo
    metadata: Mapping[str, str]


class Body(NamedTuple):
    """An object being received: the facts of the whole object, and the bytes of the range asked for.

    Attributes:
        info: of the whole object.
        stream: the bytes of the range.
        metadata: of the whole object, as a head returns it, where that costs no other request; None where it would. A store
            that keeps none returns an empty mapping.
    """

    info: ObjectInfo
    stream: ByteStream
    metadata: Mapping[str, str] | None = None


class IfMatch(NamedTuple):
    """Write only if the object still has this version."""

    version: str


PutMode = Literal["create", "overwrite"] | IfMatch


class Meaning(enum.Enum):
    """What a driver's exception means to whoever called it."""

    PRECONDITION = "precondition failed"  # the key exists (create), or has another version (if-match)
    NOT_FOUND = "no such object"
    CONTAINER_NOT_FOUND = "no such container"
    DENIED = "access denied"
    EXPIRED = "credentials expired"  # new ones may help
    UNAUTHENTICATED = "credentials not accepted, or none to be had"  # others may help
    CLOCK_SKEW = "clock skew"  # signing again may help
    TRY_AGAIN = "temporarily unavailable"  # throttled, 5xx, time-out, connection lost: the outcome may be unknown
    NO_ANSWER = "not an answer of this service"  # HTML with status 200 and the like: the outcome may be unknown
    UNSUPPORTED = "not supported"
    NO_NAME = "no name that this store can hold, or tell from another"
    OTHER = "failed"


class Failure(NamedTuple):
    """An exception, classified.

    Attributes:
        meaning: what it means.
        detail: fit for a message: code, status, request id; never a secret.
        refused: the service says that it has done nothing; else, the outcome of what is to be tried again may be unknown.
    """

    meaning: Meaning
    detail: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver's store can do.

    Attributes:
        create_only: ``yes``: known to refuse a second create of a key; ``probe``: to be tried out before the first
            write; ``no``.
        ordered_lists: pages come in byte order of their keys, or directory by directory in byte order of the names.
        one_pass: a listing shows what comes into being after the place it has come to, also in a directory that is new. False
            where the names in a directory are read before what is below them.
        start_after: the hint of `ObjectStore.list_page` is followed, and pages come in byte order of their keys.
        delete_batch: how many keys one `ObjectStore.delete_many` takes.
        conditional_delete: one version of an object can be deleted; the driver is a `VersionDeletingObjectStore`.
        concurrency: how many calls may be under way at once. Where a client works in Python, more threads only wait for one
            another, and keep an event loop waiting.
        parallel: how many of them one operation makes at once; 1 where a thread costs more than it saves.
        unfit_in_names: a pattern of what no segment of a key can hold here, besides control characters and slashes; empty for
            nothing else.
    """

    create_only: Literal["yes", "probe", "no"] = "yes"
    ordered_lists: bool = True
    one_pass: bool = True
    start_after: bool = True
    delete_batch: int = 1000
    conditional_delete: bool = False
    concurrency: int = 16
    parallel: int = 16
    unfit_in_names: str = ""


def content_type(key: str) -> str:
    """The media type to store an object with."""
    if key.endswith(".jsonl"):
        return "application/x-ndjson"
    return "application/json" if key.endswith(".json") else "application/octet-stream"


def empty_body(head: Head) -> Body:
    """No byte of an object: what an empty range is, and one past the end, of which services say nothing else."""
    return Body(head.info, io.BytesIO(), head.metadata)


def http_time(text: str | None) -> datetime | None:
    """A time as HTTP writes it, which is always GMT; None where it is none."""
    try:
        return parsedate_to_datetime(text or "").replace(tzinfo=timezone.utc)
    except (TypeError, ValueError):
        return None


class ObjectStore(Protocol):
    """A driver: one container of one service."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def location(self) -> str:
        """``scheme://container``, as in the URL."""

    @property
    def details(self) -> str:
        """What else a message should name (endpoint, region), or an empty string."""

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        """Store an object, all or nothing and durable when this returns; gives its version.

        ``create`` stores only where the key is absent, and of any number of creators at once exactly one succeeds.
        A store that keeps no metadata ignores it.
        """

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        """Open an object for reading from byte ``start`` up to, not including, ``end``.

        A range that starts at or past the end of the object is an empty body, on every service.
        """

    def head(self, key: str) -> Head: ...

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        """One page of the objects whose keys start with ``prefix``, which is empty or ends in ``/``.

        ``start_after`` is a hint: keys up to and including it may be left out, but a store may as well give them.
        Later pages are asked for with the same arguments and the ``token`` of the page before. A directory on the way that
        can't be read is told in ``unread``; where it is the prefix itself, that is an error.
        """

    def delete_many(self, keys: Sequence[str]) -> Mapping[str, Exception]:
        """Delete objects; gives the failures by key. A key that is not there is no failure."""

    def classify(self, error: Exception) -> Failure | None:
        """What an exception of this driver means; None for one that is no answer of the service but a bug. Pure."""

    def renew(self) -> bool:
        """Fetch credentials anew, by when they are next needed; False where the driver has no way to.

        A driver may have a property ``credentials``, which tells those in use from others: equal ones would be refused again.
        It is None where that can't be told, as of a role's or a log-in's, which are others each time.
        """

    def close(self) -> None: ...


class VersionDeletingObjectStore(ObjectStore, Protocol):
    """A driver whose capabilities include ``conditional_delete``.

    Versions differ between any two writes of a key, also of equal content, and are spelled alike in listings, heads and bodies.
    """

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        """Delete objects; returns the failures by key.

        Args:
            keys: of the objects.
            versions: by key, the only version to delete; keys that are not in it are deleted whatever they hold. Another
                version stays and is no failure, nor is an absent key.
        """


def delete_versions(driver: ObjectStore, keys: Sequence[str], versions: Mapping[str, str] | None) -> Mapping[str, Exception]:
    """Delete objects, by version where versions are named and the driver can; returns the failures by key."""
    if not versions or not driver.capabilities.conditional_delete:
        return driver.delete_many(keys)
    return cast("VersionDeletingObjectStore", driver).delete_many(keys, versions=versions)
