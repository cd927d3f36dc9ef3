"""Payload offload: lines come back byte for byte, whoever compacts, copies, deletes or crashes meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import REF, Crash, HookedObjectStore, ServerClock, Setup, StepObjectStore, append, crash, make

from transcript_backends import (
    CompactionPolicy,
    CorruptSegmentError,
    InvalidSegmentError,
    ObjectTranscriptStore,
    SegmentConflictError,
    StoreUnavailableError,
)
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.copying import copy_transcript
from transcript_backends.drivers.local import LocalObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import RecordingObjectStore, WrapperObjectStore
from transcript_backends.keys import TranscriptKeys
from transcript_backends.offloading import MAX_ENTRY_BYTES, offload, split
from transcript_backends.payloads import store_payloads
from transcript_backends.records import MAX_LINE_BYTES, is_object

FULL = CompactionPolicy(full=True)
AT_HAND = {"max_age": 1e6, "max_records": 10**6}  # goes out by flush alone
PAYLOADS = f"{REF.prefix}payloads/"
MIB = 1024 * 1024


def sha256(payload):
    return hashlib.sha256(payload).hexdigest()


def dumps(entry, **options):
    return json.dumps(entry, **options).encode()


def write(store, *lines, **options):
    with store.writer(REF, **{**AT_HAND, "offload_bytes": 4096, **options}) as writer:
        for line in lines:
            writer.append(line)


def lines_of(store, **options):
    return [record.line for record in store.records(REF, **options)]


def stored_by_others(entry, *references, member="_offloaded"):
    return dumps({**entry, member: list(references)})


def reference(pointer, payload, **more):
    return {"pointer": pointer, "sha256": sha256(payload), "size": len(payload), **more}


# --- lines ------------------------------------------------------------------------------------------------------------


def spelled(text, style):
    """A JSON string in one of the ways in which programs write them."""
    if style in ("ascii", "utf8"):
        return json.dumps(text, ensure_ascii=style == "ascii")
    if style == "upper":
        return '"' + "".join(f"\\u{ord(each):04X}" if ord(each) < 0x10000 else each for each in text) + '"'
    return json.dumps(text).replace("/", "\\/").replace("<", "\\u003c").replace("\u2028", "\\u2028")


characters = st.sampled_from(
    ['"', "\\", "/", "<", "\n", "\x00", "\x7f", "é", "中", "\U0001f642", "\u2028", "{", "}", "[", ":", ","]
)
texts = st.text(st.one_of(characters, st.characters(exclude_categories=["Cs"])), max_size=12)
styles = st.sampled_from(["ascii", "utf8", "upper", "slashes"])
tokens = st.one_of(
    st.builds(spelled, texts, styles),
    st.builds(
        lambda text, times, style: spelled(text * (times // (len(text) or 1)), style), texts, st.integers(1500, 6000), styles
    ),
    st.sampled_from(['"\\ud800"', '"\\udc00\\ud83d"', '"' + "\\ud83dx" * 700 + '"', '"' + "\\ud83d\\ude00" * 600 + '"']),
)
names = st.one_of(
    tokens,
    st.builds(
        spelled,
        st.sampled_from(["a", "b", "", "/", "~", "~1", "a/b", "0", "é", "_offloaded", "output", "truncated", "originalSize"]),
        styles,
    ),
)
blanks = st.sampled_from(["", "", " ", "\t \r"])
scalars = st.one_of(st.sampled_from(["1e5", "-0", "1E+2", "0.10", "9" * 30, "9" * 5000, "true", "false", "null"]), tokens)


def joined(opening, closing):
    return lambda parts, blank: opening + blank + f"{blank},{blank}".join(parts) + blank + closing


def members(values):
    one = st.builds(lambda name, blank, value: f"{name}{blank}:{blank}{value}", names, blanks, values)
    return st.builds(joined("{", "}"), st.lists(one, max_size=5), blanks)


values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.builds(joined("[", "]"), st.lists(inner, max_size=4), blanks), members(inner)),
    max_leaves=12,
)
kinds = st.sampled_from(
    ["", '"type":"tool_result",', '"type": "tool_use", "input":[],', '"truncated":false,"type":"tool_result",']
)


def of_some_kind(entry, kind):
    return "{" + kind + entry[1:] if entry[1:].strip(" \t\r")[:1] == '"' else entry


lines = st.builds(
    lambda before, entry, after: (before + entry + after).encode(),
    blanks,
    st.builds(of_some_kind, members(values), kinds),
    st.sampled_from(["", " ", "\r\t"]),
)


def has_repeated_names(line):
    found = []

    def look(pairs):
        found.append(len({name for name, _ in pairs}) < len(pairs))

    json.JSONDecoder(object_pairs_hook=look, parse_int=len).decode(line.decode())
    return any(found)


def parsed(line):
    return json.loads(line, parse_int=str)


def as_others_read_it(stored, payloads):
    """Any other program: parse, put the values in their places, drop the member."""
    entry = parsed(stored)
    for each in entry["_offloaded"]:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in each["pointer"].split("/")[1:]]
        place = entry
        for name in way:
            place = place[int(name) if isinstance(place, list) else name]
        last = int(last) if isinstance(place, list) else last
        payload = payloads[each["sha256"]]
        assert isinstance(place[last], str)
        assert "preview" in place[last]
        place[last] = json.loads(payload) if each.get("form") == "json" else payload.decode()
        for name, before in each.get("was", {}).items():
            del entry[name]
            if before is not None:
                entry[name] = parsed(before)
    del entry["_offloaded"]
    return entry


@given(lines, st.sampled_from([1, 2500, 9000]))
@settings(max_examples=250)
def test_any_line_comes_back_byte_for_byte(line, limit):
    assert is_object(line)
    stored, payloads = offload(line, limit)
    assert offload(line, limit) == (stored, payloads)
    assert is_object(stored)
    outside = split(stored)
    if outside is None:
        assert (stored, payloads) == (line, {})
        return
    assert outside.restore(payloads) == line
    assert {each.sha256 for each in outside.references} == payloads.keys()
    assert all((sha256(payloads[each.sha256]), len(payloads[each.sha256])) == each[1:3] for each in outside.references)
    assert len(stored) < len(line)
    if not has_repeated_names(stored):
        assert as_others_read_it(stored, payloads) == parsed(line)


BIG = "the output, line by line\n" * 400
LINE = dumps({"id": 1, "output": BIG, "n": 1e5})


def test_the_reference_says_where_the_value_was_and_the_payload_is_its_text():
    stored, payloads = offload(LINE, 4096)
    assert payloads == {sha256(BIG.encode()): BIG.encode()}
    entry = json.loads(stored)
    assert entry["_offloaded"] == [{"pointer": "/output", "sha256": sha256(BIG.encode()), "size": len(BIG)}]
    assert list(entry) == ["id", "output", "n", "_offloaded"]
    assert (
        entry["output"]
        == f"{BIG[:256]}\n[... a preview: the whole is stored as a payload of {len(BIG)} bytes ...]\n{BIG[-256:]}"
    )
    assert stored.startswith(b'{"id": 1, "output": "the output')


@pytest.mark.parametrize(
    ("token", "form"),
    [
        (json.dumps("中é\n\x7f" * 900), "ascii"),
        (json.dumps("中é\n\x7f" * 900, ensure_ascii=False), None),
        (json.dumps("x" * 9000), None),
        ('"' + "\\/" * 3000 + '"', "json"),
        ('"' + "\\u00E9" * 3000 + '"', "json"),
        ('"' + "\\ud83d " * 3000 + '"', "json"),
    ],
    ids=["ascii", "utf-8", "plain", "slashes", "upper case", "half characters"],
)
def test_the_payload_is_the_text_wherever_its_spelling_can_be_told(token, form):
    line = b'{"a":%s}' % token.encode()
    stored, payloads = offload(line, 4096)
    (found,) = json.loads(stored)["_offloaded"]
    assert found.get("form") == form
    assert list(payloads.values()) == [token.encode() if form == "json" else json.loads(token).encode()]
    assert split(stored).restore(payloads) == line
    json.loads(stored)["a"].encode()  # half characters are in no preview


def tool_line(kind, value, rest=""):
    what = {"tool_result": "output", "tool_use": "input"}[kind]
    return f'{{"type":"{kind}", "id":"x","{what}" : {value}{rest} }}'.encode()


@pytest.mark.parametrize(("kind", "value"), [("tool_result", json.dumps(BIG + "é")), ("tool_use", json.dumps({"a": [BIG]}))])
@pytest.mark.parametrize(
    "rest",
    [
        "",
        ',"truncated":false',
        ',"truncated" : false , "originalSize": null,"name":"truncated"',
        ', "originalSize":7,"\\u0074runcated":null',
        ',"extra":{"truncated":false}',
    ],
)
def test_a_call_or_a_result_says_that_it_is_cut_and_is_as_it_was_for_those_who_resolve_it(kind, value, rest):
    line = tool_line(kind, value, rest)
    stored, payloads = offload(line, 4096)
    entry = json.loads(stored)
    size = len(BIG) + 1 if kind == "tool_result" else len(value)
    assert (entry["truncated"], entry["originalSize"], list(entry)[-1]) == (True, size, "_offloaded")
    assert not has_repeated_names(stored)
    assert split(stored).restore(payloads) == line
    setup = make()
    write(setup.store, line)
    setup.store.compact(REF, FULL)
    assert lines_of(setup.store, resolve=False) == [stored]
    assert lines_of(setup.store) == [line]


@pytest.mark.parametrize(
    "line",
    [
        tool_line("tool_result", json.dumps(BIG), ',"truncated":true,"originalSize":99999'),
        tool_line("tool_result", json.dumps(BIG), ',"truncated":"no"'),
        tool_line("tool_result", '"short"', f',"truncated":false,"note":{json.dumps(BIG)}'),
        dumps({"type": "message", "output": BIG, "truncated": False}),
        dumps({"type": ["tool_result"], "output": BIG, "truncated": False}),
        dumps({"output": BIG, "truncated": False, "note": "tool_result"}),
    ],
)
def test_what_is_no_call_or_result_that_was_whole_says_of_being_cut_what_it_said(line):
    stored, payloads = offload(line, 4096)
    now, before = json.loads(stored), json.loads(line)
    assert payloads
    assert [now.get(each) for each in ("truncated", "originalSize")] == [before.get(e) for e in ("truncated", "originalSize")]
    assert split(stored).restore(payloads) == line


def test_a_result_that_was_stored_before_results_said_so_is_read():
    preview = dumps({"type": "tool_result", "output": "short", "truncated": False})[:-1]
    stored = preview + b',"_offloaded":[' + dumps(reference("/output", BIG.encode())) + b"]}"
    assert json.loads(split(stored).restore({sha256(BIG.encode()): BIG.encode()}))["output"] == BIG


@pytest.mark.parametrize("was", [7, {"a": 1}, {"nowhere": "x"}, {"nowhere": None}])
def test_what_says_nothing_of_members_that_are_there_is_somebody_elses(was):
    stored = stored_by_others({"output": "x"}, reference("/output", b"y", was=was))
    assert split(stored) is None


@pytest.mark.parametrize("name", ["~", "~0", "~1", "~01", "a~0b", "a/~1", "/", "~/"])
def test_a_value_under_any_name_comes_back(name):
    line = dumps({"a": {name: BIG}, "b": ["", {name: BIG}]})
    stored, payloads = offload(line, 4096)
    assert len(stored) < 4096
    assert split(stored).restore(payloads) == line
    assert as_others_read_it(stored, payloads) == parsed(line)


def test_the_longest_values_go_and_no_more_than_needed():
    line = dumps({"a": "a" * 3000, "b": ["b" * 9000, {"c/~": "c" * 6000}], "d": "d" * 2500, "e": "e" * 1500})
    pointers = {
        limit: [each.pointer for each in split(offload(line, limit)[0]).references]
        for limit in (20_000, 15_000, 9500, 8000, 6000)
    }
    assert pointers == {
        20_000: ["/b/0"],
        15_000: ["/b/0"],
        9500: ["/b/0", "/b/1/c~1~0"],
        8000: ["/a", "/b/0", "/b/1/c~1~0"],
        6000: ["/a", "/b/0", "/b/1/c~1~0", "/d"],
    }


def test_an_equal_value_is_one_payload():
    stored, payloads = offload(dumps({"a": BIG, "b": BIG}), 1)
    assert len(payloads) == 1
    assert len(json.loads(stored)["_offloaded"]) == 2


@pytest.mark.parametrize(
    "line",
    [
        dumps({"a": ["x" * 1000] * 100}),
        dumps({"x" * 100_000: 1}),
        dumps({"n": [1] * 50_000}),
        b'{"a":"%s","a":1}' % (b"x" * 9000),
        b'{"a":{"b":"%s"},"\\u0061":1}' % (b"x" * 9000),
        b'{"_offloaded":{"a":"%s"}}' % (b"x" * 9000),
        dumps({"a": "\x01" * 256 + "x" * 1040 + "\x01" * 256}),
    ],
    ids=["small strings", "name", "numbers", "repeated", "repeated, spelled otherwise", "own member", "little to save"],
)
def test_a_line_without_large_values_that_a_pointer_can_tell_stays_whole(line):
    assert offload(line, 4096) == (line, {})


def test_a_line_nested_as_deep_as_parsers_go_stays_whole_or_comes_back():
    for depth in (10, 100, 300, 900, 5000, 50_000):
        line = b'{"a":' * depth + b'"%s"' % (b"x" * 9000) + b"}" * depth
        stored, payloads = offload(line, 4096)
        assert (split(stored).restore(payloads) if payloads else stored) == line


@pytest.mark.parametrize(
    "value",
    ['\n"\\' * (4 * MIB // 6), "中" * (4 * MIB // 6), ["a", 1, {"k": 1}] * (4 * MIB // 22)],
    ids=["escapes", "not ascii", "many small"],
)
def test_a_line_of_4_mib_takes_no_more_than_a_moment(value):
    line = dumps({"value": value, "large": "x" * 9000})
    began = time.process_time()
    stored, payloads = offload(line, 4096)
    assert split(stored).restore(payloads) == line
    assert time.process_time() - began < 5


# --- writing and reading ----------------------------------------------------------------------------------------------


@given(st.lists(lines, max_size=8), st.sampled_from([1, 4096]), st.booleans())
@settings(max_examples=40)
def test_a_transcript_is_what_was_appended_also_compacted_copied_and_backwards(appended, limit, is_cut):
    setup, other = make(), make("copy/")
    write(setup.store, *appended, offload_bytes=limit, max_bytes=1 if is_cut else MIB)
    stored = lines_of(setup.store, resolve=False)
    for step in (lambda: None, lambda: setup.store.compact(REF, FULL)):
        step()
        assert lines_of(setup.store) == appended
        assert lines_of(setup.store, reverse=True) == appended[::-1]
        assert [record.line for record in setup.store.tail(REF, 3)] == appended[-3:]
        assert lines_of(setup.store, resolve=False) == stored
        assert setup.store.verify(REF).ok
    copied = copy_transcript(setup.store, other.store, REF)
    assert copied.payloads == len(setup.keys(PAYLOADS))
    assert lines_of(other.store) == appended
    setup.store.delete(REF, purge=True)
    assert setup.keys() == []
    assert lines_of(other.store) == appended


def test_lines_up_to_the_limit_are_stored_as_they_are_and_longer_ones_are_not():
    line = dumps({"a": "x" * 5000})
    for limit, expected in ((len(line), 0), (len(line) - 1, 1), (None, 0)):
        setup = make()
        write(setup.store, line, offload_bytes=limit)
        assert len(setup.keys(PAYLOADS)) == expected
        assert (lines_of(setup.store, resolve=False) == [line]) == (expected == 0)
        assert lines_of(setup.store) == [line]


def test_the_limit_is_64_kib_unless_told():
    setup = make()
    long, short = dumps({"a": "x" * 65536}), dumps({"a": "x" * 65000})
    with setup.store.writer(REF) as writer:
        writer.append(long)
        writer.append(short)
    assert len(setup.keys(PAYLOADS)) == 1
    assert lines_of(setup.store) == [long, short]


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="offload_bytes must be 1 or more, or None, not 0"):
        make().store.writer(REF, offload_bytes=0)


def test_append_segment_stores_what_it_is_given():
    setup = make()
    setup.store.append_segment(REF, 0, 0, "w", LINE)
    assert setup.keys(PAYLOADS) == []
    with pytest.raises(InvalidSegmentError, match="4194304 is the limit"):
        setup.store.append_segment(REF, 1, 1, "w", dumps({"a": "x" * MAX_LINE_BYTES}))


def test_a_batch_with_payloads_costs_two_listings_and_a_look_at_each_more():
    setup = make()
    with setup.store.writer(REF, **AT_HAND) as writer:
        writer.append({"n": 0})
        writer.flush()
        for values, counts in (
            ("", {"put": 1}),
            ("ab", {"put": 3, "list_page": 2, "head": 2}),
            ("c", {"put": 2, "list_page": 2, "head": 1}),
            ("c", {"put": 2, "list_page": 2, "head": 2}),  # it is there already
        ):
            setup.driver.requests.clear()
            writer.append({"n": 1})
            for each in values:
                writer.append({"output": each * 100_000})
            writer.flush()
            assert setup.driver.counts == counts
    setup.driver.requests.clear()
    assert len(lines_of(setup.store)) == 9
    assert setup.driver.counts["get"] == 5 + 4
    assert len(setup.keys(PAYLOADS)) == 3


def test_payloads_are_stored_before_the_segment_that_refers_to_them():
    setup = make()
    write(setup.store, dumps({"a": BIG, "b": BIG[1:]}))
    puts = [each.key for each in setup.driver.requests if each.operation == "put"]
    assert [key.startswith(PAYLOADS) for key in puts] == [True, True, False]


def test_an_entry_of_50_mib_goes_through_in_bounded_memory():
    size = 50 * MIB
    setup = make()
    line = b'{"output":"%s"}' % (b"x" * size)
    tracemalloc.start()
    try:
        write(setup.store, line, offload_bytes=64 * 1024)
        _, written = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        (record,) = setup.store.records(REF)
        _, read = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert record.line == line
    assert written < 7 * size
    assert read - before < 5 * size


def test_an_entry_that_stays_too_long_is_refused_and_says_why():
    setup = make()
    with setup.store.writer(REF, **AT_HAND) as writer:
        with pytest.raises(
            InvalidSegmentError, match=r"is \d+ bytes long, and still \d+ with its large strings stored outside; 4194304"
        ):
            writer.append({"large": BIG, "small": ["x" * 100] * 50_000})
        with pytest.raises(InvalidSegmentError, match=f"{MAX_ENTRY_BYTES} is the limit"):
            writer.append(b'{"a":"%s"}' % (b"x" * MAX_ENTRY_BYTES))
        assert writer.append({"n": 0}) == 0
    with (
        setup.store.writer(REF, offload_bytes=None) as writer,
        pytest.raises(InvalidSegmentError, match="4194304 is the limit"),
    ):
        writer.append({"a": "x" * MAX_LINE_BYTES})
    assert lines_of(setup.store) == [b'{"n":0}']


def test_a_follower_gives_whole_lines_or_what_is_stored():
    setup = make()
    write(setup.store, LINE, dumps({"n": 1}))
    with setup.store.follow(REF, stop_when_idle=0) as follower:
        assert [record.line for record in follower] == [LINE, dumps({"n": 1})]
    with setup.store.follow(REF, stop_when_idle=0, resolve=False) as follower:
        assert [record.line for record in follower] == lines_of(setup.store, resolve=False)


class Watching(WrapperObjectStore):
    """Counts the payloads that are being read, and waits for ``together`` of them."""

    def __init__(self, inner, together):
        super().__init__(inner)
        self.barrier = threading.Barrier(together)
        self.gets = []

    def _around(self, operation, key, request):
        if operation == "get" and "/payloads/" in key:
            self.gets.append(key)
            self.barrier.wait(10)
        return super()._around(operation, key, request)


def test_payloads_of_records_to_come_are_fetched_at_once_and_not_too_many():
    setup = make()
    entries = [dumps({"output": f"{n} " * 1_000_000}) for n in range(8)]
    write(setup.store, *entries)
    watching = Watching(setup.memory, 4)
    store = ObjectTranscriptStore(Container(watching))
    records = store.records(REF)
    assert next(records).line == entries[0]
    assert len(watching.gets) <= 6  # of two million bytes each
    assert [record.line for record in records] == entries[1:]


def test_records_before_one_that_can_not_be_read_are_given():
    setup = make()
    write(setup.store, LINE, dumps({"n": 1}), max_bytes=1)
    setup.store.compact(REF, FULL)
    (key,) = (each.key for each in setup.store.list_segments(REF))
    body = setup.body(key)
    setup.put(key, body[:-1] + b" ")
    records = setup.store.records(REF)
    assert next(records).line == LINE
    with pytest.raises(CorruptSegmentError, match="ends before record 1"):
        next(records)


# --- what others wrote ------------------------------------------------------------------------------------------------

PAYLOAD = b"the whole"
HERE = reference("/a", PAYLOAD)


def with_payload(line):
    setup = make()
    setup.put(PAYLOADS + sha256(PAYLOAD), PAYLOAD)
    setup.store.append_segment(REF, 0, 0, "w", line)
    return setup


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (stored_by_others({"a": "the..."}, HERE), b'{"a": "the whole"}'),
        (stored_by_others({"a": "the..."}, {**HERE, "more": [1]}), b'{"a": "the whole"}'),
        (stored_by_others({"b": 1e5, "a": ""}, HERE) + b"  ", b'{"b": 100000.0, "a": "the whole"}  '),
        (b'{"\\u0061" :"", "_offloaded"\t: %s \r}' % dumps([HERE]), b'{"\\u0061" :"the whole" \r}'),
        (stored_by_others({"a": {"": [0, "x"]}}, {**HERE, "pointer": "/a//1"}), b'{"a": {"": [0, "the whole"]}}'),
        (b'{"_offloaded":1,"a":"","_offloaded":%s}' % dumps([HERE]), b'{"_offloaded":1,"a":"the whole"}'),
    ],
    ids=["one", "more members", "blanks behind", "spelling", "nested", "repeated"],
)
def test_a_reference_of_another_program_is_resolved(line, expected):
    setup = with_payload(line)
    assert lines_of(setup.store) == [expected]
    assert lines_of(setup.store, resolve=False) == [line]


@pytest.mark.parametrize(
    "line",
    [
        *(dumps({"a": "x", "_offloaded": each}) for each in (None, 1, "/a", [], {}, HERE)),
        *(dumps({"a": "x", "_offloaded": each}) for each in (["/a"], [[HERE]], [HERE, None], [HERE, HERE])),
        *(stored_by_others({"a": "x"}, {**HERE, "pointer": each}) for each in ("/b", "", "a", "x/a", "/a/0", "/a/b", 1)),
        *(stored_by_others({"a": "x"}, {**HERE, "sha256": each}) for each in ("", "A" * 64, "a" * 63, None)),
        *(stored_by_others({"a": "x"}, {**HERE, "size": each}) for each in ("1", 1.5, None)),
        stored_by_others({"a": "x"}, {"pointer": "/a", "sha256": "a" * 64}),
        stored_by_others({"a": ["x"]}, {**HERE, "pointer": "/a/00"}),
        stored_by_others({"a": ["x"]}, {**HERE, "pointer": "/a/-1"}),
        stored_by_others({"a": 5}, HERE),
        stored_by_others({}, {**HERE, "pointer": "/_offloaded/0/sha256"}),
        dumps({"_offloaded": [HERE], "a": "x"}),
        dumps({"a": "x", "b": {"a": "x", "_offloaded": [HERE]}}),
        dumps({"a": "x", 'b"_offloaded': [HERE]}),
        dumps({"a": "x", "b": ["_offloaded"]}),
        b'{"a":"x","a":"y","_offloaded":%s}' % dumps([HERE]),
        b'{"a":"x","n":%s,"_offloaded":[{"pointer":"/a","sha256":"%s","size":%s}]}' % (b"9" * 5000, b"a" * 64, b"9" * 5000),
    ],
)  # fmt: skip
def test_a_member_of_another_shape_is_passed_on_as_it_is(line):
    assert is_object(line)
    setup = with_payload(line)
    assert lines_of(setup.store) == [line]
    assert setup.store.verify(REF).ok


@pytest.mark.parametrize(
    "damaged", [b'{"_offloaded":[{"pointer', b'"_offloaded":[]', b'{"a":\xff,"_offloaded":[]}', b"_offloaded"]
)
def test_a_damaged_line_is_passed_on_as_it_is(damaged):
    setup = make()
    setup.put(f"{REF.prefix}events/0-0-w.jsonl", damaged + b"\n")
    assert lines_of(setup.store) == [damaged]


@pytest.mark.parametrize("limit", [1, 64 * 1024])
def test_a_line_that_reads_as_if_it_had_values_outside_comes_back_as_it_is(limit):
    setup = make()
    stored, _ = offload(LINE, 4096)
    odd = [
        stored,
        stored_by_others({"a": ""}, HERE),
        stored_by_others({"a": BIG, "b": "x" * 9000}, HERE),
        b'{"a":NaN'[:0] + stored,
    ]
    write(setup.store, *odd, offload_bytes=limit)
    again = lines_of(setup.store, resolve=False)
    assert lines_of(setup.store) == odd
    write(setup.store, *again, offload_bytes=limit)
    assert lines_of(setup.store, start_seq=len(odd)) == again
    assert setup.store.verify(REF).ok


# --- missing and damaged ----------------------------------------------------------------------------------------------


class Clock:
    """Stands still but for sleepers."""

    def __init__(self, nap=lambda: None):
        self.now, self.nap, self.slept = 0.0, nap, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)
        self.nap()

    def jitter(self):
        return 0.5


def quick(memory, **options):
    """A store whose pauses take no time."""
    recording = RecordingObjectStore(memory)
    return Setup(ObjectTranscriptStore(Container(recording, clock=Clock(), **options)), recording, memory)


@pytest.mark.parametrize(
    ("payload", "form", "why"),
    [
        (None, None, r"payload '[^']*payloads/{sha256}' is missing"),
        (b"another", None, r"payload '[^']*payloads/{sha256}' is damaged: it is 7 bytes with the sha256 {other}"),
        (PAYLOAD, "zip", "payload {sha256} has the form 'zip', which a newer version may know"),
    ],
)
def test_a_payload_that_is_no_good_is_an_error_that_names_it_and_the_record(payload, form, why):
    setup = make()
    append(setup.store, 0, 0)
    setup.store.append_segment(REF, 1, 1, "w", stored_by_others({"a": ""}, {**HERE, **({"form": form} if form else {})}))
    if payload is not None:
        setup.put(PAYLOADS + sha256(PAYLOAD), payload)
    store = quick(setup.memory).store
    expected = why.format(sha256=sha256(PAYLOAD), other=sha256(b"another"))
    records = store.records(REF)
    assert next(records).seq == 0
    with pytest.raises(
        CorruptSegmentError, match=f"^record 1 of writer w can't be put together: {expected}; resolve=False gives"
    ):
        next(records)
    with pytest.raises(CorruptSegmentError, match=expected):
        store.tail(REF, 1)
    with store.follow(REF) as follower, pytest.raises(CorruptSegmentError, match=expected):
        list(itertools.islice(follower, 2))
    assert len(lines_of(store, resolve=False)) == len(store.tail(REF, 5, resolve=False)) == 2


def test_a_line_that_is_nested_too_deeply_to_be_put_together_is_an_error_after_the_records_before_it():
    setup = make()
    write(setup.store, LINE)
    deep = b'{"a":"","b":%s,"_offloaded":%s}\n' % (b"[" * 500_000 + b"]" * 500_000, dumps([HERE]))
    setup.put(f"{REF.prefix}events/1-1-x.jsonl", deep)
    records = setup.store.records(REF)
    assert next(records).line == LINE
    with pytest.raises(CorruptSegmentError, match="record 1 of writer x can't be put together: it is nested too deeply"):
        next(records)
    assert "damaged line" in [each.kind for each in setup.store.verify(REF).problems]


def test_a_payload_that_is_no_text_is_an_error():
    setup = make()
    setup.put(PAYLOADS + sha256(b"\xff"), b"\xff")
    setup.store.append_segment(REF, 0, 0, "w", stored_by_others({"a": ""}, reference("/a", b"\xff")))
    with pytest.raises(CorruptSegmentError, match="record 0 of writer w can't be put together: 'utf-8' codec"):
        lines_of(setup.store)


def test_a_writer_does_not_take_another_object_for_its_payload():
    setup = make()
    key = setup.put(PAYLOADS + sha256(BIG.encode()), BIG[:-1].encode() + b"?")
    with setup.store.writer(REF, **AT_HAND, offload_bytes=1) as writer:
        writer.append(LINE)
        with pytest.raises(
            CorruptSegmentError, match=f"'{key}' is not what its name says; put the original in its place, or remove it"
        ):
            writer.flush()
        assert setup.keys(f"{REF.prefix}events/") == []
        setup.memory.delete_many([key])
        writer.flush()
    assert lines_of(setup.store) == [LINE]


def test_verify_names_payloads_that_are_missing_or_damaged_and_where_they_belong():
    setup = make()
    write(setup.store, LINE, dumps({"b": "b" * 9000}), LINE, dumps({"c": "c" * 9000}))
    missing, damaged = (PAYLOADS + sha256(each) for each in (BIG.encode(), b"b" * 9000))
    setup.memory.delete_many([missing])
    setup.put(damaged, b"b")
    report = setup.store.verify(REF)
    assert not report.ok
    assert [each[:2] for each in report.problems] == [("missing payload", missing), ("damaged payload", damaged)]
    assert report.problems[0].detail == f"'/output' of record 0 of {report_writer(setup)} refers to it"
    assert "'/b' of record 1" in report.problems[1].detail
    setup.put(missing, BIG.encode())
    setup.put(damaged, b"b" * 9000)
    assert setup.store.verify(REF).ok


def report_writer(setup):
    return setup.store.tail(REF, 1, resolve=False)[0].writer_id


def test_a_payload_nobody_refers_to_is_no_problem():
    setup = make()
    append(setup.store, 0, 0)
    setup.put(PAYLOADS + sha256(b"x"), b"x")
    assert setup.store.verify(REF).problems == []


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_whose_payloads_were_deleted_meanwhile_is_an_error():
    hooks = []

    def wrap(inner):
        hooks.append(HookedObjectStore(inner))
        return hooks[0]

    source, destination = make(), make("there/", wrap=wrap)
    write(source.store, LINE)
    hooks[0].before("get", lambda: destination.memory.delete_many(destination.keys(f"there/{PAYLOADS}")))
    with pytest.raises(
        CorruptSegmentError, match=f"does not hold payload {sha256(BIG.encode())}, one of 1: it was deleted meanwhile"
    ):
        copy_transcript(source.store, destination.store, REF)
    assert copy_transcript(source.store, destination.store, REF).payloads == 1
    assert lines_of(destination.store) == [LINE]


# --- retries and crashes ----------------------------------------------------------------------------------------------


def killed_after_storing(root, spool_dir, **options):
    """A writer's process ends when the store has its batch, and its journal does not know."""
    if (child := os.fork()) == 0:
        try:
            store = ObjectTranscriptStore(Container(LocalObjectStore(root)))
            writer = store.writer(REF, spool_dir=spool_dir, **AT_HAND, **options)
            writer.append(LINE)
            writer._journal.done = lambda *_, **__: None
            writer.flush()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("first", "second"), [(4096, 4096), (4096, None), (None, 4096), (1, 64 * 1024)])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_what_a_killed_writer_left_is_sent_as_it_would_have_sent_it(tmp_path, first, second, is_compacted):
    spool_dir = str(tmp_path / "spool")
    (tmp_path / "store").mkdir()
    killed_after_storing(str(tmp_path / "store"), spool_dir, offload_bytes=first)
    store = ObjectTranscriptStore(Container(LocalObjectStore(str(tmp_path / "store"))))
    append(store, 1, 1, "other")
    stored = lines_of(store, resolve=False)
    assert (stored[0] == LINE) == (first is None)
    if is_compacted:
        store.compact(REF, FULL)
    assert len(os.listdir(spool_dir)) == 1
    with store.writer(REF, spool_dir=spool_dir, offload_bytes=second):
        pass
    assert os.listdir(spool_dir) == []
    assert lines_of(store, resolve=False) == stored
    assert lines_of(store)[0] == LINE


