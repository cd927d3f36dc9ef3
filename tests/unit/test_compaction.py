from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import (
    EVENTS,
    REF,
    Crash,
    HookedObjectStore,
    ServerClock,
    Setup,
    StepObjectStore,
    UnorderedObjectStore,
    append,
    crash,
    line,
    lines,
    make,
)

from transcript_backends import (
    CompactionPolicy,
    CorruptSegmentError,
    ObjectTranscriptStore,
    PartialDeleteError,
    Record,
    open_store,
    planning,
)
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import (
    FaultyObjectStore,
    FlippingObjectStore,
    InjectedError,
    RecordingObjectStore,
    WrapperObjectStore,
)
from transcript_backends.index import SegmentIndex, Source, build
from transcript_backends.keys import SegmentName

FULL = CompactionPolicy(full=True)
PAIRS = CompactionPolicy(min_segments=2)
INDEX = f"{REF.prefix}index/"


def one_by_one(memory=None, *, wrap=lambda inner: inner, clock=None, parallel=1):
    """As `make`, but with requests in an order that is always the same."""
    memory = memory or MemoryObjectStore("m")
    recording = RecordingObjectStore(memory)
    return Setup(ObjectTranscriptStore(Container(wrap(recording), parallel=parallel, clock=clock)), recording, memory)


def without_conditions(setup):
    """The same, on a store that deletes whatever a key holds, as S3 does."""
    setup.memory.capabilities = replace(setup.memory.capabilities, conditional_delete=False)
    return setup


def hooked(memory=None, **options):
    hooks = []

    def wrap(inner):
        hooks.append(HookedObjectStore(inner))
        return hooks[0]

    return one_by_one(memory, wrap=wrap, **options), hooks[0]


def seen(setup):
    store = setup.store
    return list(store.records(REF)), store.next_seq(REF), list(store.list_refs())


def events(setup):
    return [key.removeprefix(EVENTS) for key in setup.keys(EVENTS)]


def plain(setup):
    return [key for key in events(setup) if "-compacted-" not in key]


def index_key(key):
    return key.replace("/events/", "/index/") + ".json"


def five(setup):
    """Five segments of two writers; gives their keys."""
    return [append(setup.store, *each) for each in [(0, 1, "a"), (2, 2, "a"), (2, 3, "b"), (4, 6, "a"), (7, 7, "b")]]


def stepped(memory, number, action, **options):
    steps = []

    def wrap(inner):
        steps.append(StepObjectStore(inner, number, action))
        return steps[0]

    return one_by_one(memory, wrap=wrap, **options), steps[0]


def at_every_request(operate, act, prepare=five):
    """For each request of ``operate`` a new transcript, and ``act`` done on it right before that request."""
    for number in itertools.count():
        setup = one_by_one()
        prepare(setup)
        before = seen(setup)
        other, step = stepped(setup.memory, number, lambda setup=setup: act(setup))
        with contextlib.suppress(Crash):
            operate(other)
        if step.count <= number:
            return
        yield setup, before


def check_clean(setup, before):
    """One more compaction ends with one compacted segment, its index, and nothing else."""
    assert seen(setup) == before
    setup.store.compact(REF, FULL)
    assert seen(setup) == before
    (name,) = events(setup)
    assert "-compacted-" in name
    assert f"{INDEX}{name}.json" in setup.keys(INDEX)
    return name


# --- what is promised -------------------------------------------------------------------------------------------------

appends = st.tuples(st.sampled_from("abC"), st.integers(0, 12), st.integers(0, 4))
compactions = st.builds(
    CompactionPolicy, st.integers(2, 4), st.sampled_from([60, 200, 10**6]), full=st.booleans(), min_age=st.just(0.0)
)


@given(st.lists(st.one_of(appends, appends, appends, compactions), max_size=25), st.sampled_from([1, 8]), st.booleans())
@settings(max_examples=250)
def test_no_reader_notices_a_compaction(steps, parallel, ordered):
    setup = one_by_one(parallel=parallel, wrap=(lambda inner: inner) if ordered else UnorderedObjectStore)
    expected, written = set(), {}
    for step in [*steps, FULL]:
        if isinstance(step, CompactionPolicy):
            before = len(setup.store.list_segments(REF))
            result = setup.store.compact(REF, step)
            assert result.left == []
            assert result.segments_after == len(setup.store.list_segments(REF)) <= before
        else:
            writer, start, more = step
            written[append(setup.store, start, start + more, writer)] = lines(range(start, start + more + 1), writer)
            expected.update(Record(seq, writer, line(seq, writer)) for seq in range(start, start + more + 1))
        assert list(setup.store.records(REF)) == sorted(expected)
        assert setup.store.next_seq(REF) == max((each.seq for each in expected), default=-1) + 1
        assert list(setup.store.list_refs()) == ([REF] if expected else [])
    for key, body in written.items():
        with setup.store.read_segment(key) as stream:
            assert stream.read() == body
    assert len(events(setup)) == 1 if len(written) > 1 else len(events(setup)) == len(written)


def test_a_compaction_costs_a_get_for_each_segment_two_puts_two_listings_and_one_delete_in_a_safe_order():
    setup = one_by_one()
    keys = five(setup)
    setup.driver.requests.clear()
    result = setup.store.compact(REF, FULL)
    (key,) = result.merged
    assert setup.driver.requests == [
        ("list_page", REF.prefix),
        *(("get", each) for each in sorted(keys)),
        ("put", index_key(key)),
        ("put", key),
        ("list_page", REF.prefix),
        ("delete_many", sorted(keys)[0]),
    ]
    assert setup.keys() == [key, index_key(key)]
    assert result == (5, 1, len(setup.body(key)), [key], [])
    assert key.startswith(f"{EVENTS}{0:019d}-{7:019d}-compacted-0-")


def test_the_index_names_the_sources_and_the_records():
    setup = one_by_one()
    keys = five(setup)
    bodies = [setup.body(key) for key in keys]
    (key,) = setup.store.compact(REF, FULL).merged
    index = SegmentIndex.parse(setup.body(index_key(key)), key)
    assert [(str(each.name), each.size) for each in index.sources] == [
        (name.removeprefix(EVENTS), len(body)) for name, body in zip(keys, bodies, strict=True)
    ]
    assert [run[:3] for run in index.runs] == [("a", 0, 2), ("b", 2, 3), ("a", 4, 6), ("b", 7, 7)]
    assert (index.generation, index.records, index.size) == (0, 9, len(setup.body(key)))


