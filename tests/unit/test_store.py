from __future__ import annotations

import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timezone

import pytest
from unit.setups import EVENTS, REF, append, line, lines, make

from transcript_backends import (
    CorruptSegmentError,
    InvalidRefError,
    InvalidSegmentError,
    RuntimeContext,
    SegmentConflictError,
    SegmentNotFoundError,
    StoreClosedError,
    TranscriptRef,
)
from transcript_backends.drivers.driver import Capabilities
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.keys import MAX_SEQ
from transcript_backends.records import MAX_LINE_BYTES

KEY = f"{EVENTS}{7:019d}-{8:019d}-w.jsonl"


# --- append -----------------------------------------------------------------------------------------------------------


def test_an_append_is_one_request_and_its_key_the_documented_one():
    setup = make("root/")
    assert append(setup.store, 7, 8) == f"root/{KEY}"
    assert setup.driver.requests == [("put", f"root/{KEY}")]
    assert setup.body(f"root/{KEY}") == lines([7, 8])


def test_repeating_an_append_gives_the_same_key_and_one_object():
    setup = make()
    assert append(setup.store, 7, 8) == append(setup.store, 7, 8) == KEY
    assert setup.keys() == [KEY]


def test_other_records_under_a_taken_key_are_refused_and_nothing_is_overwritten():
    setup = make()
    append(setup.store, 7, 8)
    with pytest.raises(SegmentConflictError, match=f"{KEY} holds other content already .*give each its own writer id"):
        setup.store.append_segment(REF, 7, 8, "w", lines([8, 7]))
    assert setup.body(KEY) == lines([7, 8])


def test_the_same_range_of_two_writers_is_two_segments():
    setup = make()
    append(setup.store, 0, 1, "a")
    append(setup.store, 0, 1, "b")
    assert [(each.seq_start, each.seq_end, each.writer_id) for each in setup.store.list_segments(REF)] == [
        (0, 1, "a"),
        (0, 1, "b"),
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (MAX_SEQ, MAX_SEQ), (MAX_SEQ - 1, MAX_SEQ)])
def test_the_ends_of_the_range_of_seqs_are_usable(start, end):
    setup = make()
    append(setup.store, start, end)
    assert [each.seq for each in setup.store.records(REF)] == list(range(start, end + 1))
    assert setup.store.next_seq(REF) == end + 1


