"""Previews: what frames of a stream say, until the event is there."""

from __future__ import annotations

import pytest

from transcript_backends import InvalidEventError
from transcript_backends.events import AgentMessage, AgentThinking, EventDelta, EventStart, Preview, UserMessage, text

START = {"type": "event_start", "event": {"id": "evt_1", "type": "agent.message"}}


def delta(said, index=0, event_id="evt_1"):
    content = {"type": "text", "text": said}
    return {"type": "event_delta", "event_id": event_id, "delta": {"type": "content_delta", "index": index, "content": content}}


def test_deltas_are_put_together_block_by_block():
    preview = Preview()
    assert preview.feed(START) == AgentMessage(id="evt_1", content=[])
    assert preview.feed(delta("He")) == AgentMessage(id="evt_1", content=text("He"))
    assert preview.feed(delta("llo")) == AgentMessage(id="evt_1", content=text("Hello"))
    assert preview.feed(delta("你", 1)) == AgentMessage(id="evt_1", content=text("Hello", "你"))
    assert preview.feed(delta("!")) == AgentMessage(id="evt_1", content=text("Hello!", "你"))
    assert preview.pending == {"evt_1": AgentMessage(id="evt_1", content=text("Hello!", "你"))}


def test_the_event_replaces_its_preview_whatever_that_said():
    preview = Preview()
    preview.feed(START)
    preview.feed(delta("Hel"))
    event = AgentMessage(id="evt_1", content=text("Goodbye"))
    assert preview.feed(event) == event
    assert preview.pending == {}
    for late in (delta("lo"), START):
        assert preview.feed(late) is None
    assert preview.pending == {}


def test_several_events_are_said_at_once_each_in_its_own_preview():
    preview = Preview()
    preview.feed(EventStart.of("evt_1"))
    preview.feed(EventStart.of("evt_2"))
    preview.feed(EventDelta.of("evt_2", "b"))
    preview.feed(EventDelta.of("evt_1", "a"))
    assert [event.content for event in preview.pending.values()] == [text("a"), text("b")]
    assert preview.feed(UserMessage(id="evt_3", content=text("x"))) is not None
    assert list(preview.pending) == ["evt_1", "evt_2"]


def test_thinking_has_a_start_and_no_deltas():
    preview = Preview()
    assert preview.feed(EventStart.of("evt_1", "agent.thinking")) == AgentThinking(id="evt_1")
    with pytest.raises(InvalidEventError, match=r"agent\.thinking has no deltas"):
        preview.feed(delta("hm"))
    assert preview.pending == {"evt_1": AgentThinking(id="evt_1")}
    preview.feed({"type": "agent.thinking", "id": "evt_1"})
    assert preview.pending == {}


def test_who_joins_in_the_middle_sees_nothing_until_the_event_is_there():
    preview = Preview()
    assert preview.feed(delta("llo")) is None
    assert preview.pending == {}


def test_a_second_start_begins_anew():
    preview = Preview()
    preview.feed(START)
    preview.feed(delta("Hel"))
    assert preview.feed(START) == AgentMessage(id="evt_1", content=[])
    assert preview.feed(delta("Hi")) == AgentMessage(id="evt_1", content=text("Hi"))


def test_memory_is_bounded():
    preview = Preview()
    for number in range(3000):
        preview.feed(EventStart.of(f"evt_{number}"))
        preview.feed(AgentMessage(id=f"evt_{number}", content=[]))
    assert preview.pending == {}
    assert len(preview._done) == 1000


BAD = [
    ({"type": "event_start"}, "event"),
    ({**START, "event": {"type": "agent.message"}}, "event.id"),
    ({**START, "event": {"id": "evt_1"}}, "event.type"),
    ({**START, "event": {"id": "sess_1", "type": "agent.message"}}, "event.id"),
    ({**START, "event": {"id": "evt_1", "type": "user.message"}}, "event.type"),
    ({**START, "event": "evt_1"}, "event"),
    ({**START, "id": "evt_1"}, "id"),
    ({**START, "processed_at": "2026-01-01T00:00:00Z"}, "processed_at"),
    ({**delta("x"), "event_id": "1"}, "event_id"),
    ({**delta("x"), "event_id": None}, "event_id"),
    ({"type": "event_delta", "event_id": "evt_1"}, "delta"),
    ({**delta("x"), "delta": {"type": "other", "index": 0, "content": text("x")[0]}}, "delta.type"),
    ({**delta("x"), "delta": {"type": "content_delta", "content": text("x")[0]}}, "delta.index"),
    ({**delta("x"), "delta": {"type": "content_delta", "index": 0}}, "delta.content"),
    ({**delta("x"), "delta": {"type": "content_delta", "index": 0, "content": {"type": "image"}}}, "delta.content.type"),
    ({**delta("x"), "delta": {"type": "content_delta", "index": 0, "content": {"type": "text"}}}, "delta.content.text"),
    (delta(5), "delta.content.text"),
    (delta("x", -1), "delta.index"),
    (delta("x", "0"), "delta.index"),
    (delta("x", 1), "delta.index"),
    ({"type": "user.message", "id": "evt_1"}, "content"),
    ({"type": 5}, "type"),
    ({}, "type"),
    (5, ""),
]


@pytest.mark.parametrize(("item", "path"), BAD)
def test_what_is_no_frame_and_no_event_is_refused_and_changes_nothing(item, path):
    preview = Preview()
    preview.feed(START)
    with pytest.raises(InvalidEventError) as caught:
        preview.feed(item)
    assert caught.value.path == path
    assert caught.value.reason in str(caught.value)
    assert preview.pending == {"evt_1": AgentMessage(id="evt_1", content=[])}


def test_members_of_frames_that_nobody_knows_are_kept():
    frame = EventStart.of("evt_1")
    assert frame.members() == START
    assert EventDelta.of("evt_1", "x", 2).members() == delta("x", 2)
    assert Preview().feed({**START, "later": 1}) == AgentMessage(id="evt_1", content=[])
