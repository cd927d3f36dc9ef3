"""Reading records in the order of the transcript: (seq, writer id), whatever the segments they stand in."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice, takewhile
from typing import NamedTuple

from transcript_backends.container import Container
from transcript_backends.listing import SegmentInfo
from transcript_backends.records import Record

_log = logging.getLogger(__name__)


def read_records(
    container: Container,
    segments: Sequence[SegmentInfo],
    *,
    start_seq: int = 0,
    end_seq: int | None = None,
    limit: int | None = None,
) -> Generator[Record, None, None]:
    """The records of some segments, merged by (seq, writer id), equal lines of one identity once.

    A segment is opened when its range is reached and closed when it is done, or when the caller closes the generator;
    where segments don't overlap, one is open at a time.
    """
    with closing(_merge(container, _between(segments, start_seq, end_seq))) as merged:
        wanted = takewhile(lambda each: end_seq is None or each.seq <= end_seq, merged)
        yield from islice(_distinct(each for each in wanted if each.seq >= start_seq), limit)


def _between(segments: Sequence[SegmentInfo], start_seq: int, end_seq: int | None) -> list[SegmentInfo]:
    return [each for each in segments if each.seq_end >= start_seq and (end_seq is None or each.seq_start <= end_seq)]


class _Source(NamedTuple):
    """The next record of an open segment; sorts by seq, writer, then the segment's place."""

    seq: int
    writer_id: str
    place: int
    line: bytes
    rest: Generator[tuple[int, bytes], None, None]


def _merge(container: Container, segments: Sequence[SegmentInfo]) -> Generator[Record, None, None]:
    """Merge segments sorted by seq_start."""
    heap: list[_Source] = []
    waiting = 0
    try:
        while heap or waiting < len(segments):
            while waiting < len(segments) and (not heap or segments[waiting].seq_start <= heap[0].seq):
                segment = segments[waiting]
                lines = _numbered(container, segment)
                for seq, line in lines:
                    heapq.heappush(heap, _Source(seq, segment.writer_id, waiting, line, lines))
                    break
                waiting += 1
            if not heap:
                continue
            source = heap[0]
            yield Record(source.seq, source.writer_id, source.line)
            for seq, line in source.rest:
                heapq.heapreplace(heap, source._replace(seq=seq, line=line))
                break
            else:
                heapq.heappop(heap)
    finally:
        for source in heap:
            source.rest.close()


def _numbered(container: Container, segment: SegmentInfo) -> Generator[tuple[int, bytes], None, None]:
    """The lines of a segment with their seqs; open until it is exhausted or closed.

    Reading is lenient: other programs write segments too.

    Blank lines are no records; surplus lines take the last seq (section 4 of the design); a last line without its newline
    is passed on, and reported where it is no JSON.
    """
    seq = segment.seq_start
    with container.open(segment.key) as stream:
        for raw in stream:  # splits on LF only
            line = raw.removesuffix(b"\n").rstrip(b"\r")
            if not line.strip():
                continue
            if not raw.endswith(b"\n"):
                _report_if_torn(segment, seq, line)
            yield seq, line
            seq = min(seq + 1, segment.seq_end)


def _report_if_torn(segment: SegmentInfo, seq: int, line: bytes) -> None:
    try:
        Record(seq, segment.writer_id, line).json()
    except Exception as error:
        _log.warning("the last line of %s was cut short: %s", segment.key, error)


def _distinct(records: Iterable[Record]) -> Iterator[Record]:
    """Drop equal lines of one identity; two different lines of one identity both stay."""
    identity: tuple[int, str] | None = None
    seen: set[bytes] = set()
    for record in records:
        if record[:2] != identity:
            identity, seen = record[:2], {record.line}
        elif record.line in seen:
            continue
        else:
            seen.add(record.line)
        yield record
