"""What a transcript consists of: listings that hide nothing, and what of them is read.

A listing is not a snapshot. While it runs, a compaction may put its result on a page already read and delete the sources
on a page still to come. But the index of a compacted segment is written before the segment, the segment before its
sources go, and ``index/`` is listed after ``events/``: whatever vanished has left an index. So a listing is complete once
every index in it is explained (`stable_listing`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, cast

from transcript_backends import errors, keys
from transcript_backends.container import Container
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.index import SegmentIndex
from transcript_backends.keys import IndexKey, MarkerKey, PayloadKey, SegmentName, TranscriptKeys

_log = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024  # of an index that is remembered
_PATIENCE = 100  # listings that a busy compaction may spoil before it is taken for a fault


class SegmentInfo(NamedTuple):
    """One immutable segment.

    Attributes:
        key: relative to the container, the store's root included.
        seq_start, seq_end: inclusive.
        writer_id: who wrote it.
        created_at: aware, UTC, the server's clock.
        size: bytes.
    """

    key: str
    seq_start: int
    seq_end: int
    writer_id: str
    created_at: datetime
    size: int

    @property
    def name(self) -> SegmentName:
        """What its key says."""
        return SegmentName(*self[1:4])

    @property
    def generation(self) -> int | None:
        """That of a compacted segment, None for any other segment."""
        return keys.generation_of(self.writer_id)


class Marker(NamedTuple):
    """A deletion marker."""

    done: bool
    number: int
    info: ObjectInfo


class Listing:
    """One listing of a transcript, sorted out. Pure.

    Args:
        names: of the transcript.
        objects: what was listed.
        only: the keys of the segments to keep, of those nobody merged; None for all. The rest is always kept.
        versioned: whether to keep the versions of those nobody merged.

    Attributes:
        segments: what is alive, by (seq_start, seq_end, writer_id, key).
        compacted: the compacted ones among them.
        dead: compacted segments of an older generation: left by a compaction that a delete overtook.
        indexes: the segment indexes, by the name of their segment.
        payloads: offloaded payloads.
        markers: deletion markers.
        versions: of segments, by key; of those nobody merged only where asked for, since there may be very many.
        foreign: how many objects are somebody else's.
        generation: the highest number among the markers, 0 without any.
    """

    def __init__(
        self,
        names: TranscriptKeys,
        objects: Iterable[ObjectInfo],
        only: Collection[str] | None = None,
        *,
        versioned: bool = False,
    ) -> None:
        found: list[SegmentInfo] = []
        unmerged: list[SegmentInfo] = []
        segment: SegmentInfo | None = None
        self.indexes: dict[SegmentName, ObjectInfo] = {}
        self.payloads: list[ObjectInfo] = []
        self.markers: list[Marker] = []
        self.versions: dict[str, str] = {}
        self.foreign = 0
        for info in objects:
            parsed = names.parse(info.key)
            if isinstance(parsed, SegmentName):  # a match statement takes four times as long
                if keys.generation_of(parsed.writer_id) is not None:
                    found.append(SegmentInfo(info.key, *parsed, info.created_at, info.size))
                    self.versions[info.key] = info.version
                elif only is None or info.key in only:
                    segment = _segment(info, parsed, segment)
                    unmerged.append(segment)
                    if versioned:
                        self.versions[info.key] = info.version
            elif isinstance(parsed, IndexKey):
                self.indexes[parsed.segment] = info
            elif isinstance(parsed, MarkerKey):
                self.markers.append(Marker(*parsed, info))
            elif isinstance(parsed, PayloadKey):
                self.payloads.append(info)
            else:
                self.foreign += 1
        self.generation = max((each.number for each in self.markers), default=0)
        self.compacted = _in_order([each for each in found if each.generation == self.generation])
        self.dead = [each for each in found if each.generation != self.generation]
        self.segments = _in_order([*unmerged, *self.compacted])

    def add(self, segments: Iterable[SegmentInfo]) -> None:
        """Take in segments nobody merged that another listing has shown."""
        self.segments = _in_order([*self.segments, *segments])

    @property
    def indexes_without_segment(self) -> set[SegmentName]:
        """The indexes whose segment is not in the listing."""
        return self.indexes.keys() - {each.name for each in (*self.compacted, *self.dead)}

    @property
    def orphans(self) -> set[SegmentName]:
        """Those of this generation."""
        return {name for name in self.indexes_without_segment if name.generation == self.generation}

    @property
    def unfinished(self) -> list[Marker]:
        """The markers of deletes that are at work, or died at it: ``deleting`` without the ``deleted`` of its number."""
        done = {each.number for each in self.markers if each.done}
        return [each for each in self.markers if not each.done and each.number not in done]

    @property
    def deleting(self) -> bool:
        """Whether the delete that began this generation is unfinished: running, or dead."""
        return any(each.number == self.generation for each in self.unfinished)

    @property
    def next_seq(self) -> int:
        """One past the highest seq, 0 for an empty transcript. Right in any listing: what vanished has left an index."""
        indexed = (name.seq_end for name in self.indexes if name.generation == self.generation)
        return max((*(each.seq_end for each in self.segments), *indexed), default=-1) + 1


def _segment(info: ObjectInfo, name: SegmentName, previous: SegmentInfo | None) -> SegmentInfo:
    """One of a listing, in little memory: there may be hundreds of thousands, and neighbours have much in common."""
    start, end, writer_id = name
    created_at, size = info.created_at, info.size
    if previous:
        if previous.size == size:
            size = previous.size
        if previous.created_at == created_at:
            created_at = previous.created_at
    return SegmentInfo(info.key, start, end, sys.intern(writer_id), created_at, size)


def _in_order(segments: list[SegmentInfo]) -> list[SegmentInfo]:
    """Sorted by (seq_start, seq_end, writer_id, key). There may be hundreds of thousands: no tuple is made for each."""
    for position in (0, 3, 2, 1):
        segments.sort(key=itemgetter(position))
    return segments


class Indexes:
    """The segment indexes of a transcript, each fetched once, and small ones once for many looks: they never change.

    Args:
        container: where they are.
        names: of the transcript.
        damaged: takes name -> error of those that are no indexes, which then count as missing; None makes them errors.
        anew: whether to look at each, also at one that is remembered.
    """

    def __init__(
        self,
        container: Container,
        names: TranscriptKeys,
        damaged: dict[SegmentName, errors.CorruptSegmentError] | None = None,
        *,
        anew: bool = False,
    ) -> None:
        self._container, self._names, self._damaged, self._anew = container, names, damaged, anew
        self._fetched: dict[SegmentName, SegmentIndex | None] = {}
        self._expected: Collection[SegmentName] = ()

    def expect(self, listing: Listing) -> None:
        """Take it from now on for a sign of change where an index of this listing is missing."""
        self._expected = listing.indexes.keys()

    def fetch(self, names: Iterable[SegmentName]) -> None:
        """Fetch those that are not known yet, several at once."""
        wanted = [each for each in names if each.generation is not None and each not in self._fetched]
        if len(wanted) > 1 and self._container.parallel > 1:
            with ThreadPoolExecutor(self._container.parallel) as pool:
                self._fetched.update(zip(wanted, pool.map(self._fetch, wanted), strict=True))

    def get(self, name: SegmentName) -> SegmentIndex | None:
        """The index of a compacted segment; None where it is missing, and for any other segment.

        Raises:
            SegmentNotFoundError: it is missing, and was expected.
            CorruptSegmentError: it is no index.
        """
        index = self.find(name)
        if index is None and name in self._expected and not self._damaged:
            raise errors.SegmentNotFoundError(f"{self._names.index(name)!r} was removed while it was being looked for")
        return index

    def find(self, name: SegmentName) -> SegmentIndex | None:
        """The same; None where it is missing, expected or not."""
        if name.generation is None:
            return None
        if name not in self._fetched:
            self._fetched[name] = self._fetch(name)
        return self._fetched[name]

    def _fetch(self, name: SegmentName) -> SegmentIndex | None:
        key = self._names.index(name)
        recent = None if self._anew else self._container.indexes
        if recent and (known := recent.get(key)):
            return cast("SegmentIndex", known)
        try:
            try:
                index, size = self._read(name, key)
            except errors.CorruptSegmentError:  # one response proves nothing of what is stored
                index, size = self._read(name, key)
        except errors.SegmentNotFoundError:
            return None
        except errors.CorruptSegmentError as error:
            if self._damaged is None:
                raise
            self._damaged[name] = error
            return None
        if recent and size <= _SMALL_BYTES:
            recent.keep(key, index)
        return index

    def _read(self, name: SegmentName, key: str) -> tuple[SegmentIndex, int]:
        whole = self._container.read(key)
        if whole.fault:
            raise errors.CorruptSegmentError(f"{key!r} is damaged: {whole.fault}; remove it")
        index = SegmentIndex.parse(whole.body, key)
        if index.name != name:
            raise errors.CorruptSegmentError(f"{key!r} names other records than its segment holds; remove it")
        return index, len(whole.body)

    def superseded(self, listing: Listing) -> set[str]:
        """The keys of segments whose records are all in a present compacted segment.

        A source is known by its name and size, and by its age: one that is as young as the compacted segment may have been
        written after it, by a writer whose id is not its own, and is read like any other. Not so a compacted source, whose
        name says what is in it.
        """
        found: set[str] = set()
        if not listing.compacted:
            return found
        present = {each.name: each for each in listing.segments}
        for merged in _overlapping(listing.segments):
            index = self.get(merged.name)
            for source in index.sources if index else ():
                segment = present.get(source.name)
                if segment is None or segment.size != source.size:
                    continue
                if segment.generation is not None or segment.created_at < merged.created_at:
                    found.add(segment.key)
        return found

    def merged_further(self, listing: Listing) -> dict[SegmentName, datetime]:
        """The compacted segments named as sources in the index of a present one, directly or through indexes so named.

        Each with a time at which it was merged already: when the one it was merged into was stored, or, where that one is
        merged itself, when the index was stored that says so.
        """
        found: dict[SegmentName, datetime] = {}
        to_see = [(each.name, each.created_at) for each in listing.compacted if each.name in listing.indexes]
        while to_see:
            name, stored_at = to_see.pop()
            index = self.get(name)
            for source in index.sources if index else ():
                if source.name.generation is not None:
                    is_new = source.name not in found
                    found[source.name] = min(stored_at, found.get(source.name, stored_at))
                    if is_new and source.name in listing.indexes:
                        to_see.append((source.name, listing.indexes[name].created_at))
        return found


def _overlapping(segments: Sequence[SegmentInfo]) -> Iterator[SegmentInfo]:
    """The compacted ones that overlap another, of segments by seq. No other has its sources beside it."""
    highest = -1
    for position, segment in enumerate(segments, 1):
        if segment.generation is not None:
            reaches_next = position < len(segments) and segments[position].seq_start <= segment.seq_end
            if segment.seq_start <= highest or reaches_next:
                yield segment
        highest = max(highest, segment.seq_end)


def list_once(
    container: Container,
    names: TranscriptKeys,
    *,
    payloads: bool = False,
    only: Collection[str] | None = None,
    versioned: bool = False,
) -> Listing:
    """List ``events/`` and ``index/``, and the payloads where they are asked for; may have been torn."""
    able = container.driver.capabilities
    if able.ordered_lists and able.one_pass:
        # Payloads sort last and may be many: they are left out. Nothing of ours sorts before events/, so no start is given:
        # servers have answered one with nothing at all.
        objects = _until(container.list(names.prefix), None if payloads else names.prefix + keys.PAYLOADS)
        listing = Listing(names, objects, only, versioned=versioned)
        if container.driver.capabilities.one_pass:  # which only the answers may tell
            return listing
    parts = (keys.EVENTS, keys.INDEX, *([keys.PAYLOADS] if payloads else []))  # in this order, which proves so much
    return Listing(names, chain.from_iterable(container.list(names.prefix + each) for each in parts), only, versioned=versioned)


def stable_listing(
    container: Container,
    names: TranscriptKeys,
    indexes: Indexes | None = None,
    *,
    payloads: bool = False,
    only: Collection[str] | None = None,
    versioned: bool = False,
    doubted: bool = True,
) -> Listing:
    """A listing from which nothing is missing that was there all the time it took, save what `Listing` drops by ``only``.

    Costs one listing where no index is without its segment, and no number is missing (`look_into_gaps`, if ``doubted``).

    Raises:
        StoreUnavailableError: compactions spoiled one listing after the other.
    """
    for _ in range(_PATIENCE):
        began = container.clock.monotonic()
        listing = list_once(container, names, payloads=payloads, only=only, versioned=versioned)
        if not listing.orphans or _explained(container, names, listing, indexes or Indexes(container, names)):
            if doubted and only is None:
                look_into_gaps(container, names, listing, container.time_before(began), versioned=versioned)
            return listing
    raise errors.StoreUnavailableError(f"{names.prefix!r} is being compacted faster than it can be listed; try again")


def gaps(segments: Iterable[SegmentInfo]) -> dict[int, SegmentInfo | None]:
    """Where numbers are missing that nobody has: the last one before each gap, and the segment it is in, if any.

    ``segments``: by seq.
    """
    found: dict[int, SegmentInfo | None] = {}
    before: SegmentInfo | None = None
    reach = -1
    for segment in segments:
        if segment.seq_start > reach + 1:
            found[reach] = before
        if segment.seq_end > reach:
            before, reach = segment, segment.seq_end
    return found


def look_into_gaps(
    container: Container, names: TranscriptKeys, listing: Listing, since: datetime | None, *, versioned: bool = False
) -> None:
    """List once more from where numbers are missing, each gap once; adds to the listing what the service has left out.

    ``since``: a time before the listing, by the server's clock; None where it is not known. What was stored later is none of
    its business.
    """
    found = gaps(listing.segments)
    new = found.keys() - (container.gaps.get(names.prefix) or ())
    if not new:
        return
    before = found[min(new)]
    # The names of other programs may not be in order.
    start = before.key if before is not None and before.key == names.segment(*before.name) else ""
    again = Listing(names, container.list(names.prefix + keys.EVENTS, start_after=start), versioned=versioned)
    shown = {each.key for each in listing.segments}
    missed = [
        each
        for each in again.segments
        if each.key not in shown and each.generation is None and since is not None and each.created_at < since
    ]
    if missed and again.generation == listing.generation:
        listing.add(missed)
        listing.versions.update((each.key, again.versions[each.key]) for each in missed if versioned)
        _log.warning(
            "%s/%s: a listing with gaps left out %d segments, %s first: is the service one that lists all it holds?",
            *(container.driver.location, names.prefix, len(missed), missed[0].key),
        )
    container.gaps.keep(names.prefix, frozenset(gaps(listing.segments)))


def _explained(container: Container, names: TranscriptKeys, listing: Listing, indexes: Indexes) -> bool:
    """Whether each index without a segment is of one merged further, or of one not written yet."""
    indexes.fetch(name for name in listing.indexes if name.generation == listing.generation)
    unborn = listing.orphans - indexes.merged_further(listing).keys()
    if any(container.exists(names.segment(*name)) for name in _sources_first(unborn, indexes)):
        return False
    if not unborn:
        return True
    # One that was born since, and merged further or removed because another holds its records, has left an index of that one,
    # which is new, too.
    objects = container.list(names.prefix + keys.INDEX)
    new = Listing(names, objects).indexes.keys() - listing.indexes.keys()
    since = [index for name in new if (index := indexes.get(name))]
    return not since or all(
        (own := indexes.find(name)) and not any(index.covers_all(own) for index in since) for name in unborn
    )


def _sources_first(unborn: set[SegmentName], indexes: Indexes) -> Iterable[SegmentName]:
    """In an order in which a segment comes before those that it may be merged into, or removed for.

    They hold more records, or the same and have the lesser key. So one that is gone when it is looked at leaves that other one
    to be seen after it.
    """

    def records(name: SegmentName) -> int:
        index = indexes.get(name)
        return index.records if index else 0

    return sorted(sorted(unborn, reverse=True), key=records) if len(unborn) > 1 else unborn


def _until(objects: Iterable[ObjectInfo], end: str | None) -> Iterator[ObjectInfo]:
    for info in objects:
        if end is not None and info.key >= end:
            return
        yield info
