"""Looking at every byte of a transcript for what is wrong with it, and removing what is provably left over."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Literal, NamedTuple

from transcript_backends import errors
from transcript_backends.compaction import remove_leftovers
from transcript_backends.container import Container, Whole
from transcript_backends.deletion import finish_abandoned_deletes
from transcript_backends.index import SegmentIndex
from transcript_backends.keys import SegmentName, TranscriptKeys
from transcript_backends.listing import Indexes, Listing, SegmentInfo, stable_listing
from transcript_backends.offloading import Reference, split
from transcript_backends.payloads import read_payload
from transcript_backends.reading import FOREIGN_COMPACTED, merge, readable
from transcript_backends.records import MAX_LINE_BYTES, Record, is_object

Kind = Literal[
    "damaged line",
    "wrong line count",
    "wrong hash",
    "wrong index",
    "missing index",
    "conflict",
    "missing payload",
    "damaged payload",
    "gap",
    "overlap",
    "redundant segment",
    "orphan index",
    "dead generation",
    "unfinished delete",
    "foreign objects",
    "phantom",
    "not removed",
]

_PATIENCE = 100  # times that compactions may move what is being looked at
_HARMLESS = frozenset({"gap", "overlap", "redundant segment", "orphan index", "dead generation", "foreign objects"})


class Problem(NamedTuple):
    """One thing found.

    Attributes:
        kind: what it is.
        key: the object, or the prefix of the transcript where it is about several.
        detail: where in it, and what that means.
    """

    kind: Kind
    key: str
    detail: str

    @property
    def harmless(self) -> bool:
        """Whether every reader still gets every record, once and whole."""
        return self.kind in _HARMLESS


class VerifyReport(NamedTuple):
    """What a transcript looks like.

    Attributes:
        segments: how many are read.
        records: how many there are in them.
        size: their bytes.
        problems: what was found.
        repaired: the keys of objects that were removed.
    """

    segments: int
    records: int
    size: int
    problems: list[Problem]
    repaired: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing was found that could hide or change a record."""
        return all(each.harmless for each in self.problems)


def verify(container: Container, names: TranscriptKeys, *, repair: bool) -> VerifyReport:
    """Read and check everything; with ``repair``, first finish what crashes have left, removing only what is redundant."""
    repaired: list[str] = []
    not_removed: list[Problem] = []
    for mend in (finish_abandoned_deletes, remove_leftovers) if repair else ():
        removed, failed = mend(container, names)
        repaired += removed
        not_removed += (Problem("not removed", key, reason) for key, reason in failed.items())
    for patience in reversed(range(_PATIENCE)):
        try:
            segments, records, problems = _inspect(container, names)
        except (errors.SegmentNotFoundError, _ChangedError) as error:  # a compaction has moved it: look again
            if not patience:
                raise errors.StoreUnavailableError(f"{names.prefix!r} changes faster than it can be read: {error}") from error
        else:
            break
    return VerifyReport(len(segments), records, sum(each.size for each in segments), [*not_removed, *problems], repaired)


def _inspect(container: Container, names: TranscriptKeys) -> tuple[list[SegmentInfo], int, list[Problem]]:
    """The segments that are read, how many records are in them, and what is wrong."""
    problems: list[Problem] = []
    damaged: dict[SegmentName, errors.CorruptSegmentError] = {}
    indexes = Indexes(container, names, damaged, anew=True)
    listing = stable_listing(container, names, indexes)
    problems += (
        Problem(
            "phantom", each.key, f"{each.size} bytes by the listing, and not there when it is read; nobody's, or a lost segment"
        )
        for each in container.phantoms.below(names.prefix)
    )
    problems += _left_over(listing, indexes, names)
    for each in listing.compacted:
        indexes.get(each.name)  # fills damaged
    problems += (Problem("wrong index", names.index(name), str(error)) for name, error in damaged.items())
    sound: list[SegmentInfo] = []
    needed = readable(listing, indexes)
    read = {each.key for each in needed}
    digests: dict[str, str] = {}
    for segment in listing.segments:
        digests[segment.key], found = _check(container, segment, indexes)
        if found:
            again = _check(container, segment, indexes)[1]
            found = [each for each in found if each in again]  # one response proves nothing of what is stored
        problems += found
        if segment.key in read and all(each.harmless or each.kind == "missing index" for each in found):
            sound.append(segment)
    records, more = _check_records(container, names, sound, digests, indexes)
    problems += more
    return needed, records, problems


def _left_over(listing: Listing, indexes: Indexes, names: TranscriptKeys) -> Iterator[Problem]:
    for marker in listing.unfinished:
        yield Problem("unfinished delete", marker.info.key, f"begun at {marker.info.created_at}; delete again, or repair")
    for segment in listing.dead:
        yield Problem(
            "dead generation", segment.key, "a delete overtook its compaction; nobody reads it, the next compaction removes it"
        )
    for name in sorted(listing.indexes.keys() - {each.name for each in listing.segments}):
        yield Problem(
            "orphan index",
            listing.indexes[name].key,
            "its segment was merged further, also by another program, and it goes when it is an hour old; or it was never "
            "written, or removed, and it stays",
        )
    for key in sorted(indexes.superseded(listing)):
        yield Problem("redundant segment", key, "its records are in a compacted segment; the next compaction removes it")
    if listing.foreign:
        yield Problem("foreign objects", names.prefix, f"{listing.foreign} objects that are not ours; left alone")


