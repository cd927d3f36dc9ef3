"""Fetching segments before they are read, several at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Lock
from typing import BinaryIO, TypeVar

from transcript_backends.container import Container
from transcript_backends.listing import SegmentInfo

_T = TypeVar("_T")

_AHEAD_BYTES = 8 * 1024 * 1024
_SMALL_BYTES = 1024 * 1024
_AHEAD = 8  # segments fetched or waiting for their turn, for each request under way: one slow request holds up no other


class Ahead:
    """Fetches segments in order, some ahead of the one that is read: a few MiB, or one that is larger.

    Args:
        container: where they are.
        segments: in the order in which they will be opened; none is fetched ahead where one request at a time is allowed.
        fetch: gives the body of one; default: by one request, of which a large body is received only as it is read.
        gently: begin with half as many requests as may be under way, and as many more for each segment that is read: the
            reader may stop soon.
        parallel: how many requests may be under way; None: as many as the container has in one operation.
    """

    def __init__(
        self,
        container: Container,
        segments: Iterable[SegmentInfo],
        fetch: Callable[[SegmentInfo], bytes] | None = None,
        *,
        gently: bool = False,
        parallel: int | None = None,
    ) -> None:
        self._container, self._fetch, self._parallel = container, fetch, parallel or container.parallel
        self._remaining = iter(segments if self._parallel > 1 or fetch else ())
        self._most = _AHEAD * self._parallel
        self._more = max(1, self._parallel // 2)
        self._depth = self._more if gently else self._most
        self._coming: deque[_Coming] = deque()
        self._ahead = 0  # bytes
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()  # for the two below
        self._not_begun: deque[_Coming] = deque()
        self._at_work = 0  # threads

    def begin(self) -> None:
        """Do not wait for the first one to be opened."""
        self._fill()

    def open(self, segment: SegmentInfo, start: int = 0) -> BinaryIO:
        """A segment from an offset on: one that was fetched, or any other."""
        if not self._fill() or self._coming[0].segment.key != segment.key:
            return self._container.open(segment.key, start=start)
        stream = self._next()
        if start and not stream.seekable():
            stream.close()
            return self._container.open(segment.key, start=start)
        if start:
            stream.seek(start)
        return stream

    def finish(self) -> None:
        """See that every segment is fetched."""
        while self._fill():
            self._next().close()

    def close(self) -> None:
        """Fetch no more."""
        with self._lock:
            self._not_begun.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for coming in self._coming:
            coming.drop()

    def _next(self) -> BinaryIO:
        stream = self._coming[0].result()
        self._ahead -= self._coming.popleft().segment.size
        self._depth = min(self._depth + self._more, self._most)
        return stream

    def _fill(self) -> bool:
        while len(self._coming) < self._depth and (not self._coming or self._ahead < _AHEAD_BYTES):
            segment = next(self._remaining, None)
            if segment is None:
                break
            self._coming.append(coming := _Coming(segment))
            self._ahead += segment.size
            with self._lock:
                self._not_begun.append(coming)
                is_one_more = self._at_work < self._parallel
                self._at_work += is_one_more
            if is_one_more:
                self._pool = self._pool or ThreadPoolExecutor(self._parallel)
                self._pool.submit(self._work)
        return bool(self._coming)

    def _work(self) -> None:
        """Fetch, in a thread of the pool, until nothing is left: to be told of each segment takes much longer."""
        while True:
            with self._lock:
                if not self._not_begun:
                    self._at_work -= 1
                    return
                coming = self._not_begun.popleft()
            coming.fetch(self._opened)

    def _opened(self, segment: SegmentInfo) -> BinaryIO:
        if self._fetch is not None:
            return io.BytesIO(self._fetch(segment))
        if segment.size > _SMALL_BYTES:
            return self._container.open(segment.key)
        return io.BytesIO(self._container.fetch(segment.key)[0])


class _Coming:
    """A segment that is being fetched: a future, at a tenth of its price."""

    __slots__ = ("_error", "_has_come", "_stream", "segment")

    def __init__(self, segment: SegmentInfo) -> None:
        self.segment = segment
        self._stream: BinaryIO | None = None
        self._error: BaseException | None = None
        self._has_come = Lock()  # held until then
        self._has_come.acquire()

    def fetch(self, fetch: Callable[[SegmentInfo], BinaryIO]) -> None:
        """Fetch it, or keep the error."""
        try:
            self._stream = fetch(self.segment)
        except BaseException as error:
            self._error = error
        self._has_come.release()

    def result(self) -> BinaryIO:
        """The segment, or the error, once it has come."""
        with self._has_come:
            pass
        if self._stream is None:
            assert self._error is not None
            raise self._error
        return self._stream

    def drop(self) -> None:
        """Close what has come, if it has."""
        if self._stream is not None:
            self._stream.close()


def fetched(
    container: Container, segments: Sequence[SegmentInfo], fetch: Callable[[SegmentInfo], _T]
) -> Generator[_T, None, None]:
    """What ``fetch`` returns for each of some segments, in order; for small ones, some ahead of the one that is taken.

    Where one request at a time is allowed, and for large ones, it is called in this thread.
    """
    found: dict[str, _T] = {}

    def keep(segment: SegmentInfo) -> bytes:
        found[segment.key] = fetch(segment)
        return b""

    largest = _AHEAD_BYTES if container.parallel > 1 else -1  # that is fetched ahead
    with closing(Ahead(container, (each for each in segments if each.size <= largest), keep)) as ahead:
        for segment in segments:
            if segment.size <= largest:
                ahead.open(segment).close()
                yield found.pop(segment.key)
            else:
                yield fetch(segment)