@pytest.mark.parametrize("policy", [FULL, PAIRS])
def test_a_second_compaction_does_nothing(policy):
    setup = one_by_one()
    five(setup)
    count = setup.store.compact(REF, policy).segments_after
    before = setup.keys()
    setup.driver.requests.clear()
    assert setup.store.compact(REF, policy) == (count, count, 0, [], [])
    assert setup.driver.counts["list_page"] == 1
    assert setup.driver.counts["put"] == setup.driver.counts["delete_many"] == 0
    assert setup.keys() == before


def test_a_transcript_that_is_not_there_is_left_alone():
    setup = one_by_one()
    assert setup.store.compact(REF, FULL) == (0, 0, 0, [], [])
    assert setup.driver.counts == {"list_page": 1}


def test_without_a_policy_sixteen_neighbours_are_merged():
    setup = one_by_one()
    for seq in range(15):
        append(setup.store, seq, seq)
    assert setup.store.compact(REF).merged == []
    append(setup.store, 15, 15)
    assert len(setup.store.compact(REF).merged) == 1


def test_the_target_splits_a_long_transcript():
    setup = one_by_one()
    keys = [append(setup.store, seq, seq) for seq in range(100)]
    before, data = seen(setup), sum(len(setup.body(key)) for key in keys)
    result = setup.store.compact(REF, CompactionPolicy(target_bytes=500, full=True))
    assert result.segments_after == len(result.merged) == len(events(setup)) <= data / 500 + 2
    assert all(400 < each.size <= 500 for each in setup.store.list_segments(REF)[:-1])
    assert seen(setup) == before


def test_bodies_fetched_in_parallel_are_merged_in_order():
    class LaterFirst(WrapperObjectStore):
        def get(self, key, **bounds):
            if "/events/" in key:
                time.sleep(0.001 * (hash(key) % 7))
            return super().get(key, **bounds)

    setup = make(wrap=LaterFirst)
    for seq in range(40):
        append(setup.store, seq, seq)
    before = seen(setup)
    assert len(setup.store.compact(REF, FULL).merged) == 1
    assert seen(setup) == before
    assert setup.body(setup.keys(EVENTS)[0]) == lines(range(40))


def test_a_run_is_held_in_memory_once():
    setup = make()
    body = b'{"t":"%s"}\n' % (b"x" * 65_000)
    for seq in range(0, 256, 4):
        setup.store.append_segment(REF, seq, seq + 3, "w", body * 4)
    data = 256 * len(body)
    setup.store.compact(REF, CompactionPolicy(min_segments=1000))  # imports what it needs
    tracemalloc.start()
    try:
        assert setup.store.compact(REF, FULL).bytes_written == data
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * data + 2**20


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_a_crash_at_any_request_changes_nothing_and_the_next_compaction_finishes():
    names = set()
    for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), lambda setup: crash()):
        names.add(check_clean(setup, before))
    assert len(names) == 1


def test_a_crash_at_any_request_of_a_compaction_of_compacted_segments_changes_nothing():
    def prepare(setup):
        five(setup)
        setup.store.compact(REF, FULL)
        append(setup.store, 8, 9)
        append(setup.store, 3, 8, "c")

    names = set()
    for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), lambda setup: crash(), prepare):
        names.add(check_clean(setup, before))
    assert len(names) == 1


def test_what_a_crash_left_is_removed_with_one_batch_and_no_write():
    setup, _ = stepped(None, 5 + 5 + 4, crash)  # the appends; listing, gets, puts, listing
    five(setup)
    before = seen(one_by_one(setup.memory))
    with pytest.raises(Crash):
        setup.store.compact(REF, FULL)
    setup.driver.requests.clear()
    other = one_by_one(setup.memory)
    assert len(plain(other)) == 5
    assert len(other.store.list_segments(REF)) == 1
    other.driver.requests.clear()
    result = other.store.compact(REF, FULL)
    assert (result.segments_after, result.bytes_written, result.merged, result.left) == (1, 0, [], [])
    assert (other.driver.counts["put"], other.driver.counts["delete_many"]) == (0, 1)
    assert check_clean(other, before)


def test_what_holds_the_records_must_be_there_still_when_what_it_holds_is_removed():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    five(setup)
    before = seen(setup)
    sources = {EVENTS + name: setup.body(EVENTS + name) for name in plain(setup)}
    setup.store.compact(REF, FULL)
    for key, body in sources.items():
        setup.put(key, body)
    (holder,) = (each.key for each in setup.store.list_segments(REF) if each.generation is not None)
    hooks[0].before("list_page", lambda: setup.memory.delete_many([holder]), after=1)  # by a delete that lands late
    setup.store.compact(REF, FULL)
    assert seen(setup) == before


def test_what_is_merged_with_nothing_new_is_not_removed_as_its_own_source():
    class GarblingObjectStore(WrapperObjectStore):
        """Sends a compacted segment with another byte, twice."""

        garbled = 0

        def get(self, key, *, start=0, end=None):
            body = super().get(key, start=start, end=end)
            if "events/" in key and "compacted" in key and self.garbled < 2:
                self.garbled += 1
                return body._replace(stream=io.BytesIO(b"x" + body.stream.read(-1)[1:]))
            return body

    setup = make(wrap=GarblingObjectStore)
    five(setup)
    before = seen(setup)
    first = plain(setup)[0]
    body = setup.body(EVENTS + first)
    one_by_one(setup.memory).store.compact(REF, FULL)
    setup.put(EVENTS + first, body)
    setup.store.compact(REF, FULL)  # it can't tell that the one holds the other, and so merges the two
    assert seen(setup) == before


# --- others at work ---------------------------------------------------------------------------------------------------


def compact(setup):
    one_by_one(setup.memory).store.compact(REF, FULL)


def append_and_compact(setup):
    append(setup.store, 8, 8, "a")
    compact(setup)


def test_another_compactor_between_any_two_requests_changes_nothing():
    for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), compact):
        check_clean(setup, before)


