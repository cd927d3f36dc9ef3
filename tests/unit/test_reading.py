from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import EVENTS, REF, HookedObjectStore, ServerClock, Setup, StreamCountingObjectStore, append, line, lines, make

from transcript_backends import (
    CompactionPolicy,
    CorruptSegmentError,
    ObjectTranscriptStore,
    Record,
    SegmentConflictError,
    SegmentNotFoundError,
)
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import (
    FaultyObjectStore,
    InjectedError,
    LatencyObjectStore,
    RecordingObjectStore,
    WrapperObjectStore,
)
from transcript_backends.prefetching import Ahead
from transcript_backends.testing.stores import SparingObjectStore


def seqs(setup, **bounds):
    return [each.seq for each in setup.store.records(REF, **bounds)]


def counting(memory=None):
    counters: list[StreamCountingObjectStore] = []

    def wrap(inner):
        counters.append(StreamCountingObjectStore(inner))
        return counters[0]

    return make(wrap=wrap, memory=memory), counters[0]


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


@pytest.mark.parametrize("resolve", [False, True])
def test_equal_lines_of_one_identity_are_one_record_also_with_another_line_between_them(resolve):
    setup = make()
    for zeros, text in enumerate((line(0), line(7), line(0), line(7)), 1):
        setup.put(f"{EVENTS}{'0' * zeros}-0-w.jsonl", text + b"\n")
    assert sorted(each.line for each in setup.store.records(REF, resolve=resolve)) == [line(0), line(7)]


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
    assert seqs(setup, end_seq=5) == list(range(6))
    assert streams.received < len(body) / 10
    assert streams.open == set()


# --- streams ----------------------------------------------------------------------------------------------------------


def streaming():
    """As `counting`, and nothing is fetched ahead."""
    setup, streams = counting()
    setup.store._container._parallel = 1
    return setup, streams


def test_segments_that_do_not_overlap_are_open_one_at_a_time():
    setup, streams = streaming()
    for start in range(0, 50, 5):
        append(setup.store, start, start + 4)
    setup.put(f"{EVENTS}50-54-w.jsonl", b"\n\n")  # nothing in it
    append(setup.store, 55, 59)
    assert len(seqs(setup)) == 55
    assert (streams.most, streams.open) == (1, set())


def test_only_segments_that_overlap_are_open_together():
    setup, streams = streaming()
    for start in range(0, 50, 5):
        append(setup.store, start, start + 4, "a")
        append(setup.store, start + 2, start + 3, "b")
    append(setup.store, 0, 49, "c")
    assert len(seqs(setup)) == 120
    assert (streams.most, streams.open) == (3, set())


@pytest.mark.parametrize("taken", [0, 1, 7, 8, 20])
def test_closing_the_generator_closes_every_stream(taken):
    setup, streams = streaming()
    append(setup.store, 0, 9, "a")
    append(setup.store, 5, 14, "b")
    records = setup.store.records(REF)
    assert len(list(itertools.islice(records, taken))) == taken
    assert bool(streams.open) == bool(taken)
    records.close()
    assert streams.open == set()
    assert list(records) == []


def test_small_segments_are_fetched_ahead_ever_more_of_them_and_no_more_than_a_few_megabytes():
    latency = []

    def wrap(inner):
        latency.append(LatencyObjectStore(inner, 0.02))
        return latency[0]

    setup = make(wrap=wrap)
    body = b"".join(b'{"x":"%s"}\n' % (b"x" * 250_000) for _ in range(4))
    for start in range(0, 120, 4):
        setup.store.append_segment(REF, start, start + 3, "w", body)
    setup.driver.requests.clear()
    records = setup.store.records(REF)
    assert next(records).seq == 0
    assert setup.driver.counts["get"] <= 3
    assert sum(1 for _ in itertools.islice(records, 60)) == 60
    time.sleep(0.2)
    assert 16 + 4 <= setup.driver.counts["get"] <= 16 + 10
    assert sum(1 for _ in records) == 59
    assert setup.driver.counts["get"] == 30


def test_a_reader_that_may_stop_soon_begins_with_half_as_many_requests():
    setup = make()
    for seq in range(50):
        append(setup.store, seq, seq)
    segments = setup.store.list_segments(REF)
    begun = {}
    for gently in (False, True):
        with contextlib.closing(Ahead(setup.store._container, segments, gently=gently, parallel=6)) as ahead:
            ahead.begin()
            begun[gently] = len(ahead._coming)
    assert begun == {False: 48, True: 3}


@pytest.mark.parametrize("taken", [0, 1, 30])
def test_a_reader_that_stops_early_leaves_nothing_behind(taken):
    setup, streams = counting()
    for seq in range(200):
        append(setup.store, seq, seq)
    threads = threading.active_count()
    records = setup.store.records(REF)
    assert len(list(itertools.islice(records, taken))) == taken
    records.close()
    assert streams.open == set()
    assert threading.active_count() == threads
    assert setup.driver.counts["get"] <= 8 * (taken + 1)