def _check(container: Container, segment: SegmentInfo, indexes: Indexes) -> tuple[str, list[Problem]]:
    """The sha256 of one segment, and what is wrong with it by itself."""
    whole = container.read(segment.key, size=segment.size, is_moved=True)
    return whole.sha256, list(_faults(segment, whole, indexes.get(segment.name)))


def _faults(segment: SegmentInfo, whole: Whole, index: SegmentIndex | None) -> Iterator[Problem]:
    body, digest, fault, _ = whole
    if index is not None and index.sha256 != digest:
        yield Problem("wrong hash", segment.key, f"its sha256 is {digest}, its index says {index.sha256}")
        return
    if index is None and segment.generation is not None:
        yield Problem("missing index", segment.key, "its records are shown under its own name, not their writers'")
    if fault:
        yield Problem("wrong hash", segment.key, fault)
    lines = 0
    offset = 0
    for raw in io.BytesIO(body):
        lines += 1
        line = raw.removesuffix(b"\n")
        fault = (
            "is blank" if not line.strip() else
            "was cut short" if not raw.endswith(b"\n") and not is_object(line) else
            "is no JSON object" if not is_object(line) else
            f"is {len(line)} bytes long, more than others can read" if len(line) > MAX_LINE_BYTES else
            ""
        )  # fmt: skip
        if fault:
            yield Problem("damaged line", segment.key, f"line {lines} at byte {offset} {fault}")
        offset += len(raw)
    expected = index.records if index else segment.seq_end - segment.seq_start + 1
    is_counted = (
        segment.generation is None and segment.writer_id != FOREIGN_COMPACTED
    )  # whose sources may overlap, or have gaps
    if is_counted and lines != expected:
        yield Problem("wrong line count", segment.key, f"it has {lines} lines, its name says {expected}")


class _ChangedError(Exception):
    """A segment is not what it was a moment ago."""


def _check_records(
    container: Container, names: TranscriptKeys, segments: list[SegmentInfo], digests: Mapping[str, str], indexes: Indexes
) -> tuple[int, list[Problem]]:
    """How many records there are, and what is wrong between segments: seqs that nobody or several have, lines that disagree.

    Raises:
        _ChangedError: a segment has another sha256 than it had.
    """

    def opened(segment: SegmentInfo, start: int) -> BinaryIO:
        whole = container.read(segment.key, expected=digests[segment.key])
        if whole.fault:
            raise _ChangedError(f"{segment.key!r}: {whole.fault}")
        return io.BytesIO(whole.body[start:])

    problems: list[Problem] = []
    count, expected, shared = 0, None, 0
    last: tuple[int, str] | None = None
    lines: set[bytes] = set()
    outside: dict[str, tuple[Reference, Record]] = {}
    for record in merge(segments, indexes, opened):
        for reference in _references(record):
            outside.setdefault(reference.sha256, (reference, record))
        identity = record[:2]
        if identity == last:
            if record.line in lines:
                continue
            if record.writer_id == FOREIGN_COMPACTED:  # of any writers; what is the same record is told by the entry's id
                shared += 1
            else:
                detail = f"record {record.seq} of {record.writer_id} has two different lines; two writers share this id"
                problems.append(Problem("conflict", names.prefix, detail))
        else:
            shared += last is not None and last[0] == record.seq
            lines = set()
        if expected is not None and record.seq > expected:
            missing = f"{expected}" if record.seq == expected + 1 else f"{expected} to {record.seq - 1}"
            problems.append(Problem("gap", names.prefix, f"nobody has written seq {missing}"))
        lines.add(record.line)
        last, expected, count = identity, record.seq + 1, count + 1
    if shared:
        problems.append(
            Problem("overlap", names.prefix, f"{shared} records have a seq that another writer uses too; all are kept")
        )
    with ThreadPoolExecutor(container.parallel) as pool:
        problems += filter(None, pool.map(lambda each: _check_payload(container, names, *each), outside.values()))
    return count, problems


def _references(record: Record) -> Sequence[Reference]:
    try:
        outside = split(record.line)
    except RecursionError:
        return ()
    return outside.references if outside else ()


def _check_payload(container: Container, names: TranscriptKeys, reference: Reference, record: Record) -> Problem | None:
    where = f"{reference.pointer!r} of record {record.seq} of {record.writer_id} refers to it"
    try:
        read_payload(container, names, reference)
    except errors.SegmentNotFoundError:
        return Problem("missing payload", names.payload(reference.sha256), where)
    except errors.CorruptSegmentError as error:
        return Problem("damaged payload", names.payload(reference.sha256), f"{where}: {error}")
    return None