def test_another_compactor_that_merges_more_between_any_two_requests_loses_nothing():
    for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), append_and_compact):
        records = [*before[0], Record(8, "a", line(8, "a"))]
        check_clean(setup, (records, 9, [REF]))


def test_another_compactor_killed_anywhere_between_any_two_requests_changes_nothing():
    for killed in range(12):

        def compact_and_die(setup, killed=killed):
            append(setup.store, 8, 8, "a")
            other, _ = stepped(setup.memory, killed, crash)
            with contextlib.suppress(Crash):
                other.store.compact(REF, FULL)

        for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), compact_and_die):
            check_clean(setup, ([*before[0], Record(8, "a", line(8, "a"))], 9, [REF]))


def test_an_append_between_any_two_requests_is_kept():
    for setup, before in at_every_request(
        lambda other: other.store.compact(REF, FULL), lambda setup: append(setup.store, 3, 3, "a")
    ):
        records = sorted([*before[0], Record(3, "a", line(3, "a"))])
        assert len(plain(setup)) <= 1
        check_clean(setup, (records, 8, [REF]))


def nothing_left(setup):
    assert seen(setup) == ([], 0, [])
    assert all(name.startswith(("deleted-", "deleting-")) for name in events(setup))
    assert setup.keys(INDEX) == []


def test_nothing_comes_back_when_a_delete_runs_between_any_two_requests():
    for setup, _ in at_every_request(lambda other: other.store.compact(REF, FULL), lambda setup: setup.store.delete(REF)):
        nothing_left(setup)


def test_nothing_comes_back_when_a_compaction_runs_between_any_two_requests_of_a_delete():
    def delete(other):
        try:
            other.store.delete(REF)
        except PartialDeleteError:
            one_by_one(other.memory).store.delete(REF)

    for setup, _ in at_every_request(delete, compact):
        nothing_left(setup)


def test_nothing_comes_back_when_a_delete_dies_anywhere_between_any_two_requests_and_is_repeated():
    for killed in range(10):

        def delete_and_die(setup, killed=killed):
            other, _ = stepped(setup.memory, killed, crash)
            with contextlib.suppress(Crash):
                other.store.delete(REF)

        for setup, before in at_every_request(lambda other: other.store.compact(REF, FULL), delete_and_die):
            assert set(seen(setup)[0]) <= set(before[0])
            setup.store.delete(REF)
            assert seen(setup) == ([], 0, [])
            assert [name for name in events(setup) if not name.startswith(("deleted-", "deleting-"))] == []
            assert setup.keys(INDEX) == []


def test_nothing_is_compacted_while_the_transcript_is_being_deleted():
    setup = one_by_one()
    five(setup)
    marker = setup.put(f"{EVENTS}deleting-1")
    before = setup.keys()
    setup.driver.requests.clear()
    count, after, written, merged, ((key, reason),) = setup.store.compact(REF, FULL)
    assert (count, after, written, merged, key) == (5, 5, 0, [], marker)
    assert "being deleted" in reason
    assert setup.driver.counts == {"list_page": 1}
    assert setup.keys() == before


def test_a_life_after_a_delete_is_compacted_under_its_own_generation():
    setup = one_by_one()
    five(setup)
    setup.store.compact(REF, FULL)
    setup.store.delete(REF)
    five(setup)
    before = seen(setup)
    (key,) = setup.store.compact(REF, FULL).merged
    assert "-compacted-1-" in key
    assert seen(setup) == before


def test_an_index_that_is_gone_after_the_put_is_written_again_before_sources_go():
    setup, hooks = hooked()
    five(setup)
    before = seen(setup)
    hooks.before("list_page", lambda: setup.memory.delete_many(setup.keys(INDEX)), after=1)
    setup.driver.requests.clear()
    (key,) = setup.store.compact(REF, FULL).merged
    assert [each.operation for each in setup.driver.requests[6:]] == [
        "put",
        "put",
        "list_page",
        "put",
        "list_page",
        "delete_many",
    ]
    assert setup.keys() == [key, index_key(key)]
    assert seen(setup) == before


def test_an_index_that_names_other_records_stops_the_compaction_before_its_segment_is_written():
    other = one_by_one()
    five(other)
    (key,) = other.store.compact(REF, FULL).merged
    _, wrong = build([Record(0, "x", b"{}")], 0, ())
    setup = one_by_one()
    five(setup)
    setup.put(index_key(key), wrong.to_json())
    before, keys = seen(setup), setup.keys()
    with contextlib.suppress(CorruptSegmentError):
        assert setup.store.compact(REF, FULL).merged == []
    assert (seen(setup), setup.keys()) == (before, keys)


class StubbornObjectStore(WrapperObjectStore):
    """Refuses to delete certain keys."""

    refused = frozenset()

    def delete_many(self, keys, *, versions=None):
        if allowed := [key for key in keys if key not in self.refused]:
            super().delete_many(allowed, versions=versions)
        return {key: InjectedError(Meaning.DENIED) for key in keys if key in self.refused}

    def classify(self, error):
        return FaultyObjectStore(self.inner).classify(error)


def test_sources_stay_when_another_compactor_has_merged_the_result_further():
    setup, hooks = hooked()
    keys = five(setup)
    other = one_by_one(setup.memory, wrap=StubbornObjectStore)
    other.store._container.driver.refused = frozenset(keys)

    def merge_further():
        append(other.store, 8, 8, "a")
        assert len(other.store.compact(REF, FULL).merged) == 1

    hooks.before("list_page", merge_further, after=1)
    setup.driver.requests.clear()
    result = setup.store.compact(REF, FULL)
    assert result.merged == []
    assert setup.driver.counts["delete_many"] == 0
    assert set(keys) <= set(setup.keys())
    assert seen(setup)[1] == 9
    assert len(seen(setup)[0]) == 10


class FakeClock:
    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def jitter(self):
        return 0.5


@pytest.mark.parametrize(("seconds", "removed"), [(599, True), (601, False)])
def test_sources_stay_when_the_compaction_took_too_long(seconds, removed):
    clock = FakeClock()
    setup, hooks = hooked(clock=clock)
    keys = five(setup)
    before = seen(setup)
    hooks.before("list_page", lambda: clock.sleep(seconds), after=1)
    setup.driver.requests.clear()
    result = setup.store.compact(REF, FULL)
    assert (len(result.merged), setup.driver.counts["delete_many"]) == ((1, 1) if removed else (0, 0))
    assert set(keys).isdisjoint(setup.keys()) == removed
    check_clean(setup, before)


