"""Reading records in the order of the transcript: (seq, writer id), whatever the segments they stand in."""

from __future__ import annotations

import hashlib
import heapq
import io
import json
import logging
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, chain, islice, product, takewhile
from typing import BinaryIO, NamedTuple, cast

from transcript_backends.container import Container
from transcript_backends.errors import CorruptSegmentError, SegmentNotFoundError, StoreUnavailableError
from transcript_backends.hashing import sha256
from transcript_backends.index import SegmentIndex
from transcript_backends.keys import MAX_SEQ, SegmentName, TranscriptKeys
from transcript_backends.listing import Indexes, Listing, SegmentInfo, gaps, list_once, look_into_gaps, stable_listing
from transcript_backends.ordering import premature
from transcript_backends.prefetching import Ahead
from transcript_backends.ranges import NO_ENDS, Ends, Ranges, claims_of, last_seq
from transcript_backends.records import Record
from transcript_backends.workers import Crew

_log = logging.getLogger(__name__)

_BUSY = 10  # listings after which what shows too early is left out, even before what another writer has stored since
_PATIENCE = 100  # segments that may vanish in one reading before it is taken for a fault
_CHOICES = 256  # of different lines, that are tried to find those of a segment
FOREIGN_COMPACTED = "compacted"  # the writer id of segments merged by other implementations, which write no index

Open = Callable[[SegmentInfo, int], BinaryIO]
"""Opens a segment from a byte offset on."""


def opener(container: Container) -> Open:
    """Opens the segments of a container."""
    return lambda segment, start: container.open(segment.key, start=start)


class Plan(NamedTuple):
    """What to read.

    Attributes:
        segments: by seq.
        indexes: of the compacted ones.
        generation: of the transcript.
        deleting: whether the delete that began this generation is unfinished: what it is to remove may still be there.
    """

    segments: Sequence[SegmentInfo]
    indexes: Indexes
    generation: int = 0
    deleting: bool = False

    def continues(self, generation: int, *, deleting: bool) -> bool:
        """Whether no delete began between an earlier listing, of which these are known, and this one.

        A purge that ends takes its generation back.
        """
        if self.generation == generation:
            return deleting or not self.deleting
        return deleting and self.generation < generation


def look(
    container: Container, names: TranscriptKeys, seen_in: Callable[[Listing], Mapping[str, int] | None] = lambda _: None
) -> Plan:
    """List a transcript, and leave out what is merged, and what shows too early (`ordering`).

    A missing index is looked for in a second listing: a delete removes indexes and segments in any order, and that listing
    shows its marker.

    Args:
        container, names: the transcript.
        seen_in: returns for a listing what a follower has seen: what is new to it is doubted whatever its age. None: only
            what is as young as the listing, by the server's clock.
    """
    missing: set[SegmentName] = set()
    known: list[SegmentInfo] = []
    for attempt in range(_PATIENCE):
        began = container.clock.monotonic()
        indexes = Indexes(container, names)
        listing = stable_listing(container, names, indexes, doubted=False)
        indexes.expect(listing)
        since = container.time_before(began)
        before, missing = missing, {each.name for each in listing.compacted if each.name not in listing.indexes}
        try:
            segments = readable(listing, indexes)
            early = premature(segments, indexes, since, known, seen_in(listing))
        except SegmentNotFoundError:
            continue
        newest = max((each.seq_end for each in known), default=-1) if attempt < _BUSY else -1
        has_later = bool(known and early and all(each.generation is None and each.seq_start > newest for each in early))
        if has_later:
            left_out = {each.key for each in early}  # they came after we began: nobody misses them
            segments = [each for each in segments if each.key not in left_out]
            early = []
        if known:  # two listings show the same gaps
            same = gaps(known).keys() & gaps(listing.segments).keys()
            container.gaps.keep(names.prefix, same.union(container.gaps.get(names.prefix) or ()))
        known = listing.segments
        if missing <= before and not early:
            if not has_later:
                look_into_gaps(container, names, listing, since)
                if listing.segments is not known:
                    segments = readable(listing, indexes)
            return Plan(segments, indexes, listing.generation, listing.deleting)
    raise StoreUnavailableError(f"{names.prefix!r} changes faster than it can be listed; try again")


