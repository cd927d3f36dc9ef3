"""Merging small segments into large ones, so that no reader notices and nothing is lost (docs/storage-contract.md).

Any number of compactors may run at once, crash anywhere, and meet writers, readers and deletes; there is no lock. The
order of steps is what makes it safe: index, segment, look again, remove the sources.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import BinaryIO, cast

from transcript_backends import errors
from transcript_backends.container import Container
from transcript_backends.index import SegmentIndex, Source, build
from transcript_backends.keys import TranscriptKeys
from transcript_backends.listing import Indexes, Listing, SegmentInfo, list_once, stable_listing
from transcript_backends.planning import held_back, next_run
from transcript_backends.reading import distinct, merge, opener, overlap, plain_records
from transcript_backends.records import Record, is_object
from transcript_backends.store import CompactionPolicy, CompactionResult

_PATIENCE_SECONDS = 10 * 60  # after this long between writing and removing, what was seen no longer counts
_ABANDONED = timedelta(hours=1)
_AHEAD_BYTES = 8 * 1024 * 1024


def compact(container: Container, names: TranscriptKeys, policy: CompactionPolicy) -> CompactionResult:
    """Merge what the policy says, and finish what crashed compactions have left."""
    indexes = Indexes(container, names, damaged={})
    listing = stable_listing(container, names, indexes)
    count = len(listing.segments)
    if listing.being_deleted:
        marker = next(each.info.key for each in listing.markers if not each.done)
        return CompactionResult(
            count, count, 0, [], [(marker, "the transcript is being deleted; delete it again if that died")]
        )
    return _Compactor(container, names, policy, listing, indexes).run()


def remove_leftovers(container: Container, names: TranscriptKeys) -> tuple[list[str], dict[str, str]]:
    """Finish what crashed compactions have left, and merge nothing; gives the keys removed, and key -> reason of others."""
    indexes = Indexes(container, names, damaged={})
    listing = stable_listing(container, names, indexes)
    if listing.being_deleted:
        return [], {}
    compactor = _Compactor(container, names, CompactionPolicy(), listing, indexes)
    compactor.clean_up()
    return compactor.removed, compactor.left


class _StopError(Exception):
    """Somebody else is at work on the same transcript; what is left is theirs, or a later compaction's."""


class _DamagedError(Exception):
    """A source that is left as it is."""

    def __init__(self, segment: SegmentInfo, reason: str) -> None:
        super().__init__(reason)
        self.segment, self.reason = segment, reason


