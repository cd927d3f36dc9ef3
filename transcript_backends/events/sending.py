"""What a log checks before it stores an event, and what it knows of those that are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from transcript_backends.errors import InvalidEventError
from transcript_backends.events.model import Model, invalid, new_id
from transcript_backends.events.paging import Ids
from transcript_backends.events.types import (
    Event,
    SystemMessage,
    UserInterrupt,
    decode,
    event_of,
    may_precede_system_message,
)
from transcript_backends.following import Position
from transcript_backends.object_store import ObjectTranscriptStore
from transcript_backends.offloading import LONG_BYTES, MAX_ENTRY_BYTES, offload, too_long
from transcript_backends.records import MAX_LINE_BYTES
from transcript_backends.refs import TranscriptRef

_NEWEST = 1000  # events among which one that is sent again is recognised, when a log is opened

Given = Event | Mapping[str, Any]


def checked(index: int, given: Given, check: Callable[[Event], None]) -> tuple[Event, bytes]:
    """An event as it is stored, and its line; ``check`` sees to its type.

    Raises:
        InvalidEventError: names the event by its index, the member and what is wrong.
    """
    try:
        event = event_of(given.members() if isinstance(given, Model) else given)
        check(event)
        if isinstance(event, UserInterrupt) and event.session_thread_id is UNSET:
            event = replace(event, session_thread_id=None)
        if not event.id:
            event = replace(event, id=new_id("evt"))
        line = event.to_line()
        if len(line) > MAX_ENTRY_BYTES or too_long(line, LONG_BYTES):
            limits = f"{MAX_ENTRY_BYTES}, and {MAX_LINE_BYTES} without its large strings, are the limits"
            raise invalid("", f"it is {len(line)} bytes long; {limits}: keep large values in files")
        return event, line
    except InvalidEventError as error:
        raise refused(index, error) from error
    except ValueError as error:
        raise refused(index, invalid("", str(error))) from error


def short_form(event: Event, line: bytes) -> Event:
    """An event as its line is stored: without its large strings, so that none has to be fetched to tell events apart."""
    return decode(offload(line, LONG_BYTES)[0]) if len(line) > LONG_BYTES else event


def check_order(index: int, event: Event, previous: Event | None) -> None:
    """See that a ``system.message`` follows what it may.

    Raises:
        InvalidEventError: it does not.
    """
    if isinstance(event, SystemMessage) and (previous is None or not may_precede_system_message(previous)):
        found = "first" if previous is None else f"after {previous.type!r}"
        why = f"'system.message' comes {found}; it must follow an event of the user or a tool's result"
        raise refused(index, invalid("type", why))


def refused(index: int, error: InvalidEventError) -> InvalidEventError:
    """The same error, of one of the events that were given."""
    path, reason = error.path, error.reason
    where = f"events[{index}].{path}" if path else f"events[{index}]"
    return InvalidEventError(f"{where}: {reason}; nothing was stored", index=index, path=path, reason=reason)


class Recent:
    """What others have sent: enough to recognise an event, to come after all that is there, and to know what came last."""

    def __init__(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        self._store, self._ref = store, ref
        self._begin()

    def _begin(self) -> None:
        self._follower = self._store.follow(self._ref, last=_NEWEST, resolve=False)
        self._life: tuple[int, bool] | None = None
        self.ids = Ids()
        self.last: Event | None = None
        self._last_position: Position = (-1, "")

    @property
    def next_seq(self) -> int:
        return max(self._follower._place.seen.values(), default=-1) + 1

    def refresh(self) -> None:
        """Read what was stored since. One listing where nothing was."""
        while True:
            self._follower._by_clock = True  # senders take turns in one numbering: gaps in their own are normal
            with closing(self._follower._look()) as records:
                for record in records:
                    self._follower._took(record)
                    with suppress(InvalidEventError):
                        event = short_form(decode(record.line), record.line)
                        self.ids.add(event)
                        if record[:2] > self._last_position:
                            self.last, self._last_position = event, record[:2]
            place = self._follower._place
            if self._life in (None, life := (place.generation, place.deleting)):
                self._life = life
                return
            self._begin()  # a delete has begun or ended: what is known may have been deleted

    def stored(self, writer_id: str, last: int, events: list[Event]) -> None:
        """Know of what was just stored."""
        self._follower._place.seen[writer_id] = last
        for event in events:
            self.ids.add(event)
        self.last, self._last_position = events[-1], (last, writer_id)
