"""Which segments to merge: pure decisions, on what a listing shows.

Size-tiered: neighbours are merged when there are enough of them and none is so large among them that it would be rewritten
for little. So a record is rewritten about log(n) / log(min_segments) times, and fewer than ``min_segments`` segments of
similar size stay side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

from transcript_backends.listing import SegmentInfo
from transcript_backends.store import CompactionPolicy


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
    growth = max(1.5, policy.min_segments / 4)
    for most in _caps(stretches):
        for stretch in stretches:
            for is_small, group in groupby(stretch, lambda each: each.size <= most):
                run = list(group)
                total, largest = sum(each.size for each in run), max(each.size for each in run)
                if is_small and len(run) >= policy.min_segments and total >= growth * largest:
                    return next((part for part in _cut(run, policy.target_bytes) if len(part) > 1), None)
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
