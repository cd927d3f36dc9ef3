from __future__ import annotations

import copy
import json
import pickle
import random
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.setups import REF, make

from transcript_backends import InvalidEntryError, check_jsonl
from transcript_backends.entries import (
    CompactionEntry,
    MessageEntry,
    RawEntry,
    SummaryEntry,
    ToolResultEntry,
    ToolUseEntry,
    decode,
    encode,
)

HALF = re.compile("[\ud800-\udfff]")
NOON = datetime(2026, 8, 1, 12, tzinfo=timezone.utc)

# --- reading ----------------------------------------------------------------------------------------------------------

COMMON = {"id": "e1", "parentId": "e0", "timestamp": "2026-08-01T12:00:00Z"}
LINES = {
    "message": {"role": "USER", "content": "hi", "toolCallId": "c1", "blockTypes": ["image"]},
    "tool_use": {"toolCallId": "c1", "name": "ls", "input": {"a": [1, None]}, "truncated": True, "originalSize": 9},
    "tool_result": {
        "toolCallId": "c1",
        "name": "ls",
        "output": "x",
        "outputBlockTypes": ["text"],
        "truncated": True,
        "originalSize": 4096,
    },
    "compaction": {"firstKeptEntryId": "m3", "summaryEntryId": "s1"},
    "summary": {"summary": "what happened", "format": "plain"},
}
CLASSES = {
    "message": MessageEntry,
    "tool_use": ToolUseEntry,
    "tool_result": ToolResultEntry,
    "compaction": CompactionEntry,
    "summary": SummaryEntry,
}
OPTIONAL = {"toolCallId", "blockTypes", "truncated", "originalSize", "outputBlockTypes", "format"}
REQUIRED = [
    (kind, name) for kind, members in LINES.items() for name in members if name not in OPTIONAL or (kind, name) in
    {("tool_use", "toolCallId"), ("tool_result", "toolCallId")}
]  # fmt: skip


def as_line(kind: str, **changes) -> bytes:
    return json.dumps({"type": kind, **COMMON, **LINES.get(kind, {}), **changes}).encode()


def without(line: bytes, *names: str) -> bytes:
    return json.dumps({name: value for name, value in json.loads(line).items() if name not in names}).encode()


def camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


@pytest.mark.parametrize("kind", LINES)
def test_every_member_of_a_type_is_a_field(kind):
    entry = decode(as_line(kind))
    assert type(entry) is CLASSES[kind]
    assert entry.type == kind
    assert {camel(name): getattr(entry, name) for name in entry.__struct_fields__ if name != "timestamp_json"} == {
        **LINES[kind],
        "id": "e1",
        "parentId": "e0",
    }
    assert entry.timestamp == NOON
    assert entry.extra == {}


@pytest.mark.parametrize("kind", LINES)
def test_what_is_optional_has_a_default_and_is_not_written_where_it_was_not(kind):
    line = without(as_line(kind), "parentId", *(OPTIONAL - ({"toolCallId"} if kind.startswith("tool") else set())))
    entry = decode(line)
    assert entry.parent_id is None
    for name in ("tool_call_id", "block_types", "original_size", "output_block_types"):
        assert getattr(entry, name, None) in (None, "c1")
    assert getattr(entry, "truncated", False) is False
    assert getattr(entry, "format", "structured") == "structured"
    assert encode(entry) == line


@pytest.mark.parametrize(("kind", "name"), REQUIRED)
def test_a_missing_member_is_named(kind, name):
    for line in (without(as_line(kind), name), as_line(kind, **{name: None})):
        with pytest.raises(InvalidEntryError, match=f"'{name}' of a {kind} entry is missing; RawEntry.read takes it") as caught:
            decode(line)
        assert caught.value.member == name


