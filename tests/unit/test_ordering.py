"""No record is shown without those its writer wrote before it."""

from __future__ import annotations

import pytest
from unit.setups import EVENTS, REF, HookedObjectStore, ServerClock, append, line, make

from transcript_backends import CompactionPolicy, ObjectTranscriptStore
from transcript_backends.container import Container
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.listing import Indexes
from transcript_backends.ordering import premature


class TornObjectStore(WrapperObjectStore):
    """Gives a first listing without a key, as if that had been stored on a page already passed."""

    def __init__(self, inner, *missed):
        super().__init__(inner)
        self._missed = [set(each) for each in missed]

    def list_page(self, prefix, **arguments):
        page = super().list_page(prefix, **arguments)
        missed = self._missed.pop(0) if self._missed else set()
        return page._replace(objects=[each for each in page.objects if each.key not in missed])


def key(seq, writer="w"):
    return f"{EVENTS}{seq:019d}-{seq:019d}-{writer}.jsonl"


def torn(appended, *missed):
    """A store with these segments of one record, whose listings miss some of them."""
    setup = make(wrap=lambda inner: TornObjectStore(inner, *missed))
    for seq, writer in appended:
        setup.put(key(seq, writer), line(seq, writer) + b"\n")
    setup.driver.requests.clear()
    return setup


def seen(setup):
    return [record[:2] for record in setup.store.records(REF)]


OWN = [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]
COMMON = [(0, "a"), (1, "b"), (2, "c"), (3, "a")]


@pytest.mark.parametrize(
    ("appended", "missed", "listings"),
    [(OWN, (1, "a"), 2), (OWN, (0, "b"), 2), (COMMON, (1, "b"), 3), (COMMON, (2, "c"), 3), (COMMON, (0, "a"), 2)],
)
def test_a_gap_before_what_is_as_young_as_the_listing_is_looked_at_again(appended, missed, listings):
    setup = torn(appended, [key(*missed)])
    assert seen(setup) == appended
    assert setup.driver.counts["list_page"] == listings


@pytest.mark.parametrize(("appended", "missed", "listings"), [(OWN, (2, "a"), 1), (COMMON, (3, "a"), 2)])
def test_what_came_last_may_be_missed(appended, missed, listings):
    setup = torn(appended, [key(*missed)])
    assert seen(setup) == [each for each in appended if each != missed]
    assert setup.driver.counts["list_page"] == listings


def test_what_shows_too_early_in_a_second_listing_too_is_left_out_with_all_after_it():
    appended = [(seq, "w") for seq in range(6)]
    setup = torn(appended, [key(1), key(3), key(4), key(5)], [key(3)])
    assert seen(setup) == appended[:3]
    assert setup.driver.counts["list_page"] == 2
    assert seen(setup) == appended


def test_what_shows_too_early_beside_what_another_writer_stored_later_is_looked_at_again():
    setup = torn([*OWN, (3, "a")], [key(0, "b"), key(1, "a"), key(2, "a"), key(3, "a")], [key(1, "a")])
    assert seen(setup) == [*OWN, (3, "a")]
    assert setup.driver.counts["list_page"] == 3


@pytest.mark.parametrize("seconds", [1, 3, 3600])
def test_a_gap_before_a_segment_of_whatever_age_is_looked_into(seconds):
    clock = ServerClock()
    memory = MemoryObjectStore("m", now=clock)
    setup = make(memory=memory, wrap=lambda inner: TornObjectStore(inner, [key(1)]))
    for seq in range(3):
        setup.put(key(seq), line(seq) + b"\n")
    clock.go_on(seconds=seconds)
    assert [seq for seq, _ in seen(setup)] == [0, 1, 2]
    assert setup.driver.counts["list_page"] == 2