def readable(listing: Listing, indexes: Indexes) -> list[SegmentInfo]:
    """The segments of a listing that are needed to read all of its records."""
    superseded = indexes.superseded(listing)
    return [each for each in listing.segments if each.key not in superseded]


def read_records(
    container: Container,
    names: TranscriptKeys,
    plan: Plan,
    *,
    start_seq: int = 0,
    end_seq: int | None = None,
    limit: int | None = None,
    ends: dict[SegmentInfo, int] | None = None,
    crew: Crew | None = None,
) -> Generator[Record, None, None]:
    """The records of a transcript, merged by (seq, writer id), equal lines of one identity once.

    A segment is opened when its range is reached and closed when it is done, or when the caller closes the generator;
    where segments don't overlap, one is open at a time. A segment that vanishes is one that was merged meanwhile: the
    transcript is listed again, and reading goes on after the last record given. Where the transcript was deleted meanwhile,
    reading ends: what is there then belongs to another generation.

    Args:
        container, names, plan: of the transcript.
        start_seq, end_seq: inclusive bounds.
        limit: how many at most.
        ends: where segments are known, and noted, that hold fewer lines than their names say (`ranges.Ends`).
        crew: of the reading that this one is a part of.
    """
    with Crew(crew) as own, closing(_resuming(container, names, plan, start_seq, end_seq, limit, ends, own)) as records:
        yield from islice(records, limit)


def read_unseen(
    container: Container,
    names: TranscriptKeys,
    plan: Plan,
    seen: Mapping[str, int],
    withheld: Mapping[str, tuple[int, int]],
    ends: dict[SegmentInfo, int] | None = None,
    crew: Crew | None = None,
) -> Generator[Record, None, None]:
    """The records of a plan that were not seen, in order; what is before the first of them is not read.

    Args:
        container, names: the transcript.
        plan: what there is.
        seen: writer id -> highest seq seen.
        withheld: writer id -> first and last seq of what was not seen all the same.
        ends, crew: as for `read_records`.
    """
    chosen: list[SegmentInfo] = []
    start = MAX_SEQ
    for segment in plan.segments:
        for writer_id, first, last in claims_of([segment], plan.indexes, ends or NO_ENDS):
            begin = max(first, seen.get(writer_id, -1) + 1)
            if writer_id in withheld and first <= withheld[writer_id][1] and last >= withheld[writer_id][0]:
                begin = max(first, withheld[writer_id][0])
            if begin <= last:
                start = min(start, begin)
                if not chosen or chosen[-1] is not segment:
                    chosen.append(segment)
    plan, nothing = plan._replace(segments=chosen), (0, -1)
    with closing(read_records(container, names, plan, start_seq=start, ends=ends, crew=crew)) as records:
        for record in records:
            first, last = withheld.get(record.writer_id, nothing)
            if record.seq > seen.get(record.writer_id, -1) or first <= record.seq <= last:
                yield record


def lines_at(container: Container, plan: Plan, writer_id: str, seq: int) -> list[bytes]:
    """What a plan holds under one identity.

    Raises:
        SegmentNotFoundError: a segment has vanished since.
    """
    chosen = [
        each
        for each in plan.segments
        if each.seq_start <= seq <= each.seq_end
        and any(claim[0] == writer_id and claim[1] <= seq <= claim[2] for claim in claims_of([each], plan.indexes))
    ]
    with closing(merge(chosen, plan.indexes, opener(container), seq, plan.segments, seq)) as records:
        return [each.line for each in records if each[:2] == (seq, writer_id)]


_WINDOW_RECORDS = 1000
_WINDOW_BYTES = 4 * 1024 * 1024