@pytest.mark.parametrize(
    ("kind", "name", "value", "member"),
    [
        ("message", "id", 7, "id"),
        ("message", "parentId", ["e0"], "parentId"),
        ("message", "role", 5, "role"),
        ("message", "content", [{"text": "x"}], "content"),
        ("message", "toolCallId", 1, "toolCallId"),
        ("message", "blockTypes", ["image", 5], "blockTypes[1]"),
        ("tool_use", "input", [1], "input"),
        ("tool_use", "input", "ls", "input"),
        ("tool_use", "name", {}, "name"),
        ("tool_use", "truncated", "yes", "truncated"),
        ("tool_result", "output", 5, "output"),
        ("tool_result", "originalSize", 4.5, "originalSize"),
        ("tool_result", "originalSize", "4096", "originalSize"),
        ("tool_result", "outputBlockTypes", "text", "outputBlockTypes"),
        ("compaction", "firstKeptEntryId", 3, "firstKeptEntryId"),
        ("compaction", "summaryEntryId", True, "summaryEntryId"),
        ("summary", "summary", ["x"], "summary"),
        ("summary", "format", 1, "format"),
    ],
)
def test_a_member_of_another_type_is_named(kind, name, value, member):
    with pytest.raises(
        InvalidEntryError, match=re.escape(f"'{member}' of a {kind} entry is not what it should be: Expected")
    ) as caught:
        decode(as_line(kind, **{name: value}))
    assert caught.value.member == member


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff", b'{"a":"\xff"}', b'{"a":' * 100_000, b"{} {}", b'{"a":NaN}']
)
def test_what_is_no_object_is_no_entry(line):
    for read in (decode, RawEntry.read):
        with pytest.raises(InvalidEntryError, match="the line is no JSON object"):
            read(line)


def test_a_role_may_be_in_any_case_and_is_compared_without():
    for role in ("USER", "user", "User"):
        entry = decode(as_line("message", role=role))
        assert (entry.role, entry.speaker) == (role, "user")


def test_a_null_is_an_absent_member():
    for kind, members in LINES.items():
        nulls = dict.fromkeys(OPTIONAL & members.keys() - ({"toolCallId"} if kind.startswith("tool") else set()))
        line = as_line(kind, parentId=None, **nulls)
        assert decode(line) == decode(without(line, "parentId", *nulls))


def test_a_line_without_id_or_timestamp_is_an_entry():
    entry = decode(b'{"type":"message","role":"user","content":"hi","id":null}')
    assert (entry.id, entry.timestamp, entry.timestamp_ns, entry.text) == ("", None, None, "hi")
    assert encode(entry) == b'{"type":"message","role":"user","content":"hi","id":null}'


def test_an_unknown_type_is_a_raw_entry():
    line = b'{"type":"model_change","id":"e1","parentId":"e0","timestamp":1785585600.5,"to":{"name":"m"}}'
    entry = decode(line)
    assert isinstance(entry, RawEntry)
    assert (entry.type, entry.id, entry.parent_id, entry.timestamp_ns) == ("model_change", "e1", "e0", 1785585600_500000000)
    assert entry.extra == {"to": {"name": "m"}}
    assert encode(entry) == line
    for odd in (b"{}", b'{"type":5,"id":[],"parentId":{},"timestamp":null}', b'{"role":"user"}'):
        entry = decode(odd)
        assert (type(entry), entry.type, entry.id, entry.parent_id, entry.timestamp) == (RawEntry, "", "", None, None)
        assert encode(entry) == odd


def test_what_is_not_what_its_type_demands_can_be_read_as_it_is():
    entry = RawEntry.read(as_line("message", role=5))
    assert (entry.type, entry.id, entry.parent_id) == ("message", "e1", "e0")
    assert entry.extra["role"] == 5


def test_half_a_character_is_shown_as_such_and_kept():
    line = rb'{"type":"message","id":"1","timestamp":1,"role":"user","content":"a\ud83d \\ud83d \ud83d\ude00 \ude00\ude00"}'
    entry = decode(line)
    assert entry.text == "a� \\ud83d 😀 ��"
    assert encode(entry) == line
    made = MessageEntry.user("a\ud83d \udcff")
    assert json.loads(encode(made))["content"] == "a\ud83d \udcff"
    assert check_jsonl(encode(made))
    call = ToolUseEntry.new("bash", {"cmd": "\udcff"})
    assert json.loads(encode(call)) == {
        "type": "tool_use",
        "id": call.id,
        "timestamp": json.loads(bytes(call.timestamp_json)),
        "toolCallId": call.tool_call_id,
        "name": "bash",
        "input": {"cmd": "\udcff"},
        "truncated": False,
    }