def test_one_slow_request_holds_up_no_other():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for seq in range(300):
        append(setup.store, seq, seq)
    slow, all_others = threading.Event(), threading.Event()
    hooks[0].before("get", lambda: slow.wait(10), key=f"/{100:019d}-")
    hooks[0].before("get", all_others.set, key=f"/{210:019d}-")  # much later than as many as are under way at once
    records = setup.store.records(REF)
    assert [record.seq for record in itertools.islice(records, 100)] == list(range(100))
    assert all_others.wait(10)
    slow.set()
    assert [record.seq for record in records] == list(range(100, 300))


# --- from the end -----------------------------------------------------------------------------------------------------


def test_the_end_of_a_long_transcript_costs_one_listing_and_two_gets():
    clock = ServerClock()
    setup, streams = counting(MemoryObjectStore("m", now=clock))
    for start in range(0, 100_000, 1000):
        setup.store.append_segment(
            REF, start, start + 999, "w", b"".join(b'{"n":%d,"x":"%s"}\n' % (n, b"x" * 350) for n in range(start, start + 1000))
        )
    setup.store.compact(REF, FULL)
    assert len(setup.store.list_segments(REF)) == 2
    setup, streams = counting(setup.memory)  # which remembers no index
    clock.go_on(seconds=10)
    setup.driver.requests.clear()
    assert [record.json()["n"] for record in setup.store.tail(REF, 50)] == list(range(99_950, 100_000))
    assert setup.driver.counts == {"list_page": 1, "get": 2}
    assert streams.received < 1024 * 1024


def test_the_indexes_that_compactions_left_are_fetched_once():
    setup = make()
    for seq in range(40):
        append(setup.store, seq, seq)
        if seq % 2:
            setup.store.compact(REF, FULL)
    other = make(memory=setup.memory)
    other.driver.requests.clear()
    assert len(other.store.tail(REF, 1)) == 1
    assert other.driver.counts["get"] == 20 + 1
    other.driver.requests.clear()
    for _ in range(3):
        assert len(other.store.tail(REF, 1)) == 1
    assert other.driver.counts == {"list_page": 3, "get": 3}


def meeting(parties, part):
    """Wraps a driver so that gets of certain keys wait for one another."""
    barrier = threading.Barrier(parties)

    class MeetingObjectStore(WrapperObjectStore):
        def get(self, key, *, start=0, end=None):
            if part in key:
                barrier.wait(10)
            return super().get(key, start=start, end=end)

    return MeetingObjectStore


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_compacted_segment_and_its_index_are_fetched_at_once(size):
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    for seq in range(4):
        setup.store.append_segment(REF, seq, seq, "w", b'{"x":"%s"}' % (b"x" * (size // 4)))
    setup.store.compact(REF, CompactionPolicy(full=True))
    clock.go_on(seconds=10)
    other = make(memory=setup.memory, wrap=meeting(2, "compacted"))
    assert seqs(other) == list(range(4))
    assert other.driver.counts == {"list_page": 1, "get": 2}


@pytest.mark.parametrize(("every", "target_bytes", "indexes"), [(2, 10**6, 8), (16, 70, 4)])
def test_indexes_are_fetched_several_at_once(every, target_bytes, indexes):
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    for seq in range(16):
        append(setup.store, seq, seq)
        if not (seq + 1) % every:
            setup.store.compact(REF, CompactionPolicy(full=True, target_bytes=target_bytes))
    clock.go_on(seconds=10)
    other = make(memory=setup.memory, wrap=meeting(4, "/index/"))
    assert seqs(other) == list(range(16))
    assert sum("/index/" in each.key for each in other.driver.requests) == indexes


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 6)), max_size=12),
    st.integers(0, 35),
    st.integers(-1, 40) | st.none(),
    st.integers(0, 60) | st.none(),
    st.booleans(),
)
def test_backwards_is_forwards_turned_round(written, start_seq, end_seq, limit, compacted):
    setup = make()
    for writer, start, more in written:
        with contextlib.suppress(SegmentConflictError):
            append(setup.store, start, start + more, writer)
    if compacted:
        setup.store.compact(REF, CompactionPolicy(min_segments=2, target_bytes=300))
        append(setup.store, 31, 33, "d")
    bounds = {"start_seq": start_seq, "end_seq": end_seq}
    forwards = list(setup.store.records(REF, **bounds))
    assert list(setup.store.records(REF, **bounds, limit=limit, reverse=True)) == forwards[::-1][:limit]
    everything = list(setup.store.records(REF))
    assert setup.store.tail(REF, limit or 0) == everything[len(everything) - min(limit or 0, len(everything)) :]


