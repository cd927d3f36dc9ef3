"""The engine ``obstore``: a client written in Rust for the objects of a container, beside the cloud's SDK, which does the rest.

Bodies and heads go through obstore, at a tenth of the SDK's price. The SDK's driver gives credentials and endpoint, and keeps
what obstore can't do as the contract asks: it takes a web page for an empty listing, tells no server's clock, and not which
of many keys it could not delete (docs/decisions/0009-two-engines.md).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, TypeVar

import obstore

from transcript_backends.drivers import obstore_answers as answers
from transcript_backends.drivers.clients import SharedClient
from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    IfMatch,
    ObjectInfo,
    ObjectStore,
    Page,
    PutMode,
    content_type,
    empty_body,
)
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.slots import Slots

_T = TypeVar("_T")

_CONCURRENCY, _PARALLEL = 64, 32  # it works outside of the interpreter
_LISTS = 8  # at once: the SDK works in it
_MOST_BYTES_IN_ONE_PUT = 8 * 1024 * 1024  # obstore's time-out between bytes runs while a body is sent, too
_BYTES_AT_ONCE = 256 * 1024
_CHUNK_BYTES = 64 * 1024  # of what is received piece by piece; obstore drops a piece that is cut short
_CUT_SHORT = "the body ended early"
_NO_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)  # what obstore gives where there is none
_NOT_METADATA = frozenset(
    {"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Cache-Control", "Storage-Class"}
)

_process: int | None = None  # in which obstore was first used: its threads are not in a forked child, where it would hang


def _is_usable() -> bool:
    global _process
    _process = _process or os.getpid()
    return _process == os.getpid()


class Service(NamedTuple):
    """What is peculiar to a cloud.

    Attributes:
        make: makes obstore's store, with the endpoint and the credentials of the SDK's client.
        refused: the SDK's exception for a refusal of an operation (``PutObject``, ``GetObject``, ``HeadObject``).
        no_credentials: the exception for credentials that could not be had.
        vouches: whether a version that was answered to a put of such a body can only come from the service that stored it, and
            not from whatever a redirect led to, which obstore follows; None where none can.
        version: obstore's name for what `IfMatch` compares.
        storage_class: of new objects, where it is not the container's.
    """

    make: Callable[[], Any]
    refused: Callable[[str, answers.Refusal], Exception]
    no_credentials: Callable[[], Exception]
    vouches: Callable[[str, bytes], bool] | None
    version: Literal["e_tag", "version"] = "e_tag"
    storage_class: str | None = None


class ObstoreObjectStore(WrapperObjectStore):
    """The container of an SDK's driver, with obstore for its objects."""

    def __init__(self, sdk: ObjectStore, service: Service) -> None:
        super().__init__(sdk)
        self.sdk = sdk
        self._service = service
        self._shared: SharedClient[Any] = SharedClient(lambda: answers.set_up(service.make))
        self._lists = Slots(_LISTS)
        self._is_elsewhere = False
        self._vouches = service.vouches
        self._with_puts = {"Storage-Class": service.storage_class} if service.storage_class else {}

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.sdk.capabilities, concurrency=_CONCURRENCY, parallel=_PARALLEL)

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        vouches, version = self._vouches, self._service.version
        if vouches is None or len(body) > _MOST_BYTES_IN_ONE_PUT:
            return self.sdk.put(key, body, mode=mode, metadata=metadata)
        how: Any = {version: mode.version} if isinstance(mode, IfMatch) else mode
        attributes = {"Content-Type": content_type(key), **self._with_puts, **metadata}

        def put(store: Any) -> str:
            told = _told(obstore.put(store, key, body, mode=how, attributes=attributes, use_multipart=False)[version])
            if not vouches(told, body):
                self._vouches = None  # it may be that versions are of another kind here: from now on the SDK is asked
                raise answers.Lost("an answer that may be somebody else's")
            return told

        return self._ask("PutObject", put, lambda: self.sdk.put(key, body, mode=mode, metadata=metadata))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if end is not None and end <= start:
            return empty_body(self.head(key))
        # Of a range, obstore sees to it that it is the one asked for; of a whole object, not even that it is one.
        asked: Any = {"offset": start} if end is None else (start, end)

        def get(store: Any) -> Body:
            answer = obstore.get(store, key, options={"range": asked})
            _refuse_pages(answer)
            info, (first, last) = self._info(key, answer.meta), answer.range
            if last - first > _BYTES_AT_ONCE:
                return Body(info, _Stream(answer.stream(_CHUNK_BYTES), last - first), _metadata(answer))
            body = answer.bytes()
            if len(body) < last - first:
                raise answers.Lost(_CUT_SHORT)
            return Body(info, io.BytesIO(body), _metadata(answer))

        try:
            return self._ask("GetObject", get, lambda: self.sdk.get(key, start=start, end=end))
        except answers.Refused:  # 416: past the end
            return empty_body(self.head(key))

    def head(self, key: str) -> Head:
        def head(store: Any) -> Head:
            answer = obstore.get(store, key, options={"head": True})
            _refuse_pages(answer)
            return Head(self._info(key, answer.meta), _metadata(answer))

        return self._ask("HeadObject", head, lambda: self.sdk.head(key))

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        with self._lists:
            return self.sdk.list_page(prefix, start_after=start_after, token=token)

    def classify(self, error: Exception) -> Failure | None:
        return answers.classify(error) or self.sdk.classify(error)

    def renew(self) -> bool:
        return self.sdk.renew() and self._shared.renew()

    def close(self) -> None:
        self._shared.renew()  # to drop it is to close it
        self.sdk.close()

    def _ask(self, operation: str, request: Callable[[Any], _T], of_sdk: Callable[[], _T]) -> _T:
        """Send a request through obstore, or through the SDK; a failure is raised as what the SDK raises."""
        if self._is_elsewhere or not _is_usable():
            return of_sdk()
        store = self._shared.get()
        try:
            return answers.ask(lambda: request(store))
        except answers.Refused as error:
            if operation == "GetObject" and error.refusal.status == 416:
                raise
            failed = self._service.refused(operation, error.refusal)
        except answers.NoCredentials:
            failed = self._service.no_credentials()
        if not isinstance(failed, answers.AskTheSDK):
            raise failed
        self._is_elsewhere |= isinstance(failed, answers.Elsewhere)
        return of_sdk()

    def _info(self, key: str, meta: Any) -> ObjectInfo:
        modified: datetime = meta["last_modified"]
        if modified == _NO_TIME:
            raise answers.NotAnAnswer("a success without Last-Modified")
        return ObjectInfo(key, meta["size"], modified, _told(meta[self._service.version]))


class _Stream:
    """The bytes of an answer, and not one fewer than promised."""

    def __init__(self, chunks: Any, length: int) -> None:
        self._chunks, self._chunk, self._left = iter(chunks), memoryview(b""), length

    def read(self, size: int, /) -> bytes:
        if not self._left:
            return b""
        if not self._chunk:
            chunk = answers.ask(lambda: next(self._chunks, None))
            if not chunk:
                raise answers.Lost(_CUT_SHORT)
            self._chunk = memoryview(chunk)
        piece, self._chunk = bytes(self._chunk[:size]), self._chunk[size:]
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        self._chunks, self._chunk = iter(()), memoryview(b"")  # without its stream, obstore gives the connection up


def _metadata(answer: Any) -> dict[str, str]:
    """What was stored with an object, of what obstore lists together with its media type and the like."""
    return {name: value for name, value in answer.attributes.items() if name not in _NOT_METADATA}


def _refuse_pages(answer: Any) -> None:
    if answer.attributes.get("Content-Type", "").startswith("text/html"):
        raise answers.NotAnAnswer("the answer is a web page")


def _told(version: str | None) -> str:
    if not version:
        raise answers.NotAnAnswer("a success without the object's version")
    return version