def test_a_crash_at_any_request_leaves_nothing_that_can_not_be_read():
    for number in itertools.count():
        memory = MemoryObjectStore("m")
        step = StepObjectStore(memory, number, crash)
        with contextlib.suppress(Crash):
            send(Container(step, parallel=1), LINE)
        setup = quick(memory)
        assert lines_of(setup.store) in ([], [LINE])
        assert setup.store.verify(REF).ok
        send(Container(memory), LINE)
        assert lines_of(setup.store) == [LINE]
        if step.count <= number:
            break
    assert number >= 4  # a listing, a payload, a segment, a listing, a look


# --- deletes meanwhile ------------------------------------------------------------------------------------------------


def send(container, line, seq=0, *, can_be_whole=True):
    """What a writer does with a batch of one line."""
    store = ObjectTranscriptStore(container)
    stored, payloads = offload(line, 4096)

    def append(line):
        return lambda: store.append_segment(REF, seq, seq, "w", line)

    whole = append(line) if can_be_whole else None
    return store_payloads(container, TranscriptKeys("", REF.prefix), payloads, append(stored), whole)


class Delete:
    """A delete in a thread of its own, one request at a time."""

    def __init__(self, memory):
        delete = self

        class Gate(WrapperObjectStore):
            def _around(self, operation, key, request):
                delete.next = operation, key
                delete._came.release()
                delete._go.acquire()
                return super()._around(operation, key, request)

        self._came, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self._store = ObjectTranscriptStore(Container(Gate(memory), parallel=1))
        self.is_over, self.error, self.next = False, None, ("", "")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._came.acquire()

    def _run(self):
        try:
            self._store.delete(REF)
        except Exception as error:
            self.error = error
        self.is_over = True
        self._came.release()

    def step(self):
        if not self.is_over:
            self._go.release()
            self._came.acquire()

    def finish(self):
        while not self.is_over:
            self.step()
        self._thread.join()
        assert self.error is None


