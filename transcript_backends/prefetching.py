"""Reading the records of a transcript with several segments fetched at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import BinaryIO

from transcript_backends.container import Container
from transcript_backends.errors import SegmentNotFoundError
from transcript_backends.listing import SegmentInfo
from transcript_backends.reading import Plan, merge, opener
from transcript_backends.records import Record

_AHEAD_BYTES = 8 * 1024 * 1024
_PATIENCE = 100  # times that compactions may move what is being read


class Ahead:
    """Fetches segments in order, several at once, some ahead of the one that is read."""

    def __init__(self, fetch: Callable[[SegmentInfo], bytes], segments: Iterable[SegmentInfo], container: Container) -> None:
        self._fetch, self._remaining, self._container = fetch, iter(segments), container
        self._pool = ThreadPoolExecutor(container.parallel)
        self._coming: deque[tuple[SegmentInfo, Future[bytes]]] = deque()
        self._ahead = 0

    def open(self, segment: SegmentInfo, start: int) -> BinaryIO:
        """A stream of what was fetched, from a byte offset on."""
        self._fill()
        if not self._coming or self._coming[0][0].key != segment.key:
            return opener(self._container)(segment, start)  # out of turn, as beside segments merged by other programs
        stream = io.BytesIO(self._coming[0][1].result())
        stream.seek(start)
        self._coming.popleft()
        self._ahead -= segment.size
        return stream

    def _fill(self) -> None:
        while len(self._coming) < 2 * self._container.parallel and (not self._coming or self._ahead < _AHEAD_BYTES):
            segment = next(self._remaining, None)
            if segment is None:
                break
            self._coming.append((segment, self._pool.submit(self._fetch, segment)))
            self._ahead += segment.size

    def close(self) -> None:
        """Fetch no more; what is under way is waited for."""
        self._pool.shutdown(cancel_futures=True)


def stream_records(
    container: Container,
    plan: Plan,
    first: int,
    last: int | None,
    fetch: Callable[[SegmentInfo], bytes],
    look_again: Callable[[], Plan],
) -> Generator[Record, None, None]:
    """The records of a range of seqs, repeats included, for which every segment in it is fetched.

    A segment that vanishes was merged meanwhile: it goes on in what ``look_again`` gives, from the seq of the last record on.
    """
    for patience in reversed(range(_PATIENCE)):
        chosen = [each for each in plan.segments if each.seq_end >= first and (last is None or each.seq_start <= last)]
        try:
            with (
                closing(Ahead(fetch, chosen, container)) as ahead,
                closing(merge(chosen, plan.indexes, ahead.open, first, plan.segments)) as merged,
            ):
                for record in merged:  # by the time it passes a seq, it has opened all segments that start before it
                    if last is not None and record.seq > last:
                        break
                    if record.seq >= first:
                        yield record
                        first = record.seq
            return
        except SegmentNotFoundError:
            if not patience:
                raise
        plan = look_again()
