from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import EVENTS, REF, StreamCountingObjectStore, append, line, lines, make

from transcript_backends import Record


def seqs(setup, **bounds):
    return [each.seq for each in setup.store.records(REF, **bounds)]


def counting():
    counters: list[StreamCountingObjectStore] = []

    def wrap(inner):
        counters.append(StreamCountingObjectStore(inner))
        return counters[0]

    return make(wrap=wrap), counters[0]


# --- order and identity -----------------------------------------------------------------------------------------------


@st.composite
def transcripts(draw):
    """What several writers appended: each a few runs of seqs, cut into segments anywhere."""
    written = []
    for writer in draw(st.sets(st.sampled_from(["a", "b", "B", "compacted", "0"]), min_size=1, max_size=4)):
        start = draw(st.integers(0, 5))
        for length, gap in draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=5)):
            written.append((writer, start, start + length - 1))
            start += length + draw(st.sampled_from([0, 0, gap]))
    return draw(st.permutations(written))


@given(transcripts(), st.integers(0, 20), st.none() | st.integers(0, 25), st.none() | st.integers(0, 10))
@settings(max_examples=200)
def test_what_a_reader_sees_depends_on_the_records_alone(written, start_seq, end_seq, limit):
    setup, streams = counting()
    for writer, start, end in written:
        append(setup.store, start, end, writer)
    expected = sorted(Record(seq, writer, line(seq, writer)) for writer, start, end in written for seq in range(start, end + 1))
    assert list(setup.store.records(REF)) == expected
    assert setup.store.next_seq(REF) == max(each.seq for each in expected) + 1
    wanted = [each for each in expected if each.seq >= start_seq and (end_seq is None or each.seq <= end_seq)][:limit]
    assert list(setup.store.records(REF, start_seq=start_seq, end_seq=end_seq, limit=limit)) == wanted
    assert streams.open == set()
    assert streams.most <= len({writer for writer, _, _ in written})


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted), min_size=1, max_size=6))
def test_equal_lines_of_one_identity_are_one_record(ranges):
    setup = make()
    for start, end in ranges:
        append(setup.store, start, end)
    assert seqs(setup) == sorted({seq for start, end in ranges for seq in range(start, end + 1)})


def test_different_lines_of_one_identity_are_all_kept():
    setup = make()
    for end, text in ((2, b"x"), (3, b"y"), (4, b"x")):
        setup.put(f"{EVENTS}2-{end}-w.jsonl", b'{"t":"%s"}\n' % text * (end - 1))
    x, y = b'{"t":"x"}', b'{"t":"y"}'
    assert [each[::2] for each in setup.store.records(REF)] == [(2, x), (2, y), (3, y), (3, x), (4, x)]


def test_equal_lines_of_two_writers_or_two_seqs_are_both_kept():
    setup = make()
    for name in ("0-1-a", "1-2-b"):
        setup.put(f"{EVENTS}{name}.jsonl", b"{}\n{}\n")
    assert [each[:2] for each in setup.store.records(REF)] == [(0, "a"), (1, "a"), (1, "b"), (2, "b")]


def test_a_padded_and_an_unpadded_copy_are_one_transcript():
    setup = make()
    append(setup.store, 0, 1)
    setup.put(f"{EVENTS}0-1-w.jsonl", lines([0, 1]))
    setup.put(f"{EVENTS}2-10-w.jsonl", lines(range(2, 11)))
    assert len(setup.store.list_segments(REF)) == 3
    assert seqs(setup) == list(range(11))


