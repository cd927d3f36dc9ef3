from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.setups import line

from transcript_backends import CorruptSegmentError, Record
from transcript_backends.index import Run, SeekPoint, SegmentIndex, Source, build
from transcript_backends.keys import MAX_SEQ, SegmentName, parse_segment_name

KEY = "t/a/s/index/x.json"
SEEK_BYTES = 256 * 1024


def built(*identities, body=line, generation=0, sources=()):
    records = [Record(seq, writer, body(seq, writer)) for seq, writer in identities]
    return build(records, generation, sources)


def written(*identities, **options):
    return built(*identities, **options)[1]


names = st.builds(
    lambda ends, writer: SegmentName(*sorted(ends), writer),
    st.tuples(st.integers(0, MAX_SEQ), st.integers(0, MAX_SEQ)),
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
)
sources = st.builds(
    Source, names, st.integers(0, MAX_SEQ), st.binary(max_size=9).map(lambda raw: hashlib.sha256(raw).hexdigest())
)
identities = st.lists(st.tuples(st.integers(0, 30) | st.just(MAX_SEQ), st.sampled_from("abc")), min_size=1, max_size=40).map(
    sorted
)


# --- the stored form --------------------------------------------------------------------------------------------------


@given(identities, st.integers(0, 5), st.lists(sources, max_size=5))
def test_what_is_written_is_read_back(records, generation, merged):
    index = written(*records, generation=generation, sources=merged)
    assert SegmentIndex.parse(index.to_json(), KEY) == index
    assert parse_segment_name(str(index.name)) == index.name
    assert index.name.generation == generation
    assert index.name[:2] == (records[0][0], max(seq for seq, _ in records))


GOOD = json.loads(written((0, "a"), (1, "a"), (5, "a"), (6, "b"), sources=[Source(SegmentName(0, 1, "a"), 9, "00")]).to_json())


@pytest.mark.parametrize("member", sorted(GOOD))
def test_a_missing_member_is_no_index(member):
    with pytest.raises(CorruptSegmentError, match=f"^'{KEY}' is no segment index: .*{member}"):
        SegmentIndex.parse(json.dumps({name: value for name, value in GOOD.items() if name != member}).encode(), KEY)


def first_run(**changes):
    return [list(Run(*GOOD["runs"][0])._replace(**changes)), *GOOD["runs"][1:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 0}, {"format": 2}, {"format": "1"}, {"format": None}, {"format": [1]},
        *({member: value} for member in ("generation", "records", "size") for value in (-1, "4", None, 1.0, True, 2**63, [])),
        {"sha256": 5}, {"sha256": None}, {"records": 5}, {"records": 3}, {"size": GOOD["size"] + 1}, {"size": 0},
        {"runs": []}, {"runs": None}, {"runs": {}}, {"runs": 7}, {"runs": [5]}, {"runs": ["abcde"]}, {"runs": [[]]},
        {"runs": GOOD["runs"][1:]}, {"runs": GOOD["runs"][:-1]}, {"runs": GOOD["runs"][::-1]},
        {"runs": GOOD["runs"][:1] + GOOD["runs"][2:]},
        {"runs": [run[:4] for run in GOOD["runs"]]}, {"runs": [[*run, 0] for run in GOOD["runs"]]},
        {"runs": first_run(writer_id=5)}, {"runs": first_run(seq_start=-1)}, {"runs": first_run(seq_end=1.0)},
        {"runs": first_run(seq_start=2)}, {"runs": first_run(seq_end=2)}, {"runs": first_run(offset=1)},
        {"runs": first_run(length=1)}, {"runs": first_run(length=GOOD["runs"][0][4] + 1)}, {"runs": first_run(length=True)},
        {"seek_points": None}, {"seek_points": [[0]]}, {"seek_points": [[0, 0, 0]]}, {"seek_points": [[0, -1]]},
        {"seek_points": ["00"]}, {"seek_points": [[2, 0]]}, {"seek_points": [[0, GOOD["size"]]]},
        {"sources": None}, {"sources": [["x", 1, ""]]}, {"sources": [["0-1-a.jsonl", 1]]}, {"sources": [[None, 1, ""]]},
        {"sources": [["0-1-a.jsonl", -1, ""]]}, {"sources": [["0-1-a.jsonl", 1, None]]}, {"sources": [["1-0-a.jsonl", 1, ""]]},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_member_that_cannot_be_right_is_no_index(changes):
    with pytest.raises(CorruptSegmentError, match=f"^'{KEY}' is no segment index: "):
        SegmentIndex.parse(json.dumps({**GOOD, **changes}).encode(), KEY)


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[]", b"null", b"5", b'"x"', b"{}", b"\xff", b"<html></html>", b"[" * 100_000,
     json.dumps(GOOD).encode()[:-1], json.dumps(GOOD).encode() + b"x"],
)  # fmt: skip
def test_what_is_no_json_object_is_no_index(body):
    with pytest.raises(CorruptSegmentError, match=f"^'{KEY}' is no segment index: "):
        SegmentIndex.parse(body, KEY)


def test_members_of_later_versions_are_ignored():
    assert SegmentIndex.parse(json.dumps({**GOOD, "more": [1]}).encode(), KEY) == SegmentIndex.parse(
        json.dumps(GOOD).encode(), KEY
    )


