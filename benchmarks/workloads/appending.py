"""Appends: alone, many at once, over a slow network, and a session as an agent writes it."""

from __future__ import annotations

from benchmarks.clients.ours import Store, ref
from benchmarks.measuring import LINE_4K, Bench
from benchmarks.places import NETWORK

_LINE_1K = LINE_4K[:1021] + b'"}\n'


def one_at_a_time(bench: Bench, many: int = 1000) -> None:
    count = bench.size(many, 20)
    for seq in range(bench.size(50, 1)):  # connections, and what is done once
        bench.client.append("append-1", seq, LINE_4K)
    with bench.measuring(count):
        for seq in range(1000, 1000 + count):
            bench.client.append("append-1", seq, LINE_4K)


def many_at_once(bench: Bench, many: int = 1000) -> None:
    count = bench.size(many, 64)
    bench.client.append_all("append-32", range(64), LINE_4K)
    with bench.measuring(count):
        bench.client.append_all("append-32", range(1000, 1000 + count), LINE_4K)


def over_a_network(bench: Bench) -> None:
    bench.client.append_all("append-32", range(64), LINE_4K)
    bench.place.slow(NETWORK)
    count = bench.size(1000, 64)
    with bench.measuring(count):
        bench.client.append_all("append-32", range(1000, 1000 + count), LINE_4K)
    bench.note(bound=count * NETWORK.mean / 32)


def session(bench: Bench) -> None:
    """A turn of 1 KiB, again and again, each durable before the next: ours through a writer."""
    turns = bench.size(1000, 20)
    bench.client.append("warm", 0, _LINE_1K)
    if isinstance(bench.client, Store):
        with bench.measuring(turns), bench.client.store.writer(ref("session")) as writer:
            for _ in range(turns):
                writer.append(_LINE_1K)
                writer.flush()
        assert bench.client.store.next_seq(ref("session")) == turns
    else:
        with bench.measuring(turns):
            for turn in range(turns):
                bench.client.append("session", turn, _LINE_1K)