# --- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "exact"),
    [
        ("1785585600.123456789", 1785585600_123456789),
        ("1785585601.000000000", 1785585601_000000000),
        ("1785585601", 1785585601_000000000),
        ("1.785585600123456789e9", 1785585600_123456789),
        ("-0.000000001", -1),
        ("0.0000000019", 1),
        (f"1785585600.123456789{'9' * 40}", 1785585600_123456789),
        ("253402300799.999999999", 253402300799_999999999),
        ('"2026-08-01T12:00:00Z"', 1785585600_000000000),
        ('"2026-08-01t12:00:00.123456789z"', 1785585600_123456789),
        ('"2026-08-01T12:00:00.1234567899Z"', 1785585600_123456789),
        ('"2026-08-01T14:30:00.5+02:30"', 1785585600_500000000),
        ('"2026-08-01 07:00:00-05:00"', 1785585600_000000000),
        ('"1969-12-31T23:59:59.999999999Z"', -1),
        ('"0001-01-01T00:00:00Z"', -62135596800_000000000),
    ],
)
def test_both_forms_of_a_timestamp_are_read_to_the_last_digit_and_kept(stamp, exact):
    line = b'{"type":"message","id":"1","timestamp":%s,"role":"user","content":"x"}' % stamp.encode()
    entry = decode(line)
    assert entry.timestamp_ns == exact
    assert entry.timestamp == datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=exact // 1000)
    assert encode(entry) == line
    assert encode(msgspec.structs.replace(entry)) == line  # from the fields alone


@pytest.mark.parametrize(
    ("stamp", "reason"),
    [
        ('"2026-08-01T12:00:00"', "has no time zone; end it in Z or an offset"),
        ('"2026-08-01"', "is neither RFC 3339 nor a number of seconds"),
        ('"yesterday"', "is neither"),
        ("[]", "is neither"),
        ("true", "is neither"),
        ('""', "is neither"),
        ('"2026-13-01T12:00:00Z"', "is no date"),
        ('"2026-02-30T12:00:00Z"', "is no date"),
        ('"2026-02-03T25:00:00Z"', "is no date"),
        ("253402300800", "is no number of seconds in the years 1 to 9999"),
        ("1785585600123456", "is no number of seconds"),
        ("1e999999999", "is no number of seconds"),
        ("1e9999999999999999999999", "is neither"),
    ],
)
def test_another_timestamp_is_an_error_where_it_is_used_and_the_rest_is_readable(stamp, reason):
    entry = decode(b'{"type":"message","id":"1","timestamp":%s,"role":"user","content":"x"}' % stamp.encode())
    assert entry.text == "x"
    for name in ("timestamp", "timestamp_ns"):
        with pytest.raises(InvalidEntryError, match=reason) as caught:
            getattr(entry, name)
        assert caught.value.member == "timestamp"


@given(st.datetimes(timezones=st.timezones()))
def test_a_moment_comes_back_from_a_line(moment):
    try:
        expected = moment.astimezone(timezone.utc)
    except OverflowError:
        return
    entry = decode(encode(MessageEntry.new("user", "x", timestamp=moment)))
    assert entry.timestamp == expected
    assert json.loads(encode(entry))["timestamp"].endswith("Z")


@given(st.integers(-62135596800 * 10**9, 253402300800 * 10**9 - 1))
def test_nanoseconds_come_back_from_a_number(exact):
    stamp = f"{Decimal(exact).scaleb(-9):f}"
    entry = decode(b'{"type":"message","id":"1","timestamp":%s,"role":"user","content":"x"}' % stamp.encode())
    assert entry.timestamp_ns == exact


# --- making -----------------------------------------------------------------------------------------------------------


def test_a_new_entry_has_an_id_of_its_own_and_the_time_in_utc():
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    one, two = MessageEntry.user("hi"), MessageEntry.user("hi")
    assert one.id != two.id
    assert before < one.timestamp <= datetime.now(timezone.utc)
    assert json.loads(encode(one)) == {
        "type": "message",
        "id": one.id,
        "timestamp": json.loads(bytes(one.timestamp_json)),
        "role": "user",
        "content": "hi",
    }


