"""`Follower`: the records of a transcript as they appear, each once."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

from transcript_backends.container import Container
from transcript_backends.keys import TranscriptKeys
from transcript_backends.listing import SegmentInfo
from transcript_backends.payloads import resolved
from transcript_backends.ranges import Ends, claims_of
from transcript_backends.reading import SERVER_CLOCKS_DIFFER, Plan, look, read_backwards, read_unseen
from transcript_backends.records import Record
from transcript_backends.workers import ClosableGenerator, Crew

_FORMAT = 1
_SLICE = 0.5  # seconds after which a follower that waits sees that it was closed


class Follower(Iterator[Record]):
    """Iterates over records, first those that are there, then new ones as they appear. Not for several threads at once.

    Each record is given once for a cursor: whatever is compacted meanwhile, however late a slow writer is, and in whichever
    process the cursor is taken up again. In one look records come in order of (seq, writer id). Where the transcript is
    deleted, those of its next life follow. A record is missed only where a writer stores one with a lower seq than it has
    stored before, which `TranscriptWriter` never does.

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
        self._place = _Place.parse(cursor) if cursor is not None else _Place(0, None, {})
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
            self._place.seen[record.writer_id] = record.seq
            self._pause = 0.0
            return record
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
        """The records that are there and were not given yet."""
        crew = Crew()
        return ClosableGenerator(self._read(crew), crew.wait)

    def _read(self, crew: Crew) -> Generator[Record, None, None]:
        before = self._container.server_time()
        plan = look(self._container, self._names)
        self._ends = {each: self._ends[each] for each in plan.segments if each in self._ends} if self._ends else {}
        place = self._place
        if plan.generation != place.generation:
            place = place.after_delete(plan)
        began = self._container.server_time() if before is None else before
        if self._last is not None:
            newest = list(read_backwards(self._container, self._names, plan, limit=self._last, ends=self._ends))
            self._place, self._last = _Place(plan.generation, began, _seen_before(newest, plan, self._ends)), None
            yield from self._whole((each for each in reversed(newest)), plan, crew)
            return
        self._place = _Place(plan.generation, began, dict(place.seen))
        records = read_unseen(self._container, self._names, plan, place.seen, self._ends, crew)
        yield from self._whole(records, plan, crew)

    def _whole(self, records: Generator[Record, None, None], plan: Plan, crew: Crew) -> Iterator[Record]:
        return resolved(self._container, self._names, records, plan.generation, crew) if self._resolve else records


def _seen_before(newest: Sequence[Record], plan: Plan, ends: Ends) -> dict[str, int]:
    """What was seen of each writer where all was but the newest records."""
    seen: dict[str, int] = {}
    for writer_id, _, last in claims_of(plan.segments, plan.indexes, ends):
        seen[writer_id] = max(last, seen.get(writer_id, -1))
    for record in newest:
        seen[record.writer_id] = min(record.seq - 1, seen.get(record.writer_id, record.seq))
    return seen


class _Place(NamedTuple):
    """How far a follower has come.

    Attributes:
        generation: of the transcript.
        looked: when it last looked, by the server's clock.
        seen: writer id -> highest seq given.
    """

    generation: int
    looked: datetime | None
    seen: dict[str, int]

    def __str__(self) -> str:
        looked = self.looked and self.looked.timestamp()
        stored = json.dumps({"v": _FORMAT, "g": self.generation, "t": looked, "w": self.seen}, separators=(",", ":"))
        return base64.urlsafe_b64encode(stored.encode()).decode()

    @classmethod
    def parse(cls, cursor: str) -> _Place:
        try:
            members = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
            if members["v"] != _FORMAT:
                raise ValueError(f"its version is {members['v']!r}, this one reads {_FORMAT}")
            looked = None if members["t"] is None else datetime.fromtimestamp(members["t"], timezone.utc)
            return cls(int(members["g"]), looked, {str(writer_id): int(seq) for writer_id, seq in members["w"].items()})
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, binascii.Error) as error:
            raise ValueError(f"{cursor!r:.60} is no cursor of a follower: {error}") from error

    def after_delete(self, plan: Plan) -> _Place:
        """The place in the next life of a transcript: seen is only what outlived the delete, being stored while it ran."""
        old = {
            each.writer_id: self.seen[each.writer_id]
            for each in plan.segments
            if each.seq_end <= self.seen.get(each.writer_id, -1)
            and self.looked is not None
            and each.created_at < self.looked - SERVER_CLOCKS_DIFFER
        }
        return _Place(plan.generation, self.looked, old)