def test_backwards_reads_only_what_is_taken_and_goes_on_over_a_compaction():
    setup = make()
    for seq in range(5000):
        append(setup.store, seq, seq)
    setup.driver.requests.clear()
    records = setup.store.records(REF, reverse=True)
    assert [next(records).seq for _ in range(10)] == list(range(4999, 4989, -1))
    assert setup.driver.counts["get"] <= 1000
    make(memory=setup.memory).store.compact(REF, FULL)
    assert [record.seq for record in records] == list(range(4989, -1, -1))


def foreign(setup, first, last, writer, count):
    """A segment of another program, with fewer lines than its name says."""
    setup.put(f"{EVENTS}{first}-{last}-{writer}.jsonl", lines(range(count), writer))


@pytest.mark.parametrize("span", [5_000, 10**9, 2**62])
def test_many_segments_whose_names_say_too_much_are_each_read_a_few_times_at_most(span):
    setup = make(wrap=lambda inner: SparingObjectStore(inner, 1_000))
    for number in range(50):
        foreign(setup, 7 * number, 7 * number + span + 1000 * number, f"w{number}", 20)
    append(setup.store, 3, 12, "a")
    expected = list(setup.store.records(REF))
    assert len(expected) == 50 * 20 + 10
    for n in (1, 5, 400):
        setup.driver.requests.clear()
        assert setup.store.tail(REF, n) == expected[-n:]
        assert setup.driver.counts["get"] <= 2 * 51 + 20
    setup.driver.requests.clear()
    assert list(setup.store.records(REF, reverse=True)) == expected[::-1]
    assert setup.driver.counts["get"] <= 3 * 51


def test_a_segment_whose_name_says_too_much_is_read_twice_at_most_on_the_way_to_the_beginning():
    setup = make(wrap=lambda inner: SparingObjectStore(inner, 1_000))
    foreign(setup, 0, 10**9, "wide", 3)
    for start in range(0, 50_000, 500):
        append(setup.store, start, start + 499)
    plain = make()
    for start in range(0, 50_000, 500):
        append(plain.store, start, start + 499)
    for each in (setup, plain):
        each.driver.requests.clear()
        assert sum(1 for _ in each.store.records(REF, reverse=True)) == 50_000 + 3 * (each is setup)
    assert setup.driver.counts["get"] <= plain.driver.counts["get"] + 4


def test_without_its_index_a_compacted_segment_that_spans_much_is_read_from_the_end():
    setup = make(wrap=lambda inner: SparingObjectStore(inner, 100))
    append(setup.store, 0, 4)
    append(setup.store, 2**62, 2**62 + 4)
    setup.store.compact(REF, CompactionPolicy(full=True))
    setup.memory.delete_many(setup.keys(f"{REF.prefix}index/"))
    expected = list(setup.store.records(REF))
    assert len(expected) == 10
    assert setup.store.tail(REF, 3) == expected[-3:]
    assert list(setup.store.records(REF, reverse=True)) == expected[::-1]


@settings(deadline=None, max_examples=200)
@given(
    written=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 5_000), st.integers(0, 12), st.sampled_from("abc")), max_size=6
    ),
    start_seq=st.integers(0, 20),
    end_seq=st.none() | st.integers(0, 60),
    limit=st.none() | st.integers(0, 40),
)
def test_backwards_is_forwards_turned_round_whatever_the_names_say(written, start_seq, end_seq, limit):
    setup = make()
    for first, span, count, writer in written:
        foreign(setup, first, first + span - 1, writer, count)
    forwards = list(setup.store.records(REF, start_seq=start_seq, end_seq=end_seq))[::-1]
    found = list(setup.store.records(REF, start_seq=start_seq, end_seq=end_seq, limit=limit, reverse=True))
    assert found == forwards[:limit]


def with_nuls(*places, count=8):
    """A segment of so many lines; the end of each line named, its LF and the beginning of the next one are NULs."""
    body = bytearray(lines(range(count), "foreign"))
    ends = [at for at, byte in enumerate(body) if byte == 10]
    for place in places:
        body[ends[place] - 4 : ends[place] + 5] = bytes(9)
    return bytes(body)


READERS = {
    "records": lambda store: [(record.seq, record.line) for record in store.records(REF)],
    "in reverse": lambda store: [(record.seq, record.line) for record in store.records(REF, reverse=True)][::-1],
    "tail": lambda store: [(record.seq, record.line) for record in store.tail(REF, 100)],
    "follow": lambda store: [(each.seq, each.line) for each in store.follow(REF, stop_when_idle=0, min_interval=0.001)],
    "from": lambda store: [
        *((record.seq, record.line) for record in store.records(REF, end_seq=5)),
        *((record.seq, record.line) for record in store.records(REF, start_seq=6)),
    ],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("place", "whole"), [(0, [2, 3, 4, 5, 6, 7]), (3, [0, 1, 2, 5, 6, 7]), (6, [0, 1, 2, 3, 4, 5])])