# --- several merges together ------------------------------------------------------------------------------------------

THREE_RUNS = CompactionPolicy(full=True, target_bytes=75)


def twelve(setup):
    """Twelve segments, which are merged into three."""
    return [append(setup.store, seq, seq, "ab"[seq % 2]) for seq in range(12)]


def test_sources_of_several_merges_go_after_one_look():
    setup = one_by_one()
    keys = twelve(setup)
    before = seen(setup)
    setup.driver.requests.clear()
    result = setup.store.compact(REF, THREE_RUNS)
    assert (len(result.merged), setup.driver.counts["list_page"], setup.driver.counts["delete_many"]) == (3, 2, 1)
    assert set(keys).isdisjoint(setup.keys())
    check_clean(setup, before)


def test_so_many_sources_are_looked_at_together_and_what_was_written_is_settled_before_it_is_merged(monkeypatch):
    setup = one_by_one()
    twelve(setup)
    monkeypatch.setattr(planning, "_TOGETHER", 8)
    setup.driver.requests.clear()
    assert len(setup.store.compact(REF, THREE_RUNS).merged) == 3
    assert (setup.driver.counts["list_page"], setup.driver.counts["delete_many"]) == (3, 2)


def test_what_was_written_a_minute_ago_is_settled_before_more_is_merged():
    clock = FakeClock()
    setup, hooks = hooked(clock=clock)
    before = seen(setup) if twelve(setup) else None
    hooks.before("put", lambda: clock.sleep(61), key="/index/")
    setup.driver.requests.clear()
    setup.store.compact(REF, THREE_RUNS)
    assert [each.operation for each in setup.driver.requests].count("list_page") == 3
    check_clean(setup, before)


def test_merges_that_took_too_long_keep_their_sources_and_the_others_lose_theirs():
    clock = FakeClock()
    setup, hooks = hooked(clock=clock)
    twelve(setup)
    before = seen(setup)
    hooks.before("list_page", lambda: clock.sleep(500), after=1)  # the look
    hooks.before("put", lambda: clock.sleep(59), key="/index/", after=1)
    hooks.before("put", lambda: clock.sleep(50), key="/index/", after=2)
    assert len(setup.store.compact(REF, THREE_RUNS).merged) == 1
    assert len(plain(setup)) == 8
    check_clean(setup, before)


@pytest.mark.parametrize("act", [lambda setup: crash(), lambda setup: compact(setup)], ids=["crash", "another compactor"])
def test_whatever_happens_between_any_two_requests_of_several_merges_changes_nothing(act):
    for setup, before in at_every_request(lambda other: other.store.compact(REF, THREE_RUNS), act, twelve):
        check_clean(setup, before)


def test_nothing_comes_back_when_a_delete_runs_between_any_two_requests_of_several_merges():
    for setup, _ in at_every_request(
        lambda other: other.store.compact(REF, THREE_RUNS), lambda setup: setup.store.delete(REF), twelve
    ):
        assert seen(setup) == ([], 0, [])


def test_what_a_crash_left_is_read_once_however_many_segments_there_are():
    setup, _ = stepped(None, 12 + 1 + 12 + 6, crash)  # the appends; listing, gets, puts
    twelve(setup)
    with pytest.raises(Crash):
        setup.store.compact(REF, THREE_RUNS)
    other = one_by_one(setup.memory)
    before = seen(other)
    other.driver.requests.clear()
    result = other.store.compact(REF, THREE_RUNS)
    assert (result.segments_after, result.bytes_written) == (3, 0)
    assert other.driver.counts == {"list_page": 2, "get": 3 + 12, "delete_many": 1}  # indexes, sources
    check_clean(other, before)


# --- leftovers, and what others do with them --------------------------------------------------------------------------


def left_by_a_crash(now):
    """A store in which a compactor has died before it removed the sources of what it wrote; what is seen, and their keys."""
    memory = MemoryObjectStore("m", now=now)
    setup, _ = stepped(memory, 5 + 5 + 4, crash)  # the appends; listing, gets, puts, listing
    keys = five(setup)
    with pytest.raises(Crash):
        setup.store.compact(REF, FULL)
    setup = one_by_one(memory)
    assert len(events(setup)) == 6
    return setup, seen(setup), keys


def test_leftovers_are_not_removed_once_the_transcript_was_deleted_and_written_anew():
    setup, before, keys = left_by_a_crash(ServerClock())  # it stands still: what is new looks as old
    other, hooks = hooked(without_conditions(setup).memory)

    def begin_anew():
        setup.store.delete(REF)
        five(setup)

    hooks.before("list_page", begin_anew, after=1)
    other.store.compact(REF, FULL)
    assert set(keys) <= set(setup.keys())
    assert seen(setup) == before


def test_a_leftover_written_anew_since_it_was_read_is_not_removed():
    clock = ServerClock()
    setup, _, keys = left_by_a_crash(clock)
    other, hooks = hooked(without_conditions(setup).memory)
    text = b'{"n":2,"w":"X"}'
    assert len(text) == len(line(2))

    def write_anew():
        clock.go_on(seconds=1)
        setup.put(keys[1], text + b"\n")

    hooks.before("list_page", write_anew, after=1)
    other.store.compact(REF, FULL)
    assert setup.body(keys[1]) == text + b"\n"
    assert {line(2, "a"), text} <= {each.line for each in setup.store.records(REF)}


@pytest.mark.parametrize("spelling", ["0-7", "00-7"])
def test_of_one_compacted_segment_under_two_spellings_of_its_key_one_stays(spelling):
    setup = one_by_one()
    five(setup)
    before = seen(setup)
    (key,) = setup.store.compact(REF, FULL).merged
    setup.put(f"{EVENTS}{spelling}{key[key.index('-compacted-') :]}", setup.body(key))
    assert seen(setup) == before
    setup.store.compact(REF, FULL)
    assert len(events(setup)) == 1
    assert seen(setup) == before


