"""Two writers append to one session while a reader follows it: what is there in the end, and what the reader has seen."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from benchmarks.clients import KINDS, Client
from benchmarks.clients.ours import Store, ref
from benchmarks.measuring import Bench

_LINE = b'{"writer":%d,"number":%d}\n'


def two_writers(bench: Bench) -> None:
    each, session = bench.size(200, 10), "shared"
    writers = [KINDS[bench.name].open(bench.place) for _ in range(2)]
    for writer in writers:  # as an agent that takes a session up
        assert writer.read(session) == 0
        writer.append("warm", 0, b"{}\n")

    def write(number: int) -> None:
        _write(writers[number], session, [_LINE % (number, count) for count in range(each)])

    with bench.measuring(2 * each), ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, number) for number in range(2)]
        if isinstance(bench.client, Store):
            with bench.client.store.follow(ref(session), stop_when_idle=30) as follower:
                bench.note(seen=len({record.line for record in itertools.islice(follower, 2 * each)}))
        for future in writing:
            future.result()
    found = bench.client.read(session)
    bench.note(kept=found, lost=2 * each - found)
    for writer in writers:
        writer.close()


def _write(client: Client, session: str, lines: list[bytes]) -> None:
    """One by one, each durable before the next; rivals number theirs from where they found the session to end: 0."""
    if isinstance(client, Store):
        with client.store.writer(ref(session)) as writer:
            for line in lines:
                writer.append(line)
                writer.flush()
    else:
        for seq, line in enumerate(lines):
            client.append(session, seq, line)
