"""Merging small segments into large ones, so that no reader notices and nothing is lost (docs/storage-contract.md).

Any number of compactors may run at once, crash anywhere, and meet writers, readers and deletes; there is no lock. The
order of steps is what makes it safe: index, segment, look again, remove the sources.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain, pairwise
from typing import BinaryIO, NamedTuple, cast

from transcript_backends import errors
from transcript_backends.container import Container, Whole
from transcript_backends.index import SegmentIndex, Source, build
from transcript_backends.keys import SegmentName, TranscriptKeys
from transcript_backends.listing import Indexes, Listing, SegmentInfo, list_once, stable_listing
from transcript_backends.planning import held_back, must_settle, next_run, starting_inside
from transcript_backends.prefetching import fetched
from transcript_backends.reading import FOREIGN_COMPACTED, Open, distinct, merge, overlap, plain_records
from transcript_backends.records import is_object
from transcript_backends.store import CompactionPolicy, CompactionResult
from transcript_backends.workers import Crew

_PATIENCE_SECONDS = 10 * 60  # after this long between writing and removing, what was seen no longer counts
_SETTLE_SECONDS = 60
_KNOWN_SECONDS = 60 * 60  # for so long what was read and could not be removed need not be read again
_SPOOL_BYTES = 1024 * 1024  # written at once
_ABANDONED = timedelta(hours=1)


def compact(container: Container, names: TranscriptKeys, policy: CompactionPolicy) -> CompactionResult:
    """Merge what the policy says, and finish what crashed compactions have left."""
    indexes = Indexes(container, names, damaged={})
    listing = stable_listing(container, names, indexes)
    before = len(listing.segments)
    if listing.unfinished:
        marker = listing.unfinished[0]
        return CompactionResult(
            before, before, 0, [], [(marker.info.key, "the transcript is being deleted; delete it again if that died")]
        )
    compactor = _Compactor(container, names, listing.generation, indexes)
    current = compactor.clean_up(listing)
    del listing  # it may be large, and what is merged can be forgotten
    return compactor.run(current, policy)._replace(segments_before=before)


def remove_leftovers(container: Container, names: TranscriptKeys) -> tuple[list[str], dict[str, str]]:
    """Finish what crashed compactions have left, and merge nothing; gives the keys removed, and key -> reason of others."""
    indexes = Indexes(container, names, damaged={})
    listing = stable_listing(container, names, indexes)
    if listing.unfinished:
        return [], {}
    compactor = _Compactor(container, names, listing.generation, indexes)
    compactor.clean_up(listing)
    compactor.remove_foreign(listing)
    return compactor.removed, compactor.left


class _StopError(Exception):
    """Somebody else is at work on the same transcript; what is left is theirs, or a later compaction's."""


class _DamagedError(Exception):
    """Sources that are left as they are."""

    def __init__(self, segments: Sequence[SegmentInfo], reason: str) -> None:
        super().__init__(reason)
        self.segments, self.reason = segments, reason


class _Merge(NamedTuple):
    """A segment that was written, and whose sources are still there."""

    name: SegmentName
    stored: bytes  # its index; parsed it takes more memory
    sources: Sequence[SegmentInfo]
    began: float


