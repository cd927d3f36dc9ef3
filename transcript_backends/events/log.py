"""`EventLog`: the events of a session, sent durably, listed by page and streamed, in the transcript of the session."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Literal, NamedTuple

from transcript_backends import following
from transcript_backends.errors import InvalidEventError
from transcript_backends.events.model import dumps, invalid
from transcript_backends.events.paging import Cursor, EventProblem, Ids, Page, Sieve, backwards, seen_up_to
from transcript_backends.events.sending import Given, Recent, check_order, checked, refused, short_form
from transcript_backends.events.types import (
    Event,
    check_public,
    check_sendable,
    decode,
)
from transcript_backends.following import START, Follower, Position, go_on, marked, place_of, unseen
from transcript_backends.forks import tell_after_fork
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.offloading import LONG_BYTES
from transcript_backends.payloads import resolved, store_lines
from transcript_backends.reading import Plan, look
from transcript_backends.records import Record
from transcript_backends.refs import TranscriptRef
from transcript_backends.workers import Crew

_log = logging.getLogger(__name__)

_SEARCHED = 10_000  # records among which an id is looked for
_FEW, _MANY = 100, 1000  # records that are read at once

Events = list[Event]
Lines = list[bytes]
Place = str
"""A cursor of a page or of a stream, or the id of an event."""


class EventLog:
    """The events of one session, in its transcript. Safe to share between threads; many may be open, in many processes.

    **Order.** Events are in the order of (seq, writer id) of their records, which never changes, and is the same for everybody.
    What is sent after a send has returned comes after it. Of sends at the same moment, events may be mixed.

    **Once.** An event is recognised by its id where it is sent again: with the same content it counts as sent, with other
    content it is refused. It is looked for among the newest 1,000 events when the log is first sent to, and from then on among
    all since, 10,000 at most. Where two send the same event at the same moment, it is stored twice; pages and streams give
    it once. One that is sent again with a ``processed_at``, and is the same else, comes a second time, to replace the first.

    Args:
        store: where the transcript is.
        ref: names it.
    """

    def __init__(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        self._store, self.ref = store, ref
        self._container, self._names = store._container, store._names(ref)
        self.after_fork()
        tell_after_fork(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.ref}>"

    def after_fork(self) -> None:
        """Two processes must not write as one."""
        self._lock = threading.Lock()
        self._recent = Recent(self._store, self.ref)
        self._writer_id = _new_writer_id()
        self._unsettled: _Batch | None = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, events: Iterable[Given]) -> Events:
        """Store events of a client, all or none; gives them as stored, with ids. They are durable when this returns.

        An event without an id gets one; give ids to be able to send again where it is not known whether they were stored.
        Costs a listing (two where something was stored in the last seconds) and a put, and a get for each send of others
        since the last.

        Args:
            events: `Event` objects, or mappings of members.

        Raises:
            InvalidEventError: names the event by its index, the member and what is wrong; nothing was stored. A client may send
                some types only, and ``system.message`` right after an event of the user or a tool's result only.
            StoreUnavailableError: they may have been stored or not; sending them again, with their ids, is safe.
        """
        return self._send(events, check_sendable)

    def append(self, events: Iterable[Given]) -> Events:
        """Store events of any public type, as `send` does: those of the agent and of the session itself."""
        return self._send(events, check_public)

    def _send(self, given: Iterable[Given], check: Callable[[Event], None]) -> Events:
        batch = [checked(index, each, check) for index, each in enumerate(given)]
        with self._lock:
            self._recent.refresh()
            fresh, ids, previous = [], Ids(), self._recent.last
            for index, (event, line) in enumerate(batch):
                short = short_form(event, line)
                known = self._recent.ids.find(short), ids.find(short)
                if "other" in known:
                    raise refused(index, invalid("id", f"another event has the id {event.id}, and other content"))
                if "same" not in known:
                    check_order(index, event, previous)
                    fresh.append((short, line))
                    ids.add(short)
                previous = event
            if fresh:
                last = self._store_lines([line for _, line in fresh])
                self._recent.stored(self._writer_id, last, [short for short, _ in fresh])
        return [event for event, _ in batch]

    def _store_lines(self, lines: Lines) -> int:
        """Store lines as one segment, all of them or none; gives the last seq.

        Where it is not known whether an earlier segment was stored, the same lines go under the same name again, and others
        under a new writer id: a follower must not see a writer store a lower seq than before.
        """
        if self._unsettled and self._unsettled.lines != lines:
            self._writer_id, self._unsettled = _new_writer_id(), None
        batch = self._unsettled = self._unsettled or _Batch(self._recent.next_seq, lines)
        last = batch.first + len(lines) - 1

        def append(lines: Lines) -> str:
            return self._store.append_segment(self.ref, batch.first, last, self._writer_id, b"\n".join(lines))

        store_lines(self._container, self._names, lines, LONG_BYTES, append)
        self._unsettled = None
        return last

    # --- reading ------------------------------------------------------------------------------------------------------

    def list(
        self,
        *,
        after: Place | None = None,
        before: Place | None = None,
        limit: int | None = None,
        types: Collection[str] | None = None,
        thread: str | None = None,
        order: Literal["asc", "desc"] = "asc",
    ) -> Page:
        """A page of events. With ``order="desc"`` the newest come first, and little more than them is read.

        Going on with ``after=page.after`` gives each event once, whatever is sent and compacted meanwhile: one that is stored
        late, before that place (of sends at the same moment), comes with the next page. Going on with ``before=page.before``
        and ``order="desc"`` gives each event once that was there when the first page was read. ``after=page.after`` of the
        newest page gives what comes after it. A place outlives compactions, and a delete: what is sent after it follows.

        Args:
            after, before: between which places: a cursor of a page or a stream, or the id of one of the newest 10,000 events,
                which is looked for from the end.
            limit: how many at most; None: all.
            types: only events of these.
            thread: only events of this thread.
            order: ``asc`` or ``desc``.

        Raises:
            InvalidEventError: no such event is among the newest 10,000.
            ValueError: a cursor is none, or another argument makes no sense.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be 1 or more, or None, not {limit!r}")
        if order not in ("asc", "desc"):
            raise ValueError(f"order must be 'asc' or 'desc', not {order!r}")
        problems: list[EventProblem] = []
        taken = _Taken(limit, Sieve(types, thread, problems.append))
        start = None if after is None else self._cursor(after)
        end = None if before is None else self._position(before)
        expected = _MANY if limit is None or types is not None or thread is not None else limit + 1
        newer, older = self._forwards(start, end, taken) if order == "asc" else self._backwards(start, end, taken, expected)
        return Page(taken.events, problems, taken.has_more, newer, older)

    def _forwards(self, start: Cursor | None, end: Position | None, taken: _Taken) -> tuple[str, str | None]:
        plan, place = self._go_on(start)
        first, last = None, start.position if start else None
        marks: dict[Position, str] = {}
        crew = Crew()
        found = unseen(self._container, self._names, plan, place, crew=crew)
        if plan.deleting:
            found = marked(found, marks)
        with crew, closing(resolved(self._container, self._names, found, plan.generation, crew)) as records:
            for record in records:
                if (end and record[:2] >= end) or not taken.take(record):
                    break
                place.take(record, marks)
                last = record[:2]
                first = first or last
        return str(Cursor(place, last)), str(Cursor(place, first)) if first else None

    def _backwards(self, start: Cursor | None, end: Position | None, taken: _Taken, expected: int) -> tuple[str, str | None]:
        plan, before = self._go_on(start)
        oldest = start.position if start and plan.continues(start.place.generation, deleting=start.place.deleting) else None
        first = last = None
        crew = Crew()
        found = backwards(self._container, self._names, plan, end, expected)
        with crew, closing(resolved(self._container, self._names, found, plan.generation, crew)) as records:
            for record in records:
                if oldest and record[:2] <= oldest and before.has_given(record):
                    break
                if before.has_given(record):
                    continue
                if not taken.take(record):
                    break
                last = record[:2]
                first = first or last
        place = place_of(self._container, plan, seen_up_to(plan, end, itself=False))
        return str(Cursor(place, first or end)), str(Cursor(place, last)) if last else None

    def stream(
        self,
        last_event_id: Place | None = None,
        *,
        types: Collection[str] | None = None,
        thread: str | None = None,
        stop_when_idle: float | None = None,
        min_interval: float = 0.3,
        max_interval: float = 10.0,
        on_problem: Callable[[EventProblem], object] | None = None,
    ) -> EventStream:
        """The events that are there, and new ones as they are sent; see `EventStream`.

        Args:
            last_event_id: where to go on after: the id of one of the newest 10,000 events, which is looked for from the end;
                or a cursor of a page or a stream, which costs nothing and is exact. None: from the first on.
            types, thread: as for `list`.
            stop_when_idle, min_interval, max_interval: as for `ObjectTranscriptStore.follow`.
            on_problem: called with each record that is no event; default: a warning is logged.

        Raises:
            InvalidEventError: no such event is among the newest 10,000.
            ValueError: the cursor is none, or another argument makes no sense.
        """
        start = None if last_event_id is None else self._cursor(last_event_id)
        follower = self._store.follow(
            self.ref,
            cursor=None if start is None else str(start.place),
            stop_when_idle=stop_when_idle,
            min_interval=min_interval,
            max_interval=max_interval,
        )
        return EventStream(follower, Sieve(types, thread, on_problem or self._warn), start and start.position)

    def _warn(self, problem: EventProblem) -> None:
        _log.warning("%s: %s", self.ref, problem)

    def _go_on(self, start: Cursor | None) -> tuple[Plan, following.Place]:
        place = start.place if start else START
        return go_on(self._container, self._names, place, by_clock=start is None)

    def _position(self, place: Place) -> Position:
        position = self._cursor(place).position
        if position is None:
            raise ValueError(f"{place!r:.60} is a cursor of a follower, which can't be gone back from; use one of a page")
        return position

    def _cursor(self, place: Place) -> Cursor:
        if not place.startswith("evt_"):
            return Cursor.parse(place)
        plan = look(self._container, self._names)
        written = dumps(place)
        with closing(backwards(self._container, self._names, plan, None, _FEW)) as records:
            for record in islice(records, _SEARCHED):
                if written in record.line and _id_on(record) == place:
                    seen = seen_up_to(plan, record[:2], itself=True)
                    return Cursor(place_of(self._container, plan, seen), record[:2])
        raise InvalidEventError(
            f"no event {place!r} is among the newest {_SEARCHED:,} of {self.ref}; go on with a cursor of a page or a stream"
        )


