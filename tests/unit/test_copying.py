import hashlib
import io
import logging
import math
import random
import threading

import pytest
from unit.setups import REF, ServerClock, StreamCountingObjectStore, append, line, lines, make

from transcript_backends import (
    CompactionPolicy,
    CopyResult,
    CorruptSegmentError,
    InvalidURLError,
    ObjectTranscriptStore,
    SegmentConflictError,
    SegmentNotFoundError,
    StoreUnavailableError,
    TranscriptRef,
    TranscriptStoreError,
    copy_transcript,
    copying,
    open_store,
)
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, FlippingObjectStore, WrapperObjectStore
from transcript_backends.ranges import Ranges, cut
from transcript_backends.reading import look
from transcript_backends.records import Record

ALL = CompactionPolicy(min_segments=2, full=True)
KINDS_OF_FAULTS = {"conflict", "wrong line count", "damaged line"}  # of the transcripts themselves


def records(setup, ref=REF):
    return [tuple(each) for each in setup.store.records(ref)]


def stored_lines(setup):
    """How many lines there are in segments, whether readers see them or not."""
    return sum(setup.body(key).count(b"\n") for key in setup.keys("") if key.endswith(".jsonl"))


def grouped(found):
    """Lines by identity; two different lines of one may change places."""
    groups = {}
    for seq, writer_id, text in found:
        groups.setdefault((seq, writer_id), set()).add(text)
    return groups


@pytest.fixture
def source():
    return make("source/")


@pytest.fixture
def destination():
    return make("destination/deep/")


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(copying, "_SEGMENT_BYTES", 100)


# --- what is copied ---------------------------------------------------------------------------------------------------


def test_plain_segments_are_copied_as_they_are_names_and_metadata_included(source, destination):
    for start, end, writer in ((0, 2, "a"), (0, 2, "b"), (3, 3, "a"), (7, 9, "a")):
        append(source.store, start, end, writer)
    result = copy_transcript(source.store, destination.store, REF)
    assert result == CopyResult(4, 4, 10, sum(map(len, map(source.body, source.keys()))), 0, 10, 0)
    for key in source.keys(""):
        there = "destination/deep/" + key.removeprefix("source/")
        assert destination.body(there) == source.body(key)
        ours, theirs = dict(source.memory.head(key).metadata), dict(destination.memory.head(there).metadata)
        assert ours.pop("tbwrite") != theirs.pop("tbwrite")
        assert ours == theirs
    assert len(destination.keys()) == 4
    assert records(destination) == records(source)


@pytest.mark.parametrize(
    "name",
    ["A", "A-B", "A.C", "a b", "..", ".", "日本", "=41", "x/y", "n" * 200, "\U0001f642", "a\nb", "\\", "~", "events", "a%2Fb"],
)
def test_any_id_is_copied_and_no_other(source, destination, name):
    refs = [TranscriptRef(name, "agent", "s"), TranscriptRef("t", name, "s"), TranscriptRef("t", "agent", name)]
    for ref in refs:
        append(source.store, 0, 1, ref=ref)
        append(source.store, 0, 0, ref=TranscriptRef(ref.tenant, ref.agent_id, ref.session_id + "-"))
        copy_transcript(source.store, destination.store, ref)
        assert records(destination, ref) == records(source, ref)
    assert sorted(destination.store.list_refs()) == sorted(refs)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("5-6-other.host_8080_", lines([5, 6])),
        ("0000005-06-w", lines([5, 6])),
        ("5-6-w", lines([5, 6]) + b'{"one":"more"}\n{"two":"more"}\n'),
        ("5-9-w", lines([5, 6])),
        ("5-6-w", b"\n" + lines([5, 6]) + b"  \n"),
        ("5-6-w", lines([5]) + b'{"torn'),
        ("5-6-w", lines([5]).replace(b"\n", b"\r\n") + lines([6]).rstrip(b"\n")),
        ("5-5-w", b'{"long":"%s"}\n' % (b"x" * (5 << 20))),
        ("5-5-w", b""),
        ("0-10-compacted", b'{"id":"x"}\n{"id":"y"}\n'),
    ],
    ids=["writer", "padding", "surplus", "too few", "blank", "torn", "crlf", "long", "empty", "merged elsewhere"],
)
def test_what_other_programs_wrote_is_copied_byte_for_byte(source, destination, name, body, caplog):
    caplog.set_level(logging.ERROR)
    append(source.store, 0, 3)
    key = source.put(f"source/{REF.prefix}events/{name.replace('.', '_')}.jsonl", body)
    copy_transcript(source.store, destination.store, REF)
    assert destination.body("destination/deep/" + key.removeprefix("source/")) == body
    assert records(destination) == records(source)
    assert copy_transcript(source.store, destination.store, REF).segments == 0


