"""A driver made safe to use: errors named, what is temporary tried again, creates that no lost answer can fool.

This is the one place that calls a driver, and the one place that turns an SDK's exception into ours.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, Generic, Literal, NamedTuple, TypeVar, cast

from transcript_backends import errors
from transcript_backends.clock import Clock, SystemClock
from transcript_backends.drivers.driver import (
    Body,
    Failure,
    IfMatch,
    Meaning,
    ObjectInfo,
    ObjectStore,
    PutMode,
    delete_versions,
)
from transcript_backends.forks import tell_after_fork
from transcript_backends.hashing import sha256
from transcript_backends.phantoms import Phantoms
from transcript_backends.slots import Slots

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

ConditionalWrites = Literal["on", "off"]

on_retry: ContextVar[Callable[[errors.StoreUnavailableError], object] | None] = ContextVar("on_retry", default=None)
"""Told in a thread (or task) that sets it why a request is about to be tried again."""

# Letters and digits only: Azure takes nothing else in a metadata name.
_WRITE_ID, _SHA256, _REPLACED = "tbwrite", "tbsha256", "tbreplaced"

SERVER_CLOCKS_DIFFER = timedelta(seconds=2)  # from one another, and from the whole seconds they stamp objects with

_NOTHING = "nothing"
_CHUNK_BYTES = 1024 * 1024
_INDEXES = 256  # that are remembered
_HELD = 100_000
_BUFFER_BYTES = 64 * 1024

_RENEWED = (Meaning.EXPIRED, Meaning.UNAUTHENTICATED)  # credentials are, once, for such a denial
_UNKNOWN_OUTCOME = "it may have been stored or not, and calling again with the same content is safe; "

_ERRORS: dict[Meaning, tuple[type[errors.TranscriptStoreError], str]] = {
    Meaning.PRECONDITION: (errors.SegmentConflictError, "the key is taken; nothing was overwritten"),
    Meaning.NOT_FOUND: (errors.SegmentNotFoundError, "check the key, and that the transcript was not deleted"),
    Meaning.CONTAINER_NOT_FOUND: (
        errors.ContainerNotFoundError,
        "create the bucket, container or directory, or correct its name in the store URL",
    ),
    Meaning.DENIED: (errors.AccessDeniedError, "check the credentials and what they are allowed to do"),
    Meaning.EXPIRED: (errors.AccessDeniedError, "the credentials have expired and renewing them did not help; log in again"),
    Meaning.UNAUTHENTICATED: (errors.AccessDeniedError, "check the credentials, or log in again; no restart is needed"),
    Meaning.CLOCK_SKEW: (errors.AccessDeniedError, "this machine's clock is too far off; set it (NTP)"),
    Meaning.TRY_AGAIN: (errors.StoreUnavailableError, "the retries are used up; try again later"),
    Meaning.NO_ANSWER: (
        errors.UnexpectedResponseError,
        "check the endpoint: what answered is not the object store it should be (a proxy, a login page?)",
    ),
    Meaning.UNSUPPORTED: (errors.TranscriptStoreError, "this server can't do what was asked"),
    Meaning.NO_NAME: (errors.InvalidRefError, "nothing was stored; use another id or key, a hash of it for one"),
    Meaning.OTHER: (errors.TranscriptStoreError, "trying again would not help"),
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to give up, and how long to pause: ``first_pause``, doubled each time up to ``longest_pause``, with jitter.

    Attributes:
        max_attempts: tries in all, the first included.
        deadline: seconds after which no new try begins.
        first_pause, longest_pause: seconds.
    """

    max_attempts: int = 10
    deadline: float = 60.0
    first_pause: float = 0.1
    longest_pause: float = 5.0


class Whole(NamedTuple):
    """An object read whole.

    Attributes:
        body: its bytes.
        sha256: of them, hexadecimal.
        fault: how they are not what was stored; empty where nothing says so.
        version: of the object.
    """

    body: bytes
    sha256: str
    fault: str
    version: str


