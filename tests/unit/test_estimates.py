"""An estimate says what the compaction after it does."""

from __future__ import annotations

import pytest
from unit.setups import REF, ServerClock, append, make

from transcript_backends import CompactionPolicy
from transcript_backends.drivers.memory import MemoryObjectStore


def in_order(store):
    for seq in range(40):
        append(store, seq, seq)


def interleaved(store):
    for seq in range(40):
        append(store, seq, seq, f"w{seq % 3}")
        append(store, seq, seq, "other")


def growing(store):
    for seq in range(0, 400, 10):
        append(store, seq, seq + seq // 50)
    for seq in range(500, 530):
        append(store, seq, seq)


def merged_before(store):
    for start in range(0, 64, 16):
        for seq in range(start, start + 16):
            append(store, seq, seq)
        store.compact(REF)
    append(store, 10, 40, "beside")
    for seq in range(64, 70):
        append(store, seq, seq)


def nothing(store):
    pass


@pytest.mark.parametrize("fill", [in_order, interleaved, growing, merged_before, nothing])
@pytest.mark.parametrize(
    "policy",
    [
        CompactionPolicy(),
        CompactionPolicy(full=True),
        CompactionPolicy(min_segments=2),
        CompactionPolicy(min_segments=4, target_bytes=700),
        CompactionPolicy(full=True, target_bytes=300),
        CompactionPolicy(full=True, min_age=60),
    ],
    ids=str,
)
def test_the_numbers_are_those_of_the_compaction_after_it(fill, policy):
    setup = make()
    fill(setup.store)
    setup.driver.requests.clear()
    plan = setup.store.estimate_compaction(REF, policy)
    assert not {"put", "delete_many"} & setup.driver.counts.keys()
    assert not any(each.key.endswith(".jsonl") for each in setup.driver.requests)

    setup.driver.requests.clear()
    result = setup.store.compact(REF, policy)
    assert plan[:3] == result[:3]
    counts = setup.driver.counts
    assert plan[3:] == (counts["get"], counts["put"], counts["list_page"], counts["delete_many"])


def test_a_long_transcript_takes_more_lists_and_deletes():
    setup = make()
    for seq in range(2500):
        append(setup.store, seq, seq)
    plan = setup.store.estimate_compaction(REF, CompactionPolicy(full=True))
    assert plan == (2500, 1, sum(each.size for each in setup.store.list_segments(REF)), 2500, 2, 6, 3)
    setup.driver.requests.clear()
    setup.store.compact(REF, CompactionPolicy(full=True))
    counts = setup.driver.counts
    assert plan[3:] == (counts["get"], counts["put"], counts["list_page"], counts["delete_many"])


def test_segments_too_young_are_left_out_by_the_servers_clock():
    clock = ServerClock()
    setup = make(memory=MemoryObjectStore("m", now=clock))
    in_order(setup.store)
    clock.go_on(minutes=5)
    append(setup.store, 40, 40)
    assert setup.store.estimate_compaction(REF, CompactionPolicy(min_age=60))[:2] == (41, 2)
    assert setup.store.estimate_compaction(REF, CompactionPolicy(min_age=600))[:2] == (41, 41)


def test_nothing_is_merged_beside_what_another_program_merged_or_under_a_delete():
    setup = make()
    in_order(setup.store)
    setup.put(f"{REF.prefix}events/{0:019d}-{39:019d}-compacted.jsonl", b"{}\n")
    assert setup.store.estimate_compaction(REF)[:2] == (41, 41)
    setup.put(f"{REF.prefix}events/deleting-1")
    assert setup.store.estimate_compaction(REF) == (41, 41, 0, 0, 0, 1, 0)
