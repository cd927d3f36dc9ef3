"""Cold reads: nothing is known of the session but its name."""

from __future__ import annotations

from benchmarks.clients import AT_ONCE, prefix
from benchmarks.clients.ours import ref
from benchmarks.clients.raw import Raw
from benchmarks.measuring import LINE_4K, Bench
from benchmarks.places import FAST, NETWORK, Slow
from transcript_backends import CompactionPolicy

_WITHOUT_SEGMENTS = ("Strands", "one file", "SQLite")  # their ways to keep a session can't be filled but by themselves


def plain(bench: Bench, many: int = 1000) -> None:
    _read(bench, FAST, many=many)


def over_a_network(bench: Bench) -> None:
    _read(bench, NETWORK)


def compacted_over_a_network(bench: Bench) -> None:
    _read(bench, NETWORK, compacted=True)


def _read(bench: Bench, slow: Slow, *, many: int = 1000, compacted: bool = False) -> None:
    count = bench.size(many, 40)
    if isinstance(bench.client, Raw):
        _read_known(bench, bench.client, count)
        return
    _store(bench, "warm-read", AT_ONCE)
    _store(bench, "read", count)
    if compacted:
        bench.client.store.compact(ref("read"), CompactionPolicy(full=True))
    bench.place.wait()
    bench.place.slow(slow)
    bench.client.read("warm-read")  # at the same speed, which hedging learns
    bench.place.slow(slow)
    with bench.measuring(count):
        found = bench.client.read("read")
    assert found == count, found
    if slow.latency:
        bench.note(bound=count * slow.latency / AT_ONCE)


def _read_known(bench: Bench, client: Raw, count: int) -> None:
    _store(bench, "read", count)
    client.read_all("read", range(AT_ONCE))
    with bench.measuring(count):
        received = client.read_all("read", range(count))
    assert received == count * len(LINE_4K)


def _store(bench: Bench, session: str, count: int) -> None:
    if not bench.place.can_be_filled:
        bench.client.append_all(session, range(count), LINE_4K)
    elif bench.name in _WITHOUT_SEGMENTS:
        for seq in range(count):
            bench.client.append(session, seq, LINE_4K)
    else:
        bench.place.fill(prefix(session), count, records=1, line=LINE_4K)