def test_nuls_that_swallow_an_end_of_a_line_give_no_record_the_number_of_another(read, place, whole, caplog):
    setup = make()
    setup.put(f"{EVENTS}10-17-w.jsonl", with_nuls(place))
    expected = lines(range(8), "foreign").splitlines()
    found = dict(read(setup.store))
    assert {seq - 10 for seq, line in found.items() if b"\0" not in line} == set(whole)
    assert all(found[seq + 10] == expected[seq] for seq in whole)
    assert b"\0" in found[place + 10]
    assert "NULs stand in place of the end of record" in caplog.text
    assert not setup.store.verify(REF).ok
    append(setup.store, 18, 18)
    assert [key for key, _ in setup.store.compact(REF, FULL).left] == [f"{EVENTS}10-17-w.jsonl"]


def test_nuls_in_one_line_only_and_lines_that_are_missing_for_another_reason_change_no_number():
    setup = make()
    body = lines(range(4), "foreign")
    setup.put(f"{EVENTS}0-3-w.jsonl", body[:6] + b"\0\0" + body[8:])
    assert [record.seq for record in setup.store.records(REF)] == [0, 1, 2, 3]
    other = make()
    other.put(f"{EVENTS}0-9-w.jsonl", body)
    assert [record.seq for record in other.store.records(REF)] == [0, 1, 2, 3]


def test_where_nuls_swallow_lines_at_two_places_nothing_after_the_first_is_numbered():
    setup = make()
    setup.put(f"{EVENTS}0-7-w.jsonl", with_nuls(1, 4))
    records = setup.store.records(REF)
    assert [next(records).seq, next(records).seq] == [0, 1]
    with pytest.raises(
        CorruptSegmentError, match="has 2 lines less than its name says, and NULs at several places from record 1"
    ):
        next(records)


def test_nuls_at_the_end_in_place_of_several_lines():
    setup = make()
    body = lines(range(5), "foreign")
    setup.put(f"{EVENTS}0-4-w.jsonl", body[: body.index(b"\n") + 3] + bytes(100))
    append(setup.store, 5, 6)
    assert [record.seq for record in setup.store.records(REF)] == [0, 1, 5, 6]


def test_a_negative_number_of_last_records_is_refused():
    with pytest.raises(ValueError, match="n must be 0 or more"):
        make().store.tail(REF, -1)


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


# --- compacted segments -----------------------------------------------------------------------------------------------

FULL = CompactionPolicy(full=True)


def index_key(key):
    return key.replace("/events/", "/index/") + ".json"


@given(
    transcripts(), st.data(), st.integers(0, 20), st.none() | st.integers(0, 25), st.none() | st.integers(0, 10), st.booleans()
)
@settings(max_examples=150)
def test_bounds_mean_the_same_whatever_is_compacted(written, data, start_seq, end_seq, limit, full):
    written = [each for each in written if each[0] != "compacted"]
    setup, streams = counting()
    expected, bodies = [], {}
    for writer, start, end in written:
        bodies[append(setup.store, start, end, writer)] = lines(range(start, end + 1), writer)
        expected += [Record(seq, writer, line(seq, writer)) for seq in range(start, end + 1)]
        if data.draw(st.integers(0, 2)) == 0:
            setup.store.compact(REF, CompactionPolicy(2, full=full, target_bytes=data.draw(st.sampled_from([100, 10_000]))))
    wanted = [each for each in sorted(expected) if each.seq >= start_seq and (end_seq is None or each.seq <= end_seq)][:limit]
    assert list(setup.store.records(REF, start_seq=start_seq, end_seq=end_seq, limit=limit)) == wanted
    for key, body in bodies.items():
        with setup.store.read_segment(key) as stream:
            assert stream.read() == body
    assert streams.open == set()


def test_a_range_far_into_a_compacted_segment_is_read_from_a_seek_point():
    setup = make()
    text = b'{"t":"%s"}\n' % (b"x" * 10_000)
    for start in range(0, 300, 100):
        setup.store.append_segment(REF, start, start + 99, "w", text * 100)
    (key,) = setup.store.compact(REF, FULL).merged
    starts = []
    inner = setup.memory.get

    def get(key, *, start=0, end=None):
        starts.append((key, start))
        return inner(key, start=start, end=end)

    setup.memory.get = get
    assert seqs(setup, start_seq=290) == list(range(290, 300))
    (start,) = (start for each, start in starts if each == key)
    assert 290 * len(text) - 270_000 <= start <= 290 * len(text)