# --- segments that others wrote ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "body", "found"),
    [
        ("5-6-w", b"1\n2\n3\n4\n", [(5, b"1"), (6, b"2"), (6, b"3"), (6, b"4")]),
        ("5-9-w", b"1\n2\n", [(5, b"1"), (6, b"2")]),
        ("5-6-w", b"", []),
        ("5-6-w", b"\n \n\r\n\t\r\n", []),
        ("5-7-w", b"\n1\n\n  \n2\r\n\r\n3", [(5, b"1"), (6, b"2"), (7, b"3")]),
        ("5-6-w", b"1\r\n2\r\n", [(5, b"1"), (6, b"2")]),
        ("5-5-w", '{"a":"\u2028\u2029\x85\x0b\x0c\x1c"}\n'.encode(), [(5, '{"a":"\u2028\u2029\x85\x0b\x0c\x1c"}'.encode())]),
        ("5-5-w", b'{"a":1,\r"b":2}\n', [(5, b'{"a":1,\r"b":2}')]),
        ("5-6-w", b"  {} \n\t2", [(5, b"  {} "), (6, b"\t2")]),
        ("5-6-w", b"not json\n\xff\xfe\n", [(5, b"not json"), (6, b"\xff\xfe")]),
        ("5-5-w", b"\xef\xbb\xbf{}\n", [(5, b"\xef\xbb\xbf{}")]),
        ("5-5-w", b"x" * 9_000_000 + b"\n", [(5, b"x" * 9_000_000)]),
    ],
)
def test_a_segment_of_another_program_is_read_whole(name, body, found):
    setup = make()
    setup.put(f"{EVENTS}{name}.jsonl", body)
    append(setup.store, 4, 4)
    append(setup.store, 20, 20)
    assert [each[::2] for each in setup.store.records(REF)] == [(4, line(4)), *found, (20, line(20))]


@pytest.mark.parametrize(
    "body", [b'{"a":1}\n{"b":"cut sho', b'{"a":1}\n{', b'{"a":1}\n{"b":"\xc3', b'{"a":1}\n' + b"[" * 100_000]
)
def test_a_last_line_cut_short_is_passed_on_and_reported(body, caplog):
    setup = make()
    key = setup.put(f"{EVENTS}1-2-w.jsonl", body)
    append(setup.store, 0, 0)
    append(setup.store, 3, 3)
    with caplog.at_level(logging.WARNING, "transcript_backends"):
        assert [each.line for each in setup.store.records(REF)] == [line(0), *body.split(b"\n"), line(3)]
    (report,) = caplog.records
    assert report.name == "transcript_backends.reading"
    assert f"the last line of {key} was cut short" in report.getMessage()


def test_a_whole_last_line_without_its_newline_is_no_cause_for_a_report(caplog):
    setup = make()
    setup.put(f"{EVENTS}0-1-w.jsonl", lines([0, 1]).removesuffix(b"\n"))
    assert seqs(setup) == [0, 1]
    assert caplog.records == []


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "found", "gets"),
    [
        ({}, range(30), 3),
        ({"start_seq": 10, "end_seq": 19}, range(10, 20), 1),
        ({"start_seq": 15}, range(15, 30), 2),
        ({"start_seq": 9, "end_seq": 10}, [9, 10], 2),
        ({"end_seq": 0}, [0], 1),
        ({"limit": 0}, [], 0),
        ({"limit": 11}, range(11), 2),
        ({"start_seq": 29}, [29], 1),
        ({"start_seq": 30}, [], 0),
        ({"start_seq": 5, "end_seq": 4}, [], 1),
        ({"start_seq": 2**70}, [], 0),
        ({"end_seq": -1}, [], 0),
    ],
)
def test_only_segments_within_the_bounds_are_opened(bounds, found, gets):
    setup = make()
    for start in (0, 10, 20):
        append(setup.store, start, start + 9)
    setup.driver.requests.clear()
    assert seqs(setup, **bounds) == list(found)
    assert setup.driver.counts["get"] == gets
    assert setup.driver.counts["list_page"] == 1


