"""One line for each record, on a terminal that no record can control."""

import io
import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from transcript_backends import Record
from transcript_backends.cli.rendering import Renderer, describe

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2028\r\b\x00\x7f\u200b"


def shown(entry, width=100, seq=7, writer="w", with_writer=False):
    """How an entry is shown, its columns apart: seq, time, kind, and what it says with its size."""
    line = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    text = describe(Record(seq, writer, line), width, with_writer=with_writer)
    assert cell_len(text.plain) <= width
    return re.sub(" +", " ", text.plain).strip()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # the entry types of the layout's first implementation
        ({"type": "message", "role": "ASSISTANT", "content": "let me look"}, "assistant let me look"),
        ({"type": "message", "role": "USER", "content": "", "blockTypes": ["image"]}, 'user blockTypes=["image"]'),
        ({"type": "tool_use", "name": "bash", "input": {"cmd": "ls", "n": 2}}, "tool_use bash(cmd=ls, n=2)"),
        (
            {"type": "tool_result", "name": "bash", "output": "a\nb", "truncated": True, "originalSize": 4096},
            "tool_result bash a … [cut from 4.1 kB]",
        ),
        ({"type": "summary", "summary": "what happened", "format": "structured"}, "summary what happened"),
        ({"type": "compaction", "firstKeptEntryId": "m3", "parentId": "s1"}, "compaction firstKeptEntryId=m3"),
        # sessions of coding agents, with the message in a member
        ({"type": "session", "id": "x", "cwd": "/work"}, "session cwd=/work"),
        ({"type": "model_change", "provider": "p", "modelId": "m"}, "model_change provider=p, modelId=m"),
        (
            {
                "type": "message",
                "message": {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm."},
                        {"type": "text", "text": "\n I'll read it.\nAnd then"},
                        {"type": "toolCall", "name": "read", "arguments": {"path": "a.py"}},
                    ],
                },
            },
            "assistant Hm. I'll read it. … read(path=a.py)",
        ),
        (
            {
                "type": "message",
                "message": {"role": "toolResult", "toolName": "read", "content": [{"type": "text", "text": "import os"}]},
            },
            "toolResult read import os",
        ),
        (
            {"type": "message", "message": {"role": "assistant", "content": [], "errorMessage": "Request was aborted"}},
            "assistant Request was aborted",
        ),
        ({"type": "message", "message": {"role": "bashExecution", "command": "ls", "output": "x\n"}}, "bashExecution ls x"),
        ({"type": "custom", "customType": "todo", "data": {"n": 1}}, 'custom customType=todo, data={"n": 1}'),
        ({"type": "assistant", "message": {"role": "assistant", "content": "Done."}}, "assistant Done."),
        # chat messages as they go to a model
        ({"role": "user", "content": [{"type": "image", "source": {}}, "look"]}, "user [image] look"),
        ({"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "ok"}]}]}, "user ok"),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]},
            'assistant f({"a":1})',
        ),
        ({"type": "function_call_output", "output": "42"}, "function_call_output 42"),
        # event logs
        ({"type": "agent.message", "content": [{"type": "text", "text": "hello"}]}, "agent.message hello"),
        ({"type": "session.error", "error": {"type": "x", "message": "gone"}}, "session.error gone"),
        ({"type": "session.status_idle", "stop_reason": "end"}, "session.status_idle stop_reason=end"),
        (
            {
                "author": "root",
                "content": {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"x": 1.5}}}]},
                "actions": {"stateDelta": {"step": 2}},
            },
            "root f(x=1.5) state: step=2",
        ),
        # anything
        ({}, "-"),
        ({"type": 3, "role": ["x"], "content": 5, "message": None, "timestamp": {}}, "- content=5"),
        ({"type": "note", "_offloaded": [{"size": 70_000}, 3], "text": "."}, "note . [70.0 kB stored apart]"),
    ],
)
def test_what_an_entry_says_is_shown(entry, expected):
    size = f"{len(json.dumps(entry))} bytes"
    assert shown(entry, 120) == f"7 {expected} {size}"


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("timestamp", "2025-11-20T23:33:54.575Z", "2025-11-20 23:33:54"),
        ("timestamp", "2025-11-20T23:33:54+05:30", "2025-11-20 18:03:54"),
        ("created_at", "2025-11-20 23:33:54-0100", "2025-11-21 00:33:54"),
        ("timestamp", 1785585600.123456789, "2026-08-01 12:00:00"),
        ("ts", 1785585600123, "2026-08-01 12:00:00"),
        ("timestamp", "yesterday", ""),
        ("timestamp", "2025-13-40T99:99:99Z", ""),
        ("timestamp", "0001-01-01T00:00:00+23:00", ""),
        ("timestamp", 1e300, ""),
        ("timestamp", -1e17, ""),
        ("timestamp", True, ""),
        ("timestamp", float("nan"), ""),
    ],
)
def test_the_time_is_shown_in_utc_where_there_is_one(member, value, expected):
    entry = {"type": "note", "text": "x", member: value}
    assert shown(entry, 130).startswith(f"7 {expected} note x".replace("  ", " "))
    assert shown(entry, 80).startswith(f"7 {expected[11:]} note x".replace("  ", " "))


