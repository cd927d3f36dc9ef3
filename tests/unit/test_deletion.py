from __future__ import annotations

import contextlib
import itertools

import pytest
from unit.setups import (
    EVENTS,
    REF,
    Crash,
    HookedObjectStore,
    ServerClock,
    StepObjectStore,
    UnorderedObjectStore,
    append,
    crash,
    lines,
    make,
)

from transcript_backends import AccessDeniedError, PartialDeleteError, StoreUnavailableError, TranscriptRef
from transcript_backends.container import Container, RetryPolicy
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, InjectedError, WrapperObjectStore
from transcript_backends.object_store import ObjectTranscriptStore

PAYLOAD = f"{REF.prefix}payloads/{'a' * 64}"
FOREIGN = [
    f"{EVENTS}.DS_Store",
    f"{EVENTS}5-4-w.jsonl",
    f"{EVENTS}deleted-01",
    f"{REF.prefix}index/x.json",
    f"{REF.prefix}payloads/x",
    f"{REF.prefix}README",
    f"{REF.prefix}s/0-0-w.jsonl",
]


def compacted(generation, start=0, end=1):
    return f"{EVENTS}{start:019d}-{end:019d}-compacted-{generation}-0123456789abcdef.jsonl"


def index(generation):
    return compacted(generation).replace("/events/", "/index/") + ".json"


def hooked(**options):
    hooks: list[HookedObjectStore] = []

    def wrap(inner):
        hooks.append(HookedObjectStore(inner))
        return hooks[0]

    return make(wrap=wrap, **options), hooks[0]


def left(setup):
    return [each.removeprefix(EVENTS) for each in setup.keys(REF.prefix)]


def marks(number):
    """What a delete leaves of itself."""
    return [f"deleted-{number}", f"deleting-{number}"]


# --- what goes and what stays -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [2, 1000])
@pytest.mark.parametrize("wrap", [lambda inner: inner, UnorderedObjectStore])
@pytest.mark.parametrize("purge", [False, True])
def test_all_of_the_transcript_goes_and_only_that(wrap, purge, page_size):
    setup = make("root/", wrap=wrap, memory=MemoryObjectStore("m", page_size=page_size))
    other = append(setup.store, 0, 0, ref=TranscriptRef("acme", "coder", "s10"))
    append(setup.store, 0, 1)
    append(setup.store, 0, 1, "v")
    for key in (
        compacted(0),
        compacted(3),
        index(0),
        index(3),
        PAYLOAD,
        f"{EVENTS}7-7-w.jsonl",
        f"{EVENTS}8-8-compacted.jsonl",
    ):
        setup.put(f"root/{key}", b"{}\n")
    for key in FOREIGN:
        setup.put(f"root/{key}", b"not ours")
    assert setup.store.delete(REF, purge=purge) == (9, 1)
    assert sorted(setup.keys()) == sorted(
        [other, *(f"root/{key}" for key in FOREIGN), *(f"root/{EVENTS}{mark}" for mark in ([] if purge else marks(1)))]
    )
    assert setup.store.list_segments(REF) == []


def test_more_than_a_batch_of_objects_goes():
    setup = make()
    for seq in range(2500):
        setup.put(f"{EVENTS}{seq}-{seq}-w.jsonl", b"{}\n")
    assert setup.store.delete(REF).deleted == 2500
    assert left(setup) == marks(1)


def test_a_second_delete_finds_nothing_and_makes_no_new_marker():
    setup = make()
    append(setup.store, 0, 1)
    assert setup.store.delete(REF) == (1, 1)
    setup.driver.requests.clear()
    assert setup.store.delete(REF) == (0, 1)
    assert setup.driver.counts == {"list_page": 1}
    assert left(setup) == marks(1)


def test_a_transcript_that_never_was_is_deleted_without_a_write():
    setup = make()
    assert setup.store.delete(REF) == (0, 0)
    assert setup.store.delete(REF, purge=True) == (0, 0)
    assert setup.driver.counts == {"list_page": 2}


def test_purging_later_removes_the_markers():
    setup = make()
    append(setup.store, 0, 1)
    setup.store.delete(REF)
    assert setup.store.delete(REF, purge=True) == (0, 1)
    assert setup.keys() == []


def test_each_delete_has_a_number_of_its_own_and_the_last_ones_markers_stay():
    setup = make()
    for number in (1, 2, 3):
        append(setup.store, 0, 1)
        assert setup.store.delete(REF) == (1, number)
        assert left(setup) == marks(number)