def test_of_compacted_segments_the_writers_own_records_are_copied_not_the_merged_ones(source, destination):
    for seq in range(0, 40, 2):
        append(source.store, seq, seq, "even")
        append(source.store, seq + 1, seq + 1, "odd")
    append(source.store, 100, 120, "late")
    append(source.store, 0, 30, "beside")
    before = records(source)
    source.store.compact(REF, ALL)
    result = copy_transcript(source.store, destination.store, REF)
    assert records(destination) == before
    assert {each.writer_id for each in destination.store.list_segments(REF)} == {"even", "odd", "late", "beside"}
    assert (result.records, result.verified, stored_lines(destination)) == (92, 92, 92)
    assert [each for each in destination.keys("") if "/index/" in each] == []


def test_segments_cut_from_a_compacted_one_are_bounded_and_the_same_each_time(source, destination, small_segments):
    append(source.store, 0, 49)
    append(source.store, 50, 99)
    source.store.compact(REF, ALL)
    copy_transcript(source.store, destination.store, REF)
    segments = destination.store.list_segments(REF)
    assert len(segments) > 10
    assert max(each.size for each in segments) <= 100
    again = make("destination/deep/")
    copy_transcript(source.store, again.store, REF)
    assert again.keys() == destination.keys()


def test_a_deletion_in_the_source_or_the_destination_does_not_hide_the_copy(source, destination):
    for setup, times in ((source, 1), (destination, 2)):
        for _ in range(times):
            append(setup.store, 0, 3)
            setup.store.delete(REF)
    for seq in range(4):
        append(source.store, seq, seq, "w")
    append(source.store, 1, 2, "w")  # the same lines again
    source.store.compact(REF, ALL)
    append(source.store, 4, 4, "w")
    copy_transcript(source.store, destination.store, REF)
    assert records(destination) == records(source)
    assert len(records(destination)) == 5


def conflicting(source):
    """Three lines of one identity, and others that are repeated."""
    append(source.store, 0, 9)
    source.store.append_segment(REF, 5, 5, "w", b'{"other":5}\n')
    source.store.append_segment(REF, 4, 6, "w", lines([4]) + b'{"third":5}\n' + lines([6]))
    append(source.store, 3, 12, "v")


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("deletions", [(0, 0), (1, 0), (0, 2), (2, 1)])
def test_different_lines_of_one_identity_are_all_copied_in_their_order(source, destination, compacted, deletions):
    for setup, times in zip((source, destination), deletions, strict=True):
        for _ in range(times):
            append(setup.store, 0, 3)
            setup.store.delete(REF)
    conflicting(source)
    if compacted:
        source.store.compact(REF, ALL)
    assert len(records(source)) == 22
    copy_transcript(source.store, destination.store, REF)
    assert records(destination) == records(source)
    destination.driver.requests.clear()
    assert copy_transcript(source.store, destination.store, REF, verify="new").segments == 0
    read = [each.key for each in destination.driver.requests if each.operation == "get" and "/events/" in each.key]
    assert bool(read) is not compacted  # whose name tells all
    destination.store.compact(REF, ALL)
    assert copy_transcript(source.store, destination.store, REF).segments == 0
    assert grouped(records(destination)) == grouped(records(source))


def test_an_index_that_a_compaction_of_the_destination_has_left_is_no_obstacle(source, destination):
    conflicting(source)
    source.store.compact(REF, ALL)
    copy_transcript(source.store, destination.store, REF)
    (index,) = [key for key in destination.keys("") if "/index/" in key]
    given = destination.body(index)
    destination.memory.delete_many(destination.keys())
    destination.put(index, given.replace(b'"sources":[]', b'"sources":[["0-0-w.jsonl",1,"00"]]'))
    copy_transcript(source.store, destination.store, REF)
    assert records(destination) == records(source)


def test_a_conflicting_segment_with_the_name_of_one_that_was_cut_is_copied_under_another(source, destination):
    append(source.store, 0, 2, "w")
    append(source.store, 3, 4, "w")
    source.store.compact(REF, ALL)
    copy_transcript(source.store, destination.store, REF)
    assert [each.name[:2] for each in destination.store.list_segments(REF)] == [(0, 4)]
    other = lines(range(5), "W")
    source.store.append_segment(REF, 0, 4, "w", other)
    for _ in range(2):
        copy_transcript(source.store, destination.store, REF)
        assert grouped(records(destination)) == grouped(records(source))
        assert len(records(destination)) == 10


