"""Fetching segments before they are read, several at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from transcript_backends.container import Container
from transcript_backends.listing import SegmentInfo

_AHEAD_BYTES = 8 * 1024 * 1024
_AHEAD = 8  # segments fetched or waiting for their turn, for each request under way: one slow request holds up no other


class Ahead:
    """Fetches segments in order, some ahead of the one that is read: a few MiB, or one that is larger.

    Args:
        container: where they are.
        segments: in the order in which they will be opened; none is fetched ahead where one request at a time is allowed.
        fetch: gives the body of one; default: by one request.
        gently: begin with two, and fetch two more for each that is read: the reader may stop soon.
    """

    def __init__(
        self,
        container: Container,
        segments: Iterable[SegmentInfo],
        fetch: Callable[[SegmentInfo], bytes] | None = None,
        *,
        gently: bool = False,
    ) -> None:
        self._container, self._fetch = container, fetch or self._get
        self._remaining = iter(segments if container.parallel > 1 or fetch else ())
        self._most = _AHEAD * container.parallel
        self._depth = 2 if gently else self._most
        self._pool: ThreadPoolExecutor | None = None
        self._coming: deque[tuple[SegmentInfo, Future[bytes]]] = deque()
        self._ahead = 0

    def open(self, segment: SegmentInfo, start: int = 0) -> BinaryIO:
        """A segment from an offset on: one that was fetched, or any other."""
        if not self._fill() or self._coming[0][0].key != segment.key:
            return self._container.open(segment.key, start=start)
        stream = io.BytesIO(self._next())
        stream.seek(start)
        return stream

    def finish(self) -> None:
        """See that every segment is fetched."""
        while self._fill():
            self._next()

    def close(self) -> None:
        """Fetch no more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _next(self) -> bytes:
        segment, body = self._coming[0]
        content = body.result()
        self._coming.popleft()
        self._ahead -= segment.size
        self._depth = min(self._depth + 2, self._most)
        return content

    def _fill(self) -> bool:
        while len(self._coming) < self._depth and (not self._coming or self._ahead < _AHEAD_BYTES):
            segment = next(self._remaining, None)
            if segment is None:
                break
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._container.parallel)
            self._coming.append((segment, self._pool.submit(self._fetch, segment)))
            self._ahead += segment.size
        return bool(self._coming)

    def _get(self, segment: SegmentInfo) -> bytes:
        with self._container.open(segment.key) as stream:
            return stream.read()