def read_backwards(
    container: Container,
    names: TranscriptKeys,
    plan: Plan,
    *,
    start_seq: int = 0,
    end_seq: int | None = None,
    limit: int | None = None,
    ends: dict[SegmentInfo, int] | None = None,
) -> Generator[Record, None, None]:
    """The same records as `read_records` gives without a limit, in reverse order; what is read depends on what is taken.

    They are read in windows of seqs, whose sizes the names of the segments and the indexes tell. A name may say too much: where
    a window holds less than was expected, the next one is larger, and seqs that no segment reaches are skipped. So the number
    of requests depends on the lines that exist. ``ends``: as for `read_records`.
    """
    ends = {} if ends is None else ends
    extent = _Extent(plan, ends)
    last = MAX_SEQ if end_seq is None else end_seq
    taken, factor = 0, 1
    while limit is None or taken < limit:
        last = min(last, extent.highest_up_to(last))
        if last < start_seq:
            return
        left = None if limit is None else limit - taken
        wanted = factor * min(_WINDOW_RECORDS, _WINDOW_RECORDS if left is None else left)
        first = extent.window_start(start_seq, last, wanted)
        expected = extent.estimate(first, last)[0]
        window = deque(read_records(container, names, plan, start_seq=first, end_seq=last, ends=ends), left)
        yield from reversed(window)
        taken += len(window)
        factor = 2 * factor if 2 * len(window) < expected else 1
        last = first - 1
        extent.learn()


class _Extent:
    """Where the records of a plan are, by names, sizes and indexes, and by what reading has shown.

    Args:
        plan: its segments are sorted by seq_start.
        ends: of segments that were read; may grow (`learn`).
    """

    def __init__(self, plan: Plan, ends: Ends) -> None:
        self._plan, self._ends = plan, ends
        self._known = -1
        self.learn()

    def learn(self) -> None:
        """Take in what was read since."""
        if len(self._ends) > self._known:
            self._known = len(self._ends)
            self._last = list(map(self._last_of, self._plan.segments))
            self._reach = list(accumulate(self._last, max))  # of each segment and all before it

    def highest_up_to(self, last: int) -> int:
        """The highest seq that any segment which starts by ``last`` may hold; -1 where there is none."""
        near = self._starting_by(last)
        return self._reach[near - 1] if near else -1

    def window_start(self, lowest: int, last: int, wanted: int) -> int:
        """The highest seq from which on there are about so many records up to ``last``, or as many as a window may hold."""

        def holds_enough(first: int) -> bool:
            records, size = self.estimate(first, last)
            return records >= wanted or size >= _WINDOW_BYTES

        width = 1
        while (first := last - width + 1) > lowest and not holds_enough(first):
            width *= 2
        # Between half of the width, which is too little, and the width, which is enough.
        low, high = max(first, lowest), last - width // 2 + (width == 1)
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if holds_enough(middle) else (low, middle)
        return low

    def estimate(self, first: int, last: int) -> tuple[int, float]:
        """About how many records there are from one seq to another, and of how many bytes."""
        records, size = 0, 0.0
        for position in range(self._starting_by(last) - 1, -1, -1):
            if self._reach[position] < first:
                break
            segment, end = self._plan.segments[position], self._last[position]
            start = segment.seq_start
            if end >= first and end >= start:
                index = self._plan.indexes.find(segment.name) if segment.generation is not None else None
                if index:
                    total, inside = index.records, index.count(first, last)
                else:
                    total, inside = end - start + 1, min(end, last) - max(start, first) + 1
                records += inside
                size += segment.size * inside / total
        return records, size

    def _starting_by(self, last: int) -> int:
        return bisect_right(self._plan.segments, last, key=lambda each: each.seq_start)

    def _last_of(self, segment: SegmentInfo) -> int:
        if segment.seq_end - segment.seq_start < segment.size // 2 and not self._ends:  # as nearly always
            return segment.seq_end
        if segment.generation is not None:  # its index may name seqs far apart
            return self._ends.get(segment, segment.seq_end)
        return last_seq(segment, self._ends)


def _resuming(
    container: Container,
    names: TranscriptKeys,
    plan: Plan,
    start_seq: int,
    end_seq: int | None,
    limit: int | None,
    ends: dict[SegmentInfo, int] | None,
    crew: Crew,
) -> Generator[Record, None, None]:
    given = _Given()
    first_seen: Ranges | None = None
    for patience in reversed(range(_PATIENCE)):
        chosen = [
            each for each in plan.segments if each.seq_end >= start_seq and (end_seq is None or each.seq_start <= end_seq)
        ]
        if ends:
            chosen = [each for each in chosen if ends.get(each, each.seq_end) >= start_seq]
        with (
            closing(_Opener(container, chosen, plan.indexes, start_seq, end_seq, limit, crew)) as opened,
            closing(merge(chosen, plan.indexes, opened.open, start_seq, plan.segments, end_seq, ends)) as merged,
        ):
            try:
                wanted: Iterable[Record] = takewhile(lambda each: end_seq is None or each.seq <= end_seq, merged)
                if first_seen is not None:  # what was written since may be preceded by what should have been given before
                    wanted = (
                        each
                        for each in wanted
                        if first_seen.holds(*each[1::-1]) or each.writer_id.startswith(FOREIGN_COMPACTED)
                    )
                yield from filter(given.is_new, (each for each in wanted if each.seq >= start_seq))
                return
            except SegmentNotFoundError:
                if not patience:
                    raise
        start_seq = max(start_seq, given.seq)
        first_seen = first_seen or Ranges(claims_of(plan.segments, plan.indexes))
        again = look(container, names)
        if not again.continues(plan.generation, deleting=plan.deleting):
            return
        plan = again


