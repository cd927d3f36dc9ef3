"""A process that drops readers in the middle, with requests in flight that are never answered, and has to go on.

Usage: dropping.py <url, or memory> <where the garbage collector runs>
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from transcript_backends import ObjectTranscriptStore, TranscriptRef, open_store
from transcript_backends.container import Container
from transcript_backends.drivers.driver import Body
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import WrapperObjectStore
from transcript_backends.events import EventLog

PLAIN, PAYLOADS, EVENTS = (TranscriptRef("acme", "coder", session) for session in ("plain", "payloads", "events"))
STUCK = "-stuck.jsonl"  # what ends in this is never answered
_LARGE = "x" * 100_000

Open = Callable[[], ObjectTranscriptStore]


def fill(store: ObjectTranscriptStore) -> set[str]:
    """Store transcripts; gives the keys of payloads that must not be answered either."""
    for ref in (PLAIN, EVENTS):
        line = json.dumps({"type": "agent.message", "id": "evt_1", "content": [{"type": "text", "text": "hi"}]}).encode()
        store.append_segment(ref, 0, 0, "first", line)
        for seq in range(1, 60):
            store.append_segment(ref, seq, seq, "stuck", line)
    with store.writer(PAYLOADS) as writer:
        for number in range(30):
            writer.append({"n": number, "large": _LARGE[number:]})
    with store.writer(TranscriptRef("acme", "coder", "first")) as writer:
        writer.append({"n": 0, "large": _LARGE})
    payloads = {each.key.rpartition("/")[2]: each.key for each in store._container.list(f"{PAYLOADS.prefix}payloads/")}
    first = {each.key.rpartition("/")[2] for each in store._container.list("acme/coder/first/payloads/")}
    return {key for name, key in payloads.items() if name not in first}


class GateObjectStore(WrapperObjectStore):
    """Lets nobody through to what is stuck until it is opened; then each that waited does something first."""

    def __init__(self, stuck: Callable[[str], bool]) -> None:
        super().__init__(MemoryObjectStore())
        self.stuck = stuck
        self.opened = threading.Event()
        self.before: Callable[[], object] = int

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> Body:
        if self.stuck(key):
            self.opened.wait()
            self.before()
        return super().get(key, start=start, end=end)


def in_cycle(readers: Iterator[Any]) -> None:
    for reader in readers:
        holder = [reader]
        holder.append(holder)  # type: ignore[arg-type]


def suspended(open_one: Open) -> Iterator[Any]:
    """Readers that have given one record, and have requests in flight; in stores of their own, whose calls they fill."""
    for reader in (
        open_one().records(PAYLOADS),
        open_one().follow(PLAIN),
        EventLog(open_one(), EVENTS).stream(),
    ):
        next(reader)
        yield reader


def left_early(open_one: Open) -> None:
    for _ in open_one().records(PLAIN):
        break


def main(url: str, where: str) -> None:
    gc.disable()  # but where it is called
    if url == "memory":
        stuck: set[str] = set()
        gate = GateObjectStore(lambda key: key in stuck or key.endswith(STUCK))
        stuck |= fill(ObjectTranscriptStore(Container(gate)))
        open_one: Open = lambda: ObjectTranscriptStore(Container(gate))  # noqa: E731
    else:
        url, _, given = url.partition(" ")
        open_one = partial(open_store, url, **json.loads(given))
    left_early(open_one)
    in_cycle(suspended(open_one))
    if where == "main":
        gc.collect()
    elif where == "thread":
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    elif where == "worker":
        gate.before = gc.collect
        gate.opened.set()
    if url == "memory" and where != "exit":
        gate.opened.set()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
    print("went on")


if __name__ == "__main__":
    main(*sys.argv[1:])
