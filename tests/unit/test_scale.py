"""The sessions that docs/scale.md and docs/costs.md calculate with behave as real ones do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from unit.setups import REF, ServerClock, append, lines, make

from benchmarks import costs, scale
from benchmarks.scale import Life
from transcript_backends import CompactionPolicy
from transcript_backends.drivers.memory import MemoryObjectStore

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
KINDS = {"puts": "put", "gets": "get", "lists": "list_page", "deletes": "delete_many"}


@pytest.mark.parametrize("full_at_end", [False, True])
@pytest.mark.parametrize(("gap", "every"), [(0, 16), (3, 16), (30, 16), (30, 1), (300, 7), (10, 300)])
def test_a_life_makes_the_requests_that_a_store_makes(gap, every, full_at_end):
    clock = ServerClock()
    writer = make(memory=MemoryObjectStore("m", now=clock))
    life, spent = Life(), Counter()

    def compact(now, policy):
        compactor = make(memory=writer.memory)  # one that knows nothing of earlier ones
        compactor.store.compact(REF, policy)
        spent.update(compactor.driver.counts)
        life.compact(now, policy)

    for seq in range(700):
        clock.go_on(seconds=gap)
        append(writer.store, seq, seq)
        life.append(1, len(lines([seq])))
        if seq % every == every - 1:
            compact(seq * gap, CompactionPolicy())
    if full_at_end:
        clock.go_on(hours=1)
        compact(699 * gap + 3600, CompactionPolicy(full=True))
    assert {name: getattr(life.compacted, name) for name in KINDS} == {name: spent[kind] for name, kind in KINDS.items()}
    assert writer.driver.counts["put"] == life.appended.puts
    assert len(writer.store.list_segments(REF)) == len(life.segments)

    reader = make(memory=writer.memory)
    assert len(list(reader.store.records(REF))) == 700
    assert (reader.driver.counts["list_page"], reader.driver.counts["get"]) == (life.read.lists, life.read.gets)


@pytest.mark.parametrize("every", [1, 16, 50])
def test_equal_appends_leave_at_most_15_segments_a_tier_and_are_written_once_a_tier_more(every):
    life = Life()
    for number in range(1, 5001):
        life.append(1, 1000)
        if number % every == 0:
            life.compact(0, CompactionPolicy())
            assert len(life.segments) <= 15 * scale.tiers(number)
            assert life.rewritten <= 1 + scale.tiers(number)


def test_mixed_appends_are_written_no_more_often_than_the_design_says():
    for schedule in scale.SCHEDULES:
        found = scale.simulate(schedule, list(scale.population(10, 10)))
        assert found.worst_rewritten <= 1 + schedule.at_end / 4, "a pass at the end is one more"
        assert found.worst_fan_in <= 2, "sizes that differ by far stay side by side"


def test_a_population_is_the_same_each_time_and_as_large_as_it_says():
    sessions = list(scale.population(150, 10))
    assert sessions == list(scale.population(150, 10))
    assert sessions != list(scale.population(150, 10, seed=2))
    records = [sum(count for count, _ in each.appends) for each in sessions]
    assert sum(records) / len(records) == pytest.approx(scale.RECORDS, rel=0.15)
    assert sum(records) / sum(len(each.appends) for each in sessions) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(("segments", "found"), [(1, 1), (16, 1), (17, 2), (256, 2), (257, 3), (10_000, 4)])
def test_tiers(segments, found):
    assert scale.tiers(segments) == found


@pytest.mark.parametrize(("document", "tables"), [("scale.md", scale.tables), ("costs.md", costs.tables)])
def test_the_document_holds_the_tables(document, tables):
    text = (DOCS / document).read_text()
    assert scale.written(text, tables()) == text, f"run: python -m benchmarks.{document.removesuffix('.md')} --write"


# --- what docs/costs.md says ------------------------------------------------------------------------------------------


def spent(life):
    return life.compacted.dollars(costs.PRICES["s3"])


def test_a_record_costs_a_put_a_batch():
    for batch in costs.BATCHES:
        assert costs.ours(batch).appended.puts * costs.SESSIONS == 1_000_000 / batch
        assert costs.ours(batch).appended.dollars(costs.PRICES["s3"]) * costs.SESSIONS == pytest.approx(5 / batch)


@pytest.mark.parametrize("segments", [60, 100, 1000, 10_000])
def test_one_pass_at_the_end_pays_off_with_the_second_read(segments):
    before, after = Life(), Life()
    for life in (before, after):
        for _ in range(segments):
            life.append(1, 1000)
    after.compact(0, CompactionPolicy(full=True))
    prices = costs.PRICES["s3"]
    reads = spent(after) / (before.read.dollars(prices) - after.read.dollars(prices))
    assert 1 < reads <= 2
    assert reads == pytest.approx((segments * 0.4 + 2 * 5 + 2 * 5) / ((segments - 2) * 0.4), rel=0.15)


@pytest.mark.parametrize("every", [16, 64])
def test_the_first_tier_costs_a_get_an_append_and_four_puts_a_merge(every):
    life = Life()
    for number in range(1, 15 * every + 1):  # 15 merges: nothing is merged twice
        life.append(1, 1000)
        if number % every == 0:
            life.compact(0, CompactionPolicy())
    assert spent(life) * 1e6 / life.appended.puts == pytest.approx(0.4 + (2 * 5 + 2 * 5) / every, rel=0.02)


def test_the_patterns_of_others():
    n, size = costs.RECORDS, costs.SIZE
    write, read = costs.strands()
    assert (write.puts, write.gets, read.gets, read.lists) == (2 * n, n, n + 2, n // 1000)
    write, read = costs.whole_file(10)
    assert (write.puts, write.gets, read.gets) == (n // 10, n // 10, 1)
    assert write.bytes_up == sum(10 * size * number for number in range(1, n // 10 + 1))
    assert write.bytes_down == write.bytes_up - n * size


def test_a_table_is_put_between_its_marks_and_nowhere_else():
    text = "# A\n<!-- one: by x -->\nold\n<!-- end -->\ntext\n<!-- two: by x -->\n<!-- end -->\n"
    changed = scale.written(text, {"one": "| a |", "two": "| b |"})
    assert changed == "# A\n<!-- one: by x -->\n| a |\n<!-- end -->\ntext\n<!-- two: by x -->\n| b |\n<!-- end -->\n"
    assert scale.written(changed, {"one": "| a |"}) == changed
    with pytest.raises(SystemExit, match="0 places for the table 'three'"):
        scale.written(text, {"three": ""})