def test_a_transcript_lives_again_after_its_delete():
    setup = make()
    append(setup.store, 0, 1)
    setup.store.delete(REF)
    append(setup.store, 0, 1)
    assert [each.seq for each in setup.store.records(REF)] == [0, 1]
    assert list(setup.store.list_refs()) == [REF]


# --- failures ---------------------------------------------------------------------------------------------------------


class StubbornObjectStore(WrapperObjectStore):
    """Refuses to delete certain keys."""

    refused: frozenset[str] = frozenset()

    def delete_many(self, keys, *, versions=None):
        if allowed := [key for key in keys if key not in self.refused]:
            self.inner.delete_many(allowed, versions=versions)
        return {key: InjectedError(Meaning.DENIED) for key in keys if key in self.refused}

    def classify(self, error):
        return FaultyObjectStore(self.inner).classify(error)


def test_a_key_that_cant_be_deleted_is_named_and_the_next_call_finishes():
    setup = make(wrap=StubbornObjectStore)
    stubborn = setup.store._container.driver
    append(setup.store, 0, 1)
    key = append(setup.store, 2, 3)
    stubborn.refused = frozenset([key])
    with pytest.raises(PartialDeleteError, match=rf"1 of 2 objects .*{key}: .*call delete again to finish") as caught:
        setup.store.delete(REF)
    assert list(caught.value.failed) == [key]
    assert left(setup) == [key.removeprefix(EVENTS), "deleting-1"]
    stubborn.refused = frozenset()
    assert setup.store.delete(REF) == (1, 2)
    assert setup.store.list_segments(REF) == []
    assert "deleted-2" in left(setup)


@pytest.mark.parametrize("marker", marks(1))
def test_a_marker_that_cant_be_removed_is_named(marker):
    setup = make(wrap=StubbornObjectStore)
    append(setup.store, 0, 1)
    setup.store.delete(REF)
    append(setup.store, 0, 1)
    setup.store._container.driver.refused = frozenset([EVENTS + marker])
    with pytest.raises(PartialDeleteError, match=rf"{marker}.*call delete again") as caught:
        setup.store.delete(REF)
    assert list(caught.value.failed) == [EVENTS + marker]
    setup.store._container.driver.refused = frozenset()
    setup.store.delete(REF, purge=True)
    assert setup.store.list_segments(REF) == []


@pytest.mark.parametrize("operation", ["list_page", "put", "delete_many"])
@pytest.mark.parametrize("request_number", range(5))
@pytest.mark.parametrize("stored", [False, True])
def test_a_delete_broken_off_anywhere_is_finished_by_the_next(operation, request_number, stored):
    memory = MemoryObjectStore()
    faulty = FaultyObjectStore(memory)
    setup = make(memory=memory)
    for seq in range(3):
        append(setup.store, seq, seq)
    append(setup.store, 0, 0, "v")
    setup.store.delete(REF)
    for seq in range(3):
        append(setup.store, seq, seq)
    faulty.fail(operation, None, times=request_number)
    faulty.fail(operation, Meaning.TRY_AGAIN, stored=stored)
    try:
        broken = ObjectTranscriptStore(Container(faulty, retry=RetryPolicy(max_attempts=1)))
        broken.delete(REF)
    except (StoreUnavailableError, PartialDeleteError):
        setup.store.delete(REF)
    assert setup.store.list_segments(REF) == []
    assert any(each.startswith("deleted-") for each in left(setup))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ([f"{EVENTS}0-1-w.jsonl", f"{EVENTS}2-3-w.jsonl", f"{EVENTS}4-5-w.jsonl"], f"{EVENTS}2-3-w.jsonl"),
        ([f"{EVENTS}2-3-w.jsonl", f"{EVENTS}0-1-w.jsonl", f"{EVENTS}4-5-w.jsonl"], f"{EVENTS}0-1-w.jsonl"),
        ([f"{EVENTS}2-3-v.jsonl", f"{EVENTS}2-3-w.jsonl"], f"{EVENTS}.probe-"),
        ([index(0), compacted(0)], compacted(0)),
        ([f"{EVENTS}0-1-w.jsonl"], f"{EVENTS}.probe-"),
        ([PAYLOAD], f"{EVENTS}.probe-"),
        ([f"{EVENTS}deleting-3"], f"{EVENTS}.probe-"),
    ],
)
def test_the_youngest_object_that_holds_up_no_seq_is_deleted_before_anything_is_written(names, first):
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    for name in names:
        setup.put(name, b"{}")
        now.go_on(minutes=1)
    hook = HookedObjectStore(setup.store._container.driver)
    broken = ObjectTranscriptStore(Container(hook))
    hook.before("put", crash)
    with pytest.raises(Crash):
        broken.delete(REF)
    operation, key = setup.driver.requests[-1]
    assert (operation, key[: len(first)]) == ("delete_many", first)
    assert setup.keys() == sorted(set(names) - {first})
    now.go_on(hours=2)
    setup.store.delete(REF, purge=True)
    assert setup.keys() == []