GOOD = {"ref": REF, "seq_start": 0, "seq_end": 0, "writer_id": "w", "jsonl": b"{}\n"}
LONG = b'{"a":"' + b"x" * MAX_LINE_BYTES + b'"}'
BAD = [
    ({"seq_start": 1}, InvalidSegmentError, "seq_start 1 is greater than seq_end 0; the range is inclusive"),
    ({"seq_start": -1}, InvalidSegmentError, "seq_start -1 is outside 0 ... 9223372036854775807"),
    ({"seq_end": 2**63}, InvalidSegmentError, "seq_end 9223372036854775808 is outside"),
    ({"seq_start": 2**63, "seq_end": 2**63}, InvalidSegmentError, "seq_start 9223372036854775808 is outside"),
    ({"seq_start": False}, InvalidSegmentError, "seq_start must be an integer, not bool"),
    ({"seq_end": True}, InvalidSegmentError, "seq_end must be an integer, not bool"),
    ({"seq_end": 0.0}, InvalidSegmentError, "seq_end must be an integer, not float"),
    ({"seq_start": "0"}, InvalidSegmentError, "seq_start must be an integer, not str"),
    ({"seq_start": None}, InvalidSegmentError, "seq_start must be an integer, not NoneType"),
    ({"writer_id": "compacted-x"}, InvalidSegmentError, "kept for compacted segments"),
    ({"writer_id": "compacted-0-0123456789abcdef"}, InvalidSegmentError, "kept for compacted segments"),
    *[
        ({"writer_id": each}, InvalidSegmentError, "must be 1 to 64 of the characters A-Z a-z 0-9 _ -")
        for each in ("", "w" * 65, "a.b", "a b", "w\n", "ä", "١", "a/b", "..", None, b"w", 1)
    ],
    ({"ref": "acme/coder/s1"}, InvalidRefError, "named by a TranscriptRef, not str; see TranscriptRef.parse"),
    ({"ref": None}, InvalidRefError, "named by a TranscriptRef, not NoneType"),
    ({"ref": ("acme", "coder", "s1")}, InvalidRefError, "named by a TranscriptRef, not tuple"),
    ({"ref": TranscriptRef("é" * 42, "é" * 42, "é" * 42 + "abc"), "root": "r" * 255 + "/"}, InvalidRefError,
    "1024 is the limit; use shorter ids or a shorter prefix"),
    ({"jsonl": "{}"}, InvalidSegmentError, "must be bytes, not str; encode text as UTF-8"),
    ({"jsonl": None}, InvalidSegmentError, "must be bytes, not NoneType"),
    ({"jsonl": b""}, InvalidSegmentError, "the payload is empty; a segment holds at least one record"),
    ({"jsonl": b"\n"}, InvalidSegmentError, "line 1 is blank; every line must hold one JSON object"),
    ({"jsonl": b"{}\n{}\n"}, InvalidSegmentError, "has 2 lines, the range names 1 records; one line is one record"),
    ({"seq_end": 1}, InvalidSegmentError, "has 1 lines, the range names 2 records"),
    ({"seq_end": MAX_SEQ}, InvalidSegmentError, "has 1 lines, the range names 9223372036854775808 records"),
    ({"jsonl": b"{} {}"}, InvalidSegmentError, "line 1 is not JSON"),
    ({"jsonl": b"[]"}, InvalidSegmentError, "line 1 is an array; every line must be a JSON object"),
    ({"jsonl": b'{"a":NaN}'}, InvalidSegmentError, "holds NaN, which is not JSON; write null or a string"),
    ({"jsonl": b"\xef\xbb\xbf{}"}, InvalidSegmentError, "byte-order mark; remove its three bytes"),
    ({"jsonl": b'{"a":"\xff"}'}, InvalidSegmentError, "line 1 is not UTF-8"),
    ({"jsonl": b'{"a":"\0"}'}, InvalidSegmentError, "raw NUL byte at 6; write it as \\u0000"),
    ({"jsonl": b"[" * 100_000}, InvalidSegmentError, "nested too deeply"),
    ({"jsonl": LONG}, InvalidSegmentError, "4194304 is the limit; keep large values outside the line"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "why"), BAD)
def test_a_bad_append_is_refused_with_cause_and_remedy_and_nothing_is_written(changed, kind, why):
    setup = make(changed.get("root", ""))
    arguments = {**GOOD, **changed}
    arguments.pop("root", None)
    with pytest.raises(kind, match=re.escape(why)):
        setup.store.append_segment(**arguments)
    assert setup.driver.requests == []
    assert setup.keys() == []


# --- reading ----------------------------------------------------------------------------------------------------------


def test_reading_a_segment_is_one_request():
    setup = make()
    key = append(setup.store, 0, 2)
    setup.driver.requests.clear()
    with setup.store.read_segment(key) as stream:
        assert stream.readline() == line(0) + b"\n"
        assert stream.read() == lines([1, 2])
    assert setup.driver.requests == [("get", key)]


def test_a_body_that_ends_early_is_an_error_and_no_shorter_segment():
    class EndingObjectStore(WrapperObjectStore):
        def get(self, key, **bounds):
            body = super().get(key, **bounds)
            return body._replace(stream=io.BytesIO(body.stream.read(20)))

    setup = make(wrap=EndingObjectStore)
    key = append(setup.store, 0, 2)
    with setup.store.read_segment(key) as stream, pytest.raises(CorruptSegmentError, match="ended at byte 20 of 48"):
        stream.read()


def test_a_segment_that_does_not_exist_is_not_found():
    with pytest.raises(SegmentNotFoundError, match=f"{KEY}.*check the key"):
        make().store.read_segment(KEY)


