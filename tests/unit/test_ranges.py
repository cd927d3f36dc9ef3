"""Which seqs of a writer are held, told by ranges."""

from __future__ import annotations

import pytest

from transcript_backends.ranges import Ranges

HELD = Ranges([("w", 3, 5), ("w", 4, 6), ("w", 7, 7), ("w", 20, 29), ("other", 0, 99)])


@pytest.mark.parametrize(
    ("first", "last", "gaps"),
    [
        (0, 9, [(0, 2), (8, 9)]),
        (3, 7, []),
        (2, 2, [(2, 2)]),
        (8, 19, [(8, 19)]),
        (7, 20, [(8, 19)]),
        (25, 40, [(30, 40)]),
        (0, 99, [(0, 2), (8, 19), (30, 99)]),
    ],
)
def test_the_gaps_of_a_range_are_what_no_other_holds(first: int, last: int, gaps: list[tuple[int, int]]) -> None:
    assert HELD.gaps("w", first, last) == gaps
    assert [seq for seq in range(first, last + 1) if not HELD.holds("w", seq)] == [
        seq for start, end in gaps for seq in range(start, end + 1)
    ]


def test_ranges_that_meet_are_one_and_what_is_held_twice_is_told() -> None:
    assert len(HELD) == 3
    assert HELD.repeated == [("w", 4, 5)]