@pytest.mark.parametrize(
    "line", [b"", b"torn {", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b'{"a":1e', b"\x1b[31m"]
)
def test_a_line_that_is_no_entry_is_shown_as_it_is(line):
    assert shown(line).startswith("7 not JSON")
    assert "\x1b" not in shown(line)


def test_numbers_too_long_for_python_are_shown():
    assert "float=inf" not in shown(b'{"n":' + b"9" * 10_000 + b"}")
    assert shown(b'{"type":"t","n":' + b"9" * 10_000 + b"}").startswith("7 t n=Infinity")


def test_an_error_is_red():
    for entry in ({"type": "tool_result", "is_error": True}, {"type": "message", "message": {"isError": True}}):
        text = describe(Record(0, "w", json.dumps(entry).encode()), 80, with_writer=False)
        assert any(span.style == "red" for span in text.spans)


def test_a_line_is_as_wide_as_the_terminal_however_wide_its_characters_are():
    for content in ("你好" * 500, "🙂" * 500, "e\u0301" * 500, "x" * 4_000_000, "a " * 100_000):
        for width in (80, 81, 133):
            text = describe(Record(7, "w", json.dumps({"role": "user", "content": content}).encode()), width, with_writer=True)
            assert cell_len(text.plain) == width
            assert len(text.plain) < 5 * width


def test_characters_of_no_width_can_not_make_a_line_endless():
    line = json.dumps({"role": "user\u0301" * 9999, "content": "\u0301" * 1_000_000}, ensure_ascii=False).encode()
    assert len(describe(Record(0, "w\u0301" * 9999, line), 80, with_writer=True).plain) < 1000


@pytest.mark.parametrize("make", [lambda x: {"type": x}, lambda x: {"role": x}, lambda x: {x: x}, lambda x: {"content": x}])
def test_nothing_a_terminal_would_obey_comes_through(make):
    line = json.dumps(make(HOSTILE), ensure_ascii=False).encode(errors="surrogatepass")
    for each in (line, line[:-1], HOSTILE.encode()):
        plain = describe(Record(0, HOSTILE, each), 200, with_writer=True).plain
        assert plain.isprintable()
        assert "owned" in plain


_MEMBERS = [
    *("type", "role", "author", "message", "content", "parts", "text", "name", "input", "arguments", "output", "result"),
    *("error", "timestamp", "isError", "truncated", "originalSize", "_offloaded", "size", "actions", "stateDelta", "function"),
]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(_MEMBERS) | st.text(),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=500, deadline=None)
@given(st.binary() | _values.map(lambda value: json.dumps(value).encode()), st.text(), st.integers(1, 150), st.booleans())
@example(b'{"type":"tool_use","name":"x"}', "w", 1, True)
def test_no_record_makes_it_fail_or_leave_its_line(line, writer, width, with_writer):
    plain = describe(Record(2**63 - 1, writer, line), width, with_writer=with_writer).plain
    assert plain.isprintable()
    assert cell_len(plain) <= width


def test_writers_are_named_once_there_are_two():
    records = [
        Record(n, writer, b'{"text":"x"}') for n, writer in enumerate(("host-a1b2c3d4e5f6", "host-a1b2c3d4e5f6", "other"))
    ]
    render = Renderer(io.StringIO())
    one, two = render(*records[:2])
    assert "b2c3d4e5f6" not in one + two
    assert ["a1b2c3d4e5f6" in line for line in render(records[2], records[0])] == [False, True]
    assert "other" in next(render(records[2]))


def test_colours_are_for_terminals(monkeypatch):
    record = Record(0, "w", b'{"type":"message","role":"user","content":"[bold]hi[/bold] :smile:"}')
    monkeypatch.setenv("COLUMNS", "90")
    (plain,) = Renderer(io.StringIO())(record)
    assert "\x1b" not in plain
    assert "[bold]hi[/bold] :smile:" in plain
    assert plain.endswith(" bytes\n")
    assert len(plain) == 91
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    (coloured,) = Renderer(io.StringIO())(record)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "\x1b[1;32muser" in coloured
