from __future__ import annotations

import math
import random
from datetime import datetime, timezone
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transcript_backends import CompactionPolicy, SegmentInfo
from transcript_backends.planning import must_settle, next_run

TIME = datetime(2026, 1, 1, tzinfo=timezone.utc)


def segment(start, end, size):
    return SegmentInfo(f"{start}-{end}-w.jsonl", start, end, "w", TIME, size)


def segments(*sizes):
    return [segment(i, i, size) for i, size in enumerate(sizes)]


def merged(run):
    return segment(run[0].seq_start, run[-1].seq_end, sum(each.size for each in run))


def replaced(present, run):
    at = present.index(run[0])
    assert present[at : at + len(run)] == list(run), "not neighbours in order"
    return [*present[:at], merged(run), *present[at + len(run) :]]


def planned(present, policy, excluded=frozenset()):
    """All merges until nothing is left to do; gives the runs, and what stands then."""
    runs = []
    while run := next_run(present, excluded, policy):
        runs.append(run)
        present = replaced(present, run)
    return runs, present


sizes = st.lists(st.one_of(st.integers(0, 30), st.integers(0, 1200), st.just(1000), st.just(10)), max_size=60)
policies = st.builds(CompactionPolicy, st.integers(2, 20), st.just(1000), full=st.booleans())


@given(sizes, policies, st.sets(st.integers(0, 60), max_size=5))
@settings(max_examples=300)
def test_what_is_merged_is_small_wanted_and_side_by_side(given_sizes, policy, out):
    present = segments(*given_sizes)
    excluded = {each.key for each in present if each.seq_start in out}
    runs, after = planned(present, policy, excluded)  # it ends, and each run is of neighbours in order
    for run in runs:
        assert len(run) > 1
        assert all(each.size < policy.target_bytes and each.key not in excluded for each in run)
        total = sum(each.size for each in run)
        assert total <= 1.5 * policy.target_bytes
        assert policy.full or len(run) >= policy.min_segments or total >= policy.target_bytes / 2
    assert [each for each in after if each.key in excluded] == [each for each in present if each.key in excluded]
    assert sum(each.size for each in after) == sum(given_sizes)


@given(sizes, st.integers(2, 20))
@settings(max_examples=300)
def test_full_leaves_no_neighbours_that_fit_into_one(given_sizes, min_segments):
    policy = CompactionPolicy(min_segments, 1000, full=True)
    _, after = planned(segments(*given_sizes), policy)
    for one, other in pairwise(after):
        assert one.size >= 1000 or other.size >= 1000 or one.size + other.size > 1000


@pytest.mark.parametrize(
    ("given_sizes", "policy", "found"),
    [
        ([], CompactionPolicy(2, 1000), None),
        ([1], CompactionPolicy(2, 1000, full=True), None),
        ([10] * 15, CompactionPolicy(16, 1000), None),
        ([10] * 16, CompactionPolicy(16, 1000), range(16)),
        ([10] * 15, CompactionPolicy(16, 1000, full=True), range(15)),
        ([10] * 8 + [1000] + [10] * 8, CompactionPolicy(16, 1000), None),
        ([10] * 8 + [1000] + [10] * 8, CompactionPolicy(16, 1000, full=True), range(8)),
        ([10] * 8 + [999] + [10] * 8, CompactionPolicy(16, 1000), None),
        ([900] + [10] * 16, CompactionPolicy(16, 1000), range(1, 17)),
        ([10] * 16 + [900], CompactionPolicy(16, 1000), range(16)),
        ([39, 10] * 8, CompactionPolicy(16, 1000), range(16)),
        ([160, 10] * 8, CompactionPolicy(16, 10_000), None),
        ([160, 10] * 16, CompactionPolicy(16, 10_000), range(32)),
        ([160] * 15 + [10], CompactionPolicy(16, 10_000), None),
        ([0] * 16, CompactionPolicy(16, 1000), range(16)),
        ([600] * 16, CompactionPolicy(16, 1000), None),
        ([100] * 32, CompactionPolicy(16, 1000), range(10)),
        ([600, 600, 300], CompactionPolicy(16, 1000, full=True), range(1, 3)),
    ],
)
def test_examples(given_sizes, policy, found):
    run = next_run(segments(*given_sizes), set(), policy)
    assert (run and [each.seq_start for each in run]) == (found and list(found))


# --- over the life of a session: an append, then a compaction, and so on ----------------------------------------------