@pytest.mark.parametrize("is_known", [False, True], ids=["new payload", "known payload"])
@pytest.mark.parametrize("can_be_whole", [False, True], ids=["too long", "not too long"])
def test_no_record_is_stored_without_its_payload_whatever_a_delete_does_meanwhile(is_known, can_be_whole):
    """A delete that begins at any request of a writer, goes on at any other, and gets to any of its own each time."""
    before = LINE if is_known else dumps({"other": "x" * 9000})
    outcomes = set()
    for number, later, first, steps in itertools.product(range(7), (1, 2, 4), (0, 2, 4, 5, 6, 8), (0, 1, 3, 4, 5, 10)):
        memory = MemoryObjectStore("m")
        send(Container(memory), before)
        deletes = []

        def go_on(steps=steps, deletes=deletes):
            for _ in range(steps):
                deletes[0].step()

        def begin(memory=memory, deletes=deletes, first=first, go_on=go_on):
            deletes.append(Delete(memory))
            go_on(first)

        step = StepObjectStore(StepObjectStore(memory, number, begin), number + later, go_on)
        clock = Clock(lambda deletes=deletes: [each.step() for each in deletes])
        send(Container(step, clock=clock, parallel=1), LINE, 1, can_be_whole=can_be_whole)
        if not deletes:
            break
        was_over = deletes[0].is_over
        deletes[0].finish()
        setup = quick(memory)
        stored = lines_of(setup.store, resolve=False)
        assert lines_of(setup.store) == [LINE] * len(stored)
        assert was_over <= bool(stored)
        assert setup.store.verify(REF).ok
        outcomes.add((was_over, len(stored), stored == [LINE], bool(clock.slept)))
    assert number == 5 + is_known  # listing, payload, is it there, segment, listing, look
    assert (False, 0, False, False) in outcomes  # stored before
    assert (True, 1, False, True) in outcomes  # stored again
    assert ((False, 1, True, False) in outcomes) == can_be_whole  # stored while it ran


