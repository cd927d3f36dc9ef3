"""Places in a log, and what turns its records into events."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, overload

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from transcript_backends.container import Container
from transcript_backends.errors import InvalidEventError
from transcript_backends.events.model import Fault, invalid
from transcript_backends.events.types import Event, decode
from transcript_backends.following import Place, Position
from transcript_backends.keys import TranscriptKeys
from transcript_backends.ranges import claims_of
from transcript_backends.reading import Plan, read_backwards
from transcript_backends.records import Record

_REMEMBERED = 10_000  # ids


class Cursor(NamedTuple):
    """A place in a log. Its text is a cursor of a follower too, and one of a follower can be read.

    Attributes:
        place: what a consumer has been given, by writer: what it goes on after.
        position: of the record next to the place; None for a cursor of a follower.
    """

    place: Place
    position: Position | None

    def __str__(self) -> str:
        members = json.loads(base64.urlsafe_b64decode(str(self.place)))
        stored = json.dumps(members | {"p": self.position}, separators=(",", ":"))
        return base64.urlsafe_b64encode(stored.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor.

        Raises:
            ValueError: it is none.
        """
        place = Place.parse(text)
        position = json.loads(base64.urlsafe_b64decode(text)).get("p")
        try:
            return cls(place, None if position is None else (int(position[0]), str(position[1])))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{text!r:.60} is no cursor of a log: {error}") from error


def seen_up_to(plan: Plan, position: Position | None, *, itself: bool) -> dict[str, int]:
    """The highest seq of each writer before a position, or up to it; of all there is where it is None."""
    seen: dict[str, int] = {}
    for writer_id, first, last in claims_of(plan.segments, plan.indexes):
        if position is not None:
            seq, at = position
            last = min(last, seq if writer_id < at or (itself and writer_id == at) else seq - 1)
        if last >= first:
            seen[writer_id] = max(last, seen.get(writer_id, -1))
    return seen


def backwards(
    container: Container, names: TranscriptKeys, plan: Plan, before: Position | None, expected: int
) -> Generator[Record, None, None]:
    """The records before a position, from the last one back; what is read depends on how many are taken, and expected."""
    while True:
        count, last = 0, before
        end = None if before is None else before[0]
        for record in read_backwards(container, names, plan, end_seq=end, limit=expected):
            count += 1
            if before is None or record[:2] < before:
                yield record
                last = record[:2]
        if count < expected:
            return
        before, expected = last, 2 * expected


class EventProblem(NamedTuple):
    """A record of a log that is no event.

    Attributes:
        seq, writer_id: of the record.
        path: the member, as ``content[0].text``; empty for the whole.
        reason: what is wrong with it.
    """

    seq: int
    writer_id: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"record {self.seq} of {self.writer_id}: {Fault(self.path, self.reason)}"


@dataclass(frozen=True)
class Page(Sequence[Event]):
    """Some events of a log: a sequence of them, with what was seen on the way.

    Attributes:
        events: in the order that was asked for.
        problems: what was read on the way and is no event.
        has_more: whether there is at least one more event that way.
        after: where to go on to newer events: for ``list(after=...)`` and ``stream(...)``.
        before: where to go on to older events: for ``list(before=..., order="desc")``; None where there was nothing to see.
    """

    events: list[Event]
    problems: list[EventProblem]
    has_more: bool
    after: str
    before: str | None

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self.events[place]

    def __len__(self) -> int:
        return len(self.events)


class Ids:
    """The ids of the last 10,000 events, and what these held."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, str]] = {}

    def find(self, event: Event) -> Literal["new", "same", "processed", "other"]:
        """What is known of an event: nothing; that it is the same; the same, but processed since; another."""
        if event.id not in self._known:
            return "new"
        content, processed_at = self._known[event.id]
        if content != _digest(event) or (event.processed_at and processed_at not in ("", event.processed_at)):
            return "other"
        return "processed" if event.processed_at and not processed_at else "same"

    def add(self, event: Event) -> None:
        self._known[event.id] = _digest(event), event.processed_at or ""
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]


_canonical = msgspec.json.Encoder(order="sorted")


def _digest(event: Event) -> bytes:
    """Of all that it holds but when it was processed."""
    event = replace(event, processed_at=UNSET)
    try:
        content = _canonical.encode(event)
    except UnicodeEncodeError:  # half a character
        content = json.dumps(event.members(), sort_keys=True).encode()
    return hashlib.sha256(content).digest()[:16]


class Sieve:
    """Gives the event on a record where it is asked for, once, and once more when it was processed; reports what is none.

    Args:
        types: of the events wanted; None: all.
        thread: the id of the thread wanted; None: all.
        report: takes what is wrong.
    """

    def __init__(self, types: Collection[str] | None, thread: str | None, report: Callable[[EventProblem], object]) -> None:
        if isinstance(types, str):
            raise TypeError(f"types must be several, [{types!r}], not a str")
        self._types, self._thread, self._report, self._ids = types, thread, report, Ids()

    def __call__(self, record: Record) -> Event | None:
        try:
            event = decode(record.line)
            known = self._ids.find(event)
            if known == "other":
                raise invalid("id", f"another event has the id {event.id}, and other content")
        except InvalidEventError as error:
            self._report(EventProblem(record.seq, record.writer_id, error.path, error.reason))
            return None
        if known == "same":
            return None
        self._ids.add(event)
        is_wanted = (self._types is None or event.type in self._types) and self._thread in (None, event.session_thread_id)
        return event if is_wanted else None