class Recent(Generic[_T]):
    """The things used last, by key, so many of them. Shared by threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._things: dict[str, _T] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> _T | None:
        with self._lock:
            thing = self._things.pop(key, None)
            if thing is not None:
                self._things[key] = thing
            return thing

    def keep(self, key: str, thing: _T) -> None:
        with self._lock:
            self._things[key] = thing
            while len(self._things) > self._most:
                del self._things[next(iter(self._things))]


class Container:
    """One bucket, container or directory.

    Args:
        driver: the service.
        retry: how long to try.
        clock: time and chance.
        conditional_writes: ``off`` puts a read before each write in place of create-only writes, for stores without
            them: two writers of one key at the same moment can then overwrite one another.
        parallel: how many requests one operation may have under way at once; None: as many as the driver says.
    """

    def __init__(
        self,
        driver: ObjectStore,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
        conditional_writes: ConditionalWrites = "on",
        parallel: int | None = None,
    ) -> None:
        self.driver = driver
        self.retry = retry or RetryPolicy()
        self.clock = clock or SystemClock()
        self._parallel = parallel
        self.indexes: Recent[Any] = Recent(_INDEXES)  # parsed; under one key there is never another
        self.phantoms = Phantoms(driver.location)
        self.gaps: Recent[Collection[int]] = Recent(_INDEXES)  # in listings, by prefix: those looked at again
        self.held: Recent[Any] = Recent(_HELD)  # what compactions know of segments that could not be removed, by key
        self._server_time: tuple[datetime, float] | None = None
        self._stepped_at = -math.inf
        self._conditional = conditional_writes == "on"
        self._proved = self._proved_if_match = False
        self._refused = False  # the credentials are, and were fetched anew for that: each operation begins with new ones
        self._proving = threading.Lock()
        self._closed = False
        tell_after_fork(self)

    @property
    def identity(self) -> str:
        """Tells this container from every other, also of the same location on another server; holds no secret.

        A driver may say it itself (``identity``), where its details change while the store is the same.
        """
        found = getattr(self.driver, "identity", None)
        return f"{self.driver.location} {self.driver.details}".strip() if found is None else str(found)

    @property
    def parallel(self) -> int:
        """How many requests one operation may have under way at once."""
        return self._parallel or self.driver.capabilities.parallel

    @cached_property
    def _slots(self) -> Slots:
        """For the calls under way. Made when first needed, since what a driver can do may depend on its client."""
        return Slots(self.driver.capabilities.concurrency)

    # --- create -------------------------------------------------------------------------------------------------------

    def create(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        """Store an object where there is none, durably; gives whether it was this call that did.

        Whatever answers get lost: when this returns, the key holds exactly ``body``; it never overwrites. Calling it
        again with the same body is safe at any time and succeeds; it gives False, as does a call whose answer was lost where
        the store keeps no metadata.

        Raises:
            SegmentConflictError: the key holds other content.
            StoreUnavailableError: the retries are used up; it may or may not have been stored.
            ConditionalWritesUnsupportedError: the store would let writers overwrite one another.
        """
        stamped = {**(metadata or {}), **_stamp(body)}
        if not self._conditional:
            return self._call("create", key, lambda: self._look_then_put(key, body, stamped), _UNKNOWN_OUTCOME)
        if not self._proved:
            self.prove_create_only(key.rpartition("/")[0])

        def put() -> bool:
            self.driver.put(key, body, mode="create", metadata=stamped)
            return True

        return self._settle("create", key, put, lambda _: self._holds(key, body, stamped))

    def _settle(
        self,
        what: str,
        key: str,
        put: Callable[[], _T],
        look: Callable[[bool], _T | None],
        refusals: tuple[Meaning, ...] = (Meaning.PRECONDITION,),
    ) -> _T:
        """A conditional write, until it is known what became of it.

        Args:
            what, key: for messages.
            put: tries it.
            look: gives what a try has led to whose answer was negative or lost, None where it is to be tried again; it is
                told whether any try's answer was lost.
            refusals: the negative answers.
        """
        tries = _Tries(self, what, key)
        lost = unseen = False
        while True:
            try:
                return self._send(put)
            except Exception as error:
                failure = self._classify(error)
                if failure.meaning in refusals:
                    if (outcome := self._stored_after_all(key, look, lost, tries)) is not None:
                        return outcome
                    unseen = True  # something is there that can't be looked at, or it was there and is gone
                    failure = failure._replace(meaning=Meaning.TRY_AGAIN)
                    again = tries.again(failure)
                elif failure.meaning in (Meaning.TRY_AGAIN, Meaning.NO_ANSWER):
                    lost = lost or not failure.refused
                    again = tries.again(failure._replace(meaning=Meaning.TRY_AGAIN))
                    if (outcome := self._stored_after_all(key, look, lost, tries)) is not None:
                        return outcome
                elif failure.meaning is Meaning.UNSUPPORTED:
                    raise self._no_conditions(what, failure.detail) from error
                else:
                    again = tries.again(failure)
                if not again:
                    raise self._error(what, key, failure, _UNKNOWN_OUTCOME if lost or unseen else "") from error

    def _look_then_put(self, key: str, body: bytes, stamped: Mapping[str, str]) -> bool:
        is_ours = self._holds(key, body, stamped)
        if is_ours is None:
            self.driver.put(key, body, mode="overwrite", metadata=stamped)
        return is_ours is not False

    def _stored_after_all(self, key: str, look: Callable[[bool], _T | None], lost: bool, tries: _Tries) -> _T | None:
        """What ``look`` gives. Not knowing counts as a write to be tried again."""
        try:
            with self._slots:
                return look(lost)
        except Exception as error:
            failure = self._classify(error)
            if failure.meaning in (Meaning.TRY_AGAIN, Meaning.EXPIRED, Meaning.CLOCK_SKEW):
                return None  # the next put meets the same, and knows what to do
            if failure.meaning is Meaning.UNAUTHENTICATED and tries.again(failure):
                return None  # with other credentials
            raise self._error("look at", key, failure, _UNKNOWN_OUTCOME) from error

    def _holds(self, key: str, body: bytes, stamped: Mapping[str, str]) -> bool | None:
        """True where the key holds this body, written by this call; False where the body was there; None where it is absent.

        Raises:
            SegmentConflictError: it holds another body.
        """
        try:
            info, found = self.driver.head(key)
            if found.get(_WRITE_ID) == stamped[_WRITE_ID]:
                return True
            if info.size == len(body):
                digest = found.get(_SHA256) or sha256(_read_all(self.driver.get(key)))
                if digest == stamped[_SHA256]:
                    return False
        except Exception as error:
            if self._classify(error).meaning is Meaning.NOT_FOUND:
                return None
            raise
        raise errors.SegmentConflictError(
            f"{self.driver.location}/{key} holds other content already ({info.size} bytes, written at {info.created_at}); "
            "nothing was overwritten. Two writers share this name: give each its own writer id"
        )

    def prove_create_only(self, directory: str) -> None:
        """See that the store refuses a second create of a key: known of its service, or found out by trying, once.

        Raises:
            ConditionalWritesUnsupportedError: it does not.
        """
        with self._proving:
            self._proved = self._proved or self.driver.capabilities.create_only == "yes"
            if self._proved:
                return
            with self._probe(directory) as key:
                try:
                    for _ in range(2):
                        self._call("create", key, lambda: self._put_probe(key, "create"))
                except errors.SegmentConflictError:
                    self._proved = True
            if not self._proved:
                raise self._no_conditions("create", "a second create of one key was accepted")

    @contextlib.contextmanager
    def _probe(self, directory: str) -> Iterator[str]:
        """A key to try the store out with; what is there in the end is removed."""
        key = unused_key(directory)
        try:
            yield key
        except (errors.StoreUnavailableError, errors.UnexpectedResponseError):
            with contextlib.suppress(Exception):  # one try: it is probably not there, nor anybody to remove it
                self.driver.delete_many([key])
            raise
        try:
            left = self.delete([key])
        except errors.TranscriptStoreError as error:  # a writer need not be allowed to delete
            left = {key: str(error)}
        for reason in left.values():
            _log.warning("the probe object %s could not be removed: %s", key, reason)

    def _put_probe(self, key: str, mode: PutMode, body: bytes = b"probe") -> str:
        try:
            return self.driver.put(key, body, mode=mode, metadata={})
        except Exception as error:
            failure = self._classify(error)
            if failure.meaning is Meaning.UNSUPPORTED:
                raise self._no_conditions("create" if mode == "create" else "replace", failure.detail) from error
            raise

    def _no_conditions(self, what: str, detail: str) -> errors.ConditionalWritesUnsupportedError:
        writes = {"create": "create-only writes", "replace": "writes that replace one version only"}[what]
        return errors.ConditionalWritesUnsupportedError(
            f"{self._place()} does not honour {writes} ({detail}), so two writers could overwrite one another: use a "
            "server that does, or accept the risk with conditional_writes=off in the store URL"
        )

    # --- replace ------------------------------------------------------------------------------------------------------

    def overwrite(self, key: str, body: bytes) -> str:
        """Store an object whatever is there, durably; gives its version. Of several writers the last one wins."""
        stamped = _stamp(body)
        return self._call(
            "write", key, lambda: self.driver.put(key, body, mode="overwrite", metadata=stamped), _UNKNOWN_OUTCOME
        )

    def swap(self, key: str, body: bytes, expected: str | None) -> str:
        """Store an object where its version is still the expected one (None: where there is none), durably; gives the new one.

        Whatever answers get lost: of any number of writers that expect one version, exactly one gets a new version.

        Raises:
            VersionConflictError: another version is there; nothing was written.
            StoreUnavailableError: the retries are used up, or an answer was lost and another version is there; it may or may
                not have been stored.
            ConditionalWritesUnsupportedError: the store would let writers overwrite one another.
        """
        stamped = {**_stamp(body), _REPLACED: expected or _NOTHING}
        mode: PutMode = "create" if expected is None else IfMatch(expected)
        if self._conditional:
            (self.prove_create_only if expected is None else self._prove_if_match)(key.rpartition("/")[0])

        def put() -> str:
            if self._conditional:
                return self.driver.put(key, body, mode=mode, metadata=stamped)
            ours = self._swapped(key, expected, stamped, lost=False)
            return ours or self.driver.put(key, body, mode="overwrite", metadata=stamped)

        return self._settle(
            "create" if expected is None else "replace",
            key,
            put,
            lambda lost: self._swapped(key, expected, stamped, lost),
            (Meaning.PRECONDITION,) if expected is None else (Meaning.PRECONDITION, Meaning.NOT_FOUND),
        )

    def _swapped(self, key: str, expected: str | None, stamped: Mapping[str, str], lost: bool) -> str | None:
        """The version that this very write has stored; None where the expected one is still there.

        Raises:
            VersionConflictError: another version is there.
            StoreUnavailableError: it is, and an earlier try of this write may have been stored, and replaced since.
        """
        found: Mapping[str, str] = {}
        present = None
        try:
            info, found = self.driver.head(key)
            present = info.version
        except Exception as error:
            if self._classify(error).meaning is not Meaning.NOT_FOUND:
                raise
        if found.get(_WRITE_ID) == stamped[_WRITE_ID]:
            return present
        if present == expected:
            return None
        is_there = "nothing is there now" if present is None else "another version is there now"
        if lost and found.get(_REPLACED) != (expected or _NOTHING):  # else it has come instead of ours
            raise errors.StoreUnavailableError(
                f"could not replace {key!r} on {self._place()}: an answer was lost, and {is_there}; it may have been stored "
                "and replaced since, or not: read it, and decide"
            )
        raise errors.VersionConflictError(
            f"{key!r} on {self._place()} is not as it was read: {is_there}; nothing was written. Read it again, and decide anew"
        )

    def _prove_if_match(self, directory: str) -> None:
        """As `prove_create_only`, for the other condition."""
        with self._proving:
            self._proved_if_match = self._proved_if_match or self.driver.capabilities.create_only == "yes"
            if self._proved_if_match:
                return
            with self._probe(directory) as key:
                stale, _ = (self._call("write", key, lambda: self._put_probe(key, "overwrite", body)) for body in (b"1", b"2"))
                try:
                    self._call("replace", key, lambda: self._put_probe(key, IfMatch(stale)))
                except errors.SegmentConflictError:
                    self._proved_if_match = True
            if not self._proved_if_match:
                raise self._no_conditions("replace", "a version that was gone could be replaced")

    # --- read ---------------------------------------------------------------------------------------------------------

    def open(self, key: str, *, start: int = 0, end: int | None = None) -> BinaryIO:
        """Open an object as a stream; bytes ``start`` up to, not including, ``end``. Close it to free the connection.

        A connection lost on the way is replaced and reading goes on where it stopped.
        """
        body = self._call("read", key, lambda: self.driver.get(key, start=start, end=end))
        raw = _Reader(self, key, body, start, end)
        return cast("BinaryIO", io.BufferedReader(raw, buffer_size=_BUFFER_BYTES))

    def fetch(self, key: str) -> tuple[bytes, str]:
        """An object whole, with its version; one that is replaced meanwhile is never mixed of two."""

        def receive() -> tuple[bytes, str]:
            body = self.driver.get(key)
            content = _read_all(body)
            if len(content) != body.info.size:
                raise _broken_off(key, len(content), body.info.size)
            return content, body.info.version

        return self._call("read", key, receive)

    def read(self, key: str, *, size: int | None = None, expected: str = "", is_moved: bool = False) -> Whole:
        """An object whole, compared with the sha256 that it was stored with, where the store keeps it.

        One response proves nothing of what is stored: where it is not what it should be, the object is read once more, and
        the second response counts.

        Args:
            key: of the object.
            size: what a listing says of it, in bytes.
            expected: its sha256, where something else says it.
            is_moved: whether the bytes go elsewhere. Then, where neither the response nor ``expected`` says a sha256, it is
                asked for, at the price of a head.
        """
        whole = self._read(key, size, expected, is_moved)
        return self._read(key, size, expected, is_moved) if whole.fault else whole

    def _read(self, key: str, size: int | None, expected: str, is_moved: bool) -> Whole:
        body, received = self._receive(key)
        version = received.info.version
        digest = sha256(body)
        size = received.info.size if size is None else size
        if len(body) != size:
            return Whole(body, digest, f"{len(body)} bytes came of {size}", version)
        if expected and digest != expected:
            return Whole(body, digest, f"its sha256 is {digest}, and should be {expected}", version)
        metadata = received.metadata
        if metadata is None and is_moved and not expected:
            metadata = self._call("look at", key, lambda: self.driver.head(key)).metadata
        stored = (metadata or {}).get(_SHA256, digest)
        return Whole(body, digest, "" if stored == digest else f"its sha256 is {digest}, it was stored with {stored}", version)

    def _receive(self, key: str) -> tuple[bytes, Body]:
        """The bytes that come of an object; those of a large one in pieces, so that a lost connection costs but one of them."""

        def receive() -> tuple[bytes, Body]:
            body = self.driver.get(key)
            return (_read_all(body) if body.info.size <= _CHUNK_BYTES else b""), body

        content, body = self._call("read", key, receive)
        if body.info.size > _CHUNK_BYTES:
            with _Reader(self, key, body, 0, None) as rest, contextlib.suppress(errors.CorruptSegmentError):  # it ended early
                content = rest.readall()
        return content, body

    def exists(self, key: str) -> bool:
        """Whether the key holds an object."""
        try:
            self.look(key)
        except errors.SegmentNotFoundError:
            return False
        return True

    def look(self, key: str) -> tuple[ObjectInfo, str]:
        """An object's facts, and the sha256 it was stored with: empty where none is kept, or somebody else stored it."""
        info, metadata = self._call("look at", key, lambda: self.driver.head(key))
        return info, metadata.get(_SHA256, "")

    def list(
        self, prefix: str, *, start_after: str = "", unread: Callable[[str, str], object] | None = None
    ) -> Iterator[ObjectInfo]:
        """All objects below a prefix (empty, or ending in ``/``), a page at a time.

        Args:
            prefix: of their keys.
            start_after: a hint: keys up to this one may be left out.
            unread: called with the prefix of a directory below that can't be read, and the reason; None: that is an error,
                since what is in it might be missed.
        """
        token: str | None = None
        seen: set[str | None] = {None}
        while True:
            asked = token
            page = self._call("list", prefix, lambda: self.driver.list_page(prefix, start_after=start_after, token=asked))
            if page.now is not None:
                self._told(page.now)
            for directory, error in page.unread:
                failure = self._classify(error)
                if unread is None:
                    raise self._error("list", directory, failure) from error
                unread(directory, failure.detail)
            now = self.clock.monotonic()
            yield from (info for info in page.objects if not self.phantoms.hide(info, now)) if self.phantoms else page.objects
            token = page.token
            if token is None:
                return
            if token in seen:
                raise errors.UnexpectedResponseError(
                    f"{self._place()} answers the listing of {prefix!r} with the same page again and again; "
                    "check the server behind this endpoint"
                )
            seen.add(token)

    def see_there(self) -> None:
        """Raise `ContainerNotFoundError` where the driver knows, without a request, that the place is not there yet."""
        if not getattr(self.driver, "is_there", True):
            raise self._error("list", "", Failure(Meaning.CONTAINER_NOT_FOUND, "the directory does not exist"))

    def server_time(self) -> datetime | None:
        """The time by the server's clock, as far as listings have told it."""
        if self._server_time is None:
            return None
        then, at = self._server_time
        return then + timedelta(seconds=self.clock.monotonic() - at)

    def time_before(self, moment: float) -> datetime | None:
        """A time by the server's clock before a moment of ours, whichever server tells it.

        None where it is not known, or that clock was set since.
        """
        now = self.server_time()
        if now is None or self._stepped_at >= moment:
            return None
        return now - timedelta(seconds=self.clock.monotonic() - moment) - SERVER_CLOCKS_DIFFER

    def _told(self, now: datetime) -> None:
        expected = self.server_time() or now
        if abs(now - expected) > SERVER_CLOCKS_DIFFER:
            self._stepped_at = self.clock.monotonic()
        self._server_time = (now, self.clock.monotonic())

    # --- delete -------------------------------------------------------------------------------------------------------

    def delete(self, doomed: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
        """Delete objects in batches; gives the keys that could not be deleted, with the reason. Absent keys are fine.

        A batch that is denied as a whole is a failure of each of its keys. A mapping is of versions by key: where the driver
        can, only those are deleted, and another one stays and is fine too. An empty version is any.
        """
        failed: dict[str, str] = {}
        versions = doomed if isinstance(doomed, Mapping) else {}
        remaining = iter(doomed)
        while batch := list(islice(remaining, self.driver.capabilities.delete_batch)):
            tries = _Tries(self, "delete", batch[0])
            while batch:
                asked = batch
                try:
                    outcome = self._call("delete", asked[0], lambda: self._delete_batch(asked, versions))
                except errors.AccessDeniedError as error:
                    failed.update(dict.fromkeys(asked, str(error)))
                    break
                failures = {key: self._classify(error) for key, error in outcome.items()}
                kinds = {_mended_by(failure.meaning): failure for failure in failures.values()}
                hopeful = {mended_by for mended_by, failure in kinds.items() if tries.again(failure)}
                again = {key for key, failure in failures.items() if _mended_by(failure.meaning) in hopeful}
                batch = [key for key in asked if key in again]
                failed.update(
                    (key, failure.detail)
                    for key, failure in failures.items()
                    if key not in again and failure.meaning is not Meaning.NOT_FOUND
                )
        return failed

    def _delete_batch(self, keys: Sequence[str], versions: Mapping[str, str]) -> Mapping[str, Exception]:
        named = {key: version for key in keys if (version := versions.get(key))}
        return delete_versions(self.driver, keys, named)

    def purge(self, prefix: str) -> dict[str, str]:
        """Remove what the service keeps of objects below a prefix that were deleted or replaced: old versions, delete markers.

        Only if the store is set to purge versions. Returns the keys whose versions stay, with the reason.
        """
        erase = getattr(self.driver, "purge", None)
        if erase is None:
            return {}
        failed: Mapping[str, Exception] = self._call("purge", prefix, lambda: erase(prefix))
        return {key: self._classify(error).detail for key, error in failed.items()}

    def delete_one(self, key: str, version: str = "") -> None:
        """Delete an object, of a version as `delete` does; an absent one is fine.

        Raises:
            AccessDeniedError: it may not be deleted.
            TranscriptStoreError: it can't be deleted, for another reason.
        """

        def delete() -> None:
            for error in self._delete_batch([key], {key: version}).values():
                raise error

        with contextlib.suppress(errors.SegmentNotFoundError):
            self._call("delete", key, delete)

    # --- life ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections; every later call raises `StoreClosedError`."""
        if not self._closed:
            self._closed = True
            self.driver.close()

    def after_fork(self) -> None:
        """A thread of the parent may hold a lock, and there is none in the child to release it."""
        self._proving = threading.Lock()
        self.__dict__.pop("_slots", None)
        self.indexes = Recent(_INDEXES)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreClosedError(f"the store on {self.driver.location} is closed; open a new one")

    # --- errors and retries -------------------------------------------------------------------------------------------

    def _call(self, what: str, key: str, call: Callable[[], _T], if_unknown: str = "") -> _T:
        """One request that may be repeated; ``if_unknown`` is added to the error where its outcome is not known."""
        tries = _Tries(self, what, key)
        while True:
            try:
                return self._send(call)
            except Exception as error:
                failure = self._classify(error)
                if what == "read" and failure.meaning is Meaning.NOT_FOUND:
                    self.phantoms.missed(key, tries.began, self.clock.monotonic())
                if not tries.again(failure):
                    unknown = failure.meaning in (Meaning.TRY_AGAIN, Meaning.NO_ANSWER)
                    raise self._error(what, key, failure, if_unknown if unknown else "") from error

    def _send(self, request: Callable[[], _T]) -> _T:
        self._check_open()
        with self._slots:
            outcome = request()
        self._refused = False
        return outcome

    def _renew(self, meaning: Meaning) -> bool:
        """Fetch credentials anew for a denial that others may mend; whether to try with them.

        Where that has helped nobody so far, those that were refused are new already.
        """
        if self._refused:
            return False
        try:
            before = getattr(self.driver, "credentials", None)
            if not self.driver.renew():
                return False
            now = getattr(self.driver, "credentials", None)
        except Exception as error:
            self._classify(error)
            return False  # there are none to be had, and none that are kept: the next request looks anew
        return meaning is Meaning.EXPIRED or now is None or now != before

    def _classify(self, error: Exception) -> Failure:
        """What an exception means; one that is ours already, or a bug, is raised as it is."""
        failure = None if isinstance(error, errors.TranscriptStoreError) else self.driver.classify(error)
        if failure is None:
            raise error
        return failure

    def _error(self, what: str, key: str, failure: Failure, remark: str = "") -> errors.TranscriptStoreError:
        kind, remedy = _ERRORS[failure.meaning]
        return kind(f"{self._failed(what, key, failure)}; {remark}{remedy}")

    def _failed(self, what: str, key: str, failure: Failure) -> str:
        return f"could not {what} {repr(key) if key else 'all keys'} on {self._place()}: {failure.detail}"

    def _place(self) -> str:
        details = self.driver.details
        return f"{self.driver.location} ({details})" if details else self.driver.location


class _Tries:
    """The tries of one operation: how many are left, and the pause before the next."""

    def __init__(self, container: Container, what: str, key: str) -> None:
        self._container, self._what, self._key = container, what, key
        self._count = 1
        self.began = container.clock.monotonic()
        self._renewed = self._signed_again = False
        if container._refused:
            container.driver.renew()

    def again(self, failure: Failure) -> bool:
        """Whether to try again after such a failure; pauses first where that helps."""
        policy, clock, meaning = self._container.retry, self._container.clock, failure.meaning
        if meaning is Meaning.TRY_AGAIN:
            pause = min(policy.longest_pause, policy.first_pause * 2 ** (self._count - 1)) * (0.5 + clock.jitter() / 2)
            if self._count >= policy.max_attempts or clock.monotonic() + pause - self.began > policy.deadline:
                return False
            if (told := on_retry.get()) is not None:
                reason = self._container._failed(self._what, self._key, failure)
                told(errors.StoreUnavailableError(f"{reason}; it is tried again"))
            clock.sleep(pause)
            self._count += 1
            return True
        if meaning is Meaning.CLOCK_SKEW and not self._signed_again:
            self._signed_again = True
            return True
        if meaning in _RENEWED:
            if not self._renewed:
                self._renewed = True
                if self._container._renew(meaning):
                    return True
            self._container._refused = True
        return False


class _Reader(io.RawIOBase):
    """An object as a raw stream that survives lost connections: objects never change, so it goes on where it was."""

    def __init__(self, container: Container, key: str, body: Body, start: int, end: int | None) -> None:
        super().__init__()
        self._container, self._key, self._body, self._position, self._end = container, key, body, start, end
        self._lost = False
        size = self._body.info.size
        self._stop = size if end is None else min(end, size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = self._read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._read(_CHUNK_BYTES), b""))

    def _read(self, size: int) -> bytes:
        if self._position >= self._stop:
            return b""
        chunk = self._container._call("read", self._key, lambda: self._receive(size))
        if not chunk:
            raise _broken_off(self._key, self._position, self._stop)
        self._position += len(chunk)
        return chunk

    def _receive(self, size: int) -> bytes:
        """The next bytes; after a failure, from the rest of the object asked for anew."""
        if self._lost:
            self._body.stream.close()
            rest = self._container.driver.get(self._key, start=self._position, end=self._end)
            before, self._body = self._body, rest
            if rest.info != before.info:  # the one that was being read is gone
                raise errors.SegmentNotFoundError(f"{self._key!r} was removed and written anew while it was being read")
        self._lost = True
        chunk = self._body.stream.read(size)
        self._lost = False
        return chunk

    def close(self) -> None:
        if not self.closed:
            self._body.stream.close()
        super().close()


def unused_key(directory: str) -> str:
    """A key in a directory (empty, or without its last slash) under which nothing is stored."""
    return "/".join(filter(None, (directory, f".probe-{os.urandom(16).hex()}")))


def _mended_by(meaning: Meaning) -> Meaning:
    """The same of failures that one thing would mend."""
    return Meaning.EXPIRED if meaning in _RENEWED else meaning


def _stamp(body: bytes) -> dict[str, str]:
    """The metadata by which a write is known again."""
    return {_WRITE_ID: os.urandom(16).hex(), _SHA256: sha256(body)}


def _broken_off(key: str, position: int, stop: int) -> errors.CorruptSegmentError:
    return errors.CorruptSegmentError(f"{key!r} ended at byte {position} of {stop}; read it again")


def _read_all(body: Body) -> bytes:
    try:
        return b"".join(iter(lambda: body.stream.read(_CHUNK_BYTES), b""))
    finally:
        body.stream.close()