def test_after_a_seek_point_the_runs_that_follow_are_read_from_their_beginning():
    setup = make()
    text = b'{"t":"%s"}\n' % (b"x" * 10_000)
    for writer, start, end in (("a", 0, 99), ("b", 100, 199), ("a", 200, 209)):
        setup.store.append_segment(REF, start, end, writer, text * (end - start + 1))
    setup.store.compact(REF, FULL)
    assert seqs(setup, start_seq=60) == list(range(60, 210))


def moment(number, action):
    """A store that runs ``action`` right before its request of this number."""
    count = itertools.count()

    class Moment(WrapperObjectStore):
        def _around(self, operation, key, request):
            if next(count) == number:
                action()
            return super()._around(operation, key, request)

    return Moment, lambda: next(count) > number


def merges(setup):
    """A compaction of all there is, by somebody else."""
    other = make(memory=setup.memory)
    return lambda: other.store.compact(REF, FULL)


def overlapping(setup):
    """What two writers wrote, partly compacted already; gives its records."""
    written = [(0, 2, "a"), (1, 4, "b"), (3, 3, "a"), (4, 8, "a"), (8, 9, "b"), (20, 22, "a")]
    for start, end, writer in written:
        append(setup.store, start, end, writer)
        if start == 3:
            merges(setup)()
    return sorted(Record(seq, writer, line(seq, writer)) for start, end, writer in written for seq in range(start, end + 1))


@pytest.mark.parametrize("bounds", [{}, {"start_seq": 3, "end_seq": 8}, {"limit": 7}])
def test_a_compaction_before_any_request_of_a_reader_shows_no_gap_and_no_repeat(bounds):
    for number in itertools.count():
        setup = make()
        expected = overlapping(setup)
        wanted = [each for each in expected if bounds.get("start_seq", 0) <= each.seq <= bounds.get("end_seq", 99)]
        wrap, has_happened = moment(number, merges(setup))
        assert list(make(memory=setup.memory, wrap=wrap).store.records(REF, **bounds)) == wanted[: bounds.get("limit")]
        if not has_happened():
            assert number >= 3
            return


@pytest.mark.parametrize("taken", range(19))
def test_a_compaction_between_any_two_records_shows_no_gap_and_no_repeat(taken):
    setup = make()
    expected = overlapping(setup)
    records = setup.store.records(REF)
    found = list(itertools.islice(records, taken))
    merges(setup)()
    assert found + list(records) == expected


class Clock:
    def monotonic(self):
        return 0.0

    def sleep(self, seconds):
        pass

    def jitter(self):
        return 0.5


def test_a_connection_lost_in_the_middle_of_a_segment_that_is_merged_meanwhile_shows_no_gap_and_no_repeat():
    class BreakingObjectStore(WrapperObjectStore):
        """Gives bodies in small pieces, and loses the connection before a certain one, after a compaction."""

        def get(self, key, **bounds):
            body = super().get(key, **bounds)
            read = body.stream.read

            def read_piece(size):
                if next(pieces) == number:
                    merge()
                    raise InjectedError(Meaning.TRY_AGAIN)
                return read(min(size, 25))

            class Stream:
                read = staticmethod(read_piece)
                close = body.stream.close

            return body._replace(stream=Stream())

        def classify(self, error):
            return FaultyObjectStore(self.inner).classify(error)

    for number in itertools.count():
        setup = make()
        expected = overlapping(setup)
        merge, pieces = merges(setup), itertools.count()
        store = ObjectTranscriptStore(Container(BreakingObjectStore(RecordingObjectStore(setup.memory)), clock=Clock()))
        assert list(store.records(REF)) == expected
        if next(pieces) <= number:
            assert number > 20
            return


def test_after_a_break_the_records_of_the_last_seq_that_were_not_given_yet_come_first():
    class LineByLineObjectStore(WrapperObjectStore):
        """Gives a line at a time; of ``a``'s segment only the first, then it has been merged."""

        def get(self, key, **bounds):
            body = super().get(key, **bounds)
            lines_left = iter(body.stream.read(-1).splitlines(keepends=True))

            def read_line(_):
                found = next(lines_left, b"")
                if found == line(1, "a") + b"\n" and not is_merged:
                    is_merged.append(merge())
                    raise InjectedError(Meaning.TRY_AGAIN)
                return found

            class Stream:
                read = staticmethod(read_line)
                close = body.stream.close

            return body._replace(stream=Stream())

        def classify(self, error):
            return FaultyObjectStore(self.inner).classify(error)

    setup = make()
    for writer in "ab":
        append(setup.store, 0, 2, writer)
    merge, is_merged = merges(setup), []
    store = ObjectTranscriptStore(Container(LineByLineObjectStore(setup.memory), clock=Clock(), parallel=1))
    assert [record[:2] for record in store.records(REF)] == [(seq, writer) for seq in range(3) for writer in "ab"]
    assert is_merged