def test_records_merged_by_another_program_and_then_by_us_stay_what_they_are(source, destination):
    source.put(f"source/{REF.prefix}events/0-4-compacted.jsonl", b"".join(b'{"id":"%d"}\n' % n for n in range(5)))
    append(source.store, 5, 6)
    source.store.compact(REF, ALL)
    source.store.append_segment(REF, 2, 3, "w", b'{"id":"2"}\n{"id":"x"}\n')
    assert len(records(source)) == 9
    copy_transcript(source.store, destination.store, REF)
    assert records(destination) == records(source)


def test_payloads_come_before_the_segments_and_are_checked(source, destination):
    bodies = [b"one" * 1000, b"two"]
    keys = [f"{REF.prefix}payloads/{hashlib.sha256(body).hexdigest()}" for body in bodies]
    for key, body in zip(keys, bodies, strict=True):
        source.put("source/" + key, body)
    source.put(f"source/{REF.prefix}payloads/not-a-payload", b"")
    append(source.store, 0, 0)
    assert copy_transcript(source.store, destination.store, REF).payloads == 2
    assert [destination.body("destination/deep/" + key) for key in keys] == bodies
    puts = [each.key for each in destination.driver.requests if each.operation == "put"]
    assert "/events/" in puts[-1]
    assert len(destination.keys()) == 3
    assert copy_transcript(source.store, destination.store, REF).payloads == 0
    source.put("source/" + keys[1], b"TWO!")
    with pytest.raises(CorruptSegmentError, match="is not what its name says"):
        copy_transcript(source.store, destination.store, REF)


def test_a_transcript_that_does_not_exist_copies_nothing(source, destination):
    assert copy_transcript(source.store, destination.store, REF) == CopyResult()
    append(source.store, 0, 0)
    source.store.delete(REF)
    assert copy_transcript(source.store, destination.store, REF) == CopyResult()
    assert destination.keys() == []


# --- again, and after interruptions -----------------------------------------------------------------------------------


def half_copied(source, destination, puts):
    """Copy until so many objects are written, and the store is gone."""
    faulty = FaultyObjectStore(destination.memory)
    faulty.fail("put", None, times=puts)
    faulty.fail("put", Meaning.OTHER, times=1000)
    store = ObjectTranscriptStore(Container(faulty, parallel=1), "destination/deep/")
    with pytest.raises(TranscriptStoreError):
        copy_transcript(source.store, store, REF)
    return stored_lines(destination)


@pytest.mark.parametrize("puts", [0, 1, 5, 9])
@pytest.mark.parametrize("between", ["nothing", "source", "destination", "both"])
@pytest.mark.parametrize("first", ["plain", "compacted"])
def test_an_interrupted_copy_is_finished_and_stores_nothing_twice(source, destination, small_segments, puts, between, first):
    for seq in range(0, 60, 3):
        append(source.store, seq, seq + 2, "v" if seq % 2 else "w")
    expected = records(source)
    if first == "compacted":
        source.store.compact(REF, CompactionPolicy(min_segments=2, full=True, target_bytes=400))
    there = half_copied(source, destination, puts)
    if between in ("source", "both"):
        source.store.compact(REF, ALL)
    if between in ("destination", "both"):
        destination.store.compact(REF, ALL)
    result = copy_transcript(source.store, destination.store, REF)
    assert records(destination) == records(source) == expected
    assert result.records == 60 - there
    assert stored_lines(destination) == 60
    assert copy_transcript(source.store, destination.store, REF)[1:5] == (0, 0, 0, 0)


def test_every_interruption_of_a_copy_of_conflicts_is_finished_too(source, destination):
    conflicting(source)
    source.store.compact(REF, CompactionPolicy(min_segments=2, full=True, target_bytes=300))
    for puts in (1, 0, 1):
        half_copied(source, destination, puts)
    copy_transcript(source.store, destination.store, REF)
    assert grouped(records(destination)) == grouped(records(source))