class EventStream(Iterator[Event]):
    """Iterates over events, first those that are there, then new ones as they are sent. Not for several threads at once.

    Each event is given once for a cursor, whatever is compacted meanwhile and however late a slow sender is, in order but for
    those that are stored late. Going on after an event's id, those that were stored before it and late are not given again.

    An error of the store ends no stream: the next ``next()`` goes on.
    """

    def __init__(self, follower: Follower, sieve: Sieve, position: Position | None) -> None:
        self._follower, self._sieve, self._position = follower, sieve, position

    @property
    def cursor(self) -> str:
        """Where to go on after the last event given, here or in another process. Grows with the number of senders."""
        return str(Cursor(self._follower._place, self._position))

    def __next__(self) -> Event:
        while True:
            event = self._event(next(self._follower))
            if event is not None:
                return event

    def _event(self, record: Record) -> Event | None:
        """What a record gives that was taken from the follower."""
        self._position = record[:2]
        return self._sieve(record)

    def close(self) -> None:
        """End the iteration, also from another thread."""
        self._follower.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._follower.__exit__(*exc_info)


# --- inside -----------------------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Lines that were about to be stored."""

    first: int
    lines: list[bytes]


class _Taken:
    """The events of a page so far."""

    def __init__(self, limit: int | None, sieve: Sieve) -> None:
        self._limit, self._sieve = limit, sieve
        self.events: list[Event] = []
        self.has_more = False

    def take(self, record: Record) -> bool:
        """Take what is on a record; False where that is one event too many."""
        event = self._sieve(record)
        if event is not None and self._limit is not None and len(self.events) >= self._limit:
            self.has_more = True
            return False
        if event is not None:
            self.events.append(event)
        return True


def _id_on(record: Record) -> str | None:
    try:
        return decode(record.line).id
    except InvalidEventError:
        return None


def _new_writer_id() -> str:
    return f"events-{secrets.token_hex(6)}"
