"""Copying a transcript into another store: every record under its own seq and writer, byte for byte, and none twice.

A plain segment is copied as it is, its name included. Of a compacted one, the records that the destination does not hold are
cut into plain segments again, so a copy does not depend on how the source was compacted, nor on its deletions. What the
destination holds is told by names and indexes: the ranges of seqs of each writer. Where two segments of the source have the
same seq of the same writer, those ranges prove nothing: bytes are compared, and what is missing is copied whole.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import BinaryIO, Literal, NamedTuple

from transcript_backends.comparing import Digest, compare
from transcript_backends.container import Container
from transcript_backends.errors import CorruptSegmentError, InvalidURLError, SegmentNotFoundError, StoreUnavailableError
from transcript_backends.index import SegmentIndex, build
from transcript_backends.keys import PAYLOADS, PayloadKey, TranscriptKeys
from transcript_backends.listing import Indexes, SegmentInfo, stable_listing
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.prefetching import Ahead
from transcript_backends.ranges import Claim, Ranges, claims_of, cut
from transcript_backends.reading import FOREIGN_COMPACTED, Plan, distinct, look, merge, readable
from transcript_backends.records import Record
from transcript_backends.refs import TranscriptRef
from transcript_backends.workers import Crew

_PATIENCE = 100  # times that compactions may move what is being read
_SEGMENT_BYTES = 4 * 1024 * 1024


class CopyResult(NamedTuple):
    """What a copy did, or with ``dry_run`` would do.

    Attributes:
        segments_found: how many the source holds; 0 where it has no such transcript.
        segments, records, bytes_written: what was written to the destination.
        payloads: how many offloaded payloads were written.
        verified: how many records were read back and found to be those of the source.
        beside: how many records the destination holds among them that the source does not.
    """

    segments_found: int = 0
    segments: int = 0
    records: int = 0
    bytes_written: int = 0
    payloads: int = 0
    verified: int = 0
    beside: int = 0


def copy_transcript(
    source: ObjectTranscriptStore,
    destination: ObjectTranscriptStore,
    ref: TranscriptRef,
    *,
    verify: Literal["all", "new", "off"] = "all",
    dry_run: bool = False,
) -> CopyResult:
    """Bring every record of a transcript into another store, where `records` then gives the same.

    It may be interrupted anywhere and called again: what the destination holds is not written again, however either side was
    compacted meanwhile. What others append to the source meanwhile is copied or not. Nothing is ever removed. Two different
    lines of one identity are both copied, in either order.

    Args:
        source, destination: two stores.
        ref: the transcript, in both.
        verify: what to read on both sides and compare, by sha256 over (seq, writer id, line): everything; the range of seqs
            that was copied now; nothing. Without "all" what a listing shows to be there is not read.
        dry_run: write nothing, and read listings and indexes only; sizes are estimates.

    Raises:
        CorruptSegmentError: the destination does not hold what was read from the source, or the source is damaged.
        SegmentConflictError: the destination holds other content under the name of a segment.
        SegmentNotFoundError: the transcript was deleted meanwhile.
        InvalidURLError: both are the same store.
        InvalidRefError, AccessDeniedError, ContainerNotFoundError, StoreUnavailableError, UnexpectedResponseError.
    """
    ours = _Side(source._container, source._names(ref))
    theirs = _Side(destination._container, destination._names(ref))
    if ours.container.driver is theirs.container.driver and ours.names.prefix == theirs.names.prefix:
        raise InvalidURLError(f"{source} is both source and destination; name another store to copy to")
    copy = _Copy(ours, theirs)
    return copy.estimate() if dry_run else copy.run(verify)


class _Side(NamedTuple):
    """The transcript in one of the two stores."""

    container: Container
    names: TranscriptKeys

    def __str__(self) -> str:
        return f"{self.container.driver.location}/{self.names.prefix}"

    def read(self, segment: SegmentInfo) -> bytes:
        """The bytes of a segment, to be compared: where they differ from what was stored, they were read twice."""
        return self.container.read(segment.key, size=segment.size).body

    def opened(self, segment: SegmentInfo, start: int) -> BinaryIO:
        return io.BytesIO(self.read(segment)[start:])

    def records(self, first: int, last: int | None, plan: Plan | None = None) -> Generator[Record, None, None]:
        """Those of a range of seqs, each once."""
        yield from distinct(stream_records(self.container, plan or look(*self), first, last, self.read, lambda: look(*self)))

    def payloads(self) -> dict[str, int]:
        """Size by sha256."""
        listed = ((self.names.parse(each.key), each.size) for each in self.container.list(self.names.prefix + PAYLOADS))
        return {parsed.sha256: size for parsed, size in listed if isinstance(parsed, PayloadKey)}


class _Copy:
    """One copy of one transcript."""

    def __init__(self, source: _Side, destination: _Side) -> None:
        self._source, self._destination = source, destination
        self._written: list[tuple[int, int]] = []  # records and bytes of each segment
        self._scope: Ranges | None = None  # what to copy, where it is not all that the source holds by now
        self._plan = self._look()

    def run(self, verify: str) -> CopyResult:
        if not self._plan.segments or (verify != "all" and not self._missing):
            return CopyResult(len(self._plan.segments))
        first, last = 0, None
        if verify != "all":
            wanted = [each for each in self._plan.segments if each.key in self._missing]
            first, last = min(each.seq_start for each in wanted), max(each.seq_end for each in wanted)
        found = len(self._plan.segments)
        outside = self._source.payloads()
        payloads = self._copy_payloads(outside)
        seen = Digest()
        container = self._source.container
        with (
            Crew() as crew,
            closing(
                stream_records(container, self._plan, first, last, self._transfer, self._look_again, self._parallel, crew)
            ) as records,
        ):
            seen.add_all(distinct(filter(self._is_in_scope, records)))
        beside = self._verify(seen, first, last) if verify != "off" else 0
        if verify != "off" and (lost := self._not_there(outside)):
            raise CorruptSegmentError(
                f"{self._destination} does not hold payload {lost[0]}, one of {len(lost)}: it was deleted meanwhile; copy again"
            )
        records_written, bytes_written = map(sum, zip((0, 0), *self._written, strict=True))
        verified = seen.count if verify != "off" else 0
        return CopyResult(found, len(self._written), records_written, bytes_written, payloads, verified, beside)

    def estimate(self) -> CopyResult:
        segments = records = size = 0
        for each in self._plan.segments:
            if each.key in self._missing:
                claims = list(claims_of([each], self._plan.indexes))
                is_whole = each.generation is None or self._missing[each.key]
                wanted = claims if is_whole else [(claim[0], *gap) for claim in claims for gap in self._held.gaps(*claim)]
                part = each.size * _records_in(wanted) // _records_in(claims)
                segments += 1 if is_whole else max(len(Ranges(wanted)), -(-part // _SEGMENT_BYTES))
                records += _records_in(wanted)
                size += part
        return CopyResult(len(self._plan.segments), segments, records, size, len(self._not_there(self._source.payloads())))

    @property
    def _parallel(self) -> int:
        return max(self._source.container.parallel, self._destination.container.parallel)

    # --- what is missing ----------------------------------------------------------------------------------------------

    def _look(self) -> Plan:
        """List both sides, and find the segments with records that the destination does not hold.

        Some are read for that; where one vanishes, it was merged: everything is listed again.
        """
        for patience in reversed(range(_PATIENCE)):
            try:
                return self._see()
            except SegmentNotFoundError as error:
                if not patience:
                    raise _too_busy(self._source) from error
        raise AssertionError("unreachable")

    def _see(self) -> Plan:
        plan = look(*self._source)
        for each in plan.segments:
            if each.generation is not None and plan.indexes.get(each.name) is None:
                raise CorruptSegmentError(
                    f"the index of {each.key!r} is missing, so nobody can tell whose records it holds; verify the source"
                )
        indexes = Indexes(*self._destination, damaged={})
        listing = stable_listing(*self._destination, indexes)
        self._generation, self._indexed = listing.generation, listing.indexes.keys()
        self._sizes = {each.key: each.size for each in listing.segments}
        self._there = Plan(readable(listing, indexes), indexes)
        self._held = Ranges(claims_of(*self._there[:2]))
        repeated = Ranges(Ranges(claims_of(*plan[:2])).repeated)
        self._missing: dict[str, bool] = {}  # by key: whether to copy it whole
        for each in plan.segments:
            claims = list(claims_of([each], plan.indexes))
            is_repeated = any(repeated.gaps(*claim) != [claim[1:]] for claim in claims)
            # Cut out, what other programs merged would be taken for a merged segment again, beside what it was merged from.
            is_repeated |= each.generation is not None and FOREIGN_COMPACTED in {claim[0] for claim in claims}
            is_new = self._scope is not None and all(self._scope.gaps(*claim) == [claim[1:]] for claim in claims)
            if not is_new and not self._is_there(each, claims, plan, is_repeated=is_repeated):
                self._missing[each.key] = is_repeated
        return plan

    def _is_there(self, segment: SegmentInfo, claims: Sequence[Claim], plan: Plan, *, is_repeated: bool) -> bool:
        """Whether the destination holds all records of a segment."""
        if segment.generation is None:
            size = self._sizes.get(self._same_key(segment))
            if size is not None and not is_repeated:
                return size == segment.size  # else the create will say what is wrong
        elif self._destination.names.segment(*self._index_there(segment, plan).name) in self._sizes:
            return True  # the name is a digest of the records
        if any(self._held.gaps(*claim) for claim in claims):
            return False
        if not is_repeated:
            return True
        with (
            closing(merge([segment], plan.indexes, self._source.opened, beside=plan.segments)) as wanted,
            closing(self._destination.records(segment.seq_start, segment.seq_end, self._there)) as held,
        ):
            return compare(distinct(wanted), held).missing == 0

    def _same_key(self, segment: SegmentInfo) -> str:
        return self._destination.names.prefix + segment.key[len(self._source.names.prefix) :]

    def _index_there(self, segment: SegmentInfo, plan: Plan) -> SegmentIndex:
        """The index of a compacted segment as the destination would have it: of its generation, and without the sources."""
        index = plan.indexes.get(segment.name)
        assert index is not None
        return replace(index, generation=self._generation, sources=())

    def _is_in_scope(self, record: Record) -> bool:
        return self._scope is None or not self._scope.gaps(record.writer_id, record.seq, record.seq)

    def _look_again(self) -> Plan:
        """Where to find now what was there at the beginning, and no more: what came since may come after what is not seen."""
        self._scope = self._scope or Ranges(claims_of(*self._plan[:2]))
        self._plan = self._look()
        if not self._plan.segments:
            raise SegmentNotFoundError(
                f"{self._source} was deleted while it was being copied; {self._destination} may hold a part: delete that too"
            )
        return self._plan

    # --- writing ------------------------------------------------------------------------------------------------------

    def _transfer(self, segment: SegmentInfo) -> bytes:
        """Read a segment, and see that the destination holds its records.

        Raises:
            CorruptSegmentError: it is not what was stored.
        """
        index = self._plan.indexes.get(segment.name)
        expected = index.sha256 if index is not None else ""
        body, _, fault, _ = self._source.container.read(segment.key, size=segment.size, expected=expected, is_moved=True)
        if fault:
            raise CorruptSegmentError(f"{segment.key!r} of {self._source} is damaged: {fault}; it was not copied")
        if segment.key in self._missing:
            is_plain, is_repeated = segment.generation is None, self._missing[segment.key]
            if is_plain and not (is_repeated and self._same_key(segment) in self._sizes):
                self._create(self._same_key(segment), body)
                return body
            with closing(merge([segment], self._plan.indexes, lambda _, start: io.BytesIO(body))) as records:
                if is_repeated:
                    self._create_compacted(distinct(records))
                else:
                    absent = (each for each in records if self._held.gaps(each.writer_id, each.seq, each.seq))
                    for name, part in cut(filter(self._is_in_scope, absent), _SEGMENT_BYTES):
                        self._create(self._destination.names.segment(*name), part)
        return body

    def _create_compacted(self, records: Iterable[Record]) -> None:
        """Store records as a compacted segment, whose name no other records can have; its index first, as a compaction does."""
        body, index = build(records, self._generation, ())
        if index.name not in self._indexed:
            self._destination.container.create(self._destination.names.index(index.name), index.to_json())
        self._create(self._destination.names.segment(*index.name), body)

    def _create(self, key: str, body: bytes) -> None:
        lines = body.count(b"\n") + (body[-1:] not in (b"", b"\n"))
        self._destination.container.create(key, body, {"tbcount": str(lines), "tbschema": "1"})
        self._written.append((lines, len(body)))

    def _not_there(self, payloads: Mapping[str, int]) -> list[str]:
        """Which of some payloads, size by sha256, the destination does not hold."""
        there = self._destination.payloads() if payloads else {}
        return [each for each, size in payloads.items() if there.get(each) != size]

    def _copy_payloads(self, wanted: Mapping[str, int]) -> int:
        """Copy the payloads before the segments that refer to them; gives how many."""
        missing = self._not_there(wanted)
        with ThreadPoolExecutor(self._parallel) as pool:
            return sum(1 for _ in pool.map(self._copy_payload, missing))

    def _copy_payload(self, sha256: str) -> None:
        key = self._source.names.payload(sha256)
        body, _, fault, _ = self._source.container.read(key, expected=sha256)
        if fault:
            raise CorruptSegmentError(f"{key!r} is not what its name says; put the original in its place, or remove it")
        self._destination.container.create(self._destination.names.payload(sha256), body)

    # --- verifying ----------------------------------------------------------------------------------------------------

    def _verify(self, seen: Digest, first: int, last: int | None) -> int:
        """See that the destination holds what was read from the source; gives how many other records it holds."""
        with closing(self._destination.records(first, last)) as held:
            there = Digest()
            there.add_all(held)
        if there.value == seen.value:
            return 0
        # Both may have grown since: what counts is that everything seen is in both.
        scope = self._scope or Ranges(claims_of(*self._plan[:2]))
        with closing(self._source.records(first, last)) as wanted, closing(self._destination.records(first, last)) as held:
            found = compare(wanted, held, lambda each: not scope.gaps(each.writer_id, each.seq, each.seq))
        if found.common.value == seen.value or (not found.missing and found.common.count >= seen.count):
            return found.beside
        if found.first is None:
            raise SegmentNotFoundError(f"{self._source} lost records while it was being copied: it was deleted; look at both")
        raise CorruptSegmentError(
            f"{self._destination} does not hold what was read from {self._source}: record {found.first.seq} of writer "
            f"{found.first.writer_id} is missing there or another, {found.missing} of {seen.count} in all; verify both, "
            "and copy again"
        )


def _too_busy(where: object) -> StoreUnavailableError:
    return StoreUnavailableError(f"{where} is being compacted faster than it can be read; try again")


def _records_in(claims: Iterable[Claim]) -> int:
    return sum(last - first + 1 for _, first, last in claims)


def stream_records(
    container: Container,
    plan: Plan,
    first: int,
    last: int | None,
    fetch: Callable[[SegmentInfo], bytes],
    look_again: Callable[[], Plan],
    parallel: int | None = None,
    crew: Crew | None = None,
) -> Generator[Record, None, None]:
    """The records of a range of seqs, repeats included, for which every segment in it is fetched.

    A segment that vanishes was merged meanwhile: it goes on in what ``look_again`` gives, from the seq of the last record on.
    """
    for patience in reversed(range(_PATIENCE)):
        chosen = [each for each in plan.segments if each.seq_end >= first and (last is None or each.seq_start <= last)]
        try:
            with (
                Crew(crew) as own,
                closing(Ahead(container, chosen, fetch, parallel=parallel, crew=own)) as ahead,
                closing(merge(chosen, plan.indexes, ahead.open, first, plan.segments)) as merged,
            ):
                for record in merged:  # by the time it passes a seq, it has opened all segments that start before it
                    if last is not None and record.seq > last:
                        break
                    if record.seq >= first:
                        yield record
                        first = record.seq
            return
        except SegmentNotFoundError as error:
            if not patience:
                raise _too_busy(container.driver.location) from error
        plan = look_again()