def test_the_wire_names_are_camel_case_and_nulls_are_left_out():
    call = ToolUseEntry.new("bash", {"cmd": "ls"}, tool_call_id="c1", id="m1:use:c1", parent_id="m1", timestamp=NOON)
    result = ToolResultEntry.new(call, "a\nb", id="m2:result:c1", timestamp=NOON, output_block_types=["text"])
    summary = SummaryEntry.new("what happened", id="s1", parent_id=result.id, timestamp=NOON)
    compaction = CompactionEntry.new("m3", summary, id="c1", timestamp=NOON)
    stamp = {"timestamp": "2026-08-01T12:00:00Z"}
    assert [json.loads(encode(each)) for each in (call, result, summary, compaction)] == [
        {
            "type": "tool_use",
            "id": "m1:use:c1",
            "parentId": "m1",
            **stamp,
            "toolCallId": "c1",
            "name": "bash",
            "input": {"cmd": "ls"},
            "truncated": False,
        },
        {
            "type": "tool_result",
            "id": "m2:result:c1",
            "parentId": "m1:use:c1",
            **stamp,
            "toolCallId": "c1",
            "name": "bash",
            "output": "a\nb",
            "outputBlockTypes": ["text"],
            "truncated": False,
        },
        {
            "type": "summary",
            "id": "s1",
            "parentId": "m2:result:c1",
            **stamp,
            "summary": "what happened",
            "format": "structured",
        },
        {"type": "compaction", "id": "c1", "parentId": "s1", **stamp, "firstKeptEntryId": "m3", "summaryEntryId": "s1"},
    ]


def test_messages_of_each_role_are_made_by_name():
    for make_one in (MessageEntry.user, MessageEntry.assistant, MessageEntry.system):
        entry = make_one("x", parent_id="p")
        assert (entry.role, entry.content, entry.parent_id) == (make_one.__name__, "x", "p")
    tool = MessageEntry.new("tool", "", tool_call_id="c1", block_types=["image"])
    assert (tool.speaker, tool.tool_call_id, tool.block_types) == ("tool", "c1", ["image"])


def test_a_moment_without_zone_is_refused():
    with pytest.raises(InvalidEntryError, match="has no time zone; use datetime"):
        MessageEntry.new("user", "x", timestamp=datetime(2026, 8, 1))


def test_an_entry_needs_an_id_and_a_timestamp():
    with pytest.raises(TypeError, match="Missing required argument"):
        MessageEntry(role="user", content="x")


# --- passing on -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> list[bytes]:
    """100,000 lines of all types, in both forms of timestamps, a third of them with members unknown here."""
    rnd = random.Random(3)
    kinds = [*LINES, "session", "model_change"]

    def text() -> str:
        return "".join(rnd.choices('abc é😀\n"\\/\u2028\ud83d', k=rnd.randrange(12)))

    def one(n: int) -> bytes:
        kind = rnd.choice(kinds)
        members: dict[str, object] = {"type": kind, "id": f"e{n}", "timestamp": "STAMP", **LINES.get(kind, {"cwd": "/w"})}
        for name in ("content", "output", "summary"):
            if name in members:
                members[name] = text()
        if rnd.random() < 0.3:
            members["usage"] = {"input": rnd.randrange(10**6), "cost": "NUMBER"}
        if rnd.random() < 0.1:
            members[rnd.choice(["", "$", "_line", "source", "tag", "type2"])] = [None, text(), True]
        for name in OPTIONAL - {"toolCallId"}:
            if rnd.random() < 0.3:
                members.pop(name, None)
        if rnd.random() < 0.02:
            members.pop("id")
        dumped = json.dumps(members, ensure_ascii=rnd.random() < 0.5).encode(errors="backslashreplace")
        epoch = b"17855856%02d.%09d" % (rnd.randrange(100), rnd.randrange(10**9))
        stamp = rnd.choice([epoch, b'"2026-08-01T12:00:00.%d+02:00"' % rnd.randrange(10**9)])
        return dumped.replace(b'"STAMP"', stamp).replace(b'"NUMBER"', b"0.%d00E-2" % rnd.randrange(10**20))

    return [one(n) for n in range(100_000)]


def test_a_round_trip_keeps_every_value_member_for_member(many):
    """Numbers are compared as they are spelled."""

    def values(line):
        return json.loads(line, parse_float=str, parse_int=str)

    seen = set()
    for line in many:
        entry = decode(line)
        seen.add(type(entry))
        assert encode(entry) == line
        again = entry.replace(parent_id="elsewhere")
        assert decode(encode(again)) == again
        if HALF.search(json.dumps(values(line), ensure_ascii=False)) is None:
            assert values(encode(again)) == {**values(line), "parentId": "elsewhere"}
    assert seen == {*CLASSES.values(), RawEntry}