def test_a_delete_that_ends_while_it_is_looked_for_does_not_escape():
    """The marker that says so may not be there when its page is asked for; the other is on a later page, and stays."""
    outcomes = set()
    for number, later in itertools.product(range(14), range(14)):
        memory = MemoryObjectStore("m", page_size=1)
        memory.put(f"{REF.prefix}events/deletee", b"not ours, and between the two", mode="create", metadata={})
        deletes = []

        def begin(memory=memory, deletes=deletes):
            deletes.append(Delete(memory))
            while not deletes[0].is_over and deletes[0].next != ("put", f"{REF.prefix}events/deleted-1"):
                deletes[0].step()

        send(Container(memory), LINE)
        clock = Clock(lambda deletes=deletes: [each.finish() for each in deletes])
        step = StepObjectStore(memory, number, begin)
        end = StepObjectStore(step, number + later, lambda deletes=deletes: [each.finish() for each in deletes])
        send(Container(end, clock=clock, parallel=1), LINE, 1, can_be_whole=False)
        [each.finish() for each in deletes]
        assert lines_of(quick(memory).store) in ([], [LINE], [LINE] * 2)
        outcomes.add((len(lines_of(quick(memory).store)), bool(clock.slept)))
    assert outcomes == {(1, True), (2, False)}


