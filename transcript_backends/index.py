"""The segment index: which records a compacted segment holds, of which writers, and where.

A JSON object, written before its segment, read with one small get. docs/storage-contract.md has the format.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from transcript_backends import keys
from transcript_backends.errors import CorruptSegmentError
from transcript_backends.hashing import sha256
from transcript_backends.keys import SegmentName
from transcript_backends.records import Record

FORMAT = 1
_SEEK_BYTES = 256 * 1024


class Source(NamedTuple):
    """A segment that was merged."""

    name: SegmentName
    size: int
    sha256: str


class Run(NamedTuple):
    """Consecutive records of one writer: one line each, ``length`` bytes from ``offset`` on."""

    writer_id: str
    seq_start: int
    seq_end: int
    offset: int
    length: int


class SeekPoint(NamedTuple):
    """A place to start reading: the record that begins at ``offset`` has this seq."""

    seq: int
    offset: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The index of one compacted segment.

    Attributes:
        generation: of the transcript when it was written.
        sources: what was merged.
        runs: all records, in order.
        seek_points: one about every 256 KiB.
        records: how many.
        size: of the segment in bytes.
        sha256: of the segment, hexadecimal.
    """

    generation: int
    sources: tuple[Source, ...]
    runs: tuple[Run, ...]
    seek_points: tuple[SeekPoint, ...]
    records: int
    size: int
    sha256: str

    @property
    def name(self) -> SegmentName:
        """The name of the segment. The same records always give the same, other records never do."""
        identities = json.dumps([each[:3] for each in self.runs], separators=(",", ":"))
        digest = sha256(f"{identities}{self.sha256}".encode())[:16]
        last = max(each.seq_end for each in self.runs)
        return SegmentName(self.runs[0].seq_start, last, f"compacted-{self.generation}-{digest}")

    def to_json(self) -> bytes:
        """The stored form."""
        members = {
            "format": FORMAT,
            "generation": self.generation,
            "records": self.records,
            "size": self.size,
            "sha256": self.sha256,
            "sources": [[str(each.name), each.size, each.sha256] for each in self.sources],
            "runs": self.runs,
            "seek_points": self.seek_points,
        }
        return json.dumps(members, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, body: bytes, key: str) -> SegmentIndex:
        """Read the stored form.

        Raises:
            CorruptSegmentError: names the key and what is wrong.
        """
        try:
            members = json.loads(body)
            if members["format"] != FORMAT:
                raise ValueError(f"its format is {members['format']!r}, this version reads {FORMAT}")
            return cls(
                generation=_number(members["generation"]),
                sources=tuple(Source(_name(name), _number(size), _text(sha)) for name, size, sha in members["sources"]),
                runs=tuple(Run(_text(run[0]), *map(_number, run[1:])) for run in members["runs"]),
                seek_points=tuple(SeekPoint(*map(_number, each)) for each in members["seek_points"]),
                records=_number(members["records"]),
                size=_number(members["size"]),
                sha256=_text(members["sha256"]),
            )._checked()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptSegmentError(f"{key!r} is no segment index: {type(error).__name__}: {error}") from error

    def _checked(self) -> SegmentIndex:
        offset, records = 0, 0
        for run in self.runs:
            if run.offset != offset or run.seq_end < run.seq_start:
                raise ValueError(f"run {run} does not follow the one before")
            offset += run.length
            records += run.seq_end - run.seq_start + 1
        if (offset, records) != (self.size, self.records) or not self.runs:
            raise ValueError(f"its runs hold {records} records in {offset} bytes, not {self.records} in {self.size}")
        for point in self.seek_points:
            run = self.runs[bisect_right(self.runs, point.offset, key=lambda each: each.offset) - 1]
            if point.offset >= self.size or not run.seq_start <= point.seq <= run.seq_end:
                raise ValueError(f"seek point {point} is in no run")
        return self

    def covers(self, writer_id: str, seq_start: int, seq_end: int) -> bool:
        """Whether every record of a writer's range is in the segment, by identity."""
        for position in range(bisect_left(self.runs, seq_start, key=lambda each: each.seq_end), len(self.runs)):
            writer, first, last, *_ = self.runs[position]
            if first > seq_start or seq_start > seq_end:
                break
            if writer == writer_id:
                seq_start = max(seq_start, last + 1)
        return seq_start > seq_end

    def covers_all(self, other: SegmentIndex) -> bool:
        """Whether every record of another segment is in this one, by identity."""
        return all(self.covers(*run[:3]) for run in other.runs)

    def place_before(self, seq: int) -> tuple[int, int, int]:
        """Where to start reading for records from ``seq`` on.

        Gives the byte offset, the position in ``runs`` of the run there, and how many of its records come before.
        """
        starts = [SeekPoint(run.seq_start, run.offset) for run in self.runs]
        before = [each for each in (*self.seek_points, *starts) if each.seq < seq]
        offset = max((each.offset for each in before), default=0)
        position = max(i for i, run in enumerate(self.runs) if run.offset <= offset)
        run = self.runs[position]
        at = next((each.seq for each in before if each.offset == offset), run.seq_start)
        return offset, position, at - run.seq_start

    def place_after(self, seq: int) -> int:
        """A byte offset from which on no record has a seq up to this one."""
        starts = (SeekPoint(run.seq_start, run.offset) for run in self.runs)
        return min((each.offset for each in (*self.seek_points, *starts) if each.seq > seq), default=self.size)

    def count(self, first: int, last: int) -> int:
        """How many records have a seq from ``first`` to ``last``."""
        found = 0
        for position in range(bisect_left(self.runs, first, key=lambda each: each.seq_end), len(self.runs)):
            run = self.runs[position]
            if run.seq_start > last:
                break
            found += max(0, min(run.seq_end, last) - max(run.seq_start, first) + 1)
        return found


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= keys.MAX_SEQ:
        raise ValueError(f"{value!r} is no number from 0 to 2^63-1")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _name(value: Any) -> SegmentName:
    name = keys.parse_segment_name(_text(value))
    if name is None:
        raise ValueError(f"{value!r} is no segment's name")
    return name


def build(records: Iterable[Record], generation: int, sources: Iterable[Source]) -> tuple[bytes, SegmentIndex]:
    """Put records, in order, into the body of a compacted segment; gives it with its index.

    ``sources`` is read after the records.
    """
    body = io.BytesIO()  # gives its bytes without another copy of them
    runs: list[Run] = []
    seek_points: list[SeekPoint] = []
    count = 0
    for seq, writer_id, line in records:
        offset = body.tell()
        if offset >= len(seek_points) * _SEEK_BYTES:
            seek_points.append(SeekPoint(seq, offset))
        body.write(line)
        body.write(b"\n")
        count += 1
        last = runs[-1] if runs else None
        if last and last.writer_id == writer_id and last.seq_end + 1 == seq:
            runs[-1] = last._replace(seq_end=seq, length=body.tell() - last.offset)
        else:
            runs.append(Run(writer_id, seq, seq, offset, body.tell() - offset))
    stored = body.getvalue()
    digest = sha256(stored)
    index = SegmentIndex(generation, tuple(sources), tuple(runs), tuple(seek_points), count, len(stored), digest)
    return stored, index