# --- what can't be merged ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b'{"a":1}\n{"b":"cut sho', b"{}\nnot json\n", b"[]\n{}\n", b"{}\n\xff\n", b'{}\n{"b":1'])
def test_a_damaged_segment_is_left_and_reported_and_its_neighbours_are_merged(body):
    setup = one_by_one()
    for seq in (0, 1, 2, 6, 7, 8):
        append(setup.store, seq, seq)
    key = setup.put(f"{EVENTS}3-4-v.jsonl", body)
    before = seen(setup)
    result = setup.store.compact(REF, FULL)
    ((left, reason),) = result.left
    assert left == key
    assert "is no JSON object" in reason
    assert (result.segments_before, result.segments_after, len(result.merged)) == (7, 3, 2)
    assert plain(setup) == ["3-4-v.jsonl"]
    assert setup.body(key) == body
    assert seen(setup) == before
    assert setup.store.compact(REF, FULL) == (3, 3, 0, [], result.left)


def compacted_between_others(setup):
    """A compacted segment with plain ones on both sides; gives its key."""
    for seq in (10, 11):
        append(setup.store, seq, seq)
    (key,) = setup.store.compact(REF, FULL).merged
    for seq in (0, 1, 20, 21):
        append(setup.store, seq, seq)
    return key


def test_a_compacted_segment_without_its_index_is_left_and_reported(caplog):
    setup = one_by_one()
    key = compacted_between_others(setup)
    setup.memory.delete_many([index_key(key)])
    result = setup.store.compact(REF, FULL)
    assert result.left == [(key, "its index is missing or damaged")]
    assert len(result.merged) == 2
    assert len(events(setup)) == 3
    assert [each.seq for each in setup.store.records(REF)] == [0, 1, 10, 11, 20, 21]


def test_a_compacted_segment_with_other_bytes_than_its_index_says_is_left_and_reported():
    setup = one_by_one()
    key = compacted_between_others(setup)
    body = setup.body(key).replace(b"w", b"v")
    setup.put(key, body)
    result = setup.store.compact(REF, FULL)
    ((left, reason),) = result.left
    assert left == key
    assert "sha256" in reason
    assert len(result.merged) == 2
    assert setup.body(key) == body


# --- what is not as it was stored -------------------------------------------------------------------------------------


def flipping(parallel, memory=None):
    setup = one_by_one(memory, wrap=FlippingObjectStore, parallel=parallel)
    return setup, setup.store._container.driver


def rot(setup, key, place=-4):
    """Change a byte of an object at rest, not what is kept with it."""
    body = bytearray(setup.body(key))
    body[place] ^= 1
    setup.memory.put(key, bytes(body), mode="overwrite", metadata=setup.memory.head(key).metadata)


OF_BOTH_KINDS = pytest.mark.parametrize("merged", [False, True], ids=["plain", "compacted"])
IN_TURN_AND_AHEAD = pytest.mark.parametrize("parallel", [1, 8])


