"""Looking for what is wrong with a transcript, and mending what can be mended."""

from __future__ import annotations

import pytest
from unit.setups import EVENTS, REF, HookedObjectStore, ServerClock, append, line, lines, make

from transcript_backends import CompactionPolicy, CorruptSegmentError
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FlippingObjectStore

FULL = CompactionPolicy(full=True)


def kinds(report):
    return [problem.kind for problem in report.problems]


def segment(start, end, writer="w"):
    return f"{EVENTS}{start:019d}-{end:019d}-{writer}.jsonl"


def compacted(setup):
    """A transcript of three segments merged into one; gives the keys of the segment and of its index."""
    bodies = {append(setup.store, seq, seq): lines([seq], "w") for seq in range(3)}
    setup.store.compact(REF, FULL)
    (index,) = setup.keys(f"{REF.prefix}index/")
    (key,) = (each for each in setup.keys(EVENTS) if "compacted" in each)
    return key, index, bodies


def test_a_sound_transcript_is_counted_and_has_no_problems():
    setup = make()
    for start, end in ((0, 4), (5, 5), (6, 9)):
        append(setup.store, start, end)
    size = sum(each.size for each in setup.store.list_segments(REF))
    assert setup.store.verify(REF) == (3, 10, size, [], [])
    assert setup.store.verify(REF).ok
    setup.store.compact(REF, FULL)
    assert setup.store.verify(REF) == (1, 10, size, [], [])


def test_an_empty_transcript_is_sound():
    assert make().store.verify(REF) == (0, 0, 0, [], [])


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"a":1}\n{"b"\n{"c":3}\n', "line 2 at byte 8 is no JSON object"),
        (b'{"a":1}\n[1]\n{"c":3}\n', "line 2 at byte 8 is no JSON object"),
        (b'{"a":1}\n{"b":2}\n{"c":', "line 3 at byte 16 was cut short"),
        (b'\xef\xbb\xbf{"a":1}\n{"b":2}\n{"c":3}\n', "line 1 at byte 0 is no JSON object"),
        (b'{"a":1}\n\n{"c":3}\n', "line 2 at byte 8 is blank"),
        (b'{"a":"' + b"x" * 4 * 1024 * 1024 + b'"}\n{"b":2}\n{"c":3}\n', "line 1 at byte 0 is 4194312 bytes long, more than"),
    ],
    ids=["half", "array", "torn", "mark", "blank", "long"],
)
def test_a_damaged_line_is_named_with_its_place_and_the_rest_is_counted(body, detail):
    setup = make()
    append(setup.store, 0, 3, "good")
    key = setup.put(segment(4, 6), body)
    report = setup.store.verify(REF)
    (problem,) = report.problems
    assert (problem.kind, problem.key) == ("damaged line", key)
    assert problem.detail.startswith(detail)
    assert not report.ok
    assert report.segments == 2


def test_a_line_count_unlike_the_name_is_found():
    setup = make()
    key = setup.put(segment(0, 2), lines(range(2)))
    (problem,) = setup.store.verify(REF).problems
    assert problem[:2] == ("wrong line count", key)
    assert "2 lines, its name says 3" in problem.detail


def test_a_segment_that_is_not_what_was_stored_is_found():
    setup = make()
    key = append(setup.store, 0, 0)
    metadata = setup.memory.head(key).metadata
    setup.memory.put(key, line(7) + b"\n", mode="overwrite", metadata=metadata)
    (problem,) = setup.store.verify(REF).problems
    assert problem[:2] == ("wrong hash", key)


def flipping():
    """As `make`, with what tells responses to have another byte, and what does something before a request."""
    drivers = []

    def wrap(inner):
        drivers.append(FlippingObjectStore(inner))
        drivers.append(HookedObjectStore(drivers[0]))
        return drivers[1]

    return make(wrap=wrap), *drivers


def forget_metadata(setup):
    for key in setup.keys(EVENTS):
        setup.put(key, setup.body(key))


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "no metadata"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["plain", "compacted"])
def test_one_response_with_another_byte_is_no_damage(is_kept, is_compacted):
    setup, driver, _ = flipping()
    setup.store.append_segment(REF, 0, 1, "w", b'{"n":0}\n{"n":1}')  # whose quote goes
    append(setup.store, 2, 2)
    if is_compacted:
        setup.store.compact(REF, FULL)
    if not is_kept:
        forget_metadata(setup)
    sound = setup.store.verify(REF)
    assert sound.ok
    driver.flip(setup.keys(EVENTS)[0])
    assert setup.store.verify(REF) == sound
    assert driver.flipped == 1


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "no metadata"])
def test_one_response_with_another_byte_makes_no_conflict(is_kept):
    setup, driver, hooks = flipping()
    append(setup.store, 0, 1)
    key = append(setup.store, 1, 1)
    if not is_kept:
        forget_metadata(setup)
    sound = setup.store.verify(REF)
    assert sound.ok
    hooks.before("get", lambda: driver.flip(key), key=key, after=1)
    assert setup.store.verify(REF) == sound
    assert driver.flipped == 1


