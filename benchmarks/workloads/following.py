"""How long it takes until a follower has what a writer has stored."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.clients import KINDS
from benchmarks.clients.ours import Store, ref
from benchmarks.measuring import Bench, percentile

_LINE = b'{"type":"message"}\n'
_APART = 0.1  # seconds between two appends
_POLL = 0.3  # seconds between two listings by hand; a follower's shortest


def latency(bench: Bench) -> None:
    """One process, two clients; the clock of both is the same."""
    count = bench.size(12, 3)
    stored: list[float] = []

    def write() -> None:
        writer = KINDS[bench.name].open(bench.place)
        for seq in range(count):
            writer.append("follow", seq, _LINE)
            stored.append(time.perf_counter())
            time.sleep(_APART)
        writer.close()

    seen: list[float] = []
    bench.client.append("warm", 0, _LINE)
    writing = threading.Thread(target=write)
    with bench.measuring(count):
        writing.start()
        for _ in itertools.islice(_follow(bench.client), count):
            seen.append(time.perf_counter())
        writing.join()
    latencies = [1000 * max(0.0, there - here) for here, there in zip(stored, seen, strict=True)]
    bench.note(p50_ms=percentile(latencies, 0.5), p99_ms=percentile(latencies, 0.99))


def _follow(client: Any) -> Iterator[object]:
    if isinstance(client, Store):
        yield from client.store.follow(ref("follow"))
    known: set[str] = set()
    while True:
        for key in client.keys("follow"):
            if key not in known:
                known.add(key)
                yield client.get(key)
        time.sleep(_POLL)