@pytest.mark.parametrize(("segments", "batches"), [(1, 2), (2, 2), (1000, 2), (1001, 2), (1002, 3)])
def test_a_delete_is_three_listings_two_puts_and_one_batch_more_than_there_are_thousands(segments, batches):
    setup = make(memory=MemoryObjectStore("m", page_size=5000))
    for seq in range(segments):
        setup.put(f"{EVENTS}{seq}-{seq}-w.jsonl", b"{}\n")
    assert setup.store.delete(REF) == (segments, 1)
    assert setup.driver.counts == {"list_page": 3, "put": 2, "delete_many": batches}


def test_a_delete_that_finds_a_later_one_begun_takes_a_number_after_it():
    setup = make()
    hooks = HookedObjectStore(setup.memory)
    store = ObjectTranscriptStore(Container(hooks))
    append(store, 0, 0)

    def meanwhile():  # a follower sees the record in the generation of that delete
        setup.put(f"{EVENTS}deleting-2", b"another")
        append(setup.store, 1, 1, "late")

    hooks.before("list_page", meanwhile, after=1)
    assert store.delete(REF).generation == 3
    assert list(setup.store.records(REF)) == []
    assert f"{EVENTS}deleted-3" in setup.keys(EVENTS)
    assert f"{EVENTS}deleting-1" not in setup.keys(EVENTS)


def test_nothing_of_a_delete_that_was_refused_is_finished_by_somebody_who_may():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    append(setup.store, 0, 1)
    faulty = FaultyObjectStore(setup.memory)
    faulty.fail("delete_many", Meaning.DENIED)
    with pytest.raises(AccessDeniedError, match=r"could not delete .*\.probe-"):
        ObjectTranscriptStore(Container(faulty)).delete(REF)
    now.go_on(hours=2)
    assert setup.store.verify(REF, repair=True)[3:] == ([], [])
    assert len(list(setup.store.records(REF))) == 2


# --- others at work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("operation", ["delete_many", "list_page", "put"])
def test_what_is_appended_during_a_delete_is_whole_or_gone_and_never_half(operation, after):
    setup, hook = hooked()
    other = make(memory=setup.memory)
    append(setup.store, 0, 1)
    hook.before(operation, lambda: [append(other.store, 5, 6), append(other.store, 7, 8)], after=after)
    setup.store.delete(REF)
    assert [each.seq for each in setup.store.records(REF)] in ([], [5, 6, 7, 8])


@pytest.mark.parametrize("request_", [("delete_many", ".jsonl"), ("put", "deleted-")])
def test_what_is_appended_after_the_delete_began_to_remove_stays(request_):
    setup, hook = hooked()
    other = make(memory=setup.memory)
    append(setup.store, 0, 1)
    operation, key = request_
    hook.before(operation, lambda: append(other.store, 5, 6), key=key)
    assert setup.store.delete(REF).deleted == 1
    assert [each.seq for each in setup.store.records(REF)] == [5, 6]
    assert left(setup)[1:] == marks(1)


def test_a_segment_written_again_under_its_key_during_the_delete_is_named():
    setup, hook = hooked()
    other = make(memory=setup.memory)
    key = append(setup.store, 0, 1)
    hook.before("list_page", lambda: append(other.store, 0, 1), after=2)
    with pytest.raises(PartialDeleteError, match="written again while it was being deleted") as caught:
        setup.store.delete(REF)
    assert list(caught.value.failed) == [key]
    setup.store.delete(REF)
    assert setup.store.list_segments(REF) == []


def test_what_a_compaction_of_before_writes_during_the_delete_is_removed():
    setup, hook = hooked()
    append(setup.store, 0, 1)
    hook.before("delete_many", lambda: [setup.put(each, lines([0, 1])) for each in (index(0), compacted(0))], key=".jsonl")
    assert setup.store.delete(REF) == (1, 1)
    assert left(setup) == marks(1)