def test_one_response_with_another_payload_or_index_is_no_damage():
    setup, driver, _ = flipping()
    compacted(setup)
    with setup.store.writer(REF, offload_bytes=1000) as writer:
        writer.append({"text": "x" * 9000})
    sound = setup.store.verify(REF)
    assert sound.ok
    for part in ("/payloads/", "/index/"):
        driver.flip(part)
        assert setup.store.verify(REF) == sound
    assert driver.flipped == 2


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda setup, key, index: setup.put(key, setup.body(key).replace(b'"n":1', b'"n":7')), "wrong hash"),
        (lambda setup, key, index: setup.put(index, b"{}"), "wrong index"),
        (lambda setup, key, index: setup.memory.delete_many([index]), "missing index"),
    ],
    ids=["segment", "index", "no index"],
)
def test_a_damaged_compacted_segment_is_found(damage, kind):
    setup = make()
    key, index, _ = compacted(setup)
    damage(setup, key, index)
    if kind == "wrong index":  # reading is refused as well: guessing whose records these are would be worse
        with pytest.raises(CorruptSegmentError, match="index"):
            list(setup.store.records(REF))
    report = setup.store.verify(REF)
    assert kind in kinds(report)
    assert not report.ok


def test_an_index_that_was_damaged_after_it_was_read_is_found():
    setup = make()
    _, index, _ = compacted(setup)
    assert len(list(setup.store.records(REF))) == 3  # now the store remembers it
    setup.put(index, b"{}")
    assert "wrong index" in kinds(setup.store.verify(REF))


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("is_ours_merged", [True, False])
def test_what_another_implementation_merged_beside_all_of_its_sources_is_removed_when_it_is_an_hour_old(
    is_ours_merged, has_ids
):
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    lines = [b'{"id":"e%d","n":%d}\n' % (n, n) if has_ids else b'{"n":%d}\n' % (n // 2) for n in range(6)]
    for n, each in enumerate(lines):
        setup.store.append_segment(REF, n, n, "w", each)
    if is_ours_merged:
        setup.store.compact(REF, CompactionPolicy(full=True))
    before = list(setup.store.records(REF))
    clock.go_on(hours=3)
    foreign = setup.put(f"{EVENTS}0-5-compacted.jsonl", b"".join(lines))
    part = setup.put(f"{EVENTS}6-7-compacted.jsonl", b'{"n":6}\n{"n":7}\n')  # whose sources are gone
    for much, removed in ((0, []), (50, []), (20, [foreign]), (0, [])):
        clock.go_on(minutes=much)
        assert make(memory=setup.memory).store.verify(REF, repair=True).repaired == removed
    assert [record for record in setup.store.records(REF) if record.seq < 6] == before
    assert part in setup.keys(EVENTS)


def test_what_another_implementation_merged_stays_where_a_line_of_it_is_nowhere_else():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    for n in (0, 2):
        setup.store.append_segment(REF, n, n, "w", b'{"n":1}\n')
    setup.put(f"{EVENTS}0-2-compacted.jsonl", b'{"n":1}\n' * 3)
    clock.go_on(hours=2)
    assert setup.store.verify(REF, repair=True).repaired == []


def test_gaps_overlaps_conflicts_and_foreign_objects_are_told_apart():
    setup = make()
    append(setup.store, 0, 3, "a")
    append(setup.store, 2, 3, "b")
    append(setup.store, 6, 6, "a")
    append(setup.store, 9, 9, "a")
    setup.put(f"{EVENTS}.DS_Store")
    report = setup.store.verify(REF)
    assert sorted(kinds(report)) == ["foreign objects", "gap", "gap", "overlap"]
    assert [each.detail for each in report.problems if each.kind == "gap"] == [
        "nobody has written seq 4 to 5",
        "nobody has written seq 7 to 8",
    ]
    assert report.ok
    setup.put("acme/coder/s1/events/6-7-a.jsonl", b'{"other":6}\n{"n":7}\n')
    report = setup.store.verify(REF)
    assert "conflict" in kinds(report)
    assert not report.ok
    assert report.records == 10


def test_a_gap_of_one_record_and_what_a_delete_has_overtaken_are_named():
    setup = make()
    append(setup.store, 0, 3)
    append(setup.store, 5, 5)
    dead = setup.put(segment(0, 1, "compacted-0-0123456789abcdef"), lines([0, 1]))
    setup.put(f"{EVENTS}deleting-1")
    setup.put(f"{EVENTS}deleted-1")
    report = setup.store.verify(REF)
    assert [(each.kind, each.key) for each in report.problems] == [("dead generation", dead), ("gap", REF.prefix)]
    assert report.problems[1].detail == "nobody has written seq 4"
    assert report.ok


def test_leftovers_are_named_and_repair_removes_just_them():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore(now=clock))
    first, old_index, _ = compacted(setup)
    first_body = setup.body(first)
    append(setup.store, 3, 3)
    clock.go_on(minutes=1)
    (merged,) = setup.store.compact(REF, FULL).merged
    before = list(setup.store.records(REF))
    clock.go_on(minutes=-1)
    setup.put(first, first_body)  # as if it could not be removed
    source = append(setup.store, 3, 3)
    foreign = setup.put(f"{EVENTS}notes.txt")
    clock.go_on(hours=2)
    report = setup.store.verify(REF)
    assert sorted(kinds(report)) == ["foreign objects", "redundant segment", "redundant segment"]
    assert report.ok
    assert (report.segments, report.records, report.repaired) == (1, 4, [])

    report = setup.store.verify(REF, repair=True)
    assert sorted(kinds(report)) == ["foreign objects", "orphan index"]
    assert sorted(report.repaired) == sorted([first, source])
    report = setup.store.verify(REF, repair=True)
    assert kinds(report) == ["foreign objects"]
    assert report.repaired == [old_index]
    assert setup.keys(f"{EVENTS}0") == [merged]
    assert foreign in setup.keys(EVENTS)
    assert list(setup.store.records(REF)) == before


def test_repair_keeps_a_source_with_other_content():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore(now=clock))
    _, _, bodies = compacted(setup)
    clock.go_on(seconds=1)
    source, body = next(iter(bodies.items()))
    setup.put(source, body.replace(b'"n":0', b'"n":9'))
    report = setup.store.verify(REF, repair=True)
    assert kinds(report) == ["conflict"]
    assert report.repaired == []
    assert len(list(setup.store.records(REF))) == 4