@pytest.mark.parametrize(
    "key",
    ["", "x", "/", f"/{KEY}", f"../{KEY}", KEY + "\n", f"{EVENTS}deleted-1", f"{REF.prefix}payloads/{'a' * 64}",
    f"{EVENTS}README", f"acme/../../{KEY}", None, 5, KEY.encode(),
     f"{REF.prefix}index/0-1-compacted-0-0123456789abcdef.jsonl.json", "acme/coder/=41/events/0-0-w.jsonl",
     "acme/coder/./events/0-0-w.jsonl", "memory://m/" + KEY],
)  # fmt: skip
def test_a_key_of_no_segment_is_refused_without_a_request(key):
    setup = make()
    with pytest.raises(
        InvalidSegmentError, match="no key of a segment in memory://m; keys come from append_segment and list_segments"
    ):
        setup.store.read_segment(key)
    assert setup.driver.requests == []


def test_what_a_segment_tells_of_itself():
    setup = make()
    append(setup.store, 7, 8)
    (found,) = setup.store.list_segments(REF)
    assert found[:4] == (KEY, 7, 8, "w")
    assert found.created_at.tzinfo is timezone.utc
    assert found.size == len(lines([7, 8]))


def test_a_transcript_that_was_never_written_is_empty():
    store = make().store
    assert store.list_segments(REF) == list(store.records(REF)) == list(store.list_refs()) == []
    assert store.next_seq(REF) == 0
    assert store.delete(REF) == (0, 0)


def test_transcripts_whose_names_begin_alike_are_kept_apart():
    store = make().store
    refs = [TranscriptRef("t", "a", each) for each in ("s", "s1", "s-1", "s.x", "S", "s/1", "=s", "s ")]
    for number, ref in enumerate(refs):
        append(store, number, number, ref=ref)
    assert [[each.seq for each in store.records(ref)] for ref in refs] == [[number] for number in range(len(refs))]
    store.delete(refs[0])
    assert set(store.list_refs()) == set(refs[1:])


# --- life -------------------------------------------------------------------------------------------------------------

OPERATIONS = {
    "append_segment": lambda store: append(store, 0, 0),
    "list_segments": lambda store: store.list_segments(REF),
    "read_segment": lambda store: store.read_segment(KEY),
    "records": lambda store: store.records(REF),
    "next_seq": lambda store: store.next_seq(REF),
    "own_writer_id": lambda store: store.own_writer_id(REF, "w"),
    "list_refs": lambda store: list(store.list_refs()),
    "delete": lambda store: store.delete(REF),
    "a view": lambda store: store.with_runtime_context(RuntimeContext()).next_seq(REF),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_closed_store_refuses_every_operation(operation):
    setup = make()
    with setup.store as store:
        append(store, 7, 8)
    setup.driver.requests.clear()
    with pytest.raises(StoreClosedError, match="the store on memory://m is closed; open a new one"):
        OPERATIONS[operation](setup.store)
    assert setup.driver.requests == []
    setup.store.close()


def test_as_many_calls_are_under_way_at_once_as_the_driver_says_and_no_more():
    under_way, most, lock, three = 0, 0, threading.Lock(), threading.Barrier(3)

    class NarrowObjectStore(WrapperObjectStore):
        capabilities = Capabilities(concurrency=3)

        def _around(self, operation, key, request):
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            try:
                if operation == "put":
                    three.wait(10)
                return super()._around(operation, key, request)
            finally:
                with lock:
                    under_way -= 1

    setup = make(wrap=NarrowObjectStore)
    with ThreadPoolExecutor(16) as pool:
        keys = list(pool.map(lambda seq: append(setup.store, seq, seq), range(63)))
        bodies = list(pool.map(lambda key: setup.store.read_segment(key).read(), keys))
    assert bodies == [lines([seq]) for seq in range(63)]
    assert most == 3


def test_a_store_shows_its_place_and_nothing_else():
    store = make("p/q/").store
    assert str(store) == "memory://m/p/q"
    assert repr(store) == "<ObjectTranscriptStore memory://m/p/q>"


def test_a_writer_with_an_id_of_its_own_has_another_name_after_each_delete():
    setup = make()
    names = []
    for _ in range(3):
        setup.driver.requests.clear()
        names.append(setup.store.own_writer_id(REF, "mine"))
        assert setup.driver.counts == {"list_page": 1}
        append(setup.store, 0, 0, names[-1])
        setup.store.delete(REF)
    assert names == ["mine", "mine-g1", "mine-g2"]
    with pytest.raises(InvalidSegmentError):
        setup.store.own_writer_id(REF, "not one")
