"""Stores in memory as the unit tests need them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import NamedTuple, TypeVar

from transcript_backends import ObjectTranscriptStore, TranscriptRef
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Body, ObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import Operation, RecordingObjectStore, WrapperObjectStore

_T = TypeVar("_T")

REF = TranscriptRef("acme", "coder", "s1")
EVENTS = f"{REF.prefix}events/"


class ServerClock:
    """A server's clock that stands still until it is told to go on; as a local clock it goes with that."""

    def __init__(self) -> None:
        self.time = self._began = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - self._began).total_seconds()

    def go_on(self, **much: float) -> None:
        self.time += timedelta(**much)


class HookedObjectStore(WrapperObjectStore):
    """Runs something of ours right before a certain request."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._hooks: list[tuple[Operation, str, int, Callable[[], object]]] = []
        self._lock = threading.Lock()

    def before(self, operation: Operation, action: Callable[[], object], *, key: str = "", after: int = 0) -> None:
        """Run ``action`` once, before the first such request whose key holds ``key``, ``after`` others like it."""
        self._hooks.append((operation, key, after, action))

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        with self._lock:
            meant = [each for each in self._hooks if each[0] == operation and each[1] in key]
            self._hooks = [each for each in self._hooks if each not in meant]
            self._hooks += [(wanted, part, after - 1, action) for wanted, part, after, action in meant if after]
        for _, _, after, action in meant:
            if not after:
                action()
        return super()._around(operation, key, request)


class UnorderedObjectStore(WrapperObjectStore):
    """Lists keys in reverse and knows no start, as some services do."""

    capabilities = replace(MemoryObjectStore().capabilities, ordered_lists=False, start_after=False)

    def list_page(self, prefix, *, start_after="", token=None):
        page = self.inner.list_page(prefix, token=token)
        return page._replace(objects=page.objects[::-1])


class StreamCountingObjectStore(WrapperObjectStore):
    """Counts the bodies that are open, and the bytes that came."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open: set[str] = set()
        self.most = 0
        self.received = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        body = super().get(key, start=start, end=end)
        self.open.add(key)
        self.most = max(self.most, len(self.open))
        close = body.stream.close

        class Stream:
            @staticmethod
            def read(size: int, /) -> bytes:
                chunk = body.stream.read(size)
                self.received += len(chunk)
                return chunk

            @staticmethod
            def close() -> None:
                self.open.discard(key)
                close()

        return body._replace(stream=Stream())


class Crash(BaseException):
    """The process is killed."""


def crash() -> None:
    raise Crash


class StepObjectStore(WrapperObjectStore):
    """Runs something of ours once, before the request of a certain number."""

    def __init__(self, inner: ObjectStore, number: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self.number, self.action, self.count = number, action, 0

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        self.count += 1
        if self.count == self.number + 1:
            self.action()
        return super()._around(operation, key, request)


class Setup(NamedTuple):
    store: ObjectTranscriptStore
    driver: RecordingObjectStore
    memory: MemoryObjectStore

    def put(self, key: str, body: bytes = b"") -> str:
        """An object written by somebody else."""
        self.memory.put(key, body, mode="overwrite", metadata={})
        return key

    def keys(self, prefix: str = "") -> list[str]:
        found, token = [], None
        while True:
            page = self.memory.list_page(prefix, token=token)
            found += [each.key for each in page.objects]
            if (token := page.token) is None:
                return found

    def body(self, key: str) -> bytes:
        return self.memory.get(key).stream.read(-1)


def make(
    root: str = "", *, wrap: Callable[[ObjectStore], ObjectStore] = lambda inner: inner, memory: MemoryObjectStore | None = None
) -> Setup:
    """A store on a driver in memory whose requests are recorded; ``wrap`` puts another driver around that one."""
    memory = memory or MemoryObjectStore("m")
    recording = RecordingObjectStore(memory)
    return Setup(ObjectTranscriptStore(Container(wrap(recording)), root), recording, memory)


def line(seq: int, writer: str = "w") -> bytes:
    return b'{"n":%d,"w":"%s"}' % (seq, writer.encode())


def lines(seqs: Iterable[int], writer: str = "w") -> bytes:
    return b"".join(line(seq, writer) + b"\n" for seq in seqs)


def append(store: ObjectTranscriptStore, start: int, end: int, writer: str = "w", ref: TranscriptRef = REF) -> str:
    return store.append_segment(ref, start, end, writer, lines(range(start, end + 1), writer))
