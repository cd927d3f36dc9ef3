"""No record is shown without those its writer wrote before it. Pure.

A listing takes time, and so does one page of it: it may miss a segment that was stored while it ran and show a later one
of the same writer. Such a segment is as young as the listing and has a gap before it. Where a second listing shows the
same gap, it is one: whatever was stored before the first one ended is in the second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import itemgetter

from transcript_backends.listing import Indexes, SegmentInfo


class Coverage:
    """The identities of the records in segments.

    Args:
        segments: any.
        indexes: of the compacted ones; one without is taken for a writer of its own.
    """

    def __init__(self, segments: Iterable[SegmentInfo], indexes: Indexes) -> None:
        found: dict[str, list[tuple[int, int]]] = {}
        for segment in segments:
            index = indexes.find(segment.name) if segment.name.generation is not None else None
            for writer_id, first, last in (run[:3] for run in index.runs) if index else [segment.name[2:] + segment.name[:2]]:
                found.setdefault(writer_id, []).append((first, last))
        self._spans = {writer_id: _joined(spans) for writer_id, spans in found.items()}

    def holds(self, writer_id: str, seq: int) -> bool:
        """Whether a record is among them."""
        spans = self._spans.get(writer_id, [])
        position = bisect_right(spans, seq, key=itemgetter(0)) - 1
        return position >= 0 and seq <= spans[position][1]


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in spans that are in order and apart."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def premature(
    segments: Sequence[SegmentInfo], indexes: Indexes, since: datetime | None, known: Sequence[SegmentInfo]
) -> list[SegmentInfo]:
    """The segments that may have been stored after one that the listing has missed, by seq.

    Args:
        segments: what was listed and is read, by seq.
        indexes: of the compacted ones.
        since: when the listing began, by the server's clock; None where that is not known.
        known: what an earlier listing showed: nothing that was stored before one of them is missing from this one.
    """
    seen_before = {each.key for each in known}
    young = [each for each in segments if (since is None or each.created_at >= since) and each.key not in seen_before]
    if not young:
        return []
    newest: dict[str, int] = {}
    for each in known:
        newest[each.writer_id] = max(newest.get(each.writer_id, -1), each.seq_end)
    found: list[SegmentInfo] = []
    broken: set[str] = set()
    for segment in young:
        starts = _starts(segment, indexes)
        if any(
            seq > newest.get(writer_id, -1) and (writer_id in broken or not _hold(segments, indexes, writer_id, seq - 1))
            for writer_id, seq in starts.items()
        ):
            found.append(segment)
            broken.update(starts)
    return found


def _hold(segments: Sequence[SegmentInfo], indexes: Indexes, writer_id: str, seq: int) -> bool:
    """Whether segments hold a record; the one before the first they always do. Fetches only indexes that may name it."""
    for segment in reversed(segments):
        if segment.seq_start <= seq <= segment.seq_end:
            if segment.writer_id == writer_id:
                return True
            index = indexes.get(segment.name) if segment.name.generation is not None else None
            if index is not None and index.covers(writer_id, seq, seq):
                return True
    return seq < 0


def _starts(segment: SegmentInfo, indexes: Indexes) -> dict[str, int]:
    """The first seq of each writer in a segment."""
    index = indexes.get(segment.name) if segment.name.generation is not None else None
    if index is None:
        return {segment.writer_id: segment.seq_start}
    return {run.writer_id: run.seq_start for run in reversed(index.runs)}