def test_what_a_listing_shows_to_be_there_is_not_read_again_where_only_the_new_is_verified(source, destination):
    for start in range(0, 30, 3):
        append(source.store, start, start + 2)
    copy_transcript(source.store, destination.store, REF)

    def requests(action):
        for setup in (source, destination):
            setup.driver.requests.clear()
        result = action()
        return result, dict(source.driver.counts), dict(destination.driver.counts)

    def sync():
        return copy_transcript(source.store, destination.store, REF, verify="new")

    assert requests(sync) == (CopyResult(10), {"list_page": 1}, {"list_page": 1})
    append(source.store, 30, 32)
    append(source.store, 33, 35)
    result, ours, theirs = requests(sync)
    assert (result.segments, result.records, result.verified) == (2, 6, 6)
    assert (ours["get"], theirs["get"], theirs["put"]) == (2, 2, 2)
    source.store.compact(REF, ALL)
    result, ours, theirs = requests(sync)
    assert result == CopyResult(1)
    assert ours == {"list_page": 1, "get": 1}  # the index
    assert theirs == {"list_page": 1}


def test_two_copies_at_once_store_the_same(source, destination, small_segments):
    for seq in range(40):
        append(source.store, seq, seq, "vw"[seq % 2])
    source.store.compact(REF, CompactionPolicy(min_segments=2, full=True, target_bytes=300))
    results, barrier = [], threading.Barrier(3)

    def copy():
        barrier.wait(60)
        results.append(copy_transcript(source.store, destination.store, REF))

    threads = [threading.Thread(target=copy) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(results) == 3
    assert records(destination) == records(source)


@pytest.mark.parametrize("verify", ["all", "new", "off"])
def test_random_histories_are_copied_exactly(verify, monkeypatch, caplog):
    """Writers that collide, retry and leave gaps; foreign segments; compactions and copies in between, on both sides."""
    caplog.set_level(logging.ERROR)
    for seed in range(40):
        chance = random.Random(seed)
        monkeypatch.setattr(copying, "_SEGMENT_BYTES", chance.choice([30, 100, 1000, 4 << 20]))
        source, destination = make("s/"), make("d/")
        reached = {}
        for _ in range(chance.randint(1, 40)):
            what = chance.random()
            if what < 0.6:
                writer = chance.choice("uvw")
                start = max(0, reached.get(writer, chance.randint(0, 3)) + chance.choice([0, 0, 0, 0, 0, 2, -2, -4]))
                end = start + chance.randint(0, 5)
                reached[writer] = max(reached.get(writer, 0), end + 1)
                body = lines(range(start, end + 1), chance.choice([writer] * 4 + ["x"]))
                if chance.random() < 0.1:
                    more = chance.choice([b"", b'{"more":1}\n{"x":2}\n', b"\n", b'{"torn', b'{"a":1}\r\n'])
                    source.put(f"s/{REF.prefix}events/{start}-{end}-{writer}.jsonl", body + more)
                else:
                    try:
                        source.store.append_segment(REF, start, end, writer, body)
                    except SegmentConflictError:
                        reached[writer] += 1
            elif what < 0.85:
                setup = chance.choice([source, destination])
                setup.store.compact(REF, CompactionPolicy(2, chance.choice([200, 1000, 10**6]), full=chance.random() < 0.5))
            else:
                copy_transcript(source.store, destination.store, REF, verify=verify)
        result = copy_transcript(source.store, destination.store, REF, verify=verify)
        assert result.beside == 0
        assert grouped(records(destination)) == grouped(records(source)), seed
        assert copy_transcript(source.store, destination.store, REF)[1:5] == (0, 0, 0, 0), seed
        problems = destination.store.verify(REF).problems
        assert {each.kind for each in problems if not each.harmless} <= KINDS_OF_FAULTS, seed
        fresh = make()
        copy_transcript(source.store, fresh.store, REF, verify=verify)
        assert records(fresh) == records(source), seed


# --- while others are at work -----------------------------------------------------------------------------------------


class Meanwhile(WrapperObjectStore):
    """Runs something of ours right before some of the requests of one kind, whichever thread makes them."""

    def __init__(self, inner, operation, action, *at):
        super().__init__(inner)
        self._operation, self._action, self._at = operation, action, at
        self._count, self._lock = 0, threading.Lock()

    def _around(self, operation, key, request):
        with self._lock:
            if operation == self._operation:
                self._count += 1
                if self._count - 1 in self._at:
                    self._action()
        return super()._around(operation, key, request)


@pytest.mark.parametrize("at", [0, 1, 7, 19])
@pytest.mark.parametrize("parallel", [1, 8])
def test_a_compaction_of_the_source_meanwhile_changes_nothing(at, parallel, destination):
    source = make()
    for seq in range(20):
        append(source.store, seq * 2, seq * 2 + 1, "vw"[seq % 2])
    before = records(source)

    def compact():
        append(source.store, 40, 41, "late")
        assert source.store.compact(REF, ALL).merged

    copied_from = ObjectTranscriptStore(Container(Meanwhile(source.driver, "get", compact, at), parallel=parallel))
    result = copy_transcript(copied_from, destination.store, REF)
    assert result.verified == 40
    assert [each for each in records(destination) if each[1] != "late"] == before
    copy_transcript(copied_from, destination.store, REF)
    assert records(destination) == records(source)


def test_what_is_written_after_a_copy_began_is_left_for_the_next_where_the_source_was_listed_again(destination):
    source = make()
    for seq in range(20):
        append(source.store, seq, seq)

    def compact():
        source.store.compact(REF, ALL)
        append(source.store, 20, 20)

    store = ObjectTranscriptStore(Container(Meanwhile(source.driver, "get", compact, 0)))
    assert copy_transcript(store, destination.store, REF)[2:] == (
        20,
        sum(map(len, lines(range(20)).splitlines(True))),
        0,
        20,
        0,
    )
    assert copy_transcript(store, destination.store, REF).records == 1


def test_everything_acknowledged_before_is_in_the_copy_and_what_comes_meanwhile_leaves_no_gap(source):
    memory = make("d/")
    written = {"v": 0, "w": 0}

    def write():
        for writer in written:
            append(source.store, written[writer], written[writer] + 1, writer)
            written[writer] += 2
        if written["v"] % 10 == 0:
            source.store.compact(REF, CompactionPolicy(min_segments=3))

    for _ in range(10):
        write()
    before = records(source)
    copied_to = ObjectTranscriptStore(Container(Meanwhile(memory.driver, "put", write, *range(0, 20, 2))), "d/")
    result = copy_transcript(source.store, copied_to, REF)
    copied = records(memory)
    assert result.verified >= len(before) == 40
    assert set(before) <= set(copied)
    for writer in written:
        seqs = [seq for seq, who, _ in copied if who == writer]
        assert seqs == list(range(len(seqs)))
    assert len(records(source)) > 40
    copy_transcript(source.store, memory.store, REF)
    assert records(memory) == records(source)


def test_records_appended_in_the_source_meanwhile_do_not_fail_the_verification_of_what_the_destination_adds(source):
    memory = make()
    append(source.store, 0, 9)
    append(memory.store, 4, 5, "own")
    growing = Meanwhile(memory.driver, "put", lambda: append(source.store, 10, 19), 0)
    result = copy_transcript(source.store, ObjectTranscriptStore(Container(growing)), REF)
    assert (result.records, result.verified, result.beside) == (10, 10, 2)


@pytest.mark.parametrize("at", [0, 1])
def test_a_compaction_while_it_is_seen_what_is_missing_changes_nothing(at, destination):
    source = make()
    append(source.store, 0, 1)
    append(source.store, 1, 2)  # what both hold is compared, not told by the listings
    append(source.store, 3, 3)
    copy_transcript(source.store, destination.store, REF)
    before = records(source)
    copied_from = Meanwhile(source.driver, "get", lambda: source.store.compact(REF, ALL), at)
    result = copy_transcript(ObjectTranscriptStore(Container(copied_from)), destination.store, REF)
    assert (result.records, result.verified) == (0, 4)
    assert records(destination) == before


def test_what_others_store_on_both_sides_meanwhile_is_no_fault_of_the_copy(source):
    memory = make()
    append(source.store, 0, 9)

    def go_on():
        append(source.store, 3, 3, "copied-by-another")
        append(memory.store, 3, 3, "copied-by-another")
        append(source.store, 4, 4, "not-yet-copied")

    copied_to = ObjectTranscriptStore(Container(Meanwhile(memory.driver, "put", go_on, 0)))
    assert copy_transcript(source.store, copied_to, REF).verified == 10


def test_a_transcript_deleted_meanwhile_is_an_error(destination):
    source = make()
    for seq in range(30):
        append(source.store, seq, seq)
    deleted = Meanwhile(source.driver, "get", lambda: source.store.delete(REF), 3)
    with pytest.raises(SegmentNotFoundError, match="was deleted while it was being copied"):
        copy_transcript(ObjectTranscriptStore(Container(deleted)), destination.store, REF)


# --- what is not as it was stored -------------------------------------------------------------------------------------


@pytest.fixture
def flipped():
    """A source whose responses may be told to have another byte, and what tells them."""
    setup = make("source/", wrap=FlippingObjectStore)
    return setup, setup.store._container.driver


def three(setup, compacted):
    """Three records; gives the key of a segment, which is a compacted one or not."""
    keys = [append(setup.store, seq, seq) for seq in range(3)]
    return setup.store.compact(REF, ALL).merged[0] if compacted else keys[1]


OF_BOTH_KINDS = pytest.mark.parametrize("compacted", [False, True], ids=["plain", "compacted"])


@OF_BOTH_KINDS
def test_one_response_with_another_byte_is_read_once_more(flipped, destination, compacted):
    source, driver = flipped
    driver.flip(three(source, compacted))
    assert copy_transcript(source.store, destination.store, REF).verified == 3
    assert driver.flipped == 1
    assert records(destination) == records(source)
    assert destination.store.verify(REF).ok


@OF_BOTH_KINDS
@pytest.mark.parametrize("verify", ["all", "new", "off"])
@pytest.mark.parametrize("at_rest", [False, True], ids=["responses", "at rest"])
def test_what_is_not_as_it_was_stored_is_an_error_that_names_it_and_not_copied(
    flipped, destination, compacted, verify, at_rest
):
    source, driver = flipped
    key = three(source, compacted)
    if at_rest:
        body = bytearray(source.body(key))
        body[-4] ^= 1
        source.memory.put(key, bytes(body), mode="overwrite", metadata=source.memory.head(key).metadata)
    else:
        driver.flip(key, times=math.inf)
    with pytest.raises(CorruptSegmentError, match=f"'{key}' .*sha256"):
        copy_transcript(source.store, destination.store, REF, verify=verify)
    assert b'"w":"v"' not in b"".join(map(destination.body, destination.keys("")))
    driver.flip(key, times=0)
    if not at_rest:
        copy_transcript(source.store, destination.store, REF)
        assert records(destination) == records(source)


def test_a_response_of_another_length_than_was_listed_is_not_copied(flipped, destination):
    class EmptyObjectStore(WrapperObjectStore):
        def get(self, key, *, start=0, end=None):
            body = super().get(key, start=start, end=end)
            return body._replace(info=body.info._replace(size=0), stream=io.BytesIO(), metadata={})

    three(flipped[0], compacted=False)
    empty = ObjectTranscriptStore(Container(EmptyObjectStore(flipped[0].driver)), "source/")
    with pytest.raises(CorruptSegmentError, match="0 bytes"):
        copy_transcript(empty, destination.store, REF)
    assert destination.keys() == []


def test_one_response_with_another_byte_of_what_is_compared_fails_no_copy(source):
    wrapped = make("destination/", wrap=FlippingObjectStore)
    three(source, compacted=False)
    wrapped.store._container.driver.flip("/events/")
    assert copy_transcript(source.store, wrapped.store, REF).verified == 3
    assert wrapped.store._container.driver.flipped == 1


def test_one_response_with_another_payload_is_read_once_more(flipped, destination):
    source, driver = flipped
    payload = b"x" * 100
    key = f"source/{REF.prefix}payloads/{hashlib.sha256(payload).hexdigest()}"
    source.put(key, payload)
    three(source, compacted=False)
    driver.flip("/payloads/")
    assert copy_transcript(source.store, destination.store, REF).payloads == 1
    assert driver.flipped == 1


# --- what can be wrong ------------------------------------------------------------------------------------------------


class Tampering(WrapperObjectStore):
    """Gives other bytes than were stored."""

    def get(self, key, *, start=0, end=None):
        body = super().get(key, start=start, end=end)
        read = body.stream.read

        class Stream:
            close = body.stream.close

            @staticmethod
            def read(size):
                return read(size).replace(b'{"n":7,', b'{"n":1,')

        return body._replace(stream=Stream())


class Losing(WrapperObjectStore):
    """Does not show one object."""

    def list_page(self, prefix, *, start_after="", token=None):
        page = super().list_page(prefix, start_after=start_after, token=token)
        return page._replace(objects=[each for each in page.objects if f"{6:019d}-" not in each.key])


@pytest.mark.parametrize("wrap", [Tampering, Losing])
def test_a_copy_that_is_not_the_same_is_an_error_that_names_the_first_record(source, wrap):
    for seq in range(0, 12, 3):
        append(source.store, seq, seq + 2)
    wrapped = make(wrap=wrap)
    with pytest.raises(CorruptSegmentError, match=r"record [67] of writer w is missing there or another, [13] of 12 in all"):
        copy_transcript(source.store, wrapped.store, REF)
    assert copy_transcript(source.store, wrapped.store, REF, verify="off").verified == 0


def test_a_copy_that_lacks_records_is_an_error_also_where_the_source_is_gone_by_then():
    source, wrapped = make(), make(wrap=Losing)
    for seq in range(0, 12, 3):
        append(source.store, seq, seq + 2)
    deleted = Meanwhile(source.driver, "list_page", lambda: source.store.delete(REF), 2)  # the one for a second look
    with pytest.raises(SegmentNotFoundError, match="lost records while it was being copied"):
        copy_transcript(ObjectTranscriptStore(Container(deleted)), wrapped.store, REF)


def test_another_line_of_a_record_in_the_destination_is_found(source, destination):
    append(source.store, 0, 4)
    append(source.store, 5, 9)
    destination.store.append_segment(REF, 0, 9, "w", lines(range(9)) + b'{"other":9}\n')
    with pytest.raises(CorruptSegmentError, match="record 9 of writer w is missing there or another, 1 of 10 in all"):
        copy_transcript(source.store, destination.store, REF)


def test_other_content_under_the_name_of_a_segment_is_a_conflict(source, destination):
    append(source.store, 0, 0)
    destination.store.append_segment(REF, 0, 0, "w", b'{"longer":"than the other"}\n')
    for verify in ("all", "new", "off"):
        with pytest.raises(SegmentConflictError, match="holds other content already"):
            copy_transcript(source.store, destination.store, REF, verify=verify)


def test_what_the_destination_holds_besides_is_counted_and_stays(source, destination):
    append(source.store, 0, 4)
    append(destination.store, 0, 2, "own")
    assert copy_transcript(source.store, destination.store, REF).beside == 3
    assert len(records(destination)) == 8


def test_without_the_index_of_a_compacted_segment_nothing_is_copied(source, destination):
    for seq in range(4):
        append(source.store, seq, seq)
    source.store.compact(REF, ALL)
    source.memory.delete_many([key for key in source.keys("") if "/index/" in key])
    with pytest.raises(CorruptSegmentError, match=r"the index of .* is missing"):
        copy_transcript(source.store, destination.store, REF)
    assert destination.keys() == []


def test_a_store_that_is_gone_is_an_error_and_no_thread_goes_on(source, destination):
    for seq in range(50):
        append(source.store, seq, seq)
    threads = threading.active_count()
    faulty = FaultyObjectStore(destination.memory)
    faulty.fail("put", None, times=5)
    faulty.fail("put", Meaning.DENIED, times=1000)
    with pytest.raises(TranscriptStoreError):
        copy_transcript(source.store, ObjectTranscriptStore(Container(faulty)), REF)
    assert threading.active_count() == threads


def test_a_listing_that_never_settles_is_an_error(source, destination, monkeypatch):
    monkeypatch.setattr(copying, "_PATIENCE", 3)
    append(source.store, 0, 0)
    monkeypatch.setattr(copying._Side, "read", lambda *_: (_ for _ in ()).throw(SegmentNotFoundError("it is never there")))
    with pytest.raises(StoreUnavailableError, match="compacted faster than it can be read"):
        copy_transcript(source.store, destination.store, REF)


def test_a_store_is_not_copied_onto_itself(source):
    with pytest.raises(InvalidURLError, match="is both source and destination; name another"):
        copy_transcript(source.store, source.store, REF)
    with open_store("memory://both/x") as one, open_store("memory://both/x") as two, open_store("memory://both") as other:
        append(one, 0, 0)
        with pytest.raises(InvalidURLError, match="memory://both/x is both"):
            copy_transcript(one, two, REF)
        assert copy_transcript(one, other, REF).records == 1
    with open_store("memory://") as one, open_store("memory://") as two:
        append(one, 0, 0)
        assert copy_transcript(one, two, REF).records == 1


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_reads_no_segment_writes_nothing_and_says_what_will_be_done(source, destination):
    for seq in range(10):
        append(source.store, seq * 3, seq * 3 + 2)
    source.put(f"source/{REF.prefix}payloads/{'0' * 64}", b"")

    def plan():
        source.driver.requests.clear()
        found = copy_transcript(source.store, destination.store, REF, dry_run=True)
        assert not [each for each in source.driver.requests if each.operation == "get" and "/events/" in each.key]
        return found

    assert plan() == CopyResult(10, 10, 30, sum(each.size for each in source.store.list_segments(REF)), 1)
    assert destination.keys() == []
    source.memory.delete_many([f"source/{REF.prefix}payloads/{'0' * 64}"])
    half_copied(source, destination, 4)
    source.store.compact(REF, ALL)
    expected = plan()
    result = copy_transcript(source.store, destination.store, REF)
    assert (expected.segments, expected.records) == (result.segments, result.records)
    assert result.records == 18
    assert abs(expected.bytes_written - result.bytes_written) < 30
    assert plan() == CopyResult(1)


# --- the parts --------------------------------------------------------------------------------------------------------


def test_ranges_tell_what_is_missing_and_what_is_repeated():
    ranges = Ranges([("a", 5, 9), ("a", 0, 2), ("a", 10, 12), ("b", 0, 99), ("a", 8, 11), ("a", 20, 20)])
    assert ranges.gaps("a", 0, 20) == [(3, 4), (13, 19)]
    assert ranges.gaps("a", 3, 4) == [(3, 4)]
    assert ranges.gaps("a", 1, 2) == []
    assert ranges.gaps("a", 2, 5) == [(3, 4)]
    assert ranges.gaps("a", 25, 30) == [(25, 30)]
    assert ranges.gaps("c", 0, 1) == [(0, 1)]
    assert ranges.repeated == [("a", 8, 9), ("a", 10, 11)]
    assert len(ranges) == 4
    assert len(Ranges([("a", 0, 1), ("a", 2, 3), ("a", 5, 5)])) == 2  # what meets is one


def test_ranges_agree_with_sets():
    chance = random.Random(1)
    for _ in range(500):
        claims = [("w", first, first + chance.randint(0, 6)) for first in (chance.randint(0, 40) for _ in range(6))]
        held = {seq for _, first, last in claims for seq in range(first, last + 1)}
        first, last = sorted((chance.randint(0, 50), chance.randint(0, 50)))
        gaps = [seq for start, end in Ranges(claims).gaps("w", first, last) for seq in range(start, end + 1)]
        assert gaps == [seq for seq in range(first, last + 1) if seq not in held]


@pytest.mark.parametrize("most", [1, 20, 64, 10_000])
def test_cutting_keeps_every_record_and_the_bound(most):
    chance = random.Random(most)
    found = sorted({(chance.randint(0, 60), chance.choice("abc")) for _ in range(100)})
    given = [Record(seq, writer, line(seq, writer)) for seq, writer in found]
    pieces = list(cut(given, most))
    again = [
        (seq, name.writer_id, text)
        for name, body in pieces
        for seq, text in zip(range(name.seq_start, name.seq_end + 1), body.split(b"\n")[:-1], strict=True)
    ]
    assert sorted(again) == given
    assert all(len(body) <= most or name.seq_start == name.seq_end for name, body in pieces)
    assert len(pieces) >= len({name.writer_id for name, _ in pieces})
    assert list(cut(given, most)) == pieces


def test_one_writer_is_cut_only_where_the_bound_or_a_gap_is():
    given = [Record(seq, "w", b"x" * 9) for seq in (*range(10), *range(20, 24))]
    assert [name[:2] for name, _ in cut(given, 50)] == [(0, 4), (5, 9), (20, 23)]


@pytest.mark.parametrize(("size", "most"), [(100, 16), (1 << 20, 9), (20 << 20, 2)])
def test_only_so_much_is_read_ahead(size, most):
    setup = make(wrap=StreamCountingObjectStore)
    for seq in range(20):
        setup.put(f"{REF.prefix}events/{seq}-{seq}-w.jsonl", b'{"t":"%s"}\n' % (b"x" * 10))
    container, names = setup.store._container, setup.store._names(REF)
    plan = look(container, names)
    plan = plan._replace(segments=[each._replace(size=size) for each in plan.segments])
    fetched = []

    def fetch(segment):
        fetched.append(segment)
        with container.open(segment.key) as stream:
            return stream.read()

    for count, _ in enumerate(copying.stream_records(container, plan, 0, None, fetch, lambda: plan), 1):
        assert len(fetched) <= count + most
    assert count == len(fetched) == 20
    assert container.driver.most <= container.parallel
    assert not container.driver.open


def test_the_destinations_clock_plays_no_part(source):
    clock = ServerClock()
    destination = make(memory=MemoryObjectStore("d", now=clock))
    for seq in range(0, 20, 2):
        append(source.store, seq, seq + 1, "vw"[seq % 4 // 2])
    for turn, days in enumerate((0, -400, 800)):
        clock.go_on(days=days)
        append(source.store, 100 + turn, 100 + turn, "late")
        copy_transcript(source.store, destination.store, REF)
        destination.store.compact(REF, ALL)
        assert records(destination) == records(source)


def test_an_unavailable_source_is_that_error(destination):
    source = make(wrap=FaultyObjectStore)
    append(source.store, 0, 0)
    source.store._container.driver.fail("list_page", Meaning.TRY_AGAIN, times=1000)
    source.store._container.clock.sleep = lambda _: None
    with pytest.raises(StoreUnavailableError):
        copy_transcript(source.store, destination.store, REF)
