"""Which segments to merge, and what that will cost: pure decisions, on what a listing shows.

Size-tiered: neighbours are merged when there are enough of them and none is so large among them that it would be rewritten
for little. So a record is rewritten about log(n) / log(min_segments) times, and fewer than ``min_segments`` segments of
similar size stay side by side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

from transcript_backends.listing import Listing, SegmentInfo
from transcript_backends.reading import FOREIGN_COMPACTED, overlap
from transcript_backends.store import CompactionPolicy

_PAGE = 1000  # objects a listing gives at once, on most services

_TOGETHER = 20 * _PAGE  # sources that are looked at with one listing, at the least

_SIMILAR = 4  # sizes within this factor are


def next_run(
    segments: Sequence[SegmentInfo], excluded: Collection[str], policy: CompactionPolicy
) -> Sequence[SegmentInfo] | None:
    """The next neighbours to merge into one; None when there are none left.

    Args:
        segments: by seq; all that are read, so that neighbours here are neighbours in the transcript.
        excluded: keys of those that can't be merged; they part their neighbours.
        policy: segments of ``target_bytes`` and more part their neighbours too.
    """

    def usable(segment: SegmentInfo) -> bool:
        return segment.size < policy.target_bytes and segment.key not in excluded

    stretches = [list(group) for is_usable, group in groupby(segments, usable) if is_usable]
    if policy.full:
        return next((run for stretch in stretches for run in _cut(stretch, policy.target_bytes) if len(run) > 1), None)
    even = (stretch for stretch in stretches if _is_even([each.size for each in stretch]))
    smaller = (
        run
        for most in _caps(stretches)
        for stretch in stretches
        for is_small, group in groupby(stretch, lambda each: each.size <= most)
        if is_small and (run := list(group))
    )
    for run in chain(even, smaller):
        if _is_worth_it([each.size for each in run], policy.min_segments) and (part := _first_part(run, policy)):
            return part
    return None


def starting_inside(larger: SegmentInfo, segments: Sequence[SegmentInfo]) -> Iterator[SegmentInfo]:
    """The others, of all segments by seq, that start in the range of one: all that it may hold are among them."""
    first = bisect_left(segments, larger.seq_start, key=itemgetter(1))
    last = bisect_right(segments, larger.seq_end, key=itemgetter(1))
    return (each for each in islice(segments, first, last) if each is not larger)


def must_settle(unsettled: Mapping[str, Sequence[SegmentInfo]], run: Sequence[SegmentInfo]) -> bool:
    """Whether what was merged (key -> sources) has to be settled before the next run is merged."""
    return sum(map(len, unsettled.values())) >= _TOGETHER or any(each.key in unsettled for each in run)


def _is_even(sizes: Sequence[int]) -> bool:
    """Whether most are of similar size as the largest: then all are merged at once, not the small ones first."""
    largest = max(sizes)
    return 2 * sum(each * _SIMILAR > largest for each in sizes) >= len(sizes)


def _is_worth_it(sizes: Sequence[int], min_segments: int) -> bool:
    """Whether enough segments stand side by side, and none is so large among them that it is rewritten for little."""
    if len(sizes) < min_segments:
        return False
    largest = max(sizes)
    if sum(each * min(_SIMILAR, min_segments) > largest for each in sizes) >= min_segments:
        return True
    tiers, smallest = 1, max(min(sizes), 1)
    while smallest * min_segments**tiers <= largest and min_segments > 1:
        tiers += 1
    return len(sizes) >= tiers * min_segments and sum(sizes) >= 2 * largest  # small ones parted by large ones


def _first_part(run: Sequence[SegmentInfo], policy: CompactionPolicy) -> Sequence[SegmentInfo] | None:
    """The first part of a run to merge: one that gets near the target, or what remains where that is enough."""
    parts = list(_cut(run, policy.target_bytes))
    for part in parts:
        sizes = [each.size for each in part]
        is_full = part is not parts[-1] and sum(sizes) >= max(policy.target_bytes / 2, 1.5 * max(sizes))
        if len(part) > 1 and (is_full or _is_worth_it(sizes, policy.min_segments)):
            return part
    return None


def _caps(stretches: Sequence[Sequence[SegmentInfo]]) -> Iterator[int]:
    """Sizes from the smallest segment's to the largest's, doubling: small ones are merged before large ones."""
    sizes = [each.size for stretch in stretches for each in stretch]
    if sizes:
        cap = max(min(sizes), 1)
        while cap < max(sizes):
            yield cap
            cap *= 2
        yield cap


def _cut(run: Sequence[SegmentInfo], target: int) -> Iterator[Sequence[SegmentInfo]]:
    """Parts of about ``target`` bytes each, or as large as may be without passing it by much."""
    part: list[SegmentInfo] = []
    size = 0
    for segment in run:
        if part and size + segment.size > target and (size >= target / 2 or len(part) > 1):
            yield part
            part, size = [], 0
        part.append(segment)
        size += segment.size
    if part:
        yield part


def held_back(
    segments: Sequence[SegmentInfo], policy: CompactionPolicy, now: datetime | None
) -> tuple[set[str], dict[str, str]]:
    """The keys of segments that can't be merged now, and key -> reason of those that somebody should look at.

    Held back are those too young by the server's clock, and those beside what another program merged: its sources, perhaps.
    """
    excluded: set[str] = set()
    left: dict[str, str] = {}
    for segment in segments:
        if policy.min_age > 0 and (now is None or (now - segment.created_at).total_seconds() < policy.min_age):
            excluded.add(segment.key)
        if segment.writer_id == FOREIGN_COMPACTED:
            beside = [each.key for each in segments if each is not segment and overlap(each, segment)]
            if beside:
                left[segment.key] = "another program merged it, and overlapping segments are still there"
            excluded.update(beside)
    return excluded, left


class CompactionEstimate(NamedTuple):
    """What a compaction would do now, by its plan; what crashes have left, and retries, are not counted.

    Attributes:
        segments_before, segments_after: how many there are, and would be.
        bytes_written: of compacted segments.
        gets, puts, lists, deletes: requests, listings in pages of 1,000 objects.
    """

    segments_before: int
    segments_after: int
    bytes_written: int = 0
    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0


def estimate(listing: Listing, policy: CompactionPolicy, now: datetime | None, *, delete_batch: int) -> CompactionEstimate:
    """Play a compaction through on sizes alone."""
    current = list(listing.segments)
    objects = len(current) + len(listing.dead) + len(listing.indexes) + len(listing.markers) + listing.foreign
    total = CompactionEstimate(len(current), len(current), lists=_in_parts(objects, _PAGE))
    if listing.unfinished:
        return total
    nested = [(each, other) for each in listing.compacted for other in starting_inside(each, current)]
    known = {each.name for pair in nested for each in pair if each.generation is not None}
    total = total._replace(gets=len(known))  # these are looked at first, and each is fetched once
    indexes = set(listing.indexes)
    orphans = len(listing.orphans)
    excluded, left = held_back(current, policy, now)
    blocked = excluded | left.keys()
    unsettled: dict[str, Sequence[SegmentInfo]] = {}
    while (run := next_run(current, blocked, policy)) or unsettled:
        if run is None or must_settle(unsettled, run):
            sources = [each for part in unsettled.values() for each in part]
            if orphans:  # the look reads all indexes, to see that those segments were merged further
                total = total._replace(gets=total.gets + len(indexes - known))
                known |= indexes
            total = total._replace(
                lists=total.lists + _in_parts(objects, _PAGE),
                deletes=total.deletes + _in_parts(len(sources), delete_batch),
            )
            objects -= len(sources)
            orphans += sum(each.generation is not None for each in sources)
            unsettled.clear()
            continue
        compacted = {each.name for each in run if each.generation is not None}
        size = sum(each.size for each in run)
        writer_id = f"compacted-{listing.generation}-{total.puts:016x}"
        merged = SegmentInfo(
            f"planned {total.puts}", run[0].seq_start, max(each.seq_end for each in run), writer_id, run[-1].created_at, size
        )
        total = total._replace(
            bytes_written=total.bytes_written + size,
            gets=total.gets + len(run) + len(compacted - known),
            puts=total.puts + 2,
        )
        objects += 2  # while the sources are still there
        known |= compacted
        indexes.add(merged.name)
        unsettled[merged.key] = run
        at = current.index(run[0])
        current[at : at + len(run)] = [merged]
    return total._replace(segments_after=len(current))


def _in_parts(number: int, most: int) -> int:
    """How many requests it takes, at least one."""
    return max(1, -(-number // most))