class _Compactor:
    """One compaction of one transcript."""

    def __init__(
        self, container: Container, names: TranscriptKeys, policy: CompactionPolicy, listing: Listing, indexes: Indexes
    ) -> None:
        self._container, self._names, self._policy = container, names, policy
        self._listing, self._indexes = listing, indexes
        self.left: dict[str, str] = {}
        self.removed: list[str] = []
        self._merged: list[str] = []
        self._written = 0

    def run(self) -> CompactionResult:
        current = self.clean_up()
        excluded = self._excluded(current)
        try:
            while run := next_run(current, excluded | self.left.keys(), self._policy):
                try:
                    result = self._merge(run)
                except _DamagedError as damage:
                    self.left[damage.segment.key] = damage.reason
                    continue
                at = current.index(run[0])
                current[at : at + len(run)] = [result]
        except (_StopError, errors.SegmentNotFoundError):  # not found: a source that another compactor has merged
            pass
        return CompactionResult(len(self._listing.segments), len(current), self._written, self._merged, list(self.left.items()))

    # --- what others have left ----------------------------------------------------------------------------------------

    def clean_up(self) -> list[SegmentInfo]:
        """Remove what crashes and deletes have left; gives the segments to go on with."""
        self._sweep()
        return self._finish()

    def _sweep(self) -> None:
        """Remove compacted segments that a delete overtook, and old indexes of segments that were merged further.

        Not of those that were never written: their compactor may have been asleep, and write them yet.
        """
        dead = {each.name: each.key for each in self._listing.dead if (each.name.generation or 0) < self._listing.generation}
        self._remove([*dead.values(), *(info.key for name, info in self._listing.indexes.items() if name in dead)])
        now = self._container.server_time()
        without_segment = self._listing.indexes_without_segment
        merged_further = self._indexes.merged_further(self._listing) if without_segment else set()
        old = {
            name: info
            for name, info in self._listing.indexes.items()
            if (name in merged_further or (name.generation or 0) < self._listing.generation)
            and name in without_segment
            and name not in dead
            and now is not None
            and now - info.created_at > _ABANDONED
        }
        if old:  # a segment may have come back meanwhile, by a put that landed late or by another compactor
            again = list_once(self._container, self._names)
            still = {name for name in again.indexes_without_segment if again.indexes[name] == old.get(name)}
            self._remove([info.key for name, info in old.items() if name in still])

    def _finish(self) -> list[SegmentInfo]:
        """Remove segments all of whose records are in a compacted one, read and compared; gives the segments to go on with."""
        current, doomed = [], []
        for segment in self._listing.segments:
            if any(self._may_replace(each, segment) and self._holds(each, segment) for each in self._listing.compacted):
                doomed.append(segment.key)
            else:
                current.append(segment)
        self._remove(doomed)
        return current

    def _may_replace(self, larger: SegmentInfo, segment: SegmentInfo) -> bool:
        """Whether, by its index, a compacted segment has all records of another; of two alike only one replaces the other."""
        if larger.key == segment.key or not overlap(larger, segment):
            return False
        index = self._indexes.get(larger.name)
        if index is None:
            return False
        if segment.name.generation is None:
            return index.covers(*segment.name[2:], *segment.name[:2])
        own = self._indexes.get(segment.name)
        if own is None or (own.records, larger.key) > (index.records, segment.key):
            return False
        return all(index.covers(*run[:3]) for run in own.runs)

    def _holds(self, larger: SegmentInfo, segment: SegmentInfo) -> bool:
        try:
            wanted = set(self._records([segment]))
            for record in self._records([larger], segment.seq_start):
                if not wanted or record.seq > segment.seq_end:
                    break
                wanted.discard(record)
            return not wanted
        except (errors.SegmentNotFoundError, errors.CorruptSegmentError):
            return False

    def _records(self, segments: Sequence[SegmentInfo], start_seq: int = 0) -> Iterator[Record]:
        return merge(segments, self._indexes, opener(self._container), start_seq)

    def _excluded(self, current: Sequence[SegmentInfo]) -> set[str]:
        """The keys of segments that can't be merged now: too young, or merged by others and still beside their sources."""
        excluded, left = held_back(current, self._policy, self._container.server_time())
        self.left.update(left)
        return excluded

    def _remove(self, doomed: Sequence[str]) -> None:
        """Delete objects; what can't be deleted is reported, and merged no more."""
        failed = self._container.delete(doomed)
        self.removed += (key for key in doomed if key not in failed)
        self.left.update((key, f"it is merged, and could not be deleted: {reason}") for key, reason in failed.items())

    # --- one merge ----------------------------------------------------------------------------------------------------

    def _merge(self, run: Sequence[SegmentInfo]) -> SegmentInfo:
        """Merge neighbours; gives the compacted segment."""
        body, index = self._build(run)
        key = self._names.segment(*index.name)
        began = self._container.clock.monotonic()
        if key not in {each.key for each in run}:
            self._write_index(index)
            self._container.create(key, body, {"tbcount": str(index.records), "tbschema": "1"})
            self._written += len(body)
        again = self._look_again(key, index, began)
        self._remove_sources(again, run, key)
        self._merged.append(key)
        return next(each for each in again.segments if each.key == key)

    def _build(self, run: Sequence[SegmentInfo]) -> tuple[bytes, SegmentIndex]:
        sources: list[Source] = []
        with tempfile.TemporaryFile() as spool:
            places: dict[str, tuple[int, int]] = {}
            for segment, body in zip(run, _bodies(self._container, run), strict=True):
                digest = hashlib.sha256(body).hexdigest()
                self._check(segment, body, digest)
                places[segment.key] = (spool.tell(), len(body))
                spool.write(body)
                sources.append(Source(segment.name, len(body), digest))
            spool.flush()

            def open_segment(segment: SegmentInfo, start: int) -> BinaryIO:
                offset, size = places[segment.key]
                return cast("BinaryIO", io.BufferedReader(_Slice(spool.fileno(), offset + start, offset + size)))

            records = distinct(merge(run, self._indexes, open_segment))
            return build(records, self._listing.generation, sources)

    def _check(self, segment: SegmentInfo, body: bytes, digest: str) -> None:
        if segment.name.generation is None:
            for record in plain_records(segment, io.BytesIO(body)):
                if not is_object(record.line):
                    raise _DamagedError(segment, f"record {record.seq} is no JSON object")
        elif (index := self._indexes.get(segment.name)) is None:
            raise _DamagedError(segment, "its index is missing or damaged")
        elif index.sha256 != digest:
            raise _DamagedError(segment, "its sha256 is not the one in its index")

    def _write_index(self, index: SegmentIndex) -> None:
        key = self._names.index(index.name)
        try:
            self._container.create(key, index.to_json())
        except errors.SegmentConflictError:
            with self._container.open(key) as stream:
                present = SegmentIndex.parse(stream.read(), key)
            if present.runs != index.runs:  # else: another compactor of the same records, with other sources perhaps
                raise errors.CorruptSegmentError(f"{key!r} names other records than its segment holds; remove it") from None

    def _look_again(self, key: str, index: SegmentIndex, began: float) -> Listing:
        """See that the segment and its index stand, in the same generation, before any source goes."""
        while True:
            again = stable_listing(self._container, self._names)
            if again.generation != self._listing.generation:  # deleted meanwhile: nothing of it may come back
                self._container.delete([key, self._names.index(index.name)])
                raise _StopError
            if all(each.key != key for each in again.segments):
                raise _StopError  # merged further by another compactor, which counts on our sources as well
            if index.name not in again.indexes:
                self._write_index(index)
            elif self._container.clock.monotonic() - began > _PATIENCE_SECONDS:
                raise _StopError
            else:
                return again

    def _remove_sources(self, again: Listing, run: Sequence[SegmentInfo], key: str) -> None:
        # One that has changed since it was read was removed and written anew: it is another.
        unchanged = set(again.segments)
        self._remove([each.key for each in run if each.key != key and each in unchanged])


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


def _bodies(container: Container, segments: Sequence[SegmentInfo]) -> Iterator[bytes]:
    """The bodies of segments, in order; a few are fetched ahead, in parallel."""

    def fetch(segment: SegmentInfo) -> bytes:
        with container.open(segment.key) as stream:
            return stream.read()

    if container.parallel <= 1:
        yield from map(fetch, segments)
        return
    with ThreadPoolExecutor(container.parallel) as pool:
        coming: deque[tuple[Future[bytes], int]] = deque()
        ahead = 0
        remaining = iter(segments)
        try:
            while True:
                while len(coming) < 2 * container.parallel and (not coming or ahead < _AHEAD_BYTES):
                    segment = next(remaining, None)
                    if segment is None:
                        break
                    coming.append((pool.submit(fetch, segment), segment.size))
                    ahead += segment.size
                if not coming:
                    return
                body, size = coming.popleft()
                ahead -= size
                yield body.result()
        finally:
            for body, _ in coming:
                body.cancel()