class _Compactor:
    """One compaction of one transcript."""

    def __init__(self, container: Container, names: TranscriptKeys, generation: int, indexes: Indexes) -> None:
        self._container, self._names, self._generation, self._indexes = container, names, generation, indexes
        self.left: dict[str, str] = {}
        self.removed: list[str] = []
        self._merged: list[str] = []
        self._written = 0
        self._unsettled: dict[str, _Merge] = {}  # what was written since the last look, by key
        self._versions: dict[str, str] = {}  # of what was read since then, by key: nothing else is deleted

    def run(self, current: list[SegmentInfo], policy: CompactionPolicy) -> CompactionResult:
        """Merge what the policy says of the segments given, which are replaced in their list as they are merged."""
        before = len(current)
        excluded, left = held_back(current, policy, self._container.server_time())
        self.left.update(left)
        try:
            with contextlib.suppress(errors.SegmentNotFoundError):  # a source that another compactor has merged
                while run := next_run(current, excluded | self.left.keys(), policy):
                    if (
                        must_settle({key: each.sources for key, each in self._unsettled.items()}, run)
                        or self._is_long_unsettled()
                    ):
                        self._settle(current)
                        continue
                    try:
                        result = self._merge(run)
                    except _DamagedError as damage:
                        self.left.update((each.key, damage.reason) for each in damage.segments)
                        continue
                    at = current.index(run[0])
                    current[at : at + len(run)] = [result]
            self._settle(current)
        except (_StopError, errors.SegmentNotFoundError):
            pass
        return CompactionResult(before, len(current), self._written, self._merged, list(self.left.items()))

    def _is_long_unsettled(self) -> bool:
        first = next(iter(self._unsettled.values()), None)
        return first is not None and self._container.clock.monotonic() - first.began > _SETTLE_SECONDS

    # --- what others have left ----------------------------------------------------------------------------------------

    def clean_up(self, listing: Listing) -> list[SegmentInfo]:
        """Remove what crashes and deletes have left; gives the segments to go on with."""
        self._sweep(listing)
        return self._finish(listing)

    def _sweep(self, listing: Listing) -> None:
        """Remove compacted segments that a delete overtook, and old indexes of segments that were merged further.

        Also of those that another implementation has merged. Not of those that were never written: their compactor may have
        been asleep, and write them yet.
        """
        dead = {each.name: each.key for each in listing.dead if (each.generation or 0) < listing.generation}
        versions = {key: listing.versions[key] for key in dead.values()}
        versions.update((info.key, info.version) for name, info in listing.indexes.items() if name in dead)
        self._remove(versions)
        now = self._container.server_time()
        without_segment = listing.indexes_without_segment
        merged_further = self._indexes.merged_further(listing) if without_segment else {}
        old = {
            name: info
            for name, info in listing.indexes.items()
            if name in without_segment
            and (
                name in merged_further
                or (name.generation or 0) < listing.generation
                or self._is_merged_by_others(name, listing)
            )
            and name not in dead
            and now is not None
            and now - max(info.created_at, merged_further.get(name, info.created_at)) > _ABANDONED
        }
        if old:  # a segment may have come back meanwhile, by a put that landed late or by another compactor
            again = list_once(self._container, self._names)
            still = {name for name in again.indexes_without_segment if again.indexes[name] == old.get(name)}
            self._remove({info.key: info.version for name, info in old.items() if name in still})

    def _is_merged_by_others(self, name: SegmentName, listing: Listing) -> bool:
        """Whether another implementation has merged all around a segment: its sources are gone as well as itself."""
        there = {each.name for each in listing.segments}
        around = (each for each in listing.segments if each.seq_start <= name.seq_start and name.seq_end <= each.seq_end)
        if not any(self._holds_foreign(each) for each in around):
            return False
        index = self._indexes.get(name)
        return index is not None and there.isdisjoint(each.name for each in index.sources)

    def _holds_foreign(self, segment: SegmentInfo) -> bool:
        if segment.generation is None:
            return segment.writer_id == FOREIGN_COMPACTED
        index = self._indexes.get(segment.name)
        return index is not None and any(run.writer_id == FOREIGN_COMPACTED for run in index.runs)

    def _finish(self, listing: Listing) -> list[SegmentInfo]:
        """Remove segments all of whose records are in a compacted one, read and compared; gives the segments to go on with."""
        segments = listing.segments
        doomed: dict[str, SegmentInfo] = {}  # with what holds their records
        for larger in listing.compacted:
            near = starting_inside(larger, segments)
            inside = [each for each in near if each.key not in doomed and self._may_replace(larger, each)]
            known = {each.key for each in inside if self._is_known_to_hold(larger, each)}
            doomed.update(dict.fromkeys(known, larger))
            doomed.update((each.key, larger) for each in self._held(larger, [each for each in inside if each.key not in known]))
        if doomed:
            again = list_once(self._container, self._names, only=doomed)
            if again.generation != listing.generation:  # deleted meanwhile, and these may have been written anew
                return []
            unchanged = set(again.segments)
            self._remove_read(
                (each, doomed[each.key].key)
                for each in segments
                if each.key in doomed and each in unchanged and doomed[each.key] in unchanged
            )
        return [each for each in segments if each.key not in doomed]

    def remove_foreign(self, listing: Listing) -> None:
        """Remove what another implementation has merged, where that died before it removed what it had merged.

        Its segments hold lines without their writers: such a one is redundant where others hold each of its lines, and
        removed when it is an hour old. Until then its compaction may be about to remove those.
        """
        now = self._container.server_time()
        for merged in listing.segments:
            if merged.writer_id != FOREIGN_COMPACTED or now is None or now - merged.created_at <= _ABANDONED:
                continue
            others = [each for each in listing.segments if each.writer_id != FOREIGN_COMPACTED and overlap(each, merged)]
            try:
                with contextlib.closing(merge(others, self._indexes, self._open_sound)) as records:
                    held = Counter(record.line for record in records)
                lines = Counter(record.line for record in plain_records(merged, self._open_sound(merged, 0)))
            except (errors.SegmentNotFoundError, errors.CorruptSegmentError):
                continue
            again = list_once(self._container, self._names, only={merged.key, *(each.key for each in others)})
            if lines <= held and {merged, *others} <= set(again.segments) and again.generation == listing.generation:
                self._remove({merged.key: self._versions.get(merged.key, "")})

    def _open_sound(self, segment: SegmentInfo, start: int) -> BinaryIO:
        return io.BytesIO(self._sound(segment)[start:])

    def _is_known_to_hold(self, larger: SegmentInfo, segment: SegmentInfo) -> bool:
        """Whether both were read and compared lately, and the segment could not be removed: they are not read each time."""
        known: tuple[SegmentInfo, str, str, float] | None = self._container.held.get(segment.key)
        if known is None or known[:2] != (segment, larger.key):
            return False
        _, _, version, at = known
        if self._container.clock.monotonic() - at >= _KNOWN_SECONDS:
            return False
        self._versions[segment.key] = version
        return True

    def _may_replace(self, larger: SegmentInfo, segment: SegmentInfo) -> bool:
        """Whether, by its index, a compacted segment has all records of another; of two alike only one replaces the other."""
        index = self._indexes.get(larger.name)
        if index is None:
            return False
        if segment.generation is None:
            return index.covers(*segment.name[2:], *segment.name[:2])
        own = self._indexes.get(segment.name)
        if own is None or (own.records, larger.key) > (index.records, segment.key):
            return False
        return index.covers_all(own)

    def _held(self, larger: SegmentInfo, segments: Sequence[SegmentInfo]) -> Sequence[SegmentInfo]:
        """Those of some segments that a compacted one holds; all in one reading where it holds all.

        It is read whole, and as it was stored, or it holds none: what is removed for it can't be had back.
        """
        if not segments:
            return segments
        try:
            body = self._sound(larger)
        except (errors.SegmentNotFoundError, errors.CorruptSegmentError):
            return []
        if self._holds(larger, body, segments):
            return segments
        return [each for each in segments if self._holds(larger, body, [each])] if len(segments) > 1 else []

    def _holds(self, larger: SegmentInfo, body: bytes, segments: Sequence[SegmentInfo]) -> bool:
        def opened(segment: SegmentInfo, start: int) -> BinaryIO:
            return io.BytesIO(body[start:]) if segment is larger else self._open_sound(segment, start)

        try:
            with (
                contextlib.closing(merge([larger], self._indexes, opened, segments[0].seq_start)) as held,
                contextlib.closing(merge(segments, self._indexes, opened)) as wanted,
            ):
                return all(record in held for record in distinct(wanted))  # both are in order: one pass
        except (errors.SegmentNotFoundError, errors.CorruptSegmentError):
            return False

    def _sound(self, segment: SegmentInfo) -> bytes:
        """The body of a segment.

        Raises:
            CorruptSegmentError: it is not what was stored.
        """
        whole = self._read(segment)
        if whole.fault:
            raise errors.CorruptSegmentError(f"{segment.key!r} is damaged: {whole.fault}")
        return whole.body

    def _remove_read(self, doomed: Iterable[tuple[SegmentInfo, str]]) -> None:
        """Delete segments as they were read, each given with the key of what holds its records."""
        held = {segment.key: (segment, larger, self._versions.get(segment.key, "")) for segment, larger in doomed}
        now = self._container.clock.monotonic()
        for key in self._remove({key: version for key, (_, _, version) in held.items()}):
            self._container.held.keep(key, (*held[key], now))
        self._versions.clear()

    def _remove(self, doomed: Mapping[str, str]) -> Collection[str]:
        """Delete objects, versions by key; what can't be deleted is reported, and not merged again. Returns its keys."""
        failed = self._container.delete(doomed)
        self.removed += (key for key in doomed if key not in failed)
        self.left.update((key, f"it is merged, and could not be deleted: {reason}") for key, reason in failed.items())
        return failed

    # --- one merge ----------------------------------------------------------------------------------------------------

    def _merge(self, run: Sequence[SegmentInfo]) -> SegmentInfo:
        """Write neighbours into one; gives the compacted segment. They go when it is settled."""
        body, index = self._build(run)
        key, stored = self._names.segment(*index.name), index.to_json()
        began = self._container.clock.monotonic()
        if key not in {each.key for each in run}:
            try:
                self._write_index(index.name, stored)
                self._write(key, body, index)
            except errors.CorruptSegmentError as damage:
                raise _DamagedError(run, f"another compaction has left what is damaged by now: {damage}") from damage
            self._written += len(body)
        self._unsettled[key] = _Merge(index.name, stored, run, began)
        return SegmentInfo(key, *index.name, run[-1].created_at, len(body))

    def _build(self, run: Sequence[SegmentInfo]) -> tuple[bytes, SegmentIndex]:
        sources: list[Source] = []
        with Crew() as crew, contextlib.closing(self._bodies(run, sources, crew)) as bodies:
            if all(one.seq_end < other.seq_start for one, other in pairwise(run)):  # each is opened once, in this order
                return self._build_of(run, lambda segment, start: io.BytesIO(next(bodies)), sources)
            with tempfile.TemporaryFile(buffering=_SPOOL_BYTES) as spool:
                places: dict[str, tuple[int, int]] = {}
                offset = 0
                for segment, body in zip(run, bodies, strict=True):
                    places[segment.key] = (offset, len(body))
                    offset += spool.write(body)
                spool.flush()

                def open_segment(segment: SegmentInfo, start: int) -> BinaryIO:
                    offset, size = places[segment.key]
                    return cast("BinaryIO", io.BufferedReader(_Slice(spool.fileno(), offset + start, offset + size)))

                return self._build_of(run, open_segment, sources)

    def _build_of(self, run: Sequence[SegmentInfo], opened: Open, sources: Sequence[Source]) -> tuple[bytes, SegmentIndex]:
        return build(distinct(merge(run, self._indexes, opened)), self._generation, sources)

    def _bodies(self, run: Sequence[SegmentInfo], sources: list[Source], crew: Crew) -> Generator[bytes, None, None]:
        """The bodies of segments, in order, each checked and noted as a source."""
        for segment in run:
            if segment.generation is not None and self._indexes.get(segment.name) is None:
                raise _DamagedError([segment], "its index is missing or damaged")
        with contextlib.closing(fetched(self._container, run, self._read_source, crew)) as bodies:
            for segment, whole in zip(run, bodies, strict=True):
                fault = whole.fault or self._fault_in_lines(segment, whole.body)
                if fault != whole.fault:  # in one response, perhaps
                    whole = self._read_source(segment)
                    fault = whole.fault or self._fault_in_lines(segment, whole.body)
                if fault:
                    raise _DamagedError([segment], fault)
                sources.append(Source(segment.name, len(whole.body), whole.sha256))
                yield whole.body

    def _read(self, segment: SegmentInfo) -> Whole:
        """A segment, compared with its index, or with what it was stored with. Called in threads, when indexes are fetched."""
        index = self._indexes.get(segment.name) if segment.generation is not None else None
        expected = index.sha256 if index is not None else ""
        whole = self._container.read(segment.key, size=segment.size, expected=expected, is_moved=True)
        self._versions[segment.key] = whole.version
        return whole

    def _read_source(self, segment: SegmentInfo) -> Whole:
        """As `_read`. What is listed still, and not there, is nobody's work, and no reason to stop."""
        try:
            return self._read(segment)
        except errors.SegmentNotFoundError:
            if segment in list_once(self._container, self._names, only={segment.key}).segments:
                raise _DamagedError([segment], "it is listed, and is not there when it is read") from None
            raise

    def _fault_in_lines(self, segment: SegmentInfo, body: bytes) -> str:
        if segment.generation is None:
            for record in plain_records(segment, io.BytesIO(body)):
                if not is_object(record.line):
                    return f"record {record.seq} is no JSON object"
        return ""

    def _write(self, key: str, body: bytes, index: SegmentIndex) -> None:
        """Create a segment, or see that it is there, read and compared: the metadata of what has decayed is as it was."""
        try:
            if self._container.create(key, body, {"tbcount": str(index.records), "tbschema": "1"}):
                return
        except errors.SegmentConflictError:
            pass  # some stores compare the bytes
        if fault := self._container.read(key, size=index.size, expected=index.sha256).fault:
            raise errors.CorruptSegmentError(f"{key!r} is damaged ({fault}); remove it, and its records are merged again")

    def _write_index(self, name: SegmentName, index: bytes) -> None:
        key = self._names.index(name)
        is_new = False
        with contextlib.suppress(errors.SegmentConflictError):  # by another compactor, of other sources perhaps
            is_new = self._container.create(key, index)
        if is_new:
            return
        if Indexes(self._container, self._names, anew=True).get(name) is None:
            raise errors.SegmentNotFoundError(f"{key!r} was removed meanwhile")
        # It was there. The segment must not come back once it is merged further: its index goes an hour after that.
        if name in Indexes(self._container, self._names).merged_further(list_once(self._container, self._names, only=())):
            raise _StopError

    # --- what was written together ------------------------------------------------------------------------------------

    def _settle(self, current: list[SegmentInfo]) -> None:
        """See that what was merged stands, after all of it is written, and remove its sources."""
        merges, self._unsettled = self._unsettled, {}
        if not merges:
            return
        again = self._look_again(merges)
        standing = {each.key: each for each in again.compacted}
        now = self._container.clock.monotonic()
        settled = {key: each for key, each in merges.items() if key in standing and now - each.began <= _PATIENCE_SECONDS}
        self._remove_sources(again, settled)
        self._merged += settled
        current[:] = (standing.get(each.key, each) for each in current)
        if len(settled) < len(merges):  # merged further by another compactor, which counts on our sources as well
            raise _StopError

    def _look_again(self, merges: Mapping[str, _Merge]) -> Listing:
        """See which segments stand, each with its index, in the same generation."""
        while True:
            sources = {each.key for merge in merges.values() for each in merge.sources}
            again = stable_listing(self._container, self._names, only=sources)
            if again.generation != self._generation:  # deleted meanwhile: nothing of it may come back
                self._container.delete(chain.from_iterable((key, self._names.index(each.name)) for key, each in merges.items()))
                raise _StopError
            standing = {each.key for each in again.compacted}
            unindexed = [each for key, each in merges.items() if key in standing and each.name not in again.indexes]
            if not unindexed:
                return again
            for each in unindexed:
                self._write_index(each.name, each.stored)

    def _remove_sources(self, again: Listing, merges: Mapping[str, _Merge]) -> None:
        # One that has changed since it was read was removed and written anew: it is another.
        unchanged = set(again.segments)
        self._remove_read(
            (each, key) for key, merge in merges.items() for each in merge.sources if each.key != key and each in unchanged
        )


class _Slice(io.RawIOBase):
    """A part of a file, at a position of its own."""

    def __init__(self, descriptor: int, position: int, stop: int) -> None:
        super().__init__()
        self._descriptor, self._position, self._stop = descriptor, position, stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = os.pread(self._descriptor, min(len(buffer), self._stop - self._position), self._position)
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)
