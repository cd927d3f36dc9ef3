"""Merging many small segments into few large ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.clients import AT_ONCE, prefix
from benchmarks.clients.ours import Store, ref
from benchmarks.clients.raw import Raw
from benchmarks.measuring import LINE_4K, Bench
from transcript_backends import CompactionPolicy

_TARGET = 32 * 1024 * 1024
_BATCH = 1000  # keys of one delete


def ten_thousand(bench: Bench) -> None:
    _measure(bench, bench.size(10_000, 1200))


def large(bench: Bench) -> None:
    """Of five writers in turn, whose records have to be merged."""
    _measure(bench, bench.size(262_144, 1200), writers=5)


def _measure(bench: Bench, count: int, writers: int = 1) -> None:
    bench.place.fill(prefix("warm"), 40, records=1, line=LINE_4K)
    bench.place.fill(prefix("compact"), count, records=1, line=LINE_4K, writers=writers)
    bench.place.wait()
    _compact(bench, "warm", 40)
    with bench.measuring(count):
        written = _compact(bench, "compact", count)
    bench.note(amplification=written / (count * len(LINE_4K)))
    if not isinstance(bench.client, Raw):
        assert bench.client.read("compact") == count


def _compact(bench: Bench, session: str, count: int) -> int:
    """Gives how many bytes were written."""
    client = bench.client
    if isinstance(client, Store):
        return client.store.compact(ref(session), CompactionPolicy(full=True)).bytes_written
    if isinstance(client, Raw):  # the gets only, which are what takes the time
        return client.read_all(session, range(count))
    return _by_hand(client, session)


def _by_hand(client: Any, session: str) -> int:
    """The loop one writes with boto3: list, get in threads, join, put, delete. It is not safe if it is run twice at once."""
    keys = client.keys(session)
    in_one = max(1, _TARGET // len(LINE_4K))
    written = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(keys), in_one):
            body = b"".join(pool.map(client.get, keys[start : start + in_one]))
            name = f"{prefix(session)}{start:019d}-{min(start + in_one, len(keys)) - 1:019d}-merged.jsonl"
            client.client.put_object(Bucket=client.bucket, Key=name, Body=body, IfNoneMatch="*")
            written += len(body)
    for start in range(0, len(keys), _BATCH):
        doomed = [{"Key": key} for key in keys[start : start + _BATCH]]
        client.client.delete_objects(Bucket=client.bucket, Delete={"Objects": doomed, "Quiet": True})
    return written