def nine(setup, merged):
    """Nine records; gives the key of a segment in the middle, which is a compacted one or not."""
    keys = [append(setup.store, seq, seq) for seq in (3, 4, 5)]
    if merged:
        keys = setup.store.compact(REF, FULL).merged
    for seq in (0, 1, 2, 6, 7, 8):
        append(setup.store, seq, seq)
    return keys[len(keys) // 2]


@IN_TURN_AND_AHEAD
@OF_BOTH_KINDS
def test_one_response_with_another_byte_is_read_once_more(parallel, merged):
    setup, driver = flipping(parallel)
    key = nine(setup, merged)
    before = seen(setup)
    driver.flip(key)
    result = setup.store.compact(REF, FULL)
    assert (result.left, result.segments_after, driver.flipped) == ([], 1, 1)
    check_clean(setup, before)
    assert setup.store.verify(REF).ok


@IN_TURN_AND_AHEAD
@OF_BOTH_KINDS
@pytest.mark.parametrize("at_rest", [False, True], ids=["responses", "at rest"])
def test_what_is_not_as_it_was_stored_is_left_and_its_neighbours_are_merged(parallel, merged, at_rest):
    setup, driver = flipping(parallel)
    key = nine(setup, merged)
    before, body = seen(setup), setup.body(key)
    if at_rest:
        rot(setup, key)
    else:
        driver.flip(key, times=math.inf)
    result = setup.store.compact(REF, FULL)
    ((left, reason),) = result.left
    assert left == key
    assert "sha256" in reason
    assert len(result.merged) == 2
    assert (result.segments_before, result.segments_after) == ((7, 3) if merged else (9, 3))
    assert (setup.body(key) != body) == at_rest
    assert setup.store.verify(REF).ok == (not at_rest and driver.flipped == 0)
    setup.memory.put(key, body, mode="overwrite", metadata=setup.memory.head(key).metadata)  # from a backup
    driver.flip(key, times=0)
    check_clean(setup, before)


@IN_TURN_AND_AHEAD
def test_another_byte_in_a_large_segment_is_found_as_well(parallel):
    setup, driver = flipping(parallel)
    for seq in range(3):
        setup.store.append_segment(REF, seq, seq, "w", b'{"t":"%s"}\n' % (b"x" * (3 << 20)))
    before = seen(setup)
    key = setup.store.list_segments(REF)[1].key
    driver.flip(key, times=2)
    assert [left for left, _ in setup.store.compact(REF, FULL).left] == [key]
    driver.flip(key)
    assert setup.store.compact(REF, FULL).left == []
    check_clean(setup, before)


class ToldByHeadObjectStore(WrapperObjectStore):
    """Returns metadata with a head only, as another's driver may."""

    def get(self, key, *, start=0, end=None):
        return super().get(key, start=start, end=end)._replace(metadata=None)


@IN_TURN_AND_AHEAD
def test_where_a_get_returns_no_metadata_each_source_costs_a_head_and_is_checked(parallel):
    setup = one_by_one(wrap=lambda inner: FlippingObjectStore(ToldByHeadObjectStore(inner)), parallel=parallel)
    key = nine(setup, merged=True)
    before = seen(setup)
    setup.driver.requests.clear()
    assert setup.store.compact(REF, CompactionPolicy(min_segments=100)).merged == []
    assert setup.driver.counts["head"] == 0
    rotten = append(setup.store, 9, 9)
    rot(setup, rotten)
    setup.driver.requests.clear()
    result = setup.store.compact(REF, FULL)
    assert [left for left, _ in result.left] == [rotten]
    setup.memory.delete_many([rotten])
    assert seen(setup) == before
    assert key in {each.key for each in setup.driver.requests}
    assert key not in {each.key for each in setup.driver.requests if each.operation == "head"}  # its index has the sha256


@pytest.mark.parametrize("length", [0, 5])
def test_a_response_of_another_length_than_was_listed_is_read_once_more(length):
    class ShortOnceObjectStore(WrapperObjectStore):
        key = None

        def get(self, key, *, start=0, end=None):
            body = super().get(key, start=start, end=end)
            if key != self.key:
                return body
            self.key = None
            short = body.stream.read(length)
            return body._replace(info=body.info._replace(size=length), stream=io.BytesIO(short), metadata={})

    setup = one_by_one(wrap=ShortOnceObjectStore)
    key = nine(setup, merged=False)
    before = seen(setup)
    setup.store._container.driver.key = key
    assert setup.store.compact(REF, FULL).left == []
    check_clean(setup, before)


def test_a_line_that_is_no_json_in_one_response_only_is_merged_where_no_metadata_is_kept(tmp_path):
    with open_store(str(tmp_path)) as store:
        driver = store._container.driver = FlippingObjectStore(store._container.driver)
        keys = [store.append_segment(REF, seq, seq, "w", b'{"n":%d}' % seq) for seq in range(3)]  # the flip takes a quote away
        driver.flip(keys[1])
        assert store.compact(REF, FULL).left == []
        assert [each.json()["n"] for each in store.records(REF)] == [0, 1, 2]


def leftovers(setup, conflicting=False, prepare=five):
    """Segments beside the one they are merged into, as a crash leaves them; one of five with another line, if so told."""
    keys = prepare(setup)
    bodies = {key: (setup.body(key), setup.memory.head(key).metadata) for key in keys}
    (merged,) = setup.store.compact(REF, FULL).merged
    for key, (body, metadata) in bodies.items():
        setup.memory.put(key, body, mode="overwrite", metadata=metadata)
    if conflicting:
        setup.memory.delete_many([keys[1]])
        other = line(2, "a")[:-3] + b'`"}'  # the line that is merged, but for the bit that is flipped
        assert setup.store.append_segment(REF, 2, 2, "a", other) == keys[1]
    return keys, merged


@pytest.mark.parametrize("times", [1, 2])
def test_a_leftover_is_not_removed_because_a_response_makes_it_look_merged(times):
    setup, driver = flipping(1)
    keys, _ = leftovers(setup, conflicting=True)
    before = seen(setup)
    assert len(before[0]) == 10
    driver.flip(keys[1], times=times)
    setup.store.compact(REF, FULL)
    assert seen(setup) == before
    check_clean(setup, before)


@OF_BOTH_KINDS
def test_leftovers_are_removed_although_one_response_has_another_byte(merged):
    setup, driver = flipping(1)
    keys, larger = leftovers(setup)
    before = seen(setup)
    setup.driver.requests.clear()
    driver.flip(larger if merged else keys[2])
    setup.store.compact(REF, FULL)
    assert (setup.driver.counts["put"], len(events(setup)), driver.flipped) == (0, 1, 1)
    assert seen(setup) == before


@pytest.mark.parametrize("place", [-4, 0], ids=["string", "bracket"])
def test_no_source_is_removed_for_a_compacted_segment_that_is_damaged(place):
    setup = one_by_one()
    keys, merged = leftovers(setup, prepare=lambda setup: [append(setup.store, 0, 7), append(setup.store, 2, 3, "v")])
    before = seen(setup)
    rot(setup, merged, place)
    for _ in range(2):
        result = setup.store.compact(REF, FULL)
        assert set(keys) <= set(setup.keys(EVENTS))
        assert {merged, *keys} <= dict(result.left).keys()
    setup.memory.delete_many([merged])
    assert setup.store.compact(REF, FULL).left == []  # and makes it again
    assert events(setup) == [merged.removeprefix(EVENTS)]
    assert seen(setup) == before


def test_no_source_is_removed_where_the_index_is_damaged():
    setup = one_by_one()
    keys, merged = leftovers(setup)
    before = seen(setup)
    rot(setup, index_key(merged), 2)
    setup.memory.delete_many([merged])
    result = setup.store.compact(REF, FULL)
    assert set(keys) == set(setup.keys(EVENTS)) == dict(result.left).keys()
    setup.memory.delete_many([index_key(merged)])
    check_clean(setup, before)


@pytest.mark.parametrize("stored", [True, False], ids=["kept", "no metadata"])
def test_one_response_with_another_index_is_read_once_more(stored):
    setup = one_by_one()
    key = nine(setup, merged=True)
    if not stored:
        setup.put(index_key(key), setup.body(index_key(key)))
    before = seen(setup)

    class OtherNumberObjectStore(WrapperObjectStore):
        flipped = 0

        def get(self, key, *, start=0, end=None):
            body = super().get(key, start=start, end=end)
            if "/index/" not in key or self.flipped:
                return body
            self.flipped += 1
            content = body.stream.read(1 << 20)
            other = content.replace(b'["w",3,5,', b'["v",3,5,')
            assert other != content
            return body._replace(stream=io.BytesIO(other))

    other = one_by_one(setup.memory, wrap=OtherNumberObjectStore)
    assert other.store.compact(REF, FULL).left == []
    assert other.store._container.driver.flipped == 1
    check_clean(setup, before)


# --- what can not be deleted -----------------------------------------------------------------------------------------


def test_sources_that_cannot_be_deleted_are_reported_and_never_merged_again():
    setup = one_by_one(wrap=StubbornObjectStore)
    keys = five(setup)
    before = seen(setup)
    stubborn = setup.store._container.driver
    stubborn.refused = frozenset(keys[1:3])
    (key,) = setup.store.compact(REF, FULL).merged
    for _ in range(2):
        setup.driver.requests.clear()
        result = setup.store.compact(REF, FULL)
        assert not any(each.operation == "get" and "/events/" in each.key for each in setup.driver.requests)
        assert (result.bytes_written, result.merged) == (0, [])
        assert [left for left, _ in result.left] == keys[1:3]
        assert all("could not be deleted: injected" in reason or "denied" in reason for _, reason in result.left)
        assert setup.driver.counts["put"] == 0
        assert seen(setup) == before
        assert [each.key for each in setup.store.list_segments(REF)] == [key]
    append(setup.store, 8, 8)
    more = seen(setup)
    setup.store.compact(REF, FULL)
    assert seen(setup) == more
    stubborn.refused = frozenset()
    check_clean(setup, more)


def test_young_segments_are_left():
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    for seq in range(3):
        append(setup.store, seq, seq)
    clock.go_on(seconds=60)
    for seq in range(3, 6):
        append(setup.store, seq, seq)
    policy = CompactionPolicy(min_age=60, full=True)
    result = setup.store.compact(REF, policy)
    assert (result.segments_after, result.left) == (4, [])
    assert len(plain(setup)) == 3
    clock.go_on(seconds=59)
    assert setup.store.compact(REF, policy).merged == []
    clock.go_on(seconds=1)
    assert setup.store.compact(REF, policy).segments_after == 1


def test_objects_of_others_are_untouched_and_unpadded_segments_merged():
    setup = one_by_one()
    names = ["events/.DS_Store", "events/5-4-w.jsonl", "events/x/0-0-w.jsonl", "index/x.json", f"payloads/{'a' * 64}", "README"]
    foreign = {setup.put(REF.prefix + rest, rest.encode()) for rest in names}
    for start in (0, 8, 16, 100):
        setup.put(f"{EVENTS}{start}-{start + 7}-w{start}.jsonl", lines(range(start, start + 8)).removesuffix(b"\n"))
    before = seen(setup)
    (key,) = setup.store.compact(REF, FULL).merged
    assert set(setup.keys()) == foreign | {key, index_key(key)}
    assert all(setup.body(each) == each.removeprefix(REF.prefix).encode() for each in foreign)
    assert seen(setup) == before


@pytest.mark.parametrize(
    ("name", "body"), [("5-9-v", b"{}\r\n\n{}\n"), ("5-6-v", b'{"a":1}\n{"a":2}\n{"a":3}\n{"a":3}\n'), ("5-6-v", b"\n \n")]
)
def test_a_segment_with_too_few_or_too_many_lines_reads_the_same_when_it_is_merged(name, body):
    setup = one_by_one()
    append(setup.store, 0, 5)
    append(setup.store, 7, 9)
    setup.put(f"{EVENTS}{name}.jsonl", body)
    before = seen(setup)
    assert len(setup.store.compact(REF, FULL).merged) == 1
    assert seen(setup) == (before[0], 10, [REF])
    assert len(events(setup)) == 1


# --- sweeping ---------------------------------------------------------------------------------------------------------


def abandoned(setup, generation, seq=50):
    """The index of a compaction that died, as stored."""
    _, index = build([Record(seq, "x", b"{}")], generation, [Source(SegmentName(seq, seq, "x"), 3, "")])
    return setup.put(f"{INDEX}{index.name}.json", index.to_json())


def test_what_deletes_and_dead_compactions_left_is_swept_and_young_indexes_stay():
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    five(setup)
    setup.put(f"{EVENTS}deleted-2")
    dead = f"{EVENTS}0-0-compacted-1-0123456789abcdef.jsonl"
    setup.put(dead, b"{}\n")
    setup.put(index_key(dead), b"{}")
    old = [abandoned(setup, generation) for generation in (0, 1)]
    unborn = abandoned(setup, 2)  # its compactor may be asleep, and write the segment yet
    clock.go_on(seconds=3601)
    young = [abandoned(setup, generation, 60) for generation in (1, 2)]
    before = seen(setup)[0]
    (key,) = setup.store.compact(REF, FULL).merged
    assert set(setup.keys()) == {f"{EVENTS}deleted-2", key, index_key(key), *young, unborn}
    assert set(old).isdisjoint(young)
    assert seen(setup)[0] == before


def test_the_index_of_a_segment_merged_further_stays_for_an_hour_after_that():
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    five(setup)
    (first,) = setup.store.compact(REF, FULL).merged
    append(setup.store, 8, 8)
    clock.go_on(minutes=200)
    (second,) = setup.store.compact(REF, FULL).merged
    for minutes in (0, 59):
        clock.go_on(minutes=minutes)
        setup.store.compact(REF, FULL)
        assert setup.keys() == [second, *sorted([index_key(first), index_key(second)])]
    clock.go_on(minutes=2)
    setup.store.compact(REF, FULL)
    assert setup.keys() == [second, index_key(second)]


@pytest.mark.parametrize("mends", [lambda store: store.compact(REF, FULL), lambda store: store.verify(REF, repair=True)])
@pytest.mark.parametrize("is_merged_again", [False, True])
def test_the_index_of_a_segment_that_another_implementation_merged_stays_for_an_hour(mends, is_merged_again):
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    five(setup)
    lines = b"".join(record.line + b"\n" for record in setup.store.records(REF))
    (ours,) = setup.store.compact(REF, FULL).merged
    theirs = f"{EVENTS}0-7-compacted.jsonl"
    setup.put(theirs, lines)
    del setup.memory._objects[ours]
    if is_merged_again:
        append(setup.store, 8, 8)
        setup.store.compact(REF, FULL)
    before = seen(setup)[0]
    clock.go_on(minutes=59)
    mends(setup.store)
    assert index_key(ours) in setup.keys(INDEX)
    clock.go_on(minutes=2)
    mends(setup.store)
    assert index_key(ours) not in setup.keys(INDEX)
    assert seen(setup)[0] == before
    assert setup.store.verify(REF).ok


def test_indexes_of_a_transcript_that_is_compacted_all_day_go():
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    for seq in range(24 * 12):
        append(setup.store, seq, seq)
        clock.go_on(minutes=5)
        setup.store.compact(REF, FULL)
        assert len(setup.keys(INDEX)) <= 16


def test_a_segment_that_was_merged_further_meanwhile_is_not_written_again():
    setup = one_by_one()
    five(setup)
    before = seen(setup)
    waiting, hooks = hooked(setup.memory)
    hooks.before("put", lambda: merge_twice(setup), key="/index/")

    def merge_twice(setup):
        setup.store.compact(REF, FULL)
        append(setup.store, 8, 8)
        setup.store.compact(REF, FULL)

    waiting.store.compact(REF, FULL)
    (standing,) = events(setup)
    assert "0000008-compacted-" in standing
    assert [record[:2] for record in seen(setup)[0]][:-1] == [record[:2] for record in before[0]]


def merged_further(clock):
    """A transcript in which a segment was merged further two hours ago; its key and its body."""
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    five(setup)
    (first,) = setup.store.compact(REF, FULL).merged
    body = setup.body(first)
    append(setup.store, 8, 8)
    clock.go_on(minutes=1)
    setup.store.compact(REF, FULL)
    clock.go_on(hours=2)
    return setup, first, body


@pytest.mark.parametrize("what", ["segment", "index"])
def test_an_index_stays_where_it_or_its_segment_comes_back_while_it_is_swept(what):
    setup, first, body = merged_further(ServerClock())
    before = seen(setup)
    other, hooks = hooked(without_conditions(setup).memory, clock=FakeClock())
    key, content = (first, body) if what == "segment" else (index_key(first), setup.body(index_key(first)))
    hooks.before("list_page", lambda: setup.put(key, content), after=1)
    other.store.compact(REF, FULL)
    assert index_key(first) in setup.keys(INDEX)
    assert seen(setup) == before


def test_compacted_segments_of_a_later_generation_than_the_listings_stay():
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())
    five(setup)
    later = f"{EVENTS}0-0-compacted-3-0123456789abcdef.jsonl"  # restored, its marker not yet
    setup.put(later, b"{}\n")
    setup.put(index_key(later), b"{}")
    clock.go_on(hours=2)
    setup.store.compact(REF, FULL)
    assert {later, index_key(later)} <= set(setup.keys())