class _Opener:
    """Opens the segments of a reading before they are needed, and compacted ones where they are needed and no further."""

    def __init__(
        self,
        container: Container,
        segments: Sequence[SegmentInfo],
        indexes: Indexes,
        start_seq: int,
        end_seq: int | None,
        limit: int | None,
        crew: Crew,
    ) -> None:
        whole: list[SegmentInfo] = []
        merged: list[SegmentName] = []
        expected = 0
        for segment in segments:
            if limit is not None and expected >= limit:
                break
            expected += last_seq(segment) - max(segment.seq_start, start_seq) + 1
            if segment.generation is not None:
                merged.append(segment.name)
                if segment.seq_start < start_seq or (end_seq is not None and segment.seq_end > end_seq):
                    continue
            whole.append(segment)
        self._ahead = Ahead(container, whole if len(whole) > 1 or merged else (), gently=True, crew=crew)
        try:
            self._ahead.begin()
            indexes.fetch(merged)
        except BaseException:
            self._ahead.close()
            raise
        self._container, self._indexes, self._end_seq = container, indexes, end_seq

    def open(self, segment: SegmentInfo, start: int) -> BinaryIO:
        index = self._indexes.get(segment.name)
        last = self._end_seq
        if index is None or (not start and (last is None or segment.seq_end <= last)):
            return self._ahead.open(segment, start)
        end = index.place_after(last) if last is not None and segment.seq_end > last else None
        return self._container.open(segment.key, start=start, end=end)

    def close(self) -> None:
        self._ahead.close()


class _Given:
    """What a reader has been given: drops repeats, and what comes before it again after a new listing."""

    def __init__(self) -> None:
        self._identity: tuple[int, str] = (-1, "")
        self._lines: set[bytes] = set()

    @property
    def seq(self) -> int:
        return self._identity[0]

    def is_new(self, record: Record) -> bool:
        """Whether to give this record; if so, it counts as given. Two different lines of one identity are both new."""
        identity = record[:2]
        if identity < self._identity or (identity == self._identity and record.line in self._lines):
            return False
        if identity != self._identity:
            self._identity, self._lines = identity, set()
        self._lines.add(record.line)
        return True


def distinct(records: Iterable[Record]) -> Iterator[Record]:
    """Drop equal lines of one identity from records in order."""
    return filter(_Given().is_new, records)


# --- merging ----------------------------------------------------------------------------------------------------------


class _Next(NamedTuple):
    """The next record of an open segment; sorts by seq, writer, then the segment's place."""

    seq: int
    writer_id: str
    place: int
    line: bytes
    rest: Generator[Record, None, None]