def test_what_is_made_comes_back_equal(many):
    """From the fields alone, without the line they came from."""
    for line in many[:5000]:
        entry = decode(line)
        if not isinstance(entry, RawEntry) and entry.id:
            fresh = msgspec.structs.replace(entry)
            assert decode(encode(fresh)) == fresh
            assert (fresh == entry) is (not entry.extra)


def test_unknown_members_are_kept_and_shown():
    line = b'{"usage":{"cost":0.10},"type":"summary","id":"1","timestamp":1,"summary":"x","_offloaded":[],"$":null}'
    entry = decode(line)
    assert entry.extra == {"usage": {"cost": 0.1}, "_offloaded": [], "$": None}
    changed = entry.replace(summary="y", parent_id="p")
    assert changed.extra == entry.extra
    assert encode(changed) == (
        b'{"usage":{"cost":0.10},"type":"summary","id":"1","timestamp":1,"summary":"y","_offloaded":[],"$":null,"parentId":"p"}'
    )
    assert encode(changed.replace(parent_id=None)) == (
        b'{"usage":{"cost":0.10},"type":"summary","id":"1","timestamp":1,"summary":"y","_offloaded":[],"$":null}'
    )
    assert encode(entry) == line


def test_replacing_a_field_of_a_made_entry_is_plain():
    made = MessageEntry.user("x")
    assert encode(made.replace(content="y")) == encode(made).replace(b'"x"', b'"y"')


def test_entries_are_values():
    entry = decode(as_line("message", note=1))
    with pytest.raises(AttributeError, match="immutable"):
        entry.content = "other"
    for other in (copy.copy(entry), copy.deepcopy(entry), pickle.loads(pickle.dumps(entry))):
        assert other == entry
        assert encode(other) == encode(entry)
    made = MessageEntry.user("x")
    assert pickle.loads(pickle.dumps(made)) == made
    assert repr(decode(b'{"type":"summary","id":"1","timestamp":1.50,"summary":"x"}')) == (
        "SummaryEntry(id='1', parent_id=None, timestamp_json=b'1.50', summary='x', format='structured')"
    )


def test_entries_are_equal_where_all_they_hold_is():
    entry = decode(as_line("message", note=1))
    assert entry == decode(as_line("message", note=1.0))
    assert entry != decode(as_line("message", note=2))
    assert entry != decode(as_line("message"))
    assert entry != decode(as_line("message", note=1, content="x"))
    assert entry != decode(as_line("summary", note=1))
    assert entry != "entry"
    later = decode(as_line("message", note=1, timestamp=5))
    assert entry != later
    assert entry.says_the_same(later)
    assert decode(b'{"type":"x","id":"1","a":1}') != decode(b'{"type":"x","id":"1","a":2}')
    no_text = as_line("summary")[:-1] + b',"new":"\xff"}'
    assert decode(no_text) == decode(no_text)
    assert decode(no_text) != decode(as_line("summary"))


def test_the_text_of_an_entry_is_what_it_says():
    texts = {kind: decode(as_line(kind)).text for kind in (*LINES, "other")}
    assert texts == {
        "message": "hi",
        "tool_use": '{"a": [1, null]}',
        "tool_result": "x",
        "compaction": "",
        "summary": "what happened",
        "other": "",
    }


# --- through a writer -------------------------------------------------------------------------------------------------


def test_a_writer_stores_an_entry_as_its_line():
    store = make().store
    line = b'{"type":"message","id":"1","timestamp":1785585600.120000000,"role":"USER","content":"x","later":{"n":1.0}}'
    made, odd = MessageEntry.user("hi", parent_id="1"), MessageEntry.user("\ud83d")
    with store.writer(REF) as writer:
        assert [writer.append(each) for each in (decode(line), made, odd, decode(b'{"type":"x"}\n'))] == [0, 1, 2, 3]
    assert [record.line for record in store.records(REF)] == [line, encode(made), encode(odd), b'{"type":"x"}']
    assert decode(store.tail(REF, 3)[0].line) == made