def test_a_writer_between_any_two_requests_of_a_delete_loses_nothing():
    for number, can_be_whole in itertools.product(range(20), (True, False)):
        memory = MemoryObjectStore("m")
        send(Container(memory), LINE, 0)
        failed = []

        def write_too(memory=memory, failed=failed, can_be_whole=can_be_whole):
            try:
                send(Container(memory, clock=Clock(), parallel=1), LINE, 1, can_be_whole=can_be_whole)
            except StoreUnavailableError as error:
                failed.append(str(error))

        step = StepObjectStore(memory, number, write_too)
        ObjectTranscriptStore(Container(step, parallel=1)).delete(REF)
        if step.count <= number:
            break
        if failed:
            assert not can_be_whole
            assert "is being deleted, and values stored outside of their lines wait for that to end" in failed[0]
            send(Container(memory), LINE, 1)
        setup = quick(memory)
        assert lines_of(setup.store) in ([], [LINE])
        assert bool(failed) <= bool(lines_of(setup.store))
        assert setup.store.verify(REF).ok
    assert number > 5


def test_where_a_delete_has_died_lines_are_stored_whole_and_the_longest_wait():
    setup = make(memory=MemoryObjectStore("m", now=(clock := ServerClock())))
    setup.put(f"{REF.prefix}events/deleting-1")
    store = quick(setup.memory, retry=RetryPolicy(deadline=5)).store
    with store.writer(REF, **AT_HAND) as writer:
        writer.append(dumps({"output": "x" * 100_000}))
        writer.flush()
        assert setup.keys(PAYLOADS) == []
        writer.append(dumps({"output": "y" * 5 * MIB}))
        with pytest.raises(StoreUnavailableError, match="call delete, or verify with repair, when it is an hour old"):
            writer.flush()
        clock.go_on(hours=2)
        assert setup.store.verify(REF, repair=True).ok
        writer.flush()
    assert [json.loads(line)["output"][0] for line in lines_of(setup.store)] == ["x", "y"]