def merge(
    segments: Sequence[SegmentInfo],
    indexes: Indexes,
    open_segment: Open,
    start_seq: int = 0,
    beside: Sequence[SegmentInfo] | None = None,
    end_seq: int | None = None,
    ends: dict[SegmentInfo, int] | None = None,
) -> Generator[Record, None, None]:
    """All records of segments sorted by seq_start, in order, repeats included; from about ``start_seq`` to ``end_seq``.

    ``beside``: all segments of the transcript where ``segments`` are but some, so that the choice changes no record.
    ``ends``: where to note segments that hold fewer lines than their names say.
    """
    heap: list[_Next] = []
    waiting = 0
    repeated = _repeated_ids(segments, segments if beside is None else beside, open_segment)
    try:
        while heap or waiting < len(segments):
            while waiting < len(segments) and (not heap or segments[waiting].seq_start <= heap[0].seq):
                segment = segments[waiting]
                records = _records_of(segment, indexes, open_segment, start_seq, end_seq, ends)
                if repeated.get(segment.key):
                    records = _without(records, repeated[segment.key])
                for record in records:
                    heapq.heappush(heap, _Next(record.seq, record.writer_id, waiting, record.line, records))
                    break
                waiting += 1
            if not heap:
                continue
            first = heap[0]
            yield Record(first.seq, first.writer_id, first.line)
            if len(heap) == 1:  # nothing to merge with before the next segment starts
                until = segments[waiting].seq_start if waiting < len(segments) else math.inf
                for record in first.rest:
                    if record.seq >= until:
                        heap[0] = first._replace(seq=record.seq, writer_id=record.writer_id, line=record.line)
                        break
                    yield record
                else:
                    heap.pop()
                continue
            for record in first.rest:
                heapq.heapreplace(heap, first._replace(seq=record.seq, writer_id=record.writer_id, line=record.line))
                break
            else:
                heapq.heappop(heap)
    finally:
        for each in heap:
            each.rest.close()


def _records_of(
    segment: SegmentInfo,
    indexes: Indexes,
    open_segment: Open,
    start_seq: int,
    end_seq: int | None,
    ends: dict[SegmentInfo, int] | None,
) -> Generator[Record, None, None]:
    index = indexes.get(segment.name)
    if index is not None:
        return _indexed(segment, index, open_segment, start_seq, end_seq)
    if segment.generation is not None:
        _log.warning("the index of %s is missing; its records are read as the compacted segment's own", segment.key)
    return plain_records(segment, open_segment(segment, 0), ends)


def _indexed(
    segment: SegmentInfo, index: SegmentIndex, open_segment: Open, start_seq: int, end_seq: int | None
) -> Generator[Record, None, None]:
    """The records of a compacted segment, under their writers."""
    if index.size != segment.size:
        raise CorruptSegmentError(f"{segment.key!r} is {segment.size} bytes long, its index says {index.size}")
    offset, position, skipped = index.place_before(start_seq)
    with open_segment(segment, offset) as stream:
        for run in index.runs[position:]:
            for seq in range(run.seq_start + skipped, run.seq_end + 1):
                if end_seq is not None and seq > end_seq:
                    return
                line = stream.readline()
                if not line.endswith(b"\n"):
                    raise CorruptSegmentError(
                        f"{segment.key!r} ends before record {seq} of {run.writer_id}, which its index names"
                    )
                yield Record(seq, run.writer_id, line[:-1])
            skipped = 0
        if stream.read(1):
            raise CorruptSegmentError(f"{segment.key!r} holds more lines than the {index.records} that its index names")


def plain_records(
    segment: SegmentInfo, stream: BinaryIO, ends: dict[SegmentInfo, int] | None = None
) -> Generator[Record, None, None]:
    """The lines of a segment as records; closes the stream when it is exhausted or closed.

    Reading is lenient, since other programs write segments too: blank lines are no records, surplus lines take the last
    seq, and a last line without its newline is passed on, and reported where it is no JSON. Where there are fewer lines than
    the name says, the seq of the last one is noted in ``ends``; those that NULs have swallowed (a file system wrote them in
    place of data that it lost) are a gap, and the lines after it have the seqs they were written with.

    Raises:
        CorruptSegmentError: NULs have swallowed lines at several places, so that the lines in between have no certain seq.
    """
    with stream:
        seq = yield from _numbered(segment, stream, segment.seq_start - 1)
    if ends is not None and seq < segment.seq_end:
        ends[segment] = seq


def _numbered(segment: SegmentInfo, lines: Iterable[bytes], seq: int, *, doubted: bool = True) -> Generator[Record, None, int]:
    """The lines as records after ``seq``; returns the seq of the last. ``doubted``: whether NULs may have swallowed some."""
    for raw in lines:  # split on LF only
        line = raw.removesuffix(b"\n").rstrip(b"\r")
        if not line.strip():
            continue
        seq = min(seq + 1, segment.seq_end)
        record = Record(seq, segment.writer_id, line)
        if not raw.endswith(b"\n"):
            _report_if_torn(segment, record)
        yield record
        if doubted and b"\0" in line:
            rest = [each for each in lines if each.strip()]
            return (yield from _numbered(segment, rest, _after_nuls(segment, seq, rest), doubted=False))
    return seq


