"""What each operation asks of a service: the figures that the bill is made of (docs/costs.md)."""

from __future__ import annotations

import pytest
from unit.setups import REF, append, make

from transcript_backends import CompactionPolicy


def test_an_append_is_one_request():
    setup = make()
    append(setup.store, 0, 9)
    assert setup.driver.counts == {"put": 1}


@pytest.mark.parametrize(("segments", "lists"), [(0, 1), (1, 1), (999, 1), (1001, 2), (2500, 3)])
def test_a_listing_is_one_request_a_thousand_segments_and_a_read_one_more_a_segment(segments, lists):
    setup = make()
    for seq in range(segments):
        append(setup.store, seq, seq)
    setup.driver.requests.clear()
    assert len(setup.store.list_segments(REF)) == segments
    assert setup.driver.counts == {"list_page": lists}
    setup.driver.requests.clear()
    assert len(list(setup.store.records(REF))) == segments
    assert setup.driver.counts == {"list_page": lists, **({"get": segments} if segments else {})}


@pytest.mark.parametrize("compacted", [1, 2, 7])
def test_a_read_of_compacted_segments_is_two_requests_each(compacted):
    setup = make()
    for part in range(compacted):
        for seq in range(part * 16, part * 16 + 16):
            append(setup.store, seq, seq)
        setup.store.compact(REF)
    assert len(setup.store.list_segments(REF)) == compacted
    reader = make(memory=setup.memory)  # one that remembers no index
    assert len(list(reader.store.records(REF))) == 16 * compacted
    assert reader.driver.counts == {"list_page": 1, "get": 2 * compacted}


@pytest.mark.parametrize(("segments", "lists", "batches"), [(16, 2, 1), (340, 2, 1), (2500, 6, 3)])
def test_a_compaction_is_a_get_a_segment_two_puts_two_listings_and_a_batch_a_thousand(segments, lists, batches):
    setup = make()
    for seq in range(segments):
        append(setup.store, seq, seq)
    setup.driver.requests.clear()
    setup.store.compact(REF, CompactionPolicy(full=True))
    assert setup.driver.counts == {"list_page": lists, "get": segments, "put": 2, "delete_many": batches}


def test_a_compaction_that_finds_nothing_to_merge_is_one_listing():
    setup = make()
    for seq in range(15):
        append(setup.store, seq, seq)
    setup.driver.requests.clear()
    setup.store.compact(REF)
    assert setup.driver.counts == {"list_page": 1}