def test_what_a_compaction_of_before_writes_after_the_delete_is_not_seen_and_goes_with_the_next():
    setup = make()
    append(setup.store, 0, 1)
    setup.store.delete(REF)
    setup.put(index(0), b"{}")
    setup.put(compacted(0), lines([0, 1]))
    assert setup.store.list_segments(REF) == list(setup.store.records(REF)) == list(setup.store.list_refs()) == []
    assert setup.store.next_seq(REF) == 0
    assert setup.store.delete(REF) == (2, 2)
    assert left(setup) == marks(2)


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("operation", ["list_page", "put", "delete_many"])
@pytest.mark.parametrize("purges", [(False, False), (True, False), (False, True)])
def test_two_deletes_at_once_share_no_marker_and_leave_nothing(operation, after, purges):
    setup, hook = hooked()
    other = make(memory=setup.memory)
    for seq in range(4):
        append(setup.store, seq, seq)
    results = []
    hook.before(operation, lambda: results.append(other.store.delete(REF, purge=purges[1])), after=after)
    results.append(setup.store.delete(REF, purge=purges[0]))
    assert setup.store.list_segments(REF) == []
    puts = [
        each.key
        for each in setup.driver.requests + other.driver.requests
        if each.operation == "put" and "deleting-" in each.key
    ]
    numbers = [each.generation for each in results if each.deleted]
    assert len(set(numbers)) == len(numbers) <= len(puts) or purges[1]  # whose numbers are used again
    assert all(f"deleted-{mark.partition('-')[2]}" in left(setup) for mark in left(setup))
    if not any(purges):
        assert set(marks(max(each.generation for each in results))) <= set(left(setup))


def test_a_number_that_a_delete_has_finished_meanwhile_is_not_used_again():
    setup, hook = hooked()
    other = make(memory=setup.memory)
    append(setup.store, 0, 1)

    def whole_life_of_another():
        assert other.store.delete(REF) == (1, 1)
        append(other.store, 2, 3)

    hook.before("put", whole_life_of_another, key="deleting-1")
    assert setup.store.delete(REF) == (1, 2)
    assert left(setup) == marks(2)


def test_a_number_of_which_only_the_last_marker_is_left_is_not_used():
    setup, hook = hooked()
    append(setup.store, 0, 1)
    hook.before("put", lambda: setup.put(f"{EVENTS}deleted-1"), key="deleting-1")  # by a program that removes the first
    assert setup.store.delete(REF) == (1, 2)
    assert left(setup) == marks(2)


def test_a_number_below_one_that_another_delete_has_finished_meanwhile_is_not_used():
    setup, hook = hooked()
    other = make(memory=setup.memory)
    append(setup.store, 0, 1)

    def two_lives_of_others():
        for number in (1, 2):
            assert other.store.delete(REF) == (1, number)
            append(other.store, 2, 3)

    hook.before("put", two_lives_of_others, key="deleting-1")
    assert setup.store.delete(REF) == (1, 3)
    assert left(setup) == marks(3)


@pytest.mark.parametrize("purge", [False, True])
def test_a_delete_that_dies_leaves_no_older_one_that_seems_to_be_at_work(purge):
    for number in itertools.count():
        setup = make()
        append(setup.store, 0, 1)
        setup.store.delete(REF)
        append(setup.store, 0, 1)
        step = StepObjectStore(setup.memory, number, crash)
        with contextlib.suppress(Crash):
            ObjectTranscriptStore(Container(step)).delete(REF, purge=purge)
        assert "deleting-1" not in left(setup) or "deleted-1" in left(setup)
        if step.count <= number:
            assert number > 6
            return


def test_the_marker_of_a_delete_that_died_is_not_taken_for_ones_own():
    setup, hook = hooked()
    other, death = hooked(memory=setup.memory)
    append(setup.store, 0, 1)

    def start_and_die():
        death.before("delete_many", lambda: 1 / 0, key=".jsonl")
        with pytest.raises(ZeroDivisionError):
            other.store.delete(REF)

    hook.before("put", start_and_die, key="deleting-1")
    assert setup.store.delete(REF) == (1, 2)
    assert left(setup) == ["deleted-2", "deleting-1", "deleting-2"]


