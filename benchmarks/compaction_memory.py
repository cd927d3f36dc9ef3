"""How much memory, and time, one compaction of a large transcript takes.

    python benchmarks/compaction_memory.py [SEGMENTS [DIRECTORY]]

Writes so many segments of 4 KiB (262144: 1 GiB) below the directory, by five writers in turn, and merges them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time

from transcript_backends import TranscriptRef, open_store

REF = TranscriptRef("tenant", "agent", "session")
LINE = json.dumps({"text": "x" * 4083}).encode() + b"\n"


def resident() -> float:
    """MiB."""
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def fill(url: str, segments: int, processes: int = 2) -> None:
    children = []
    for first in range(processes):
        if (child := os.fork()) == 0:
            with open_store(url) as store:
                for seq in range(first, segments, processes):
                    store.append_segment(REF, seq, seq, f"writer{seq % 5}", LINE)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def main(segments: int = 262_144, directory: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as root:
        url = f"file://{root}"
        fill(url, segments)
        with open_store(url) as store:
            store.compact(TranscriptRef("tenant", "agent", "another"))  # everything is imported
            before = peak = resident()
            began = time.monotonic()
            done = threading.Event()

            def watch() -> None:
                nonlocal peak
                while not done.wait(0.005):
                    peak = max(peak, resident())

            watcher = threading.Thread(target=watch)
            watcher.start()
            result = store.compact(REF)
            seconds = time.monotonic() - began
            done.set()
            watcher.join()
    print(
        f"{result.segments_before:,} segments became {result.segments_after}: "
        f"{result.bytes_written / segments / len(LINE):.2f} times the bytes written, {seconds:.0f} s, "
        f"at most {peak - before:.0f} MiB more than before"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
