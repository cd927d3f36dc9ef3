"""What a store must do that several processes have open at once."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from transcript_backends import SegmentConflictError, TranscriptRef, open_store
from transcript_backends.testing.racing import Racing
from transcript_backends.testing.stores import lines_of

_PROCESSES = 4


def append_many(url: str, ref: TranscriptRef, writer: str, count: int) -> int:
    """Append ``count`` segments of one line, in a process of its own."""
    with open_store(url) as store:
        for seq in range(count):
            store.append_segment(ref, seq, seq, writer, lines_of(seq, text=writer))
    return os.getpid()


def race(url: str, ref: TranscriptRef, name: str, rounds: int, threads: int) -> list[int]:
    """Try to create the segment of every seq with content of one's own, from several threads; gives the seqs won."""
    with open_store(url) as store, ThreadPoolExecutor(threads) as pool:

        def create(seq: int, thread: int) -> bool:
            try:
                store.append_segment(ref, seq, seq, "w", lines_of(seq, text=f"{name}-{thread}"))
            except SegmentConflictError:
                return False
            return True

        return [seq for seq in range(rounds) for won in pool.map(create, [seq] * threads, range(threads), timeout=120) if won]


class SharedStoreContract(Racing):
    """Inherit, and give a fixture ``store_url``: a URL that other processes can open too."""

    @pytest.fixture
    def store_url(self) -> str:
        pytest.fail("give a fixture `store_url`")

    @pytest.fixture
    def ref(self) -> TranscriptRef:
        return TranscriptRef(f"tenant-{os.urandom(6).hex()}", "agent", "session")

    @pytest.fixture
    def processes(self):  # type: ignore[no-untyped-def]
        with ProcessPoolExecutor(_PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool

    def test_two_processes_that_append_to_one_transcript_lose_nothing(
        self, store_url: str, ref: TranscriptRef, processes: ProcessPoolExecutor
    ) -> None:
        writers = ["one", "two"]
        running = [processes.submit(append_many, store_url, ref, writer, 200) for writer in writers]
        assert len({each.result() for each in running}) == 2
        with open_store(store_url) as store:
            assert len(store.list_segments(ref)) == 400
            expected = [(seq, writer, lines_of(seq, text=writer)[:-1]) for seq in range(200) for writer in writers]
            assert [tuple(record) for record in store.records(ref)] == expected

    def test_of_creators_in_many_processes_exactly_one_wins(
        self, store_url: str, ref: TranscriptRef, processes: ProcessPoolExecutor
    ) -> None:
        threads = max(1, self.creators // _PROCESSES)
        names = [f"process-{number}" for number in range(_PROCESSES)]
        running = [processes.submit(race, store_url, ref, name, self.rounds, threads) for name in names]
        won = sorted(seq for each in running for seq in each.result())
        assert won == list(range(self.rounds))
        with open_store(store_url) as store:
            for seq, segment in enumerate(store.list_segments(ref)):
                with store.read_segment(segment.key) as stream:
                    body = stream.read()
                assert body in {lines_of(seq, text=f"{name}-{thread}") for name in names for thread in range(threads)}