@pytest.mark.parametrize(("seconds", "listings"), [(1, 2), (3, 1)])
def test_a_segment_stamped_a_little_before_the_listing_began_may_have_come_while_it_ran(seconds, listings):
    clock = ServerClock()
    memory = MemoryObjectStore("m", now=clock)
    setup = make(memory=memory, wrap=lambda inner: TornObjectStore(inner, [key(1, "a")]))
    for seq, writer in OWN:
        setup.put(key(seq, writer), line(seq, writer) + b"\n")
    clock.go_on(seconds=seconds)  # clocks of servers differ, and some stamp whole seconds
    assert ((1, "a") in seen(setup)) == (listings == 2)  # nobody misses a number that another writer has
    assert setup.driver.counts["list_page"] == listings


def test_a_gap_that_is_one_costs_a_second_listing_once_and_while_it_is_young():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    append(setup.store, 0, 3)
    append(setup.store, 50, 51)
    for much, counts in ((0, (2, 2)), (10, (2, 1)), (3600, (2, 1))):
        clock.go_on(seconds=much)
        setup = make(memory=setup.memory)
        for listings in counts:
            setup.driver.requests.clear()
            assert [seq for seq, _ in seen(setup)] == [0, 1, 2, 3, 50, 51]
            assert setup.driver.counts["list_page"] == listings


@pytest.mark.parametrize("appended", [OWN, [(seq, "w") for seq in range(5)]])
@pytest.mark.parametrize("compacted", [False, True])
def test_where_nothing_is_missing_one_listing_is_enough(appended, compacted):
    setup = torn(appended)
    if compacted:
        setup.store.compact(REF, CompactionPolicy(full=True))
        append(setup.store, appended[-1][0] + 1, appended[-1][0] + 1, appended[-1][1])
    setup.driver.requests.clear()
    assert seen(setup)[: len(appended)] == appended
    assert setup.driver.counts["list_page"] == 1


def test_a_gap_before_a_merged_segment_costs_a_second_listing_while_it_is_young():
    setup = make()
    append(setup.store, 5, 5)
    append(setup.store, 6, 6)
    setup.store.compact(REF, CompactionPolicy(full=True))
    setup.driver.requests.clear()
    assert [seq for seq, _ in seen(setup)] == [5, 6]
    assert setup.driver.counts["list_page"] == 2


def test_a_gap_before_what_was_stored_before_something_seen_is_one():
    appended = sorted([(0, "w"), (3, "w"), (5, "w"), *((seq, "x") for seq in range(6))])
    setup = torn(appended, [key(3)])
    assert seen(setup) == appended
    assert setup.driver.counts["list_page"] == 2


def test_what_came_while_a_slow_listing_ran_is_young():
    clock = ServerClock()
    began = clock.time

    class SlowObjectStore(TornObjectStore):
        def list_page(self, prefix, **arguments):
            clock.go_on(seconds=10)
            return super().list_page(prefix, **arguments)

    class LocalClock:
        def monotonic(self):
            return (clock.time - began).total_seconds()

    memory = MemoryObjectStore("m", now=clock)
    setup = make(memory=memory)
    for seq, writer in OWN:
        append(setup.store, seq, seq, writer)
    store = ObjectTranscriptStore(Container(SlowObjectStore(memory, [key(1, "a")]), clock=LocalClock()))
    assert [record[:2] for record in store.records(REF)] == OWN


@pytest.mark.parametrize("minutes", [5, -5])
def test_a_servers_clock_that_is_set_while_it_lists_says_nothing_of_age(minutes):
    clock = ServerClock()

    class SetObjectStore(TornObjectStore):
        def list_page(self, prefix, **arguments):
            if arguments["token"]:
                clock.go_on(minutes=minutes)
            return super().list_page(prefix, **arguments)

    memory = MemoryObjectStore("m", now=clock, page_size=1)
    setup = make(memory=memory, wrap=lambda inner: SetObjectStore(inner, [], [], [key(1, "a")]))
    for seq, writer in OWN:
        setup.put(key(seq, writer), line(seq, writer) + b"\n")
    assert seen(setup) == OWN