@pytest.mark.parametrize("was_whole", [False, True])
def test_a_batch_sent_again_is_found_in_whichever_way_it_was_stored(was_whole):
    setup = make()
    marker = f"{REF.prefix}events/deleting-1"
    if was_whole:
        setup.put(marker)
    send(Container(setup.memory), LINE)
    stored = lines_of(setup.store, resolve=False)
    assert (stored == [LINE]) == was_whole
    if was_whole:
        setup.memory.delete_many([marker])
        send(Container(setup.memory), LINE)
    else:
        setup.put(marker)
        clock = Clock(lambda: setup.memory.delete_many([marker]))
        send(Container(setup.memory, clock=clock), LINE)
        assert clock.slept == [0.1]
    assert lines_of(setup.store, resolve=False) == stored


def test_a_record_stored_in_both_ways_is_one():
    setup = make()
    send(Container(setup.memory), LINE)
    setup.store.append_segment(REF, 0, 1, "w", LINE + b"\n" + LINE)
    assert [record.seq for record in setup.store.records(REF)] == [0, 1]
    assert [record.seq for record in setup.store.records(REF, reverse=True)] == [1, 0]


def test_a_delete_does_not_mind_a_payload_that_is_stored_again_meanwhile():
    hooks = []

    def wrap(inner):
        hooks.append(HookedObjectStore(inner))
        return hooks[0]

    clock = ServerClock()
    setup = make(wrap=wrap, memory=MemoryObjectStore("m", now=clock))
    write(setup.store, LINE)
    key = PAYLOADS + sha256(BIG.encode())

    def again():
        clock.go_on(seconds=1)
        setup.memory.put(key, BIG.encode(), mode="create", metadata={})

    hooks[0].before("list_page", again, after=2)
    assert setup.store.delete(REF).deleted == 2
    assert setup.keys(PAYLOADS) == [key]