class CutOnceObjectStore(WrapperObjectStore):
    """Loses the connection half-way of the first body, and does something before anybody can ask for the rest."""

    def __init__(self, inner, act):
        super().__init__(inner)
        self._acts = iter([act])

    def get(self, key, **bounds):
        body = super().get(key, **bounds)
        act = next(self._acts, None)
        if act is None:
            return body
        half = io.BytesIO(body.stream.read(body.info.size // 2))

        def read_piece(size):
            if piece := half.read(size):
                return piece
            act()
            raise InjectedError(Meaning.TRY_AGAIN)

        class Stream:
            read = staticmethod(read_piece)
            close = body.stream.close

        return body._replace(stream=Stream())

    def classify(self, error):
        return FaultyObjectStore(self.inner).classify(error)


MANY = range(20_000)  # more than is read at once


def with_a_segment_replaced_while_it_is_read(writer, *, delete=False):
    """A store with one segment, and its key; the segment is removed and written anew in the middle of its first reading."""
    setup = make()
    key = append(setup.store, MANY[0], MANY[-1])

    def replace():
        if delete:
            setup.store.delete(REF)
        setup.memory.delete_many([key])
        setup.put(key, lines(MANY, writer))

    return ObjectTranscriptStore(Container(CutOnceObjectStore(setup.memory, replace), clock=Clock())), key


def test_a_segment_removed_and_written_again_while_it_is_read_is_read_on():
    store, key = with_a_segment_replaced_while_it_is_read("w")
    assert store.read_segment(key).read() == lines(MANY)
    store, _ = with_a_segment_replaced_while_it_is_read("w")
    assert [record.seq for record in store.records(REF)] == list(MANY)


def test_a_reader_shows_nothing_of_the_next_life_of_a_transcript():
    store, _ = with_a_segment_replaced_while_it_is_read("w", delete=True)
    found = [record.seq for record in store.records(REF)]
    assert found == list(range(len(found)))
    assert len(found) < len(MANY)
    assert [record.seq for record in store.records(REF)] == list(MANY)


def test_two_segments_are_never_mixed_into_one():
    store, key = with_a_segment_replaced_while_it_is_read("v")
    with store.read_segment(key) as stream, pytest.raises(CorruptSegmentError, match="another written"):
        stream.read()


def two_merged(setup):
    """Two segments of two writers, compacted; gives the key."""
    append(setup.store, 0, 1, "a")
    append(setup.store, 2, 3, "b")
    (key,) = setup.store.compact(REF, FULL).merged
    return key


def test_without_its_index_a_compacted_segment_is_read_under_its_own_name(caplog):
    setup = make()
    key = two_merged(setup)
    setup.memory.delete_many([index_key(key)])
    with caplog.at_level(logging.WARNING, "transcript_backends"):
        found = list(setup.store.records(REF))
    assert [each.line for each in found] == [line(0, "a"), line(1, "a"), line(2, "b"), line(3, "b")]
    assert [each.seq for each in found] == [0, 1, 2, 3]
    assert {each.writer_id for each in found} == {each.writer_id for each in setup.store.list_segments(REF)}
    (report,) = caplog.records
    assert f"the index of {key} is missing" in report.getMessage()


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body + b"{}\n",
        lambda body: body[:-5],
        lambda body: b"",
        lambda body: body.replace(b"\n", b" ", 1),
        lambda body: body[:-1] + b" ",
        lambda body: body.replace(b'"', b"\n", 1),
        lambda body: body.replace(b'"n":1', b'"n":10'),
    ],
    ids=["longer", "shorter", "empty", "a line less", "cut short", "a line more", "a longer line"],
)
def test_an_index_that_disagrees_with_its_segment_is_an_error_that_names_it(damage):
    setup = make()
    key = two_merged(setup)
    setup.put(key, damage(setup.body(key)))
    with pytest.raises(CorruptSegmentError, match=key):
        list(setup.store.records(REF))


def test_an_index_that_a_delete_has_removed_first_is_looked_for_once_more():
    memory = MemoryObjectStore("m", page_size=2)
    setup = make(memory=memory)
    key = two_merged(setup)
    setup.put(f"{EVENTS}zzz")  # not ours, and after any marker
    hooks = HookedObjectStore(memory)

    def begin_to_delete():
        setup.put(f"{EVENTS}deleting-1")
        memory.delete_many([index_key(key)])

    hooks.before("list_page", begin_to_delete, after=1)
    assert list(make(memory=memory, wrap=lambda _: hooks).store.records(REF)) == []
    assert key in setup.keys(EVENTS)


def test_an_index_that_is_none_is_an_error_that_names_it():
    setup = make()
    key = setup.put(index_key(two_merged(setup)), b"<html>")
    with pytest.raises(CorruptSegmentError, match=f"'{key}' is no segment index"):
        list(setup.store.records(REF))


