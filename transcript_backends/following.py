"""`Follower`: the records of a transcript as they appear, each once."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import NamedTuple

from transcript_backends.container import Container
from transcript_backends.errors import SegmentNotFoundError
from transcript_backends.hashing import sha256
from transcript_backends.keys import TranscriptKeys
from transcript_backends.listing import Listing, SegmentInfo, list_once
from transcript_backends.payloads import resolved
from transcript_backends.ranges import Ends, claims_of
from transcript_backends.reading import Plan, lines_at, look, read_backwards, read_unseen
from transcript_backends.records import Record
from transcript_backends.workers import ClosableGenerator, Crew

Position = tuple[int, str]
"""Of a record: its seq and its writer id, by which a transcript is ordered."""

_FORMAT = 2
_PATIENCE = 100  # times that what is there may change while it is seen where to go on
_SLICE = 0.5  # seconds after which a follower that waits sees that it was closed


class Follower(Iterator[Record]):
    """Iterates over records, first those that are there, then new ones as they appear. Not for several threads at once.

    Each record is given once for a cursor: whatever is compacted meanwhile, however late a slow writer is, and in whichever
    process the cursor is taken up again. In one look records come in order of (seq, writer id). Where the transcript is
    deleted, those of its next life follow, also where writers use the same ids and seqs again; while a delete is unfinished,
    records up to the highest seq seen of their writer wait for its end. No clock decides what was seen. A record is missed
    only where a writer stores one with a lower seq than it has stored before, which `TranscriptWriter` never does, or where
    the transcript is purged between two looks, which leaves no trace.

    An error of the store ends no follower: the next ``next()`` goes on.

    Args:
        container, names: the transcript.
        cursor: of an earlier follower; None: from the beginning.
        stop_when_idle: seconds without a new record after which the iteration ends; None: never.
        min_interval, max_interval: seconds between two looks: the first after a new record, then ever longer to the second.
        resolve: put offloaded values back.
        last: without a cursor: begin with the last so many records that are there; what is before is not read. None: with
            the first.

    Raises:
        ValueError: the cursor is none, an interval makes no sense, or ``last`` is negative.
    """

    def __init__(
        self,
        container: Container,
        names: TranscriptKeys,
        *,
        cursor: str | None = None,
        stop_when_idle: float | None = None,
        min_interval: float = 0.3,
        max_interval: float = 10.0,
        resolve: bool = True,
        last: int | None = None,
    ) -> None:
        if last is not None and last < 0:
            raise ValueError(f"last must be 0 or more, or None, not {last!r}")
        if not 0 < min_interval <= max_interval:
            raise ValueError(f"the intervals must be seconds, 0 < min <= max, not {min_interval!r} and {max_interval!r}")
        self._container, self._names, self._clock = container, names, container.clock
        self._intervals, self._stop_when_idle = (min_interval, max_interval), stop_when_idle
        self._resolve = resolve
        self._last = last if cursor is None else None
        self._place = Place.parse(cursor) if cursor is not None else START
        self._by_clock = cursor is None  # whether the next look doubts only what is young, which saves a listing
        self._marks: dict[Position, str] = {}  # of the records of this look that are still to be given, or were left out
        self._coming: Generator[Record, None, None] | None = None
        self._crew = Crew()
        self._ends: dict[SegmentInfo, int] = {}  # so that what holds less than its name says is not read at each look
        self._pause = self._active = 0.0
        self._closed = False

    @property
    def cursor(self) -> str:
        """Where to go on from after the last record given, here or in another process. Grows with the number of writers."""
        return str(self._place)

    def __next__(self) -> Record:
        if not self._pause:  # a record was given: what its consumer took with it was no idle time
            self._active = self._clock.monotonic()
        while not self._closed:
            if self._coming is None:
                if not self._wait():
                    break
                self._coming = self._read(self._crew)
            try:
                record = next(self._coming)
            except StopIteration:
                self._coming = None
                shortest, longest = self._intervals
                self._pause = min(max(2 * self._pause, shortest), longest)
                continue
            except BaseException:
                self._coming = None
                self._pause = self._pause or self._intervals[0]
                raise
            self._pause = 0.0
            return self._took(record)
        raise StopIteration

    def close(self) -> None:
        """End the iteration, also from another thread."""
        self._closed = True

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
        if self._coming is not None:
            self._coming.close()
            self._crew.wait()

    def _wait(self) -> bool:
        """Wait for the time of the next look; False where there will be none."""
        until = self._clock.monotonic() + self._pause * (0.75 + self._clock.jitter() / 2)
        while not self._closed and (remaining := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(remaining, _SLICE))
            if self._stop_when_idle is not None and self._clock.monotonic() - self._active >= self._stop_when_idle:
                return False
        return not self._closed

    def _look(self) -> Generator[Record, None, None]:
        """The records that are there and were not given yet; each is to be passed to `_took`."""
        crew = Crew()
        return ClosableGenerator(self._read(crew), crew.wait)

    def _read(self, crew: Crew) -> Generator[Record, None, None]:
        self._marks.clear()
        plan, self._place = go_on(self._container, self._names, self._place, by_clock=self._by_clock)
        self._by_clock = False
        self._ends = {each: self._ends[each] for each in plan.segments if each in self._ends} if self._ends else {}
        if self._last is not None:
            newest = list(read_backwards(self._container, self._names, plan, limit=self._last, ends=self._ends))
            if not _is_undisturbed(self._container, self._names, plan):
                return
            self._place = place_of(self._container, plan, _seen_before(newest, plan, self._ends))
            self._last = None
            found = (each for each in reversed(newest))
        else:
            found = unseen(self._container, self._names, plan, self._place, self._ends, crew)
        if plan.deleting:
            found = marked(found, self._marks)
        yield from resolved(self._container, self._names, found, plan.generation, crew) if self._resolve else found

    def _took(self, record: Record) -> Record:
        """Count a record as given."""
        self._place.take(record, self._marks)
        return record


def _seen_before(newest: Sequence[Record], plan: Plan, ends: Ends) -> dict[str, int]:
    """What was seen of each writer where all was but the newest records."""
    seen: dict[str, int] = {}
    for writer_id, _, last in claims_of(plan.segments, plan.indexes, ends):
        seen[writer_id] = max(last, seen.get(writer_id, -1))
    for record in newest:
        seen[record.writer_id] = min(record.seq - 1, seen.get(record.writer_id, record.seq))
    return seen


# --- places -----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """How far a reader has come in a transcript that grows, is compacted and deleted. It says nothing about time.

    A delete that is finished has removed all that was there when it began: what was seen in an earlier generation is not
    there, and what is there was not seen. While it is unfinished, what was stored before it and what was stored since can't
    be told apart: up to the highest seq seen nothing is given, but remembered as withheld. What is given beyond that may be
    deleted yet, and its seqs used again; so of each writer the last such record is remembered, to see whether it is still
    there. Where it is not, none of that writer's are.

    Attributes:
        generation: of the transcript.
        seen: writer id -> highest seq given.
        withheld: writer id -> first and last seq up to that which were not given in this generation; those that are there
            are given as soon as its delete is finished.
        marks: writer id -> mark of the line at ``seen``, where that was given while the delete was unfinished. None: that is
            finished.
    """

    generation: int
    seen: dict[str, int]
    withheld: dict[str, tuple[int, int]]
    marks: dict[str, str] | None

    def __str__(self) -> str:
        members: dict[str, object] = {"v": _FORMAT, "g": self.generation, "w": self.seen}
        if self.withheld:
            members["h"] = self.withheld
        if self.marks is not None:
            members["d"] = self.marks
        return base64.urlsafe_b64encode(json.dumps(members, separators=(",", ":")).encode()).decode()

    @classmethod
    def parse(cls, cursor: str) -> Place:
        """Read what `str` returns.

        Raises:
            ValueError: it is not that.
        """
        try:
            members = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
            if members["v"] not in (1, _FORMAT):  # 1 has a time as well, which does not count
                raise ValueError(f"its version is {members['v']!r}, this one reads up to {_FORMAT}")
            marks = members.get("d")
            return cls(
                int(members["g"]),
                {str(writer_id): int(seq) for writer_id, seq in members["w"].items()},
                {str(writer_id): (int(first), int(last)) for writer_id, (first, last) in members.get("h", {}).items()},
                None if marks is None else {str(writer_id): str(mark) for writer_id, mark in marks.items()},
            )
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, binascii.Error) as error:
            raise ValueError(f"{cursor!r:.60} is no cursor of a follower: {error}") from error

    @property
    def deleting(self) -> bool:
        """Whether the delete that began the generation was unfinished."""
        return self.marks is not None

    def has_given(self, record: Record) -> bool:
        """Whether a record is not to be given, or not yet."""
        first, last = self.withheld.get(record.writer_id, (0, -1))
        return record.seq <= self.seen.get(record.writer_id, -1) and (self.deleting or not first <= record.seq <= last)

    def take(self, record: Record, marks: dict[Position, str]) -> None:
        """Count a record as given; its mark is among those of `marked` where the delete is unfinished."""
        seq, writer_id = record[:2]
        first, last = self.withheld.get(writer_id, (0, -1))
        if not self.deleting and first <= seq <= last:
            if seq < last:
                self.withheld[writer_id] = (seq + 1, last)
            else:
                del self.withheld[writer_id]
        elif seq >= self.seen.get(writer_id, -1):
            self.seen[writer_id] = seq
            if self.marks is not None:
                self.marks[writer_id] = marks.pop(record[:2], "")

    def seen_in(self, listing: Listing) -> dict[str, int]:
        """What of a listing was seen, at the most."""
        if (listing.generation, listing.deleting) != (self.generation, self.deleting):
            return {}
        released = {} if self.deleting else self.withheld
        return {**self.seen, **{writer_id: first - 1 for writer_id, (first, _) in released.items()}}

    def moved(self, container: Container, plan: Plan) -> Place:
        """The place from which to go on in a plan.

        Raises:
            SegmentNotFoundError: a segment has vanished since.
        """
        if not plan.continues(self.generation, deleting=self.deleting):
            withheld = {writer_id: (0, seq) for writer_id, seq in self.seen.items()} if plan.deleting else {}
            return Place(plan.generation, dict(self.seen) if plan.deleting else {}, withheld, {} if plan.deleting else None)
        if self.marks is None:
            return Place(plan.generation, dict(self.seen), dict(self.withheld), None)
        more = {
            writer_id for writer_id, _, last in claims_of(plan.segments, plan.indexes) if last > self.seen.get(writer_id, -1)
        }
        marks = {
            writer_id: mark
            for writer_id, mark in self.marks.items()
            if (plan.deleting and writer_id not in more)
            or mark in map(_mark, lines_at(container, plan, writer_id, self.seen[writer_id]))
        }
        if plan.deleting:
            lost = {writer_id: (0, self.seen[writer_id]) for writer_id in self.marks.keys() - marks}
            return Place(plan.generation, dict(self.seen), self.withheld | lost, marks)
        return Place(
            plan.generation,
            {writer_id: self.seen[writer_id] for writer_id in marks},
            {writer_id: span for writer_id, span in self.withheld.items() if writer_id in marks},
            None,
        )


def go_on(container: Container, names: TranscriptKeys, place: Place, *, by_clock: bool) -> tuple[Plan, Place]:
    """What there is, and the place in it from which to go on.

    A listing that a delete overtakes may show what that has removed, and the marker of its end: where a marker is new, what
    counts is a listing that began when it was there.

    Args:
        container, names: the transcript.
        place: where the reader is.
        by_clock: whether to doubt only gaps that are young by the server's clock, not all before what is new (`ordering`).
    """
    known = place.generation, place.deleting
    for patience in reversed(range(_PATIENCE)):
        plan = look(container, names) if by_clock else look(container, names, place.seen_in)
        if known != (known := (plan.generation, plan.deleting)) and patience:
            continue
        try:
            return plan, place.moved(container, plan)
        except SegmentNotFoundError:
            if not patience:
                raise
    raise AssertionError("unreachable")


def place_of(container: Container, plan: Plan, seen: dict[str, int]) -> Place:
    """The place of who has seen so much of a plan, given or not."""
    marks: dict[str, str] = {}
    for writer_id, seq in seen.items() if plan.deleting else ():
        with suppress(SegmentNotFoundError):  # deleted: it is not there, and so is not found there again
            marks[writer_id] = next(map(_mark, lines_at(container, plan, writer_id, seq)), "")
    return Place(plan.generation, seen, {}, marks if plan.deleting else None)


def unseen(
    container: Container,
    names: TranscriptKeys,
    plan: Plan,
    place: Place,
    ends: dict[SegmentInfo, int] | None = None,
    crew: Crew | None = None,
) -> Generator[Record, None, None]:
    """The records of a plan to give from a place on, in order, as they are stored; the place may be changed meanwhile.

    ``ends``, ``crew``: as for `reading.read_records`.
    """
    withheld = {} if place.deleting else dict(place.withheld)
    found = read_unseen(container, names, plan, dict(place.seen), withheld, ends, crew)
    return _undisturbed(container, names, plan, found) if plan.deleting else found


_TOGETHER_RECORDS = 1000
_TOGETHER_BYTES = 4 * 1024 * 1024


def _undisturbed(
    container: Container, names: TranscriptKeys, plan: Plan, records: Generator[Record, None, None]
) -> Generator[Record, None, None]:
    """Records of a plan, as long as what it shows is there: so many at once, and then no more.

    While a delete is unfinished, what was listed may be removed, and its keys may be those of the next life by the time they
    are read. Then some of what is read is of one life and some of the other, and nobody knows which.
    """
    with closing(records):
        while batch := list(_together(records)):
            if not _is_undisturbed(container, names, plan):
                return
            yield from batch


def _together(records: Iterator[Record]) -> Iterator[Record]:
    size = 0
    for record in islice(records, _TOGETHER_RECORDS):
        yield record
        size += len(record.line)
        if size > _TOGETHER_BYTES:
            return


def _is_undisturbed(container: Container, names: TranscriptKeys, plan: Plan) -> bool:
    """Whether all segments of a plan are still there, each the one that was listed, or no delete is at work on them."""
    return not plan.deleting or set(plan.segments) <= set(list_once(container, names).segments)


def marked(records: Generator[Record, None, None], marks: dict[Position, str]) -> Generator[Record, None, None]:
    """Records, unchanged, of which each is marked as it is stored."""
    with closing(records):
        for record in records:
            marks[record[:2]] = _mark(record.line)
            yield record


def _mark(line: bytes) -> str:
    return sha256(line)[:16]


START = Place(0, {}, {}, None)
