"""The event types of the session API: what each must hold, and that nothing is lost on the way through them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from transcript_backends import InvalidEventError
from transcript_backends.events import SENDABLE, TYPES, Event, UnknownEvent, UserMessage, decode, event_of, text
from transcript_backends.events.model import new_id

PUBLIC = [
    "user.message",
    "user.interrupt",
    "user.tool_confirmation",
    "user.custom_tool_result",
    "user.define_outcome",
    "user.tool_result",
    "system.message",
    "agent.custom_tool_use",
    "agent.mcp_tool_result",
    "agent.mcp_tool_use",
    "agent.message",
    "agent.thinking",
    "agent.thread_context_compacted",
    "agent.thread_message_received",
    "agent.thread_message_sent",
    "agent.tool_result",
    "agent.tool_use",
    "session.deleted",
    "session.error",
    "session.status_idle",
    "session.status_rescheduled",
    "session.status_running",
    "session.status_terminated",
    "session.thread_created",
    "session.thread_status_idle",
    "session.thread_status_rescheduled",
    "session.thread_status_running",
    "session.thread_status_terminated",
    "session.updated",
    "span.model_request_start",
    "span.model_request_end",
    "span.outcome_evaluation_start",
    "span.outcome_evaluation_ongoing",
    "span.outcome_evaluation_end",
]

NOON = "2026-01-31T12:00:00Z"
REQUIRED = {
    "user.message": {"content": text("hi")},
    "user.tool_confirmation": {"tool_use_id": "t1", "result": "allow"},
    "user.tool_result": {"tool_use_id": "t1"},
    "user.custom_tool_result": {"custom_tool_use_id": "c1"},
    "user.define_outcome": {"description": "green", "rubric": {"type": "text", "content": "all pass"}},
    "system.message": {"content": text("be brief")},
    "span.model_request_start": {"processed_at": NOON},
    "span.model_request_end": {"processed_at": NOON, "is_error": False, "model_request_start_id": "evt_1"},
}


def members(kind, **more):
    """The least that an event of a type holds, as it is stored."""
    return {"type": kind, "id": "evt_1", **REQUIRED.get(kind, {}), **more}


def fault(given_members):
    with pytest.raises(InvalidEventError) as caught:
        event_of(given_members)
    return (caught.value.path, caught.value.reason)


def test_every_public_type_is_known_and_those_that_a_client_may_send():
    assert sorted(TYPES) == sorted(PUBLIC)
    assert sorted(SENDABLE) == sorted([kind for kind in PUBLIC if kind.startswith("user.")] + ["system.message"])


@pytest.mark.parametrize("kind", PUBLIC)
def test_an_event_with_what_its_type_requires_comes_back_as_it_was(kind):
    line = json.dumps(members(kind)).encode()
    event = decode(line)
    assert type(event) is TYPES[kind]
    assert event.type == kind
    assert json.loads(event.to_line()) == json.loads(line)
    assert decode(event.to_line()) == event


MISSING = [(kind, name) for kind in PUBLIC for name in REQUIRED.get(kind, {})]


@pytest.mark.parametrize(("kind", "name"), MISSING)
def test_a_required_member_that_is_missing_is_named(kind, name):
    incomplete = members(kind)
    del incomplete[name]
    path, reason = fault(incomplete)
    assert path.split(".")[0] == name
    assert "missing" in reason


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_stored_event_of_any_type_needs_an_id(kind):
    without = members(kind)
    del without["id"]
    assert event_of(without).id == ""
    with pytest.raises(InvalidEventError, match="id: it is missing"):
        decode(json.dumps(without).encode())


@pytest.mark.parametrize("kind", PUBLIC)
@pytest.mark.parametrize("value", ["sess_1", "evt_", "", "evt 1", "evt_a b", 5, None])
def test_an_id_of_the_wrong_kind_is_refused(kind, value):
    assert fault(members(kind, id=value))[0] == "id"


@pytest.mark.parametrize("kind", [kind for kind in PUBLIC if not kind.startswith("span.model")])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("processed_at", "2026-01-31T12:00:00"),
        ("processed_at", "2026-13-31T12:00:00Z"),
        ("processed_at", "yesterday"),
        ("processed_at", 5),
        ("session_thread_id", "evt_1"),
        ("session_thread_id", 5),
        ("name", 5),
        ("is_error", "yes"),
        ("mcp_tool_use_id", []),
        ("input", "x"),
        ("outcome_id", 1),
        ("deny_message", {}),
    ],
)
def test_a_member_of_the_wrong_kind_is_named_on_every_type(kind, name, value):
    path, reason = fault(members(kind, **{name: value}))
    assert path == name
    assert reason


BAD = [
    ("user.message", {"content": []}, "content", "empty"),
    ("user.message", {"content": "hi"}, "content", "array"),
    ("user.message", {"content": None}, "content", "array"),
    ("user.message", {"content": ["hi"]}, "content[0]", "object"),
    ("user.message", {"content": [{"text": "hi"}]}, "content[0].type", "missing"),
    ("user.message", {"content": [{"type": 5}]}, "content[0].type", "str"),
    ("user.message", {"content": [*text("a"), {"type": "text"}]}, "content[1].text", "missing"),
    ("user.message", {"content": [{"type": "text", "text": 5}]}, "content[0].text", "str"),
    ("system.message", {"content": []}, "content", "empty"),
    ("system.message", {"content": [{"type": "image"}]}, "content[0].type", "'text'"),
    ("user.tool_confirmation", {"result": "maybe"}, "result", "'allow', 'deny'"),
    ("user.tool_confirmation", {"tool_use_id": ""}, "tool_use_id", "empty"),
    ("user.tool_confirmation", {"deny_message": 5}, "deny_message", "str"),
    ("user.tool_result", {"content": "done"}, "content", "array"),
    ("user.tool_result", {"content": [{}]}, "content[0].type", "missing"),
    ("user.tool_result", {"is_error": 1}, "is_error", "bool"),
    ("user.custom_tool_result", {"content": None}, "content", "array"),
    ("user.define_outcome", {"rubric": "strict"}, "rubric", "object"),
    ("user.define_outcome", {"rubric": {}}, "rubric.type", "text or file"),
    ("user.define_outcome", {"rubric": {"type": "text"}}, "rubric.content", "needs"),
    ("user.define_outcome", {"rubric": {"type": "file", "file_id": "f1"}}, "rubric.file_id", "file_"),
    ("user.define_outcome", {"max_iterations": -1}, "max_iterations", ">= 0"),
    ("user.define_outcome", {"description": ""}, "description", "empty"),
    ("user.interrupt", {"session_thread_id": "t1"}, "session_thread_id", "sthr_"),
    ("span.model_request_end", {"is_error": None}, "is_error", "bool"),
    ("span.model_request_end", {"model_request_start_id": "1"}, "model_request_start_id", "evt_"),
    ("span.model_request_start", {"processed_at": None}, "processed_at", "str"),
    ("agent.message", {"content": [{"type": "text"}]}, "content[0].text", "missing"),
]


@pytest.mark.parametrize(("kind", "more", "path", "reason"), BAD)
def test_what_breaks_a_rule_is_named_with_the_reason(kind, more, path, reason):
    found = fault(members(kind, **more))
    assert found[0] == path
    assert reason in found[1]


GOOD = [
    ("user.tool_result", {"content": [], "is_error": True}),
    ("user.tool_confirmation", {"result": "deny", "deny_message": "no"}),
    ("user.define_outcome", {"rubric": {"type": "file", "file_id": "file_1"}, "max_iterations": 3}),
    ("user.define_outcome", {"rubric": {"type": "later", "x": 1}}),
    ("user.interrupt", {"session_thread_id": None}),
    ("user.interrupt", {"session_thread_id": "sthr_1"}),
    ("user.message", {"content": [{"type": "image", "source": {"data": "x"}}]}),
    (
        "agent.message",
        {"content": "as one text", "usage": {"tokens": 3}, "processed_at": "2026-01-31t12:00:00.123456789+08:00"},
    ),
    ("agent.tool_use", {"name": "bash", "input": {"command": "ls"}, "stop_reason": None}),
    ("session.error", {"error": {"message": "x"}}),
]


@pytest.mark.parametrize(("kind", "more"), GOOD)
def test_what_may_be_there_is_kept(kind, more):
    given_members = members(kind, **more)
    assert json.loads(event_of(given_members).to_line()) == given_members


@pytest.mark.parametrize(
    ("given_members", "path", "reason"),
    [
        ({}, "type", "missing"),
        ({"type": None}, "type", "missing"),
        ({"type": 5}, "type", "str"),
        ({"type": "event_start"}, "type", "never stored"),
        ({"type": "event_delta"}, "type", "never stored"),
        ([1], "", "list"),
        ("x", "", "str"),
    ],
)
def test_what_is_no_event_is_refused(given_members, path, reason):
    found = fault(given_members)
    assert found[0] == path
    assert reason in found[1]


@pytest.mark.parametrize("line", [b"", b"{", b"nope", b'{"type":NaN}', b'{"a":"\xff"}', b"[" * 100_000])
def test_a_line_that_is_no_json_is_refused(line):
    with pytest.raises(InvalidEventError, match="not JSON"):
        decode(line)


def test_members_and_types_that_nobody_knows_are_kept():
    line = b'{"id":"evt_1","type":"agent.message","content":[],"(unknown)":{"a":[1,2.50]},"big":123456789012345678901234567890}'
    event = decode(line)
    assert event.unknown == {"(unknown)": {"a": [1, 2.5]}, "big": 123456789012345678901234567890}
    assert json.loads(event.to_line()) == json.loads(line)
    later = decode(b'{"id":"evt_1","type":"agent.dream","content":[],"of":{"x":1}}')
    assert isinstance(later, UnknownEvent)
    assert later.type == "agent.dream"
    assert json.loads(later.to_line()) == {"id": "evt_1", "type": "agent.dream", "content": [], "of": {"x": 1}}


def test_what_was_not_written_is_told_from_null():
    assert decode(b'{"id":"evt_1","type":"user.interrupt"}').session_thread_id is UNSET
    assert decode(b'{"id":"evt_1","type":"user.interrupt","session_thread_id":null}').session_thread_id is None


def test_half_a_character_comes_back_as_it_was():
    line = b'{"type":"user.message","id":"evt_1","content":[{"type":"text","text":"\\ud83d"}]}'
    assert decode(line).to_line() == line


def test_an_event_shows_what_it_holds_and_no_more():
    assert repr(UserMessage(content=text("hi"))) == "UserMessage(content=[{'type': 'text', 'text': 'hi'}])"


def test_ids_are_new_each_time_and_begin_as_they_should():
    ids = [new_id("evt") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch("evt_[0-9a-f]{24}", each) for each in ids)


# --- round trips ------------------------------------------------------------------------------------------------------

_texts = st.text(st.characters(codec="utf-8"), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_known = set(Event.__struct_fields__) | {"type", "model_request_start_id", "description", "max_iterations"}
_unknown = st.dictionaries(_texts.filter(lambda name: name not in _known), _values, max_size=3)


@given(kind=st.sampled_from([*PUBLIC, "some.later_type"]), unknown=_unknown, blocks=st.lists(_unknown, min_size=1, max_size=3))
def test_any_event_comes_back_member_for_member(kind, unknown, blocks):
    given_members = members(kind, **unknown)
    if kind != "system.message":
        given_members["content"] = [{**block, "type": "new"} for block in blocks]
    line = json.dumps(given_members).encode()
    event = decode(line)
    assert json.loads(event.to_line()) == given_members
    assert decode(event.to_line()) == event
    assert event_of(given_members) == event


def test_the_examples_of_the_guide_print_what_it_says(capsys):
    guide = (Path(__file__).resolve().parents[2] / "docs/events.md").read_text()
    blocks = re.findall(r"^```(python|)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", ""] * 3
    for (_, example), (_, output) in zip(blocks[::2], blocks[1::2], strict=True):
        exec(compile(example, "docs/events.md", "exec"), {})
        assert capsys.readouterr().out == output
