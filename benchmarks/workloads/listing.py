"""Listings."""

from __future__ import annotations

from benchmarks.clients import prefix
from benchmarks.measuring import Bench


def ten_thousand(bench: Bench) -> None:
    count = bench.size(10_000, 2500)
    bench.place.fill(prefix("list"), count, records=1, line=b"{}\n")
    bench.place.fill(prefix("warm-list"), 1, records=1, line=b"{}\n")
    bench.place.wait()
    bench.client.list("warm-list")
    with bench.measuring(count):
        found = bench.client.list("list")
    assert found == count, found
