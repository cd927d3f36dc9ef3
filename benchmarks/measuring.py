"""What one process measures of itself: time, CPU, requests, memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.clients import KINDS
from benchmarks.places import Counts, Place

LINE_4K = b'{"type":"message","content":"%s"}\n' % (b"x" * 4064)


class Bench:
    """What a workload is given, and where it leaves what it has measured.

    Attributes:
        client: who is measured, once it is opened.
        name: the client's.
        place: where.
        quick: whether few operations will do, since nobody looks at the times.
        result: what was measured.
    """

    def __init__(self, name: str, place: Place, *, quick: bool = False) -> None:
        self.name, self.place, self.quick = name, place, quick
        self.client: Any = None
        self.result: dict[str, Any] = {}

    def open(self) -> None:
        """Make the client anew, which remembers nothing."""
        self.close()
        self.client = KINDS[self.name].open(self.place)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()

    def size(self, many: int, few: int) -> int:
        """How many operations."""
        return few if self.quick else many

    @contextlib.contextmanager
    def measuring(self, operations: int) -> Iterator[None]:
        """Measure what is done inside, which is so many operations."""
        before = self.place.counts()
        start = _start_of_peak()
        cpu, began = time.process_time(), time.perf_counter()
        yield
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = _memory("VmHWM") - start
        self.result.update(operations=operations, seconds=seconds, cpu_seconds=cpu, peak_mib=peak)
        if self.place.counts_requests:
            self.result.update(_since(before, self.place.counts()))

    def note(self, **facts: Any) -> None:
        """Keep more facts about this run."""
        self.result.update(facts)


def _since(before: Counts, after: Counts) -> dict[str, Any]:
    kinds = {kind: count - before.requests.get(kind, 0) for kind, count in after.requests.items()}
    return {
        "requests": {kind: count for kind, count in sorted(kinds.items()) if count},
        "received": after.received - before.received,
        "sent": after.sent - before.sent,
        "server_cpu_seconds": after.cpu - before.cpu,
    }


def _start_of_peak() -> float:
    """Let the kernel forget the highest use of memory so far; gives what is used now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _memory("VmRSS")


def _memory(name: str) -> float:
    """MiB, of this process, as Linux tells it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))
    return 0.0


def percentile(values: list[float], share: float) -> float:
    """The value that so large a share of the values is not above."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
