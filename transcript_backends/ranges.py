"""Which records segments hold, by their names, sizes and indexes alone, and cutting records into plain segments. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from transcript_backends.keys import SegmentName
from transcript_backends.listing import Indexes, SegmentInfo
from transcript_backends.records import Record

Claim = tuple[str, int, int]  # a writer, and the first and the last of a range of its seqs


Ends = Mapping[SegmentInfo, int]
"""The last seq of each segment that was read and holds fewer lines than its name says."""

NO_ENDS: Ends = MappingProxyType({})


def last_seq(segment: SegmentInfo, ends: Ends = NO_ENDS) -> int:
    """The highest seq that a line of a segment without an index can have: one line takes two bytes, or one at the end."""
    if segment in ends:
        return ends[segment]
    return min(segment.seq_end, segment.seq_start + max(segment.size - 1, 0) // 2)


def claims_of(segments: Iterable[SegmentInfo], indexes: Indexes, ends: Ends = NO_ENDS) -> Iterator[Claim]:
    """What segments hold, by their names, sizes and indexes, and by what is known of those that were read."""
    for segment in segments:
        index = indexes.find(segment.name) if segment.generation is not None else None
        if index is None:
            last = last_seq(segment, ends)
            if last >= segment.seq_start:
                yield segment.writer_id, segment.seq_start, last
        else:
            yield from (run[:3] for run in index.runs)


class Ranges:
    """Ranges of seqs by writer, joined where they meet.

    Attributes:
        repeated: what was in more than one of the ranges given.
    """

    def __init__(self, claims: Iterable[Claim]) -> None:
        by_writer: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for writer_id, first, last in claims:
            by_writer[writer_id].append((first, last))
        self._joined: dict[str, list[list[int]]] = {}
        self.repeated: list[Claim] = []
        for writer_id, ranges in by_writer.items():
            ranges.sort()
            joined = self._joined[writer_id] = [list(ranges[0])]
            for first, last in ranges[1:]:
                end = joined[-1][1]
                if first <= end:
                    self.repeated.append((writer_id, first, min(last, end)))
                if first <= end + 1:
                    joined[-1][1] = max(end, last)
                else:
                    joined.append([first, last])

    def __len__(self) -> int:
        """How many ranges there are, apart from one another."""
        return sum(map(len, self._joined.values()))

    def holds(self, writer_id: str, seq: int) -> bool:
        """Whether a seq is in one."""
        return not self.gaps(writer_id, seq, seq)

    def gaps(self, writer_id: str, first: int, last: int) -> list[tuple[int, int]]:
        """What of a range is in none."""
        joined = self._joined.get(writer_id, [])
        found: list[tuple[int, int]] = []
        position = max(bisect_right(joined, first, key=lambda each: each[0]) - 1, 0)
        while first <= last and position < len(joined) and joined[position][0] <= last:
            start, end = joined[position]
            if first < start:
                found.append((first, start - 1))
            first = max(first, end + 1)
            position += 1
        if first <= last:
            found.append((first, last))
        return found


class _Piece:
    """The beginning of a segment."""

    def __init__(self, seq: int) -> None:
        self._start = seq
        self._lines: list[bytes] = []
        self.size = 0

    @property
    def next_seq(self) -> int:
        return self._start + len(self._lines)

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self.size += len(line) + 1

    def finish(self, writer_id: str) -> tuple[SegmentName, bytes]:
        return SegmentName(self._start, self.next_seq - 1, writer_id), b"\n".join((*self._lines, b""))


def cut(records: Iterable[Record], most_bytes: int) -> Iterator[tuple[SegmentName, bytes]]:
    """Records in order as plain segments: consecutive seqs of one writer each; the same records give the same segments.

    ``most_bytes`` are kept in memory, a longer line by itself; so a segment is as large where one writer is at work, and
    smaller where several take turns.
    """
    pieces: dict[str, _Piece] = {}
    total = 0
    for seq, writer_id, line in records:
        if writer_id in pieces and pieces[writer_id].next_seq != seq:
            total -= pieces[writer_id].size
            yield pieces.pop(writer_id).finish(writer_id)
        while pieces and total + len(line) >= most_bytes:
            largest = max(pieces, key=lambda each: pieces[each].size)
            total -= pieces[largest].size
            yield pieces.pop(largest).finish(largest)
        pieces.setdefault(writer_id, _Piece(seq)).add(line)
        total += len(line) + 1
    for writer_id, piece in pieces.items():
        yield piece.finish(writer_id)
