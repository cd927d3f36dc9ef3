"""A follower gives each record once for a cursor, whatever happens meanwhile."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from datetime import datetime, timedelta, timezone

import pytest
from unit.setups import EVENTS, REF, HookedObjectStore, append, line, lines, make

from transcript_backends import CompactionPolicy, CorruptSegmentError, ObjectTranscriptStore, StoreUnavailableError
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, WrapperObjectStore
from transcript_backends.testing.stores import SparingObjectStore

FULL = CompactionPolicy(full=True)


class Clock:
    """Passes by sleeping, and does something at certain moments."""

    def __init__(self):
        self.now = 0.0
        self.server_ahead = 0
        self.sleeps = 0
        self._events = []

    def at(self, moment, act):
        self._events.append((moment, act))

    def monotonic(self):
        return self.now

    def server(self):
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=self.now + self.server_ahead)

    def sleep(self, seconds):
        self.sleeps += 1
        self.now += seconds
        due = [each for each in self._events if each[0] <= self.now]
        self._events = [each for each in self._events if each[0] > self.now]
        for _, act in due:
            act()

    def jitter(self):
        return 0.5


def following(**options):
    """A setup, its clock, and a function that follows until nothing comes for a minute, and gives what came and the cursor."""
    clock = Clock()
    setup = make(memory=MemoryObjectStore("m", now=clock.server))
    store = ObjectTranscriptStore(Container(setup.driver, clock=clock))

    def follow(cursor=None):
        with store.follow(REF, cursor=cursor, stop_when_idle=60, **options) as follower:
            return [record[:2] for record in follower], follower.cursor

    return setup, clock, follow


def test_what_is_there_comes_first_then_what_appears_and_a_cursor_goes_on():
    setup, clock, follow = following()
    append(setup.store, 0, 2)
    clock.at(5, lambda: append(setup.store, 3, 4))
    clock.at(20, lambda: append(setup.store, 3, 3, "other"))
    found, cursor = follow()
    assert found == [(0, "w"), (1, "w"), (2, "w"), (3, "w"), (4, "w"), (3, "other")]
    assert follow(cursor)[0] == []
    append(setup.store, 5, 5)
    assert follow(cursor)[0] == [(5, "w")]


@pytest.mark.parametrize("taken", range(8))
def test_a_cursor_taken_after_any_record_goes_on_with_the_next(taken):
    setup, _, follow = following()
    append(setup.store, 0, 2, "a")
    append(setup.store, 1, 3, "b")
    append(setup.store, 4, 4, "a")
    everything, _ = follow()
    with setup.store.follow(REF, stop_when_idle=0) as follower:
        begun = [next(follower)[:2] for _ in range(min(taken, 7))]
        cursor = follower.cursor
    assert begun + follow(cursor)[0] == everything


def test_a_compaction_between_looks_shows_nothing_again_and_hides_nothing():
    setup, clock, follow = following()
    for seq in range(5):
        append(setup.store, seq, seq)

    def compact_and_append():
        setup.store.compact(REF, FULL)
        append(setup.store, 5, 5)
        append(setup.store, 2, 2, "late")
        setup.store.compact(REF, FULL)

    clock.at(3, compact_and_append)
    clock.at(9, lambda: append(setup.store, 6, 6))
    clock.at(10, lambda: setup.store.compact(REF, FULL))
    found, cursor = follow()
    assert found == [*((seq, "w") for seq in range(5)), (2, "late"), (5, "w"), (6, "w")]
    assert follow(cursor)[0] == []


def test_a_compaction_in_the_middle_of_a_look_shows_each_record_once():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for seq in range(6):
        append(setup.store, seq, seq)
    other = make(memory=setup.memory)

    def meanwhile():
        append(other.store, 6, 6)
        other.store.compact(REF, FULL)

    hooks[0].before("get", meanwhile, after=3)
    follower = setup.store.follow(REF)
    assert [next(follower).seq for _ in range(7)] == list(range(7))


def test_the_next_life_of_a_transcript_is_followed_from_its_beginning():
    setup, clock, follow = following()
    append(setup.store, 0, 4)

    def begin_anew():
        setup.store.delete(REF)
        append(setup.store, 0, 1)

    clock.at(5, begin_anew)
    found, cursor = follow()
    assert found == [(0, "w"), (1, "w"), (2, "w"), (3, "w"), (4, "w"), (0, "w"), (1, "w")]
    assert follow(cursor)[0] == []


def test_the_next_life_is_followed_though_the_servers_clock_steps_back():
    setup, clock, follow = following()
    append(setup.store, 0, 4)
    clock.now = 600

    def begin_anew():
        setup.store.delete(REF)
        clock.server_ahead = -300
        append(setup.store, 0, 1)
        append(setup.store, 2, 5)

    clock.at(605, begin_anew)
    found, cursor = follow()
    assert found == [*((seq, "w") for seq in range(5)), *((seq, "w") for seq in range(6))]
    assert follow(cursor)[0] == []


class Deletion:
    """A delete, step by step."""

    def __init__(self, setup, number=1):
        self._setup, self._number = setup, number
        self._doomed = [key for key in setup.keys(EVENTS) if "delet" not in key]
        setup.put(f"{EVENTS}deleting-{number}")

    def remove(self, keys=None):
        self._setup.memory.delete_many(keys or self._doomed)

    def finish(self):
        self._setup.put(f"{EVENTS}deleted-{self._number}")

    def purge(self):
        self._setup.memory.delete_many([f"{EVENTS}{kind}-{self._number}" for kind in ("deleting", "deleted")])


def looks(setup, cursor=None, **options):
    """What one look after the other gives in processes of their own; after each record a new one takes the cursor up."""
    found = []
    while True:
        with setup.store.follow(REF, cursor=cursor, stop_when_idle=0, **options) as follower:
            record = next(follower, None)
            cursor = follower.cursor
        if record is None:
            return found, cursor
        found.append(record.line)


def life(number, seqs, writer="w"):
    return [b'{"life":%d,"seq":%d,"w":"%s"}' % (number, seq, writer.encode()) for seq in seqs]


def store(setup, number, first, last, writer="w"):
    return setup.store.append_segment(REF, first, last, writer, b"\n".join(life(number, range(first, last + 1), writer)))


@pytest.mark.parametrize("is_last_removed", [True, False])
def test_what_is_withheld_while_a_delete_runs_follows_when_it_has_finished(is_last_removed):
    setup = make()
    store(setup, 1, 0, 4)
    _, cursor = looks(setup)
    delete = Deletion(setup)
    late = store(setup, 1, 5, 6)
    found, cursor = looks(setup, cursor)
    assert found == life(1, [5, 6])  # deleted yet or not, nobody can tell
    delete.remove()
    if is_last_removed:
        delete.remove([late])
    store(setup, 2, 0, 2, "x")
    found, cursor = looks(setup, cursor)
    assert found == life(2, [0, 1, 2], "x")
    if is_last_removed:
        store(setup, 2, 0, 3)
        found, cursor = looks(setup, cursor)
        assert found == []
        store(setup, 2, 4, 7)  # as far as before, and beyond
        found, cursor = looks(setup, cursor)
        assert found == life(2, [7])
    delete.finish()
    found, cursor = looks(setup, cursor)
    assert found == (life(2, range(7)) if is_last_removed else [])
    store(setup, 2, 8, 8)
    assert looks(setup, cursor)[0] == life(2, [8])


def test_what_a_delete_removes_that_was_given_while_it_ran_hides_nothing_of_the_next_life():
    setup = make()
    store(setup, 1, 0, 4)
    _, cursor = looks(setup)
    store(setup, 1, 5, 9)
    delete = Deletion(setup)
    found, cursor = looks(setup, cursor)
    assert found == life(1, range(5, 10))
    delete.remove()
    delete.finish()
    store(setup, 2, 0, 9)
    found, cursor = looks(setup, cursor)
    assert found == life(2, range(10))
    assert looks(setup, cursor)[0] == []


@pytest.mark.parametrize("last", [0, 1, 5])
def test_who_begins_while_a_delete_runs_misses_nothing_of_the_next_life_and_gets_nothing_twice(last):
    setup = make()
    store(setup, 1, 0, 4)
    delete = Deletion(setup)
    stays = store(setup, 1, 0, 2, "x")
    found, cursor = looks(setup, last=last)
    assert len(found) == last
    delete.remove()
    delete.finish()
    store(setup, 2, 0, 4)
    found, cursor = looks(setup, cursor)
    assert found == life(2, range(5))
    assert setup.body(stays)
    store(setup, 2, 3, 3, "x")
    assert looks(setup, cursor)[0] == life(2, [3], "x")


@pytest.mark.parametrize("last", [None, 1])
@pytest.mark.parametrize("is_finished", [True, False])
def test_what_comes_under_a_key_of_the_life_before_while_a_delete_runs_hides_nothing(is_finished, last):
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    store(setup, 1, 0, 2)
    store(setup, 1, 3, 3)
    delete = Deletion(setup)
    setup.memory.delete_many([setup.keys(EVENTS)[0]])

    def begin_anew():
        delete.remove()
        if is_finished:
            delete.finish()
        store(setup, 2, 0, 2)
        store(setup, 2, 3, 3)

    hooks[0].before("get", begin_anew, key=f"{3:019d}-w")
    found, cursor = looks(setup, **({"last": last} if last else {}))
    delete.finish()
    more, cursor = looks(setup, cursor)
    assert found + more == life(2, range(4))
    assert looks(setup, cursor)[0] == []


def test_many_records_that_come_while_a_delete_runs_come_in_order_and_once():
    setup = make()
    delete = Deletion(setup)
    store(setup, 1, 0, 2999)
    with setup.store.follow(REF, stop_when_idle=0) as follower:
        assert [record.line for record in follower] == life(1, range(3000))
        cursor = follower.cursor
    delete.finish()
    assert looks(setup, cursor)[0] == []


def test_a_delete_that_overtakes_another_withholds_all_again():
    setup = make()
    store(setup, 1, 0, 4)
    _, cursor = looks(setup)
    first = Deletion(setup)
    first.remove()
    store(setup, 2, 0, 6)
    found, cursor = looks(setup, cursor)
    assert found == life(2, [5, 6])
    second = Deletion(setup, 2)
    assert looks(setup, cursor)[0] == []
    second.remove()
    store(setup, 3, 0, 6)
    found, cursor = looks(setup, cursor)
    assert found == []
    second.finish()  # the first is still at work, or died
    found, cursor = looks(setup, cursor)
    assert found == life(3, range(7))
    first.finish()
    assert looks(setup, cursor)[0] == []


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_purge_takes_the_generation_back_and_hides_nothing(is_seen):
    setup = make()
    store(setup, 1, 0, 4)
    setup.store.delete(REF)
    store(setup, 2, 0, 4)
    _, cursor = looks(setup)
    purge = Deletion(setup, 2)
    if is_seen:
        store(setup, 3, 0, 0, "x")
        found, cursor = looks(setup, cursor)
        assert found == life(3, [0], "x")
    purge.remove()
    store(setup, 3, 0, 4)
    Deletion(setup, 1).purge()
    purge.purge()
    found, cursor = looks(setup, cursor)
    assert found == life(3, range(5))
    assert looks(setup, cursor)[0] == []


def test_a_repaired_delete_gives_free_what_was_withheld():
    clock = Clock()
    setup = make(memory=MemoryObjectStore("m", now=clock.server))
    store(setup, 1, 0, 4)
    _, cursor = looks(setup)
    clock.now += 1
    Deletion(setup).remove()
    clock.now += 1
    store(setup, 2, 0, 5)
    found, cursor = looks(setup, cursor)
    assert found == life(2, [5])
    clock.now += 4000
    setup.store.verify(REF, repair=True)
    found, cursor = looks(setup, cursor)
    assert found == life(2, range(5))
    assert looks(setup, cursor)[0] == []


def test_a_look_that_a_delete_overtakes_shows_nothing_of_the_next_life_under_the_one_before():
    hooks = []
    setup = make(wrap=lambda inner: hooks.append(HookedObjectStore(inner)) or hooks[0])
    for seq in range(6):
        store(setup, 1, seq, seq)
    other = make(memory=setup.memory)

    def begin_anew():
        other.store.delete(REF)
        for seq in range(0, 6, 2):
            store(other, 2, seq, seq + 1)

    hooks[0].before("get", begin_anew, key=f"{3:019d}-w")
    with setup.store.follow(REF, stop_when_idle=0) as follower:
        found = [record.line for record in follower]
        cursor = follower.cursor
    assert found == life(1, range(len(found)))
    found, cursor = looks(setup, cursor)
    assert found == life(2, range(6))
    assert looks(setup, cursor)[0] == []


def test_a_gap_in_what_is_new_is_looked_at_again_whatever_its_age():
    class Torn(WrapperObjectStore):
        missed = ""

        def list_page(self, prefix, **arguments):
            page = super().list_page(prefix, **arguments)
            missed, self.missed = self.missed, ""
            return page._replace(objects=[each for each in page.objects if each.key != missed])

    wrapped = []
    clock = Clock()
    setup = make(wrap=lambda inner: wrapped.append(Torn(inner)) or wrapped[0], memory=MemoryObjectStore("m", now=clock.server))
    append(setup.store, 0, 1)
    append(setup.store, 0, 5, "x")  # so that only one writer's numbers have a gap
    _, cursor = looks(setup)
    clock.server_ahead = -300  # the server that stores them has another clock than the one that lists them
    wrapped[0].missed = append(setup.store, 2, 3)
    append(setup.store, 4, 5)
    clock.server_ahead = 0
    assert looks(setup, cursor)[0] == [line(seq) for seq in range(2, 6)]


def test_a_cursor_of_an_earlier_version_is_read():
    stored = b'{"v":1,"g":0,"t":1767225600.0,"w":{"w":1}}'
    setup = make()
    append(setup.store, 0, 3)
    assert looks(setup, base64.urlsafe_b64encode(stored).decode())[0] == [line(2), line(3)]


def test_a_cursor_is_small():
    setup = make()
    append(setup.store, 0, 3)
    assert json.loads(base64.urlsafe_b64decode(looks(setup)[1])) == {"v": 2, "g": 0, "w": {"w": 3}}


def test_it_looks_soon_after_something_came_and_ever_more_rarely_when_nothing_does():
    setup, clock, follow = following()
    append(setup.store, 0, 0)
    looks = []
    list_page = setup.memory.list_page

    def noted(*arguments, **options):
        looks.append(clock.now)
        return list_page(*arguments, **options)

    setup.memory.list_page = noted
    follow()
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert pauses == pytest.approx([0.3, 0.6, 1.2, 2.4, 4.8, 9.6, 10, 10, 10, 10])
    assert clock.sleeps < 150


def test_a_look_that_finds_nothing_new_is_one_listing_whatever_is_compacted():
    setup, _, follow = following()
    for seq in range(4):
        append(setup.store, seq, seq)
    setup.store.compact(REF, FULL)
    append(setup.store, 4, 4)
    _, cursor = follow()
    setup.driver.requests.clear()
    assert follow(cursor)[0] == []
    counts = setup.driver.counts
    assert counts["list_page"] > 5
    assert counts["get"] <= counts["list_page"]


def test_an_error_of_the_store_ends_no_follower():
    setup = make()
    append(setup.store, 0, 1)
    faulty = FaultyObjectStore(setup.memory)
    store = ObjectTranscriptStore(Container(faulty, clock=Clock(), retry=RetryPolicy(max_attempts=1)))
    follower = store.follow(REF)
    assert next(follower).seq == 0
    assert next(follower).seq == 1
    faulty.fail("list_page", Meaning.TRY_AGAIN, times=1)
    with pytest.raises(StoreUnavailableError):
        next(follower)
    append(setup.store, 2, 2)
    assert next(follower).seq == 2


def test_a_closed_follower_ends():
    setup, clock, _ = following()
    store = ObjectTranscriptStore(Container(setup.driver, clock=clock))
    append(setup.store, 0, 3)
    follower = store.follow(REF)
    assert next(follower).seq == 0
    clock.at(2, follower.close)
    assert [record.seq for record in follower] == [1, 2, 3]
    assert clock.now < 3


@pytest.mark.parametrize("cursor", ["", "e30=", "not base64", "bnVsbA==", "eyJ2Ijo5LCJnIjowLCJ0IjpudWxsLCJ3Ijp7fX0="])
def test_what_is_no_cursor_is_refused(cursor):
    with pytest.raises(ValueError, match="is no cursor of a follower"):
        make().store.follow(REF, cursor=cursor)


@pytest.mark.parametrize("intervals", [{"min_interval": 0}, {"min_interval": 2, "max_interval": 1}])
def test_intervals_that_make_no_sense_are_refused(intervals):
    with pytest.raises(ValueError, match="the intervals must be seconds"):
        make().store.follow(REF, **intervals)


def test_lines_come_as_they_are():
    setup, _, _ = following()
    setup.store.append_segment(REF, 0, 1, "w", lines(range(2)))
    follower = setup.store.follow(REF)
    assert [next(follower).line for _ in range(2)] == [line(0), line(1)]


def test_the_time_a_consumer_takes_is_no_idle_time():
    setup, clock, _ = following()
    store = ObjectTranscriptStore(Container(setup.driver, clock=clock))
    append(setup.store, 0, 1, "a")
    given = []
    with store.follow(REF, stop_when_idle=5) as follower:
        for record in follower:
            given.append(record[:2])
            if len(given) == 2:
                clock.now += 100  # a slow consumer; something is added meanwhile
                append(setup.store, 2, 2, "a")
    assert given == [(0, "a"), (1, "a"), (2, "a")]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("last", [0, 1, 3, 7, 100])
def test_one_may_begin_at_the_end_and_gets_all_that_comes_after(last, compacted):
    setup, clock, follow = following(last=last)
    for seq in range(0, 10, 2):
        append(setup.store, seq, seq + 1, "b")
        append(setup.store, seq, seq + 1, "a")
    if compacted:
        setup.store.compact(REF, FULL)
    there = [record[:2] for record in setup.store.records(REF)]
    clock.at(5, lambda: append(setup.store, 8, 8, "late"))
    clock.at(9, lambda: append(setup.store, 10, 10, "b"))
    given, cursor = follow()
    assert given == [*there[len(there) - min(last, len(there)) :], (8, "late"), (10, "b")]
    assert follow(cursor)[0] == []


@pytest.mark.parametrize("last", [2, 3])
def test_one_who_began_at_the_end_gets_the_record_that_failed_when_going_on(last):
    setup, _, _ = following()
    for seq in range(4):
        append(setup.store, seq, seq)
    payload = b"the whole"
    named = {"pointer": "/a", "sha256": hashlib.sha256(payload).hexdigest(), "size": len(payload)}
    setup.store.append_segment(REF, 4, 4, "w", json.dumps({"a": "", "_offloaded": [named]}).encode())
    append(setup.store, 5, 5)
    follower = ObjectTranscriptStore(Container(setup.driver, clock=Clock())).follow(REF, last=last, stop_when_idle=60)
    assert [next(follower).seq for _ in range(last - 2)] == [3][: last - 2]
    with pytest.raises(CorruptSegmentError, match="is missing"):
        next(follower)
    setup.put(f"{REF.prefix}payloads/{named['sha256']}", payload)
    assert [next(follower)[:2] for _ in range(2)] == [(4, "w"), (5, "w")]


def test_beginning_at_the_end_reads_no_more_than_the_end():
    setup, _, follow = following(last=5)
    for seq in range(200):
        append(setup.store, seq, seq, f"w{seq}")
    setup.driver.requests.clear()
    assert [seq for seq, _ in follow()[0]] == list(range(195, 200))
    assert setup.driver.counts["get"] <= 8


def test_beginning_before_the_end_by_less_than_nothing_is_refused():
    setup, _, _ = following()
    with pytest.raises(ValueError, match="last must be 0 or more, or None, not -1"):
        setup.store.follow(REF, last=-1)


@pytest.mark.parametrize("last", [None, 2])
def test_a_segment_whose_name_says_too_much_is_read_once_and_hides_nothing_of_its_writer(last):
    setup, clock, _ = following()
    setup.put(f"{REF.prefix}events/0-{10**9}-a.jsonl", lines(range(5), "a"))
    append(setup.store, 0, 4, "w")
    clock.at(30, lambda: append(setup.store, 5, 6, "a"))
    store = ObjectTranscriptStore(Container(SparingObjectStore(setup.driver, 200), clock=clock))
    with store.follow(REF, stop_when_idle=120, last=last) as follower:
        found = [record[:2] for record in follower]
    there = [(seq, writer) for seq in range(5) for writer in "aw"]
    assert found == [*(there if last is None else there[-last:]), (5, "a"), (6, "a")]
    assert setup.driver.counts["get"] <= 6