def test_a_server_that_tells_no_time_costs_a_second_listing_for_a_gap():
    class Timeless(TornObjectStore):
        def list_page(self, prefix, **arguments):
            return super().list_page(prefix, **arguments)._replace(now=None)

    setup = make(wrap=lambda inner: Timeless(inner, [key(1, "a")]))
    for seq, writer in OWN:
        setup.put(key(seq, writer), line(seq, writer) + b"\n")
    assert seen(setup) == OWN


def test_a_merged_segment_of_records_whose_predecessors_are_missed_is_looked_at_again():
    setup = make()
    append(setup.store, 1, 1, "a")
    append(setup.store, 1, 2, "b")
    setup.store.compact(REF, CompactionPolicy(full=True))
    for writer in "ab":
        setup.put(key(0, writer), line(0, writer) + b"\n")
    other = make(memory=setup.memory, wrap=lambda inner: TornObjectStore(inner, [key(0, "b")]))
    assert seen(other) == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "b")]
    assert other.driver.counts["list_page"] == 2


def test_each_writer_of_a_merged_segment_begins_with_its_first_record_there():
    setup = make()
    for writer in "ab":
        append(setup.store, 1, 2, writer)
    setup.store.compact(REF, CompactionPolicy(full=True))
    for writer in "ab":
        setup.put(key(0, writer), line(0, writer) + b"\n")
    other = make(memory=setup.memory, wrap=lambda inner: TornObjectStore(inner, [key(0, "b")]))
    assert seen(other) == [(seq, writer) for seq in range(3) for writer in "ab"]


@pytest.mark.parametrize("writers", ["b", "ba"])
def test_a_reader_of_what_is_written_without_a_pause_comes_to_an_end(writers):
    class Busy(WrapperObjectStore):
        """Before each listing two records come, of which it shows the second."""

        count = 0

        def list_page(self, prefix, **arguments):
            missed = set()
            for writer in writers:
                missed.add(key(2 * self.count + 1, writer))
                for seq in (2 * self.count + 1, 2 * self.count + 2):
                    setup.put(key(seq, writer), line(seq, writer) + b"\n")
            self.count += 1
            page = super().list_page(prefix, **arguments)
            return page._replace(objects=[each for each in page.objects if each.key not in missed])

    setup = make(wrap=Busy)
    for seq, writer in [(0, "b"), (0, "a"), (1000, "leader")]:
        setup.put(key(seq, writer), line(seq, writer) + b"\n")
    found = seen(setup)
    assert {(0, "b"), (0, "a")} < set(found)
    for writer in writers:
        seqs = [seq for seq, who in found if who == writer]
        assert seqs == list(range(len(seqs)))


class CountedList(list):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()

    def __reversed__(self):
        self.times += 1
        return super().__reversed__()


@pytest.mark.parametrize("writers", [1, 7])
def test_however_many_are_young_the_segments_are_gone_through_a_few_times(writers):
    setup = make()
    for seq in range(300):
        append(setup.store, seq, seq, f"w{seq % writers}")
    segments = CountedList(setup.store.list_segments(REF))
    indexes = Indexes(setup.store._container, setup.store._names(REF))
    early = premature(segments, indexes, None, [])
    assert len(early) == (0 if writers == 1 else 299)
    assert segments.times <= 5


def test_a_reader_that_lists_again_shows_nothing_that_came_after_it_began():
    hooks = []

    def wrap(inner):
        hooks.append(HookedObjectStore(inner))
        return hooks[0]

    setup = make(wrap=wrap)
    for seq in range(6):
        append(setup.store, seq, seq, "a")
    other = make(memory=setup.memory)

    def meanwhile():
        for seq in range(9):
            append(other.store, seq, seq, "late")
        other.store.compact(REF, CompactionPolicy(full=True))

    hooks[0].before("get", meanwhile, key=key(3, "a"))
    assert seen(setup) == [(seq, "a") for seq in range(6)]
    assert len(seen(setup)) == 15
