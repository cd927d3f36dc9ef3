"""Drivers around drivers. Those here count, slow down and disturb requests: for tests, simulations and benchmarks."""

from __future__ import annotations

import io
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from transcript_backends.clock import Clock, SystemClock
from transcript_backends.drivers.driver import (
    Body,
    Capabilities,
    Failure,
    Head,
    Meaning,
    ObjectStore,
    Page,
    PutMode,
    delete_versions,
)

_T = TypeVar("_T")

Operation = Literal["put", "get", "head", "list_page", "delete_many"]


class WrapperObjectStore:
    """Passes everything on; what a subclass does to each request goes into `_around`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        return request()

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def details(self) -> str:
        return self.inner.details

    @property
    def identity(self) -> str | None:
        return getattr(self.inner, "identity", None)

    @property
    def credentials(self) -> object:
        return getattr(self.inner, "credentials", None)

    @property
    def remarks(self) -> list[str]:
        return getattr(self.inner, "remarks", [])

    @property
    def is_there(self) -> bool:
        return getattr(self.inner, "is_there", True)

    def put(self, key: str, body: bytes, *, mode: PutMode, metadata: Mapping[str, str]) -> str:
        return self._around("put", key, lambda: self.inner.put(key, body, mode=mode, metadata=metadata))

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        return self._around("get", key, lambda: self.inner.get(key, start=start, end=end))

    def head(self, key: str) -> Head:
        return self._around("head", key, lambda: self.inner.head(key))

    def list_page(self, prefix: str, *, start_after: str = "", token: str | None = None) -> Page:
        return self._around("list_page", prefix, lambda: self.inner.list_page(prefix, start_after=start_after, token=token))

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        return self._around("delete_many", keys[0], lambda: delete_versions(self.inner, keys, versions))

    def purge(self, prefix: str) -> Mapping[str, Exception]:
        erase = getattr(self.inner, "purge", None)
        return erase(prefix) if erase is not None else {}

    def classify(self, error: Exception) -> Failure | None:
        return self.inner.classify(error)

    def renew(self) -> bool:
        return self.inner.renew()

    def close(self) -> None:
        self.inner.close()


class Request(NamedTuple):
    """One request as a `RecordingObjectStore` saw it; ``key`` is the prefix of a listing, the first key of a batch."""

    operation: Operation
    key: str


class RecordingObjectStore(WrapperObjectStore):
    """Keeps every request made, in order: request counts are the bill."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.requests: list[Request] = []

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        self.requests.append(Request(operation, key))
        return super()._around(operation, key, request)

    @property
    def counts(self) -> Counter[str]:
        """How many requests of each operation."""
        return Counter(each.operation for each in self.requests)


class LatencyObjectStore(WrapperObjectStore):
    """Makes every request take ``seconds`` longer."""

    def __init__(self, inner: ObjectStore, seconds: float, *, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._seconds = seconds
        self._clock = clock or SystemClock()

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        self._clock.sleep(self._seconds)
        return super()._around(operation, key, request)


class InjectedError(Exception):
    """A fault put in on purpose."""

    def __init__(self, meaning: Meaning, *, refused: bool = False) -> None:
        super().__init__(meaning)
        self.meaning, self.refused = meaning, refused


class FaultyObjectStore(WrapperObjectStore):
    """Fails requests as told by `fail`, in order; the rest pass."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._faults: dict[Operation, deque[tuple[Meaning | None, bool, bool]]] = {}
        self._lock = threading.Lock()

    def fail(
        self,
        operation: Operation,
        meaning: Meaning | None = Meaning.TRY_AGAIN,
        *,
        stored: bool = False,
        refused: bool = False,
        times: int = 1,
    ) -> None:
        """Fail the next ``times`` requests of an operation.

        With ``stored`` the request is carried out and its answer lost; with ``refused`` the answer says that nothing was done.
        A ``meaning`` of None lets a request pass: for failing a later one.
        """
        with self._lock:
            self._faults.setdefault(operation, deque()).extend([(meaning, stored, refused)] * times)

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        with self._lock:
            planned = self._faults.get(operation)
            meaning, stored, refused = planned.popleft() if planned else (None, False, False)
        if meaning is None:
            return super()._around(operation, key, request)
        if stored:
            super()._around(operation, key, request)
        raise InjectedError(meaning, refused=refused)

    def classify(self, error: Exception) -> Failure | None:
        if isinstance(error, InjectedError):
            return Failure(error.meaning, f"injected: {error.meaning.value}", error.refused)
        return super().classify(error)


class PhantomObjectStore(WrapperObjectStore):
    """Lists objects that are not there, as a broken gateway lists its placeholders.

    Attributes:
        phantoms: their keys; what is stored under one is what the listing shows, and no more than that.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.phantoms: set[str] = set()

    def _real(self, key: str) -> str:
        return f"{key}.absent" if key in self.phantoms else key

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        return super().get(self._real(key), start=start, end=end)

    def head(self, key: str) -> Head:
        return super().head(self._real(key))

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        real = [key for key in keys if key not in self.phantoms]
        return super().delete_many(real, versions=versions) if real else {}


class FlippingObjectStore(WrapperObjectStore):
    """Returns bodies in which one byte is not what is stored, as told by `flip`: for a moment, or as damage at rest would.

    The byte is the fourth last, which turns one letter into another where a line ends in a string.
    """

    _AT = -4

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._left: dict[str, float] = {}
        self._lock = threading.Lock()
        self.flipped = 0  # so many responses

    def flip(self, part: str = "", *, times: float = 1) -> None:
        """Change the next ``times`` responses to a get whose key holds ``part``; ``math.inf``: all."""
        with self._lock:
            self._left[part] = times

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        body = super().get(key, start=start, end=end)
        with self._lock:
            part = next((each for each, left in self._left.items() if each in key and left > 0), None)
            if part is None:
                return body
            self._left[part] -= 1
            self.flipped += 1
        received = bytearray(b"".join(iter(lambda: body.stream.read(1 << 20), b"")))
        body.stream.close()
        if len(received) >= -self._AT:
            received[self._AT] ^= 1
        return body._replace(stream=io.BytesIO(received))