class Life:
    """What a session's compactions cost; the figures are taken after each append."""

    def __init__(self, given_sizes, policy):
        self.segments, self.data, self.written = [], 0, 0
        self.most_beyond_target, self.worst = 0, 0.0
        self.rewritten = []  # the sizes of all segments that were read to be merged
        for i, size in enumerate(given_sizes):
            self.data += size
            runs, self.segments = planned([*self.segments, segment(i, i, size)], policy)
            for run in runs:
                self.written += sum(each.size for each in run)
                self.rewritten += [each.size for each in run]
            self.most_beyond_target = max(self.most_beyond_target, len(self.segments) - self.data / policy.target_bytes)
            self.worst = max(self.worst, self.written / self.data / levels(i + 1, policy.min_segments))


def levels(count, min_segments):
    """ceil(log(count) / log(min_segments)), at least 1, without rounding errors."""
    found = 1
    while min_segments**found < count:
        found += 1
    return found


@pytest.mark.parametrize("target", [1000, 10_000, 10**9])
@pytest.mark.parametrize(("min_segments", "count"), [(2, 600), (3, 800), (4, 800), (8, 1000), (16, 2000)])
def test_equal_appends_are_rewritten_once_a_tier_and_leave_few_objects(min_segments, count, target):
    life = Life([30] * count, CompactionPolicy(min_segments, target))
    assert life.worst <= 1
    finished = max(each.size for each in life.segments)
    ends_early = life.data / min(finished, target) - life.data / target  # merged ones that no other fits into
    assert life.most_beyond_target < min_segments * levels(count, min_segments) + ends_early


PATTERNS = {
    "within a factor of 4": lambda chance, i: chance.randint(10, 39),
    "over a factor of 1000": lambda chance, i: int(10 * 1000 ** chance.random()),
    "tiny ones after a large one": lambda chance, i: 1000 if i % 16 == 0 else 10,
    "a few tiny ones after a large one": lambda chance, i: 1000 if i % 6 == 0 else 10,
    "large ones, then tiny ones": lambda chance, i: 9000 if i < 20 else 10,
    "tiny ones, then large ones": lambda chance, i: 9000 if i > 1500 else 10,
}


@pytest.mark.parametrize("target", [100_000, 10**9])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_mixed_appends_are_rewritten_a_bounded_number_of_times_and_leave_few_objects(pattern, target):
    chance = random.Random(5)
    policy = CompactionPolicy(16, target)
    given_sizes = [PATTERNS[pattern](chance, i) for i in range(1500 if pattern != "tiny ones, then large ones" else 1600)]
    life = Life(given_sizes, policy)
    # Each merge puts a record into a segment twice as large at least, but for one that ends half full or more: two at most.
    assert life.written <= (math.log2(life.data / min(given_sizes)) + 2) * life.data
    assert life.worst <= 1.1  # what it is in fact: about the bound of equal ones
    assert life.most_beyond_target < 16 * (levels(max(given_sizes) / min(given_sizes), 16) + levels(len(given_sizes), 16))


@pytest.mark.parametrize("large", [900, 9_000, 20_000, 31_000])
def test_a_large_segment_is_not_rewritten_for_a_few_small_ones(large):
    life = Life([large] + [10] * 1000, CompactionPolicy(16, 32_000))
    assert sum(size >= large for size in life.rewritten) <= math.log2(32_000 / large)
    assert life.written <= levels(1000, 16) * 10_000 + large * max(1, math.log2(10_000 / large))


def test_many_full_segments_cause_no_merge_of_the_few_after_them():
    present = segments(*[960] * 40, 30, 30, 30)
    assert next_run(present, set(), CompactionPolicy(16, 1000)) is None


def test_what_was_merged_is_settled_before_it_is_merged_further():
    one, *others = segments(10, 10, 10)
    assert must_settle({one.key: segments(5, 5)}, [one, *others])
    assert not must_settle({one.key: segments(5, 5)}, others)
    assert not must_settle({}, others)


class CountedSize(int):
    compared = 0

    def _count(name):
        def compare(self, other):
            CountedSize.compared += 1
            return getattr(int, name)(self, other)

        return compare

    __lt__, __le__, __gt__, __ge__ = map(_count, ("__lt__", "__le__", "__gt__", "__ge__"))
    __hash__ = int.__hash__


@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_ten_thousand_segments_of_different_sizes_take_a_few_passes(order):
    given_sizes = list(range(1000, 11_000))
    if order == "mixed":
        random.Random(1).shuffle(given_sizes)
    present = segments(*map(CountedSize, given_sizes if order != "falling" else reversed(given_sizes)))
    CountedSize.compared = 0
    assert next_run(present, set(), CompactionPolicy(16, 10**9)) is not None
    assert next_run(present, set(), CompactionPolicy(20_000, 10**9)) is None
    assert CountedSize.compared < 30 * len(present)