# --- the name ---------------------------------------------------------------------------------------------------------


def test_the_name_depends_on_the_records_and_on_nothing_else():
    index = written((0, "a"), (1, "b"))
    for other in (
        replace(index, sources=(Source(SegmentName(0, 0, "a"), 1, ""),)),
        replace(index, seek_points=(SeekPoint(1, 9),)),
    ):
        assert other.name == index.name
    assert replace(index, generation=3).name == index.name._replace(writer_id=index.name.writer_id.replace("-0-", "-3-"))


def test_other_records_have_other_names_even_where_the_lines_are_equal():
    def equal(seq, writer):
        return b"{}"

    others = [
        [(0, "a"), (1, "a")], [(0, "a"), (1, "b")], [(0, "b"), (1, "a")], [(0, "b"), (1, "b")], [(0, "a"), (2, "a")],
        [(0, "a"), (0, "a"), (1, "a")], [(0, "a"), (1, "a"), (1, "a")],
    ]  # fmt: skip
    found = [written(*each, body=equal).name for each in others]
    found.append(written((0, "a"), (1, "a"), body=lambda seq, writer: b"{ }").name)
    assert len(set(found)) == len(found)


# --- building ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "runs"),
    [
        ([(seq, "a") for seq in range(9)], [("a", 0, 8)]),
        ([(0, "a"), (0, "b"), (1, "b"), (2, "b"), (2, "c")], [("a", 0, 0), ("b", 0, 2), ("c", 2, 2)]),
        ([(0, "a"), (0, "b"), (1, "a"), (1, "b")], [("a", 0, 0), ("b", 0, 0), ("a", 1, 1), ("b", 1, 1)]),
        ([(0, "a"), (1, "b"), (2, "a")], [("a", 0, 0), ("b", 1, 1), ("a", 2, 2)]),
        ([(3, "a"), (4, "a"), (4, "a"), (5, "a")], [("a", 3, 4), ("a", 4, 5)]),
        ([(0, "a"), (1, "a"), (3, "a"), (4, "a")], [("a", 0, 1), ("a", 3, 4)]),
        ([(MAX_SEQ, "a"), (MAX_SEQ, "b")], [("a", MAX_SEQ, MAX_SEQ), ("b", MAX_SEQ, MAX_SEQ)]),
    ],
)
def test_records_of_one_writer_in_a_row_are_one_run(records, runs):
    body, index = built(*records)
    assert [run[:3] for run in index.runs] == runs
    for run in index.runs:
        expected = b"".join(line(seq, run.writer_id) + b"\n" for seq in range(run.seq_start, run.seq_end + 1))
        assert body[run.offset : run.offset + run.length] == expected
    assert (index.records, index.size, index.sha256) == (len(records), len(body), hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize("size", [10, 1000, 100_000, 300_000, 1_000_000])
def test_seek_points_stand_at_records_about_every_256_kib(size):
    count = 3_000_000 // size
    body, index = built(*((seq, "a") for seq in range(7, 7 + count)), body=lambda seq, writer: b"x" * (size - 1))
    assert index.seek_points[0] == (7, 0)
    assert all(point.offset == (point.seq - 7) * size for point in index.seek_points)
    offsets = [point.offset for point in index.seek_points]
    assert max(b - a for a, b in zip(offsets, [*offsets[1:], len(body)], strict=True)) <= SEEK_BYTES + size
    assert len(offsets) <= len(body) // SEEK_BYTES + 1


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab")), min_size=1).map(sorted), st.integers(0, 9), st.integers(0, 9)
)
def test_a_range_is_covered_when_each_record_of_its_writer_is_there(records, first, last):
    index = written(*records)
    for writer in "abc":
        assert index.covers(writer, first, last) == all((seq, writer) in records for seq in range(first, last + 1))


# --- places to start --------------------------------------------------------------------------------------------------


@st.composite
def large(draw):
    """Records of up to some hundred KiB, of a writer or several, with gaps and repeats."""
    seq, records = draw(st.integers(0, 5)), []
    for _ in range(draw(st.integers(1, 25))):
        writers = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(sorted))
        size = draw(st.sampled_from([1, 100, 40_000, 300_000]))
        records += [(seq, writer, size) for writer in writers]
        seq += draw(st.sampled_from([1, 1, 1, 1, 7]))
    return records


@given(large())
@settings(max_examples=50)
def test_reading_from_the_place_before_a_seq_misses_nothing_and_wastes_little(records):
    body, index = build([Record(seq, writer, b"x" * size) for seq, writer, size in records], 0, ())
    offsets, offset = [], 0
    for _, _, size in records:
        offsets.append(offset)
        offset += size + 1
    for wanted in range(records[-1][0] + 3):
        start, position, skipped = index.place_before(wanted)
        at = offsets.index(start)
        assert all(seq < wanted for seq, _, _ in records[:at])
        assert (index.runs[position].writer_id, index.runs[position].seq_start + skipped) == (records[at][1], records[at][0])
        first = next((offsets[i] for i, (seq, _, _) in enumerate(records) if seq >= wanted), len(body))
        assert first - start <= SEEK_BYTES + 300_001