def test_repair_keeps_payloads_that_what_came_after_a_delete_may_refer_to():
    for is_later in (False, True):
        clock = ServerClock()
        setup = make(memory=MemoryObjectStore("m", now=clock))
        write(setup.store, LINE)
        clock.go_on(minutes=1)
        setup.put(f"{REF.prefix}events/deleting-1")
        clock.go_on(minutes=1)
        if is_later:
            stored, _ = offload(LINE, 4096)
            setup.store.append_segment(REF, 1, 1, "w", stored)
        clock.go_on(hours=2)
        report = setup.store.verify(REF, repair=True)
        assert report.ok
        assert lines_of(setup.store) == [LINE] * is_later
        assert len(setup.keys(PAYLOADS)) == is_later


def test_records_deleted_while_they_are_read_are_left_out():
    setup = make()
    write(setup.store, dumps({"n": 0}), LINE, dumps({"n": 2}))
    records = quick(setup.memory).store.records(REF)
    assert next(records).line == dumps({"n": 0})
    setup.store.delete(REF)
    assert [record.line for record in records] == [dumps({"n": 2})]  # its bytes were there already


def test_a_reader_waits_for_a_payload_that_is_being_stored_again():
    setup = make()
    write(setup.store, LINE)
    (key,) = setup.keys(PAYLOADS)
    body = setup.body(key)
    setup.memory.delete_many([key])
    clock = Clock(lambda: setup.put(key, body))
    store = ObjectTranscriptStore(Container(setup.memory, clock=clock))
    assert lines_of(store) == [LINE]
    assert clock.slept == [0.25]


def test_another_writer_under_the_same_id_is_a_conflict_as_ever():
    setup = make()
    send(Container(setup.memory), LINE, 0)
    with pytest.raises(SegmentConflictError):
        send(Container(setup.memory), dumps({"output": BIG + "?"}), 0)
    assert lines_of(setup.store) == [LINE]
