"""What every store must do, through the public API only."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import TypeVar

import pytest

from transcript_backends import (
    AccessDeniedError,
    CompactionPolicy,
    CorruptSegmentError,
    InvalidRefError,
    InvalidSegmentError,
    ObjectTranscriptStore,
    RuntimeContext,
    SegmentConflictError,
    SegmentNotFoundError,
    Skipped,
    TranscriptRef,
    copy_transcript,
    open_store,
)
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Meaning, ObjectStore
from transcript_backends.drivers.wrappers import (
    FaultyObjectStore,
    FlippingObjectStore,
    InjectedError,
    Operation,
    PhantomObjectStore,
    RecordingObjectStore,
    WrapperObjectStore,
)
from transcript_backends.testing.racing import Racing, all_at_once, many_at_a_time

_MANY = 1001
_T = TypeVar("_T")

IDS = [
    "A",
    "A-B",
    "A.C",
    "a b",
    "..",
    "日本",
    "=41",
    "x/y",
    "con",
    "NUL.x",
    "n" * 200,
    "🙂",
    "agent:1:main",
    "a%2Fb",
    "a/b",
    "\\..\\x",
    "tab\tnul\0",
]

AS_THEY_ARE = [
    "a b",
    "user@host:8080",
    "café cafe\u0301",
    "日本" * 40,
    "🙂~{x}<&>*[!]",
    "a+b%2Fc?d=e#f",
    "k=v;=4,'\"`$^|",
    " a..b",
]
RAW_IDS = [*AS_THEY_ARE, "a/b\\c", "..", "=2F=41", "tab\tnul\0\x85\ufffe", ".a", "a.", "A"]

KEPT_LINES = [
    b'{"lone":"\\ud800"}',
    '{"separators":"\u2028\u2029\u0085"}'.encode(),
    b'{"twice":1,"twice":2}',
    b'{"big":' + b"9" * 5000 + b"}",
    b'{"float":1e400}',
    b'  {"a" :\t1 ,\r"b":[ ]}  ',
    b'{"long":"' + b"x" * 100_000 + b'"}',
    b"{}",
]

BAD_PAYLOADS = {
    "not UTF-8": b'{"a":"\xff"}\n',
    "not JSON": b"{a:1}\n",
    "NaN": b'{"a":NaN}\n',
    "Infinity": b'{"a":[-Infinity]}\n',
    "an array": b"[1]\n",
    "a scalar": b"1\n",
    "a raw NUL": b'{"a":"\0"}\n',
    "a byte-order mark": b'\xef\xbb\xbf{"a":1}\n',
    "a line too many": b'{"a":1}\n{"a":2}\n',
    "a blank line": b"\n",
    "nothing": b"",
    "a line over 4 MiB": b'{"a":"' + b"x" * 4 * 1024 * 1024 + b'"}\n',
}


def lines_of(*numbers: int, text: str = "line") -> bytes:
    """A payload of one line for each number."""
    return b"".join(b'{"n":%d,"text":"%s"}\n' % (number, text.encode()) for number in numbers)


class SparingObjectStore(WrapperObjectStore):
    """Refuses to make more than so many requests."""

    def __init__(self, inner: ObjectStore, most: int) -> None:
        super().__init__(inner)
        self.left = most

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        self.left -= 1
        assert self.left >= 0, f"a {operation} of {key!r} is one request too many"
        return super()._around(operation, key, request)


class _RefusingObjectStore(FaultyObjectStore):
    """Refuses deletes: whole requests, each key, or only keys that hold an object, as a retention policy does."""

    refusal = ""

    def delete_many(self, keys: Sequence[str], *, versions: Mapping[str, str] | None = None) -> Mapping[str, Exception]:
        if self.refusal == "of requests":
            raise InjectedError(Meaning.DENIED)
        refused = [key for key in keys if self.refusal == "of keys" or self._holds(key)]
        return {key: InjectedError(Meaning.DENIED) for key in refused}

    def _holds(self, key: str) -> bool:
        return any(each.key == key for each in self.inner.list_page(f"{key.rpartition('/')[0]}/").objects)


REFUSALS = ["of requests", "of keys", "of objects"]


class StoreContract(Racing):
    """Inherit, and give a fixture ``store``. Every test uses transcripts of its own, so a store may be shared."""

    @pytest.fixture
    def store(self) -> ObjectTranscriptStore:
        pytest.fail("give a fixture `store`")

    @pytest.fixture
    def tenant(self) -> str:
        return f"tenant-{os.urandom(6).hex()}"

    @pytest.fixture
    def ref(self, tenant: str) -> TranscriptRef:
        return TranscriptRef(tenant, "agent", "session")

    def stored(self, store: ObjectTranscriptStore, key: str) -> bytes:
        with store.read_segment(key) as stream:
            return stream.read()

    # --- append, list, read -------------------------------------------------------------------------------------------

    def test_a_segment_is_listed_and_read_as_it_was_appended(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        payload = lines_of(7, 8, 9)
        key = store.append_segment(ref, 7, 9, "writer-1", payload)
        assert key.endswith(f"{ref.prefix}events/0000000000000000007-0000000000000000009-writer-1.jsonl")
        (segment,) = store.list_segments(ref)
        assert segment[:4] == (key, 7, 9, "writer-1")
        assert segment.size == len(payload)
        assert segment.created_at.utcoffset() == timedelta(0)
        assert abs(datetime.now(timezone.utc) - segment.created_at) < timedelta(minutes=15)
        assert self.stored(store, key) == payload
        assert store.next_seq(ref) == 10

    def test_a_transcript_that_does_not_exist_is_empty(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        assert store.list_segments(ref) == []
        assert list(store.records(ref)) == []
        assert store.next_seq(ref) == 0
        assert store.delete(ref).deleted == 0

    def test_appending_the_same_again_succeeds_and_stores_once(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        keys = {store.append_segment(ref, 0, 1, "w", lines_of(0, 1)) for _ in range(3)}
        assert [segment.key for segment in store.list_segments(ref)] == list(keys)

    @pytest.mark.parametrize(
        "other", [lines_of(5), lines_of(0) + b" \n", b'{"m":0,"text":"line"}\n'], ids=["seq", "size", "byte"]
    )
    def test_other_content_under_the_same_name_is_refused_and_nothing_changes(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, other: bytes
    ) -> None:
        key = store.append_segment(ref, 0, 0, "w", lines_of(0))
        before = store.list_segments(ref)
        with pytest.raises((SegmentConflictError, InvalidSegmentError)):
            store.append_segment(ref, 0, 0, "w", other)
        assert store.list_segments(ref) == before
        assert self.stored(store, key) == lines_of(0)

    @pytest.mark.parametrize("line", KEPT_LINES, ids=lambda line: line[:12].decode().strip())
    def test_a_line_is_kept_byte_for_byte(self, store: ObjectTranscriptStore, ref: TranscriptRef, line: bytes) -> None:
        key = store.append_segment(ref, 0, 1, "w", line + b"\r\n" + line)
        assert self.stored(store, key) == (line + b"\n") * 2
        assert [record.line for record in store.records(ref)] == [line, line]

    @pytest.mark.parametrize("payload", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)
    def test_a_bad_payload_is_refused_and_nothing_is_written(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, payload: bytes
    ) -> None:
        with pytest.raises(InvalidSegmentError):
            store.append_segment(ref, 0, 0, "w", payload)
        assert store.list_segments(ref) == []

    @pytest.mark.parametrize(
        ("start", "end", "writer"),
        [(1, 0, "w"), (-1, -1, "w"), (2**63, 2**63, "w"), (0, 0, "compacted-0-0"), (0, 0, "w\n"), (0, 0, ""), (0, 0, "w" * 65)],
    )
    def test_a_bad_range_or_writer_is_refused(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, start: int, end: int, writer: str
    ) -> None:
        with pytest.raises(InvalidSegmentError):
            store.append_segment(ref, start, end, writer, lines_of(0))
        assert store.list_segments(ref) == []

    def test_seqs_up_to_the_highest_work_and_sort_by_number(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        seqs = [2**63 - 1, 10, 9, 10**18, 0, 99]
        for seq in seqs:
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        assert [segment.seq_start for segment in store.list_segments(ref)] == sorted(seqs)
        assert [record.seq for record in store.records(ref)] == sorted(seqs)

    def test_more_segments_than_a_page_are_all_seen_and_all_deleted(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        many_at_a_time(lambda seq: store.append_segment(ref, seq, seq, "w", lines_of(seq)), _MANY)
        assert [segment.seq_start for segment in store.list_segments(ref)] == list(range(_MANY))
        assert store.next_seq(ref) == _MANY
        assert store.delete(ref).deleted == _MANY
        assert store.list_segments(ref) == []

    def test_more_segments_than_a_page_are_seen_under_an_escaped_id(self, store: ObjectTranscriptStore, tenant: str) -> None:
        ref = TranscriptRef(tenant, "agent", "a b/=c")
        many_at_a_time(lambda seq: store.append_segment(ref, seq, seq, "w", lines_of(seq)), _MANY)
        assert len(store.list_segments(ref)) == _MANY
        assert list(store.list_refs(tenant)) == [ref]

    def test_a_stream_reads_by_pieces_and_lines_and_closes_early(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        payload = lines_of(*range(1000), text="x" * 600)
        key = store.append_segment(ref, 0, 999, "w", payload)
        with store.read_segment(key) as stream:
            assert list(stream) == payload.splitlines(keepends=True)
        with store.read_segment(key) as stream:
            assert b"".join(iter(lambda: stream.read(999), b"")) == payload
        for _ in range(20):
            with store.read_segment(key) as stream:
                assert stream.readline() == payload[: payload.index(b"\n") + 1]
        assert self.stored(store, key) == payload

    def test_a_missing_segment_is_not_found(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        key = store.append_segment(ref, 0, 0, "w", lines_of(0))
        with pytest.raises(SegmentNotFoundError):
            store.read_segment(key.replace("-w.jsonl", "-x.jsonl"))

    @pytest.mark.parametrize("key", ["", "x", "a/b/c/events/0-0-w.txt", "../a/b/events/0-0-w.jsonl", "/etc/passwd"])
    def test_what_is_no_segment_key_is_refused(self, store: ObjectTranscriptStore, key: str) -> None:
        with pytest.raises(InvalidSegmentError):
            store.read_segment(key)

    # --- several writers ----------------------------------------------------------------------------------------------

    def test_records_of_two_writers_come_by_seq_and_writer(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        store.append_segment(ref, 0, 3, "b", lines_of(0, 1, 2, 3, text="b"))
        store.append_segment(ref, 2, 2, "a", lines_of(2, text="a"))
        store.append_segment(ref, 3, 5, "a", lines_of(3, 4, 5, text="a"))
        assert [(record.seq, record.writer_id) for record in store.records(ref)] == [
            (0, "b"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b"), (4, "a"), (5, "a"),
        ]  # fmt: skip
        assert [record.seq for record in store.records(ref, start_seq=2, end_seq=3, limit=3)] == [2, 2, 3]

    def test_of_many_creators_of_one_segment_exactly_one_wins(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        for seq in range(self.rounds):
            payloads = [lines_of(creator, text="x" * 100) for creator in range(self.creators)]
            results = all_at_once([partial(store.append_segment, ref, seq, seq, "w", each) for each in payloads])
            winners = [each for each, result in zip(payloads, results, strict=True) if isinstance(result, str)]
            losers = [type(result) for result in results if not isinstance(result, str)]
            assert losers == [SegmentConflictError] * (self.creators - 1)
            assert winners == [self.stored(store, store.list_segments(ref)[seq].key)]

    def test_many_that_append_the_same_all_succeed(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        call = partial(store.append_segment, ref, 0, 0, "w", lines_of(0))
        assert len(set(all_at_once([call] * self.creators))) == 1
        assert len(store.list_segments(ref)) == 1

    def test_writers_of_their_own_never_lose_a_line(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        def write(writer: int) -> None:
            for seq in range(10):
                store.append_segment(ref, seq, seq, f"writer-{writer:02d}", lines_of(seq, text=str(writer)))

        assert all_at_once([partial(write, writer) for writer in range(16)]) == [None] * 16
        expected = [(seq, f"writer-{writer:02d}") for seq in range(10) for writer in range(16)]
        assert [(record.seq, record.writer_id) for record in store.records(ref)] == expected

    # --- segments of other programs -----------------------------------------------------------------------------------

    def test_the_cost_of_reading_from_the_end_follows_the_lines_that_exist_and_not_the_numbers_in_names(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        def put(first: int, last: int, writer: str, count: int) -> None:
            body = lines_of(*range(count), text=writer)
            store._container.create(store._names(ref).segment(first, last, writer), body)

        def spared(most: int) -> ObjectTranscriptStore:
            driver = SparingObjectStore(store._container.driver, most)
            return ObjectTranscriptStore(Container(driver), store._root)

        for seq in range(0, 40, 4):
            store.append_segment(ref, seq, seq + 3, "w", lines_of(*range(4)))
        store.compact(ref, CompactionPolicy(full=True))
        put(0, 10**9 - 1, "wide", 100)
        put(30, 2**63 - 1, "wider", 50)
        put(10**12, 2**63 - 1, "widest", 3)
        put(10**12 + 2, 10**12 + 2, "surplus", 20)
        put(10**15, 10**15 + 10**9, "nothing", 0)
        for seq in range(60, 70):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        for _ in range(2):
            expected = list(store.records(ref))
            assert len(expected) == 40 + 100 + 50 + 3 + 20 + 10
            for n in (1, 5, 30, 120):
                assert spared(80).tail(ref, n) == expected[-n:]
            assert list(spared(80).records(ref, reverse=True)) == expected[::-1]
            with spared(80).follow(ref, last=25) as follower:
                assert list(islice(follower, 25)) == expected[-25:]
            store.compact(ref, CompactionPolicy(full=True))

    # --- compaction ---------------------------------------------------------------------------------------------------

    def test_compaction_leaves_few_segments_and_readers_see_no_difference(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        written = {}
        for seq in range(40):
            writer = "odd" if seq % 2 else "even"
            body = lines_of(seq, seq + 1, text=writer)
            written[store.append_segment(ref, seq, seq + 1, writer, body)] = body
        before = list(store.records(ref))
        assert len(before) == 80
        for policy in (CompactionPolicy(), CompactionPolicy(full=True)):
            store.compact(ref, policy)
            assert list(store.records(ref)) == before
        assert len(store.list_segments(ref)) == 1
        assert store.next_seq(ref) == 41
        assert list(store.list_refs(ref.tenant)) == [ref]
        assert list(store.records(ref, start_seq=20, end_seq=21)) == [each for each in before if each.seq in (20, 21)]
        assert {key: self.stored(store, key) for key in written} == written
        store.append_segment(ref, 41, 41, "late", lines_of(41))
        assert [record.seq for record in store.records(ref)][-2:] == [40, 41]

    def test_segments_that_share_a_writer_id_read_as_they_were_appended(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        written = {}
        for last in (1, 2, 4):  # of three hosts, say, under one writer id
            body = lines_of(*range(last + 1), text=f"host {last}")
            written[store.append_segment(ref, 0, last, "same", body)] = body
        before = list(store.records(ref))
        assert len(before) == 10
        store.compact(ref, CompactionPolicy(full=True))
        assert list(store.records(ref)) == before
        assert {key: self.stored(store, key) for key in written} == written

    def test_a_compacted_segment_is_not_read_once_a_delete_has_begun(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        for seq in range(3):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        store.compact(ref, CompactionPolicy(full=True))
        (segment,) = store.list_segments(ref)
        body = self.stored(store, segment.key)
        assert body == lines_of(0, 1, 2)
        store.delete(ref)
        store._container.create(segment.key, body)  # as a compaction leaves it that the delete has overtaken
        with pytest.raises(SegmentNotFoundError):
            store.read_segment(segment.key)
        store.append_segment(ref, 0, 0, "w", lines_of(0))
        with pytest.raises(SegmentNotFoundError):
            store.read_segment(segment.key)

    def test_compacting_again_does_nothing(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        for seq in range(20):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        assert store.compact(ref).segments_after == 1
        again = store.compact(ref)
        assert (again.segments_before, again.segments_after, again.bytes_written, again.merged, again.left) == (1, 1, 0, [], [])

    def test_many_compactors_and_writers_at_once_lose_nothing(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        def write(writer: int) -> None:
            for seq in range(20):
                store.append_segment(ref, seq, seq, f"writer-{writer}", lines_of(seq, text=str(writer)))

        def compact() -> None:
            for _ in range(4):
                store.compact(ref, CompactionPolicy(min_segments=3))

        def read() -> None:
            for _ in range(4):
                identities = [record[:2] for record in store.records(ref)]
                assert identities == sorted(set(identities))

        calls: list[Callable[[], None]] = [
            *(partial(write, writer) for writer in range(4)),
            compact,
            compact,
            compact,
            read,
            read,
        ]
        assert all_at_once(calls) == [None] * len(calls)
        store.compact(ref, CompactionPolicy(full=True))
        assert [record[:2] for record in store.records(ref)] == [
            (seq, f"writer-{writer}") for seq in range(20) for writer in range(4)
        ]
        assert len(store.list_segments(ref)) == 1

    def test_a_copy_while_compactions_run_holds_the_same_records(
        self, store: ObjectTranscriptStore, ref: TranscriptRef
    ) -> None:
        for seq in range(24):
            store.append_segment(
                ref, seq, seq + seq % 2, f"w{seq % 3}", lines_of(*range(seq, seq + seq % 2 + 1), text=f"{seq}")
            )
        before = list(store.records(ref))

        def compact() -> None:
            for min_segments in (4, 3, 2):
                store.compact(ref, CompactionPolicy(min_segments=min_segments))

        with open_store("memory://") as copied:

            def copy() -> None:
                for _ in range(2):
                    copy_transcript(store, copied, ref)

            assert all_at_once([compact, copy, compact, copy]) == [None] * 4
            assert list(copied.records(ref)) == before
        assert list(store.records(ref)) == before

    def test_a_compacted_transcript_is_deleted_whole(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        for seq in range(20):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        store.compact(ref)
        assert store.delete(ref).deleted == 2  # the segment and its index
        assert list(store.records(ref)) == []
        assert list(store.list_refs(ref.tenant)) == []
        store.append_segment(ref, 0, 0, "w", lines_of(0))
        assert store.compact(ref, CompactionPolicy(full=True)).left == []
        assert len(list(store.records(ref))) == 1

    # --- what is not as it was stored ---------------------------------------------------------------------------------

    def test_what_is_listed_and_is_not_there_stops_nobody(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        keys = [store.append_segment(ref, seq, seq, "w", lines_of(seq)) for seq in range(6)]
        recorded = RecordingObjectStore(store._container.driver)
        driver = PhantomObjectStore(recorded)
        driver.phantoms = {keys[2]}

        def opened() -> ObjectTranscriptStore:
            recorded.requests.clear()
            return ObjectTranscriptStore(Container(driver), store._root)

        rest = [0, 1, 3, 4, 5]
        pages = 3 if driver.capabilities.one_pass else 6  # of one listing, and what shows twice of a directory
        assert [record.seq for record in opened().records(ref)] == rest
        assert [record.seq for record in opened().records(ref, reverse=True)] == rest[::-1]
        assert [record.seq for record in opened().follow(ref, stop_when_idle=0, min_interval=0.001)] == rest
        assert recorded.counts["list_page"] <= 4 * pages
        report = opened().verify(ref)
        assert [each.key for each in report.problems if not each.harmless] == [keys[2]]
        assert recorded.counts["list_page"] <= 4 * pages
        copied = open_store(f"memory://copied-{ref.tenant}")
        assert copy_transcript(opened(), copied, ref).records == 5
        result = opened().compact(ref, CompactionPolicy(full=True))
        assert [left[0] for left in result.left] == [keys[2]]
        assert result.segments_after == 3  # on both sides of it, and itself
        assert [record.seq for record in opened().records(ref)] == rest
        assert opened().delete(ref).generation == 1
        assert recorded.counts["list_page"] <= 4 * pages
        assert list(opened().records(ref)) == []
        driver.phantoms = set()
        assert store.delete(ref).deleted == 1

    @pytest.fixture
    def flips(self, store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch) -> FlippingObjectStore:
        """What tells responses of the store to have another byte."""
        flips = FlippingObjectStore(store._container.driver)
        monkeypatch.setattr(store._container, "driver", flips)
        return flips

    @pytest.mark.parametrize("compacted", [False, True], ids=["plain", "compacted"])
    def test_one_response_with_another_byte_changes_nothing_that_is_merged_copied_or_verified(
        self, store: ObjectTranscriptStore, flips: FlippingObjectStore, ref: TranscriptRef, compacted: bool
    ) -> None:
        key = self._nine(store, ref, compacted)
        if not compacted and not store._container.look(key)[1]:
            return self._check_that_nobody_can_tell(store, flips, ref, key)
        before = list(store.records(ref))
        flips.flip(key)
        assert store.verify(ref).ok
        flips.flip(key)
        with open_store("memory://") as other:
            copy_transcript(store, other, ref)
            assert list(other.records(ref)) == before
        flips.flip(key)
        assert store.compact(ref, CompactionPolicy(full=True)).left == []
        assert list(store.records(ref)) == before
        assert flips.flipped == 3
        return None

    @pytest.mark.parametrize("compacted", [False, True], ids=["plain", "compacted"])
    def test_what_always_comes_with_another_byte_is_left_and_not_copied(
        self, store: ObjectTranscriptStore, flips: FlippingObjectStore, ref: TranscriptRef, compacted: bool
    ) -> None:
        key = self._nine(store, ref, compacted)
        if not compacted and not store._container.look(key)[1]:
            return self._check_that_nobody_can_tell(store, flips, ref, key)
        before = list(store.records(ref))
        flips.flip(key, times=math.inf)
        with open_store("memory://") as other, pytest.raises(CorruptSegmentError, match=re.escape(key)):
            copy_transcript(store, other, ref)
        assert ("wrong hash", key) in [problem[:2] for problem in store.verify(ref).problems]
        ((left, reason),) = store.compact(ref, CompactionPolicy(full=True)).left
        assert left == key
        assert "sha256" in reason
        flips.flip(key, times=0)
        assert list(store.records(ref)) == before
        assert store.compact(ref, CompactionPolicy(full=True)).left == []
        assert list(store.records(ref)) == before
        return None

    def _nine(self, store: ObjectTranscriptStore, ref: TranscriptRef, compacted: bool) -> str:
        """Nine records; gives the key of a segment in their middle."""
        keys = [store.append_segment(ref, seq, seq, "w", lines_of(seq)) for seq in (3, 4, 5)]
        if compacted:
            keys = store.compact(ref, CompactionPolicy(full=True)).merged
        for seq in (0, 1, 2, 6, 7, 8):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        return keys[len(keys) // 2]

    def _check_that_nobody_can_tell(
        self, store: ObjectTranscriptStore, flips: FlippingObjectStore, ref: TranscriptRef, key: str
    ) -> None:
        """Where no metadata is kept, nothing says what a segment was that nobody has merged: what comes is taken for it."""
        before = list(store.records(ref))
        flips.flip(key)
        assert store.compact(ref, CompactionPolicy(full=True)).left == []
        after = list(store.records(ref))
        assert [each[:2] for each in after] == [each[:2] for each in before]
        assert len(set(after) - set(before)) == 1

    # --- delete -------------------------------------------------------------------------------------------------------

    def test_delete_removes_the_transcript_and_no_other(self, store: ObjectTranscriptStore, tenant: str) -> None:
        doomed, *others = (TranscriptRef(tenant, "agent", name) for name in ("s1", "s10", "s1-x", "s1.x", "s"))
        for each in (doomed, *others):
            store.append_segment(each, 0, 0, "w", lines_of(0))
            store.append_segment(each, 1, 1, "w", lines_of(1))
        assert store.delete(doomed).deleted == 2
        assert store.list_segments(doomed) == []
        assert all(len(store.list_segments(each)) == 2 for each in others)
        assert list(store.list_refs(tenant)) == sorted(others, key=lambda each: each.prefix)

    def test_deleting_twice_finds_nothing_the_second_time(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> None:
        store.append_segment(ref, 0, 0, "w", lines_of(0))
        assert [store.delete(ref).deleted for _ in range(3)] == [1, 0, 0]

    @pytest.mark.parametrize("purge", [False, True])
    def test_a_deleted_transcript_can_be_written_anew(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, purge: bool
    ) -> None:
        for text in ("first", "second", "third"):
            key = store.append_segment(ref, 0, 0, "w", lines_of(0, text=text))
            assert self.stored(store, key) == lines_of(0, text=text)
            store.delete(ref, purge=purge)
            assert store.next_seq(ref) == 0
            with pytest.raises(SegmentNotFoundError):
                store.read_segment(key)

    # --- delete, refused ----------------------------------------------------------------------------------------------

    def refusing(self, store: ObjectTranscriptStore, refusal: str) -> ObjectTranscriptStore:
        """The same store for somebody whose deletes are refused."""
        driver = _RefusingObjectStore(store._container.driver)
        driver.refusal = refusal
        return ObjectTranscriptStore(Container(driver), store._root)

    def objects(self, store: ObjectTranscriptStore, ref: TranscriptRef) -> list[str]:
        found = (each.key for each in store._container.list(store._names(ref).prefix))
        return sorted(key for key in found if "/.probe-" not in key)  # which a store without deletes leaves behind

    @pytest.mark.parametrize("refusal", REFUSALS)
    def test_a_delete_that_is_refused_hides_nothing_and_writes_nothing(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, refusal: str
    ) -> None:
        for seq in range(4):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        store.compact(ref, CompactionPolicy(full=True))
        for seq in (4, 5):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        records, objects = list(store.records(ref)), self.objects(store, ref)
        for purge in (False, True):
            with pytest.raises(AccessDeniedError):
                self.refusing(store, refusal).delete(ref, purge=purge)
            assert list(store.records(ref)) == records
            assert self.objects(store, ref) == objects
        assert store.delete(ref).deleted == len(objects)

    @pytest.mark.parametrize("refusal", REFUSALS)
    def test_a_compactor_whose_deletes_are_refused_merges_what_is_there_once(
        self, store: ObjectTranscriptStore, ref: TranscriptRef, refusal: str
    ) -> None:
        for seq in range(4):
            store.append_segment(ref, seq, seq, "w", lines_of(seq))
        records, objects = list(store.records(ref)), []
        for _ in range(3):
            with contextlib.suppress(AccessDeniedError):
                self.refusing(store, refusal).compact(ref, CompactionPolicy(full=True))
            objects.append(self.objects(store, ref))
            assert list(store.records(ref)) == records
        assert [len(each) for each in objects] == [6, 6, 6]  # with the compacted segment and its index
        store.compact(ref, CompactionPolicy(full=True))
        assert list(store.records(ref)) == records
        assert len(self.objects(store, ref)) == 2

    # --- names --------------------------------------------------------------------------------------------------------

    def test_any_id_works_and_none_sees_another(self, store: ObjectTranscriptStore, tenant: str) -> None:
        refs = [TranscriptRef(tenant, agent, session) for agent in ("agent", "..") for session in IDS]
        for number, each in enumerate(refs):
            store.append_segment(each, 0, 0, "w", lines_of(number))
        for number, each in enumerate(refs):
            assert [record.json()["n"] for record in store.records(each)] == [number]
        assert sorted(store.list_refs(tenant)) == sorted(refs)
        assert sorted(store.list_refs(tenant, "..")) == sorted(each for each in refs if each.agent_id == "..")
        assert [each for each in store.list_refs() if each.tenant == tenant] == list(store.list_refs(tenant))
        assert list(store.list_refs(agent_id=f"nobody-{tenant}")) == []

    def test_ids_that_differ_in_case_are_two_transcripts_or_the_second_is_refused(
        self, store: ObjectTranscriptStore, tenant: str
    ) -> None:
        first, second = TranscriptRef(tenant, "agent", "Fix-Login"), TranscriptRef(tenant, "agent", "fix-login")
        store.append_segment(first, 0, 0, "w", lines_of(1))
        with contextlib.suppress(InvalidRefError):
            store.append_segment(second, 0, 0, "w", lines_of(2))
            assert [record.json()["n"] for record in store.records(second)] == [2]
            store.delete(second)
        assert [record.json()["n"] for record in store.records(first)] == [1]
        assert list(store.list_refs(tenant)) == [first]

    @pytest.fixture
    def raw(self, store: ObjectTranscriptStore) -> ObjectTranscriptStore:
        """The same place, with ids as programs write them that escape nothing."""
        return ObjectTranscriptStore(store._container, store._root, ids="raw")

    def test_any_id_works_raw_too_and_most_stand_in_the_keys_as_they_are(self, raw: ObjectTranscriptStore, tenant: str) -> None:
        refs = [TranscriptRef(tenant, "ein agent é", session) for session in RAW_IDS]
        keys = [raw.append_segment(each, 0, 0, "w", lines_of(number)) for number, each in enumerate(refs)]
        for number, (ref, key) in enumerate(zip(refs, keys, strict=True)):
            assert [record.json()["n"] for record in raw.records(ref)] == [number]
            if ref.session_id in AS_THEY_ARE:
                assert f"/{ref.session_id}/events/" in key
        assert set(raw.list_refs(tenant)) == set(refs)
        assert set(raw.list_refs(tenant, "ein agent é")) == set(refs)
        assert self.stored(raw, keys[0]) == lines_of(0)
        raw.append_segment(refs[0], 1, 1, "w", lines_of(1))
        assert raw.compact(refs[0], CompactionPolicy(full=True)).segments_after == 1
        assert raw.next_seq(refs[0]) == 2
        assert raw.delete(refs[0]).deleted == 2
        assert set(raw.list_refs(tenant)) == set(refs[1:])

    def test_what_is_spelled_otherwise_is_told_of_and_never_taken_for_another(
        self, store: ObjectTranscriptStore, raw: ObjectTranscriptStore, tenant: str
    ) -> None:
        plain, odd = TranscriptRef(tenant, "agent", "s1"), TranscriptRef(tenant, "user@host", "a b")
        stores = [store, raw]
        for seq, each in enumerate(stores):
            each.append_segment(plain, seq, seq, "w", lines_of(seq))  # at one place, however it is spelled
            each.append_segment(odd, seq, seq, "w", lines_of(seq))
        for seq, each in enumerate(stores):
            assert [record.seq for record in each.records(plain)] == [0, 1]
            assert [record.seq for record in each.records(odd)] == [seq]
            skipped: list[Skipped] = []
            assert sorted(each.list_refs(tenant, on_skipped=skipped.append)) == [plain, odd]
            other = stores[1 - seq]
            path = other._names(odd).prefix[len(other._root) : -1]
            assert skipped == [Skipped(path, "spelling", other.ids)]
            skipped.clear()
            assert list(each.list_refs(tenant, "user@host", on_skipped=skipped.append)) == [odd]
            assert skipped == [Skipped(path, "spelling", other.ids)]

    def test_a_copy_compares_ids_however_each_store_spells_them(
        self, store: ObjectTranscriptStore, raw: ObjectTranscriptStore, tenant: str
    ) -> None:
        odd = TranscriptRef(tenant, "agent", "a/b é =41")
        for seq in range(2):
            raw.append_segment(odd, seq, seq, "w", lines_of(seq))
        for copied in (2, 0):
            assert copy_transcript(raw, store, odd).segments == copied
        assert list(store.records(odd)) == list(raw.records(odd))
        assert copy_transcript(store, raw, odd).segments == 0

    @pytest.mark.parametrize(
        "session", ["", " ", "\n", "n" * 256, "\ud800"], ids=["empty", "blank", "newline", "long", "surrogate"]
    )
    def test_a_bad_id_is_refused(self, tenant: str, session: str) -> None:
        with pytest.raises(InvalidRefError):
            TranscriptRef(tenant, "agent", session)

    # --- views --------------------------------------------------------------------------------------------------------

    def test_a_store_without_placeholders_is_its_own_view(self, store: ObjectTranscriptStore) -> None:
        assert store.with_runtime_context(RuntimeContext(user_id="u")) is store