# --- one segment that was merged --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["0-1-b", "1-2-a", "0-2-a", "4-4-a", "3-4-b", "0-3-a", "0-0-compacted-0-0123456789abcdef"])
def test_records_that_were_never_written_are_not_found_in_what_was_merged(name):
    setup = make()
    two_merged(setup)
    with pytest.raises(SegmentNotFoundError, match=name):
        setup.store.read_segment(f"{EVENTS}{name}.jsonl")


def test_a_segment_written_after_it_was_not_found_is_read():
    setup = make(wrap=HookedObjectStore)
    key = append(setup.store, 0, 1)
    setup.memory.delete_many([key])
    setup.store._container.driver.before("list_page", lambda: append(setup.store, 0, 1))
    assert setup.store.read_segment(key).read() == lines([0, 1])


def two_of_one_id():
    """Two segments that two writers stored under one id, by key, merged."""
    setup = make()
    other = b'{"n":"other"}\n' * 3
    written = {append(setup.store, 0, 1): lines([0, 1]), setup.store.append_segment(REF, 0, 2, "w", other): other}
    setup.store.compact(REF, CompactionPolicy(full=True))
    return setup, written


@pytest.mark.parametrize("swept", [False, True])
def test_a_merged_segment_of_an_id_that_two_share_is_told_by_its_digest_or_refused(swept):
    setup, written = two_of_one_id()
    first_index = next(iter(setup.keys(f"{REF.prefix}index/")))
    append(setup.store, 9, 9)
    setup.store.compact(REF, CompactionPolicy(full=True))
    if swept:
        setup.memory.delete_many([first_index])
    for key, body in written.items():
        if swept:
            with pytest.raises(CorruptSegmentError, match=rf"'{key}' was merged into .*compacted-0-.*records\(\) shows all"):
                setup.store.read_segment(key)
        else:
            assert setup.store.read_segment(key).read() == body
    key = append(setup.store, 20, 20)
    setup.store.compact(REF, CompactionPolicy(full=True))
    assert setup.store.read_segment(key).read() == lines([20])


def test_a_merged_segment_that_another_program_wrote_in_its_own_form_is_refused_not_changed():
    setup = make()
    key = setup.put(f"{EVENTS}0-1-w.jsonl", line(0) + b"\r\n\n" + line(1))
    append(setup.store, 2, 2)
    setup.store.compact(REF, CompactionPolicy(full=True))
    with pytest.raises(CorruptSegmentError, match="in another form"):
        setup.store.read_segment(key)


def test_a_compacted_segment_costs_a_listing_and_a_get():
    setup, _ = two_of_one_id()
    (segment,) = setup.store.list_segments(REF)
    setup.driver.requests.clear()
    setup.store.read_segment(segment.key).close()
    assert setup.driver.counts == {"list_page": 1, "get": 1}
    setup.put(f"{EVENTS}deleting-1")
    with pytest.raises(SegmentNotFoundError, match="is of generation 0, its transcript of 1"):
        setup.store.read_segment(segment.key)