def _after_nuls(segment: SegmentInfo, seq: int, rest: Sequence[bytes]) -> int:
    """The last seq of which a line with NULs has something, of the first such line, at this seq."""
    lost = segment.seq_end - seq - len(rest)
    if lost <= 0 or segment.writer_id == FOREIGN_COMPACTED:  # such a one names no seq of its own
        return seq
    if any(b"\0" in each for each in rest):
        raise CorruptSegmentError(
            f"{segment.key!r} has {lost} lines less than its name says, and NULs at several places from record {seq} on: what "
            "follows has no certain seq; restore it from a copy"
        )
    _log.warning(
        "%s is damaged: NULs stand in place of the end of record %d and of %d after it; %s",
        *(segment.key, seq, lost, "the records behind them are whole" if rest else "nothing is behind them"),
    )
    return seq + lost


def _report_if_torn(segment: SegmentInfo, record: Record) -> None:
    try:
        record.json()
    except CorruptSegmentError as error:
        _log.warning("the last line of %s was cut short: %s", segment.key, error)


# --- segments merged by other implementations -------------------------------------------------------------------------


def _repeated_ids(segments: Sequence[SegmentInfo], beside: Sequence[SegmentInfo], open_segment: Open) -> dict[str, set[str]]:
    """By the key of each segment merged by another implementation: the ids of entries that others hold as well.

    Such a segment has no index, and its lines are numbered anew; where a crash has left its sources beside it, only the ids
    of their entries tell that both hold the same records. Of several such segments, the first one's count.
    """
    fetched: dict[str, set[str]] = {}

    def ids(segment: SegmentInfo) -> set[str]:
        if segment.key not in fetched:
            with closing(plain_records(segment, open_segment(segment, 0))) as records:
                fetched[segment.key] = set(filter(None, map(_entry_id, records)))
        return fetched[segment.key]

    found: dict[str, set[str]] = {}
    for merged in segments:
        if merged.writer_id == FOREIGN_COMPACTED:
            place = beside.index(merged)
            others = (each for i, each in enumerate(beside) if each.writer_id != FOREIGN_COMPACTED or i < place)
            found[merged.key] = set().union(*(ids(each) for each in others if overlap(each, merged)))
    return found


def _without(records: Iterable[Record], ids: set[str]) -> Generator[Record, None, None]:
    yield from (each for each in records if _entry_id(each) not in ids)


def _entry_id(record: Record) -> str | None:
    try:
        entry = json.loads(record.line)
    except ValueError:
        return None
    found = entry.get("id") if isinstance(entry, dict) else None
    return found if isinstance(found, str) else None


def overlap(one: SegmentInfo, other: SegmentInfo) -> bool:
    """Whether two segments share a seq."""
    return one.seq_start <= other.seq_end and other.seq_start <= one.seq_end


# --- one segment ------------------------------------------------------------------------------------------------------


def read_segment(container: Container, names: TranscriptKeys, key: str, name: SegmentName) -> BinaryIO:
    """A segment's bytes as they were appended; those of one that is merged, also meanwhile, come from what it was merged into.

    Costs one request; a listing more for a compacted segment, which is read only in the generation it was written in.

    Raises:
        SegmentNotFoundError: neither is there.
        CorruptSegmentError: it is merged, and its bytes can't be told from those of another writer with the same id.
    """
    return cast("BinaryIO", io.BufferedReader(_SegmentStream(lambda: _open_or_extract(container, names, key, name))))