# --- writers whose id is not their own --------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [True, False])
def test_other_records_under_the_key_of_a_merged_source_are_kept_with_it(frozen):
    clock = ServerClock()
    setup = one_by_one(MemoryObjectStore("m", now=clock), clock=FakeClock())

    def go_on():
        if not frozen:
            clock.go_on(seconds=1)

    for seq in range(4):
        append(setup.store, seq, seq)
    expected = {line(seq) for seq in range(4)}
    for text in (b'{"n":1,"w":"X"}', b'{"n":1,"w":"Y"}'):
        go_on()
        setup.store.compact(REF, FULL)
        assert {each.line for each in setup.store.records(REF)} == expected
        go_on()
        assert len(text) == len(line(1))
        key = setup.store.append_segment(REF, 1, 1, "w", text)
        expected.add(text)
        assert {each.line for each in setup.store.records(REF)} == expected
        assert setup.store.read_segment(key).read() == text + b"\n"
        for policy in (PAIRS, FULL):
            go_on()
            setup.store.compact(REF, policy)
            assert [each.seq for each in setup.store.records(REF)] == [0, *[1] * (len(expected) - 3), 2, 3]
            assert {each.line for each in setup.store.records(REF)} == expected
    assert len(events(setup)) == 1


def test_a_source_written_anew_since_it_was_read_is_not_removed():
    clock = ServerClock()
    setup, hooks = hooked(MemoryObjectStore("m", now=clock), clock=FakeClock())
    without_conditions(setup)
    keys = five(setup)
    other = b'{"n":2,"w":"X"}'
    assert len(other) == len(line(2))

    def write_anew():
        clock.go_on(seconds=1)
        setup.put(keys[1], other + b"\n")

    hooks.before("list_page", write_anew, after=1)
    setup.store.compact(REF, FULL)
    assert setup.body(keys[1]) == other + b"\n"
    assert {line(2, "a"), other} <= {each.line for each in setup.store.records(REF)}