def test_nothing_is_read_on_past_the_end_of_the_bounds():
    setup, streams = counting()
    body = lines(range(200_000))
    setup.put(f"{EVENTS}0-199999-w.jsonl", body)
    received = 0
    inner = streams.get

    def get(*arguments, **bounds):
        found = inner(*arguments, **bounds)
        read = found.stream.read

        def count(size):
            nonlocal received
            chunk = read(size)
            received += len(chunk)
            return chunk

        found.stream.read = count
        return found

    streams.get = get
    assert seqs(setup, end_seq=5) == list(range(6))
    assert received < len(body) / 10
    assert streams.open == set()


# --- streams ----------------------------------------------------------------------------------------------------------


def test_segments_that_do_not_overlap_are_open_one_at_a_time():
    setup, streams = counting()
    for start in range(0, 50, 5):
        append(setup.store, start, start + 4)
    setup.put(f"{EVENTS}50-54-w.jsonl", b"\n\n")  # nothing in it
    append(setup.store, 55, 59)
    assert len(seqs(setup)) == 55
    assert (streams.most, streams.open) == (1, set())


def test_only_segments_that_overlap_are_open_together():
    setup, streams = counting()
    for start in range(0, 50, 5):
        append(setup.store, start, start + 4, "a")
        append(setup.store, start + 2, start + 3, "b")
    append(setup.store, 0, 49, "c")
    assert len(seqs(setup)) == 120
    assert (streams.most, streams.open) == (3, set())


@pytest.mark.parametrize("taken", [0, 1, 7, 8, 20])
def test_closing_the_generator_closes_every_stream(taken):
    setup, streams = counting()
    append(setup.store, 0, 9, "a")
    append(setup.store, 5, 14, "b")
    records = setup.store.records(REF)
    assert len(list(itertools.islice(records, taken))) == taken
    assert bool(streams.open) == bool(taken)
    records.close()
    assert streams.open == set()
    assert list(records) == []


def test_reaching_the_limit_closes_every_stream():
    setup, streams = counting()
    append(setup.store, 0, 9, "a")
    append(setup.store, 0, 9, "b")
    records = setup.store.records(REF, limit=3)
    assert len(list(records)) == 3
    assert streams.open == set()


@pytest.mark.parametrize("gone", [0, 3, 12])
def test_a_segment_that_vanishes_is_looked_for_in_a_new_listing_and_every_stream_is_closed(gone):
    setup, streams = counting()
    keys = {start: append(setup.store, start, end, writer) for start, end, writer in [(0, 9, "a"), (3, 5, "b"), (12, 13, "a")]}
    records = setup.store.records(REF)
    setup.memory.delete_many([keys[gone]])
    remaining = {(0, 9, "a"), (3, 5, "b"), (12, 13, "a")} - {
        next(each for each in [(0, 9, "a"), (3, 5, "b"), (12, 13, "a")] if each[0] == gone)
    }
    assert [each[:2] for each in records] == sorted((seq, w) for start, end, w in remaining for seq in range(start, end + 1))
    assert streams.open == set()


def test_a_body_that_breaks_off_is_an_error_and_every_stream_is_closed(monkeypatch):
    setup, streams = counting()
    append(setup.store, 0, 3, "a")
    append(setup.store, 0, 3, "b")
    inner = streams.get

    def get(key, **bounds):
        body = inner(key, **bounds)
        if "-b.jsonl" in key:
            body.stream.read = lambda size: b""
        return body

    monkeypatch.setattr(streams, "get", get)
    with pytest.raises(Exception, match=r"-b\.jsonl' ended at byte 0"):
        list(setup.store.records(REF))
    assert streams.open == set()


def test_reading_twice_gives_the_same_records():
    setup = make()
    setup.put(f"{EVENTS}0-2-w.jsonl", b"".join(b'{"t":"%s"}\n' % (each * 600) for each in (b"a", b"b", b"c")))
    assert list(setup.store.records(REF)) == list(setup.store.records(REF))
    assert next(setup.store.records(REF)).line == b'{"t":"%s"}' % (b"a" * 600)