class _SegmentStream(io.RawIOBase):
    """A segment's bytes, which are sought anew, and gone on with, where the segment vanishes while it is being read."""

    def __init__(self, open_segment: Callable[[], BinaryIO]) -> None:
        super().__init__()
        self._inner: BinaryIO = io.BytesIO()
        self._open, self._position, self._given = open_segment, 0, hashlib.sha256()
        self._inner = open_segment()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            chunk = self._inner.read(len(buffer))
        except SegmentNotFoundError:
            self._inner.close()
            self._inner = self._open()
            again = self._inner.read(self._position)
            if hashlib.sha256(again).digest() != self._given.digest():
                raise CorruptSegmentError("the segment was deleted and another written while it was being read") from None
            chunk = self._inner.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        self._given.update(chunk)
        return len(chunk)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _open_or_extract(container: Container, names: TranscriptKeys, key: str, name: SegmentName) -> BinaryIO:
    if name.generation is not None:
        current = list_once(container, names, only=()).generation
        if name.generation != current:
            raise SegmentNotFoundError(
                f"{key!r} is of generation {name.generation}, its transcript of {current}: it was deleted, or is being deleted"
            )
        return container.open(key)
    for patience in reversed(range(_PATIENCE)):
        try:
            return container.open(key)
        except SegmentNotFoundError:
            listing = stable_listing(container, names, indexes := Indexes(container, names))
            if any(each.key == key for each in listing.segments) and patience:
                continue  # it was not there yet
            holding = [
                merged
                for merged in listing.compacted
                if (index := indexes.get(merged.name)) and index.covers(name.writer_id, name.seq_start, name.seq_end)
            ]
            if not holding:
                raise
            try:
                return io.BytesIO(_extract(container, key, name, holding, listing, indexes))
            except SegmentNotFoundError:  # merged further meanwhile: list again
                if not patience:
                    raise
    raise AssertionError("unreachable")


def _extract(
    container: Container, key: str, name: SegmentName, holding: Sequence[SegmentInfo], listing: Listing, indexes: Indexes
) -> bytes:
    """A merged segment as it was appended, from one of the compacted segments that hold its records.

    Its size and sha256 are known where an index names it as a source. Where none does (any more), each of its records must
    be there once.
    """
    digests = _digests(name, holding, listing, indexes)
    for merged in holding:
        index = indexes.get(merged.name)
        assert index is not None
        lines = _lines_of(container, merged, index, name)
        bodies = _bodies(lines) if digests else [b"".join(chain.from_iterable(lines))] if max(map(len, lines)) == 1 else []
        for body in bodies:
            if not digests or (len(body), sha256(body)) in digests:
                return body
    raise CorruptSegmentError(
        f"{key!r} was merged into {holding[0].key!r}, which holds other lines for its records too, or in another form: two "
        f"writers shared the id {name.writer_id!r}, or another program wrote it; records() shows all lines"
    )


def _digests(name: SegmentName, holding: Sequence[SegmentInfo], listing: Listing, indexes: Indexes) -> set[tuple[int, str]]:
    """Size and sha256 of a merged segment, by the indexes that name it: first those of what holds its records."""
    found: set[tuple[int, str]] = set()
    to_see = [each.name for each in holding]
    seen: set[SegmentName] = set()
    rest = [each for each in listing.indexes if each.generation == listing.generation]
    while to_see:
        current = to_see.pop()
        if current not in seen:
            seen.add(current)
            for source in index.sources if (index := indexes.find(current)) else ():
                if source.name == name:
                    found.add((source.size, source.sha256))
                elif source.name in listing.indexes:
                    to_see.append(source.name)
        if not to_see and not found:
            to_see, rest = rest, []
            indexes.fetch(to_see)
    return found


def _lines_of(container: Container, merged: SegmentInfo, index: SegmentIndex, name: SegmentName) -> list[list[bytes]]:
    """The lines of each seq of a segment's range that a compacted segment holds under its writer id."""
    lines: list[list[bytes]] = [[] for _ in range(name.seq_start, name.seq_end + 1)]
    for run in index.runs:
        if run.writer_id == name.writer_id and run.seq_start <= name.seq_end and run.seq_end >= name.seq_start:
            with container.open(merged.key, start=run.offset, end=run.offset + run.length) as stream:
                for seq, line in enumerate(islice(stream, name.seq_end - run.seq_start + 1), run.seq_start):
                    if seq >= name.seq_start:
                        lines[seq - name.seq_start].append(line)
    return lines


def _bodies(lines: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    """What a segment may have been: all that is there, then the n-th line of each seq, then other choices, up to a limit."""
    yield b"".join(chain.from_iterable(lines))
    most = max(map(len, lines))
    if most > 1:
        for rank in range(most):
            yield b"".join(each[min(rank, len(each) - 1)] for each in lines)
        yield from map(b"".join, islice(product(*lines), _CHOICES))
