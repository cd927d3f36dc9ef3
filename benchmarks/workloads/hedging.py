"""What a second request for a slow one buys: the latency of single gets."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients import AT_ONCE, prefix, segment_key
from benchmarks.measuring import LINE_4K, Bench, percentile
from benchmarks.places import NETWORK


def single_gets(bench: Bench) -> None:
    gets, segments = bench.size(4000, 64), 100
    store = bench.client.store
    bench.place.fill(prefix("hedging"), segments, records=1, line=LINE_4K)

    def get(number: int) -> float:
        began = time.perf_counter()
        with store.read_segment(segment_key("hedging", number % segments)) as stream:
            assert len(stream.read()) == len(LINE_4K)
        return 1000 * (time.perf_counter() - began)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        bench.place.slow(NETWORK)
        list(pool.map(get, range(64)))  # at the same speed, which hedging learns
        bench.place.slow(NETWORK)
        with bench.measuring(gets):
            latencies = list(pool.map(get, range(gets)))
    bench.note(p50_ms=percentile(latencies, 0.5), p99_ms=percentile(latencies, 0.99), p999_ms=percentile(latencies, 0.999))