def test_a_delete_that_died_is_reported_and_finished_an_hour_later():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore(now=clock))
    append(setup.store, 0, 3)
    clock.go_on(minutes=1)
    setup.put(f"{EVENTS}deleting-1", b"somebody")
    clock.go_on(minutes=59)
    late = append(setup.store, 4, 4)
    assert kinds(setup.store.verify(REF, repair=True)) == ["unfinished delete", *[]]
    assert len(list(setup.store.records(REF))) == 5
    clock.go_on(minutes=2)
    report = setup.store.verify(REF, repair=True)
    assert report.problems == []
    assert len(report.repaired) == 1
    assert setup.keys(REF.prefix) == [late, f"{EVENTS}deleted-1", f"{EVENTS}deleting-1"]


def test_what_can_not_be_removed_is_reported():
    clock = ServerClock()
    memory = MemoryObjectStore(now=clock)
    setup = make(memory=memory)
    _, _, bodies = compacted(setup)
    clock.go_on(hours=-1)
    source, body = next(iter(bodies.items()))
    setup.put(source, body)
    memory.delete_many = lambda keys, **_: {key: KeyError("held") if key != source else _denied() for key in keys}
    memory.classify = lambda error: error.failure if hasattr(error, "failure") else MemoryObjectStore.classify(memory, error)
    report = setup.store.verify(REF, repair=True)
    assert kinds(report) == ["not removed", "redundant segment"]
    assert "object lock" in report.problems[0].detail
    assert not report.ok


def _denied():
    from transcript_backends.drivers.driver import Failure, Meaning

    error = Exception("held")
    error.failure = Failure(Meaning.DENIED, "object lock")
    return error


def test_a_compaction_in_the_middle_of_a_verification_is_no_problem():
    memory = MemoryObjectStore()
    hooked = HookedObjectStore(memory)
    setup = make(wrap=lambda inner: hooked, memory=memory)
    for seq in range(5):
        append(setup.store, seq, seq)
    other = make(memory=memory)
    hooked.before("get", lambda: other.store.compact(REF, FULL), after=3)
    report = setup.store.verify(REF)
    assert report[:2] == (1, 5)
    assert report.problems == []
