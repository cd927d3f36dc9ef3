"""Frames of a stream: what is being said, before the event that says it is there. They make a preview and are never stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from transcript_backends.events.model import Count, EventId, Fault, Makers, Model, build, invalid
from transcript_backends.events.types import AgentMessage, AgentThinking, Event, event_of, text

_REMEMBERED = 1000  # events that have replaced their preview


class Frame(Model, frozen=True, kw_only=True):
    """An `EventStart` or an `EventDelta`."""

    def faults(self) -> list[Fault]:
        return [Fault(each, "a frame has none") for each in ("id", "processed_at") if each in self.unknown]

    def to_line(self) -> bytes:
        """Always fails.

        Raises:
            ValueError: frames are never stored.
        """
        raise ValueError("a frame of a stream is never stored, only the event that replaces it")


class EventReference(Model, frozen=True, kw_only=True):
    """The event that has begun."""

    id: EventId
    type: Literal["agent.message", "agent.thinking"]


class EventStart(Frame, frozen=True, kw_only=True, tag="event_start"):
    """An event has begun. One of type ``agent.thinking`` has no deltas."""

    event: EventReference

    nested: ClassVar[Makers] = {"event": partial(build, EventReference)}

    @classmethod
    def of(cls, event_id: str, kind: Literal["agent.message", "agent.thinking"] = "agent.message") -> EventStart:
        """The frame that begins an event."""
        return cls(event=EventReference(id=event_id, type=kind))


class TextDelta(Model, frozen=True, kw_only=True):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ContentDelta(Model, frozen=True, kw_only=True):
    """What comes at the end of a block, whose index counts from 0."""

    type: Literal["content_delta"]
    index: Count
    content: TextDelta

    nested: ClassVar[Makers] = {"content": partial(build, TextDelta)}


class EventDelta(Frame, frozen=True, kw_only=True, tag="event_delta"):
    """More text of an event of type ``agent.message``."""

    event_id: EventId
    delta: ContentDelta

    nested: ClassVar[Makers] = {"delta": partial(build, ContentDelta)}

    @classmethod
    def of(cls, event_id: str, more: str, index: int = 0) -> EventDelta:
        """The frame that goes on with a block of an event."""
        content = TextDelta(type="text", text=more)
        return cls(event_id=event_id, delta=ContentDelta(type="content_delta", index=index, content=content))


_FRAMES: dict[str, type[Frame]] = {"event_start": EventStart, "event_delta": EventDelta}


class Preview:
    """The events that are being said, as far as they have come. What is stored is authoritative: it replaces its preview.

    Attributes:
        pending: the events that have begun and are not there yet, by id, in the order in which they began.
    """

    def __init__(self) -> None:
        self.pending: dict[str, Event] = {}
        self._done: dict[str, None] = {}

    def feed(self, given: Frame | Event | Mapping[str, Any]) -> Event | None:
        """Take a frame, or an event of the stream; gives the event that it is about, as it stands now.

        None where there is nothing to show: a delta of an event whose start was missed, or that is there already. A second
        start of an event begins its preview anew.

        Raises:
            InvalidEventError: it is no frame and no event, or a delta that can't follow; nothing has changed.
        """
        match item := _item(given):
            case EventStart():
                return self._start(item.event)
            case EventDelta():
                return self._go_on(item.event_id, item.delta)
        assert isinstance(item, Event)
        self.pending.pop(item.id, None)
        self._done[item.id] = None
        if len(self._done) > _REMEMBERED:
            del self._done[next(iter(self._done))]
        return item

    def _start(self, event: EventReference) -> Event | None:
        if event.id in self._done:
            return None
        begun = AgentMessage(id=event.id, content=[]) if event.type == "agent.message" else AgentThinking(id=event.id)
        self.pending[event.id] = begun
        return begun

    def _go_on(self, event_id: str, delta: ContentDelta) -> Event | None:
        event = self.pending.get(event_id)
        if event is None:
            return None
        if not isinstance(event, AgentMessage):
            raise invalid("event_id", f"{event.type} has no deltas")
        blocks = event.content
        assert isinstance(blocks, list)
        if delta.index > len(blocks):
            raise invalid("delta.index", f"{delta.index} leaves out a block: the event has {len(blocks)} so far")
        before = blocks[delta.index]["text"] if delta.index < len(blocks) else ""
        more = [*blocks[: delta.index], *text(before + delta.content.text), *blocks[delta.index + 1 :]]
        self.pending[event_id] = AgentMessage(id=event_id, content=more)
        return self.pending[event_id]


def _item(given: Frame | Event | Mapping[str, Any]) -> Frame | Event:
    members = given.members() if isinstance(given, Model) else given
    kind = members.get("type") if isinstance(members, Mapping) else None
    frame = _FRAMES.get(kind) if isinstance(kind, str) else None
    return build(frame, members) if frame else event_of(members)