def test_equal_lines_of_one_identity_are_merged_into_one():
    setup = one_by_one()
    append(setup.store, 0, 1, "a")
    append(setup.store, 1, 2, "a")  # the second line once more
    (key,) = setup.store.compact(REF, FULL).merged
    assert setup.body(key) == lines(range(3), "a")


# --- segments merged by other implementations -------------------------------------------------------------------------


def entry(number):
    return json.dumps({"id": f"e{number}"}).encode()


def entries(numbers):
    return b"".join(entry(number) + b"\n" for number in numbers)


def test_what_another_program_merged_is_left_with_what_it_overlaps_and_reported():
    setup = one_by_one()
    foreign = setup.put(f"{EVENTS}4-7-compacted.jsonl", entries(range(4, 8)))
    beside = [setup.put(f"{EVENTS}{seq}-{seq}-j{seq}.jsonl", entries([seq])) for seq in (4, 7)]
    for seq in (0, 1, 2, 10, 11, 12):
        append(setup.store, seq, seq)
    before = seen(setup)
    assert len(before[0]) == 10
    result = setup.store.compact(REF, FULL)
    ((left, reason),) = result.left
    assert left == foreign
    assert "another program" in reason
    assert (result.segments_after, len(result.merged)) == (5, 2)
    assert {foreign, *beside} <= set(setup.keys())
    assert seen(setup) == before


def test_what_another_program_merged_is_merged_once_its_sources_are_gone():
    setup = one_by_one()
    setup.put(f"{EVENTS}4-7-compacted.jsonl", entries(range(4, 8)))
    append(setup.store, 0, 3)
    append(setup.store, 8, 9)
    before = seen(setup)
    assert setup.store.compact(REF, FULL).left == []
    check_clean(setup, before)


def test_a_large_compaction_is_one_pass_and_looks_at_names_about_once():
    setup = one_by_one()
    for seq in range(3000):
        setup.memory.put(f"{EVENTS}{seq}-{seq}-w{seq % 5}.jsonl", line(seq) + b"\n" * (seq % 2), mode="create", metadata={})
    calls = 0
    property_ = SegmentName.generation

    def counted(name):
        nonlocal calls
        calls += 1
        return property_.fget(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentName, "generation", property(counted))
        result = setup.store.compact(REF)
    assert (result.segments_before, result.segments_after, len(result.merged)) == (3000, 1, 1)
    assert calls < 20 * 3000  # not a multiple of the square