def test_an_index_that_a_delete_removes_before_it_is_read_shows_nothing_under_another_name():
    setup = make()
    for seq in range(3):
        append(setup.store, seq, seq)
    setup.store.compact(REF, CompactionPolicy(full=True))
    (index,) = setup.keys(f"{REF.prefix}index/")
    hooks = []
    reader = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0], memory=setup.memory)

    def begin_a_delete():
        setup.put(f"{EVENTS}deleting-1")
        setup.memory.delete_many([index])

    hooks[0].before("get", begin_a_delete, key=index)
    assert list(reader.store.records(REF)) == []


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_segment_is_found_while_it_is_merged_further_and_further(times):
    for number in range(12):
        setup = make()
        key = append(setup.store, 0, 3, "a")
        append(setup.store, 2, 5, "b")
        seqs_to_come = itertools.count(6)
        others = make(memory=setup.memory)

        def merge_more(others=others, seqs_to_come=seqs_to_come):
            for _ in range(times):
                append(others.store, seq := next(seqs_to_come), seq)
                others.store.compact(REF, FULL)

        reading = make(memory=setup.memory, wrap=HookedObjectStore)
        hooks = reading.store._container.driver
        for operation in ("get", "list_page"):
            for after in range(3):
                hooks.before(operation, merge_more, after=after + number // 4)
        if number % 2:
            merge_more()
        with reading.store.read_segment(key) as stream:
            assert stream.read() == lines(range(4), "a")


# --- segments merged by other implementations -------------------------------------------------------------------------


def put_entries(setup: Setup, name, *numbers):
    body = b"".join(json.dumps({"id": f"e{number}"}).encode() + b"\n" for number in numbers)
    return setup.put(f"{EVENTS}{name}.jsonl", body)


def entries(setup, **bounds):
    return [each.json()["id"] for each in setup.store.records(REF, **bounds)]


def test_what_another_program_merged_shows_each_entry_once_beside_its_sources():
    setup = make()
    put_entries(setup, "0-1-a", 0, 1)
    put_entries(setup, "2-3-b", 2, 3)
    put_entries(setup, "2-3-c", 4, 5)
    sources = [each[1:] for each in setup.store.records(REF)]
    put_entries(setup, "0-3-compacted", 0, 1, 2, 3, 4, 5)
    assert [each[1:] for each in setup.store.records(REF)] == sources
    assert sorted(entries(setup)) == [f"e{number}" for number in range(6)]


@pytest.mark.parametrize("name", ["0-0-a", "2-2-a", "0-2-a"])
def test_what_another_program_merged_shares_entries_with_a_source_at_either_end(name):
    setup = make()
    start, end = int(name[0]), int(name[2])
    put_entries(setup, name, *range(start, end + 1))
    put_entries(setup, "0-2-compacted", 0, 1, 2)
    assert sorted(entries(setup)) == ["e0", "e1", "e2"]


@pytest.mark.parametrize("gone", ["0-1-a", "2-3-b", "2-3-c"])
def test_what_another_program_merged_stands_in_for_the_sources_that_are_gone(gone):
    setup = make()
    for name, numbers in {"0-1-a": (0, 1), "2-3-b": (2, 3), "2-3-c": (4, 5)}.items():
        if name != gone:
            put_entries(setup, name, *numbers)
    put_entries(setup, "0-3-compacted", 0, 1, 2, 3, 4, 5)
    assert sorted(entries(setup)) == [f"e{number}" for number in range(6)]


def test_what_another_program_merged_is_read_as_it_is_when_it_overlaps_nothing():
    setup = make()
    put_entries(setup, "0-1-a", 0, 1)
    put_entries(setup, "2-4-compacted", 0, 7, 7)
    assert entries(setup) == ["e0", "e1", "e0", "e7", "e7"]


def test_entries_with_ids_of_their_own_or_with_none_are_all_kept():
    setup = make()
    put_entries(setup, "0-3-compacted", 0, 1, 2, 3)
    put_entries(setup, "1-2-a", 4, 5)
    append(setup.store, 3, 3)
    setup.put(f"{EVENTS}2-3-v.jsonl", b'{"id":5}\nnot json\n')
    found = list(setup.store.records(REF))
    assert len(found) == 9
    assert [each.line for each in found if each.writer_id == "compacted"] == [b'{"id": "e%d"}' % each for each in range(4)]


def test_of_two_that_another_program_merged_one_after_the_other_each_entry_is_shown_once():
    setup = make()
    put_entries(setup, "0-3-compacted", 0, 1, 2, 3)
    put_entries(setup, "4-5-a", 4, 5)
    put_entries(setup, "0-5-compacted", 0, 1, 2, 3, 4, 5)
    assert entries(setup) == ["e0", "e1", "e2", "e3", "e4", "e5"]
    setup.memory.delete_many([f"{EVENTS}0-3-compacted.jsonl", f"{EVENTS}4-5-a.jsonl"])
    assert entries(setup) == ["e0", "e1", "e2", "e3", "e4", "e5"]


def test_of_two_that_number_their_lines_differently_each_entry_is_shown_once():
    setup = make()
    put_entries(setup, "0-3-compacted", 0, 1, 2, 3)
    put_entries(setup, "0-5-compacted", 4, 0, 1, 2, 3, 5)
    assert sorted(entries(setup)) == ["e0", "e1", "e2", "e3", "e4", "e5"]


def test_bounds_change_nothing_about_which_entries_count_as_repeated():
    setup = make()
    put_entries(setup, "0-4-a", 0, 1, 2, 3, 4)
    put_entries(setup, "0-2-b", 5, 6, 7)
    put_entries(setup, "0-4-compacted", 0, 5, 1, 6, 2, 7, 3, 4)
    assert entries(setup, start_seq=3) == ["e3", "e4"]


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from(["a", "b", "compacted"]), st.integers(0, 4)), max_size=6
    ),
    st.integers(0, 8),
    st.integers(0, 9),
)
@settings(max_examples=200)
def test_bounds_mean_the_same_beside_what_another_program_merged(segments, start_seq, end_seq):
    setup = make()
    for start, more, writer, first in segments:
        put_entries(setup, f"{start}-{start + more}-{writer}", *range(first, first + more + 1))
    whole = list(setup.store.records(REF))
    assert {each.json()["id"] for each in whole} == {
        f"e{number}" for _, more, _, first in segments_as_stored(segments) for number in range(first, first + more + 1)
    }
    wanted = [each for each in whole if start_seq <= each.seq <= end_seq]
    assert list(setup.store.records(REF, start_seq=start_seq, end_seq=end_seq)) == wanted


def segments_as_stored(segments):
    """Of two under one name the later one."""
    return {each[:3]: each for each in segments}.values()
