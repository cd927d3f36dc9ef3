"""Requests, counted at the server, beside what is promised; there is no noise in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.clients import prefix
from benchmarks.clients.ours import ref
from benchmarks.measuring import Bench
from transcript_backends import CompactionPolicy

_LINE = b'{"type":"message"}\n'
_FEW = 16  # segments of one tier


def requests(bench: Bench) -> None:
    store = bench.client.store
    bench.client.append("warm", 0, _LINE)
    counts: dict[str, dict[str, Any]] = {}

    def count(name: str, call: Callable[[], Any], most: int) -> Any:
        with bench.measuring(1):
            answer = call()
        told = bench.result["requests"]
        counts[name] = {"counted": sum(told.values()), "promised": most, "requests": told}
        return answer

    many = bench.size(2500, 1100)
    pages = math.ceil(many / 1000)
    count("append", lambda: bench.client.append("one", 0, _LINE), 1)
    bench.place.fill(prefix("plain"), many, records=1, line=_LINE)
    count(f"list of {many}", lambda: bench.client.list("plain"), pages)
    count(f"read plain of {many}", lambda: bench.client.read("plain"), pages + many)
    merged = 3
    for number in range(merged):
        start = number * 100
        bench.client.append_all("compacted", range(start, start + 100), _LINE)
        store.compact(ref("compacted"), CompactionPolicy(min_segments=100))
    segments = bench.client.list("compacted")
    bench.open()
    count(f"read compacted of {segments}", lambda: bench.client.read("compacted"), 1 + 2 * segments)
    bench.note(counts=counts, **_live(bench))


def _live(bench: Bench) -> dict[str, float]:
    """A session that is compacted while it grows: segments after each compaction, and how often a byte is written."""
    many, session = bench.size(2048, 256), "live"
    written, worst = 0, 0.0
    for start in range(0, many, _FEW):
        bench.client.append_all(session, range(start, start + _FEW), _LINE)
        result = bench.client.store.compact(ref(session))
        written += result.bytes_written
        tiers = math.ceil(math.log(start + _FEW, _FEW) - 1e-9)
        worst = max(worst, result.segments_after / (15 * tiers))
    times = 1 + written / (many * len(_LINE))
    return {"left": result.segments_after, "worst_share": worst, "rewritten": times, "rewritten_share": times / (1 + tiers)}
