"""The end of a session that is compacted, however long it is."""

from __future__ import annotations

from benchmarks.clients import prefix
from benchmarks.clients.ours import ref
from benchmarks.measuring import Bench
from transcript_backends import CompactionPolicy

_IN_A_SEGMENT = 500
_LINE = b'{"type":"message","content":"what an agent says"}\n'


def thousand(bench: Bench) -> None:
    _tail(bench, 1000)


def hundred_thousand(bench: Bench) -> None:
    _tail(bench, bench.size(100_000, 10_000))


def million(bench: Bench) -> None:
    _tail(bench, bench.size(1_000_000, 20_000))


def _tail(bench: Bench, records: int) -> None:
    session = f"tail-{records}"
    bench.place.fill(prefix(session), records // _IN_A_SEGMENT, records=_IN_A_SEGMENT, line=_LINE)
    bench.client.store.compact(ref(session), CompactionPolicy(full=True))
    bench.place.wait()
    bench.open()  # it remembers nothing
    bench.client.list("nothing")
    with bench.measuring(1):
        found = bench.client.store.tail(ref(session), 50)
    assert [each.seq for each in found] == list(range(records - 50, records))