def test_a_number_that_is_taken_is_left_to_its_owner():
    setup, hook = hooked()
    append(setup.store, 0, 1)
    hook.before("put", lambda: [setup.put(f"{EVENTS}deleting-{number}", b"theirs") for number in (1, 2)], key="deleting-1")
    assert setup.store.delete(REF) == (1, 3)
    assert left(setup) == ["deleted-3", "deleting-1", "deleting-2", "deleting-3"]
    assert setup.body(f"{EVENTS}deleting-1") == b"theirs"


@pytest.mark.parametrize(("minutes", "stays"), [(0, True), (59, True), (60, True), (61, False), (6000, False)])
def test_the_marker_of_another_is_removed_when_it_is_older_than_an_hour_by_the_servers_clock(minutes, stays):
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    setup.put(f"{EVENTS}deleting-7", b"theirs")
    append(setup.store, 0, 1)
    now.go_on(minutes=minutes)
    assert setup.store.delete(REF) == (1, 8)
    assert left(setup) == ["deleted-8", *(["deleting-7"] if stays else []), "deleting-8"]


def test_a_marker_left_by_a_dead_delete_is_removed_though_nothing_else_is_there():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    setup.put(f"{EVENTS}deleting-1", b"theirs")
    now.go_on(hours=2)
    assert setup.store.delete(REF) == (0, 2)
    assert left(setup) == marks(2)


def test_a_delete_whose_marker_has_vanished_asks_to_be_called_again():
    setup, hook = hooked()
    append(setup.store, 0, 1)
    hook.before("delete_many", lambda: setup.memory.delete_many([f"{EVENTS}deleting-1"]), key=".jsonl")
    with pytest.raises(PartialDeleteError, match="marker may have been taken for abandoned; call delete again"):
        setup.store.delete(REF)
    assert setup.store.delete(REF).deleted == 0
    assert setup.store.list_segments(REF) == []


@pytest.mark.parametrize(("minutes", "fine"), [(49, True), (51, False)])
def test_a_delete_that_took_too_long_no_longer_trusts_its_marker(minutes, fine):
    class Clock:
        time = 0.0

        def monotonic(self):
            return self.time

        def sleep(self, seconds):
            raise AssertionError

        def jitter(self):
            return 0.0

    clock, memory = Clock(), MemoryObjectStore("m")
    hook = HookedObjectStore(memory)
    store = ObjectTranscriptStore(Container(hook, clock=clock))
    append(store, 0, 1)
    hook.before("delete_many", lambda: setattr(clock, "time", minutes * 60.0))
    if fine:
        assert store.delete(REF).deleted == 1
    else:
        with pytest.raises(PartialDeleteError, match="took so long"):
            store.delete(REF)


# --- finishing the deletes of others ----------------------------------------------------------------------------------


def test_after_repair_the_generation_is_that_of_the_later_of_two_dead_deletes():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    for number in (1, 2):
        setup.put(f"{EVENTS}deleting-{number}", b"dead")
    now.go_on(hours=2)
    assert setup.store.verify(REF, repair=True).ok
    assert left(setup) == marks(2)
    setup.put(index(1), b"{}")
    setup.put(compacted(1), lines([0, 1]))  # by a compaction of before, late
    assert setup.store.list_segments(REF) == []


def test_repair_calls_no_delete_finished_while_something_of_it_can_not_be_removed():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now), wrap=StubbornObjectStore)
    key = append(setup.store, 0, 1)
    now.go_on(seconds=1)
    setup.put(f"{EVENTS}deleting-1", b"dead")
    now.go_on(hours=2)
    stubborn = setup.store._container.driver
    stubborn.refused = frozenset([key])
    report = setup.store.verify(REF, repair=True)
    assert report.problems[0][:2] == ("not removed", key)
    assert not report.ok
    assert left(setup) == [key.removeprefix(EVENTS), "deleting-1"]
    stubborn.refused = frozenset()
    assert setup.store.verify(REF, repair=True).ok
    assert left(setup) == marks(1)


def test_what_was_appended_in_the_moment_of_a_dead_delete_outlives_its_repair():
    now = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=now))
    setup.put(f"{EVENTS}deleting-1", b"dead")
    key = append(setup.store, 0, 1)  # after it, in the same second
    now.go_on(hours=2)
    assert setup.store.verify(REF, repair=True).ok
    assert [each.key for each in setup.store.list_segments(REF)] == [key]
    assert left(setup) == [key.removeprefix(EVENTS), *marks(1)]
