"""No record is shown without those its writer wrote before it. Pure.

A listing takes time, and so does one page of it: it may miss a segment that was stored while it ran and show a later one
of the same writer. Such a segment is as young as the listing and has a gap before it. Where a second listing shows the
same gap, it is one: whatever was stored before the first one ended is in the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from transcript_backends.listing import Indexes, SegmentInfo
from transcript_backends.ranges import Ranges, claims_of


def premature(
    segments: Sequence[SegmentInfo],
    indexes: Indexes,
    since: datetime | None,
    known: Sequence[SegmentInfo],
    seen: Mapping[str, int] | None = None,
) -> list[SegmentInfo]:
    """The segments that may have been stored after one that the listing has missed, by seq.

    Args:
        segments: what was listed and is read, by seq.
        indexes: of the compacted ones.
        since: when the listing began, by the server's clock; None where that is not known.
        known: what an earlier listing showed: nothing that was stored before one of them is missing from this one. All that
            it did not show is young, whatever the clock says.
        seen: writer id -> highest seq that the reader has seen: then any segment that holds more may be one, whatever its age.
    """
    seen_before = {each.key for each in known}

    def is_doubted(segment: SegmentInfo) -> bool:
        if seen is not None:
            return segment.seq_end > seen.get(segment.writer_id, -1) and bool(_starts(segment, indexes, seen))
        return since is None or bool(known) or segment.created_at >= since

    young = [each for each in segments if each.key not in seen_before and is_doubted(each)]
    if not young:
        return []
    newest = dict(seen or {})
    for each in known:
        newest[each.writer_id] = max(newest.get(each.writer_id, -1), each.seq_end)
    compacted = [each for each in segments if each.generation is not None]
    plain = Ranges(claims_of((each for each in segments if each.generation is None), indexes))

    def is_held(writer_id: str, seq: int) -> bool:
        """Whether a record is in a segment; the one before the first always is. Fetches only indexes that may name it."""
        return (
            seq <= (seen or {}).get(writer_id, -1)
            or plain.holds(writer_id, seq)
            or any(
                each.writer_id == writer_id or ((index := indexes.get(each.name)) and index.covers(writer_id, seq, seq))
                for each in compacted
                if each.seq_start <= seq <= each.seq_end
            )
        )

    found: list[SegmentInfo] = []
    broken: set[str] = set()
    for segment in young:
        starts = _starts(segment, indexes, seen or {})
        if any(
            seq > newest.get(writer_id, -1) and (writer_id in broken or not is_held(writer_id, seq - 1))
            for writer_id, seq in starts.items()
        ):
            found.append(segment)
            broken.update(starts)
    return found


def _starts(segment: SegmentInfo, indexes: Indexes, seen: Mapping[str, int]) -> dict[str, int]:
    """The first seq of each writer in a segment that was not seen."""
    found: dict[str, int] = {}
    for writer_id, first, last in claims_of([segment], indexes):
        if last > seen.get(writer_id, -1):
            found.setdefault(writer_id, max(first, seen.get(writer_id, -1) + 1))
    return found
