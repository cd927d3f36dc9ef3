"""Fetching segments before they are read, several at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import BinaryIO, TypeVar

from transcript_backends.container import Container
from transcript_backends.listing import SegmentInfo
from transcript_backends.workers import Coming, Crew, Workers

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
        parallel: how many requests may be under way; None: as many as the container has in one operation. 1: no thread is
            used, and a segment is fetched when it is opened.
        crew: of the reading.
    """

    def __init__(
        self,
        container: Container,
        segments: Iterable[SegmentInfo],
        fetch: Callable[[SegmentInfo], bytes] | None = None,
        *,
        gently: bool = False,
        parallel: int | None = None,
        crew: Crew | None = None,
    ) -> None:
        parallel = parallel or container.parallel
        self._container, self._fetch = container, fetch
        self._remaining = iter(segments if parallel > 1 or fetch else ())
        self._most = _AHEAD * parallel
        self._more = max(1, parallel // 2)
        self._depth = self._more if gently else self._most
        self._coming: deque[Coming[SegmentInfo, BinaryIO]] = deque()
        self._ahead = 0  # bytes
        self._is_inline = parallel == 1
        self._workers = Workers(crew or Crew(), parallel)

    def begin(self) -> None:
        """Do not wait for the first one to be opened."""
        self._fill()

    def open(self, segment: SegmentInfo, start: int = 0) -> BinaryIO:
        """A segment from an offset on: one that was fetched, or any other."""
        if not self._fill() or self._coming[0].of.key != segment.key:
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
        """Fetch no more. Takes no lock and waits for nothing: what is in flight is dropped when it comes."""
        self._workers.stop()
        while self._coming:
            self._coming.pop().drop()

    def _next(self) -> BinaryIO:
        if self._is_inline:
            self._coming[0].fetch()
        stream = self._coming[0].result()
        self._ahead -= self._coming.popleft().of.size
        self._depth = min(self._depth + self._more, self._most)
        return stream

    def _fill(self) -> bool:
        while len(self._coming) < self._depth and (not self._coming or self._ahead < _AHEAD_BYTES):
            segment = next(self._remaining, None)
            if segment is None:
                break
            self._coming.append(coming := Coming(self._opened, segment))
            self._ahead += segment.size
            if not self._is_inline:
                self._workers.begin(coming.fetch)
        return bool(self._coming)

    def _opened(self, segment: SegmentInfo) -> BinaryIO:
        if self._fetch is not None:
            return io.BytesIO(self._fetch(segment))
        if segment.size > _SMALL_BYTES:
            return self._container.open(segment.key)
        return io.BytesIO(self._container.fetch(segment.key)[0])


def fetched(
    container: Container, segments: Sequence[SegmentInfo], fetch: Callable[[SegmentInfo], _T], crew: Crew
) -> Generator[_T, None, None]:
    """What ``fetch`` returns for each of some segments, in order; for small ones, some ahead of the one that is taken.

    Where one request at a time is allowed, and for large ones, it is called in this thread.
    """
    found: dict[str, _T] = {}

    def keep(segment: SegmentInfo) -> bytes:
        found[segment.key] = fetch(segment)
        return b""

    largest = _AHEAD_BYTES if container.parallel > 1 else -1  # that is fetched ahead
    with closing(Ahead(container, (each for each in segments if each.size <= largest), keep, crew=crew)) as ahead:
        for segment in segments:
            if segment.size <= largest:
                ahead.open(segment).close()
                yield found.pop(segment.key)
            else:
                yield fetch(segment)
