"""The processes of `test_replicas.py`: ``python -m faults.replicas ROLE URL ...``; each ends when its input does."""

from __future__ import annotations

import sys
import threading

from faults.setups import REF

from transcript_backends import CompactionPolicy, open_store


def replica(url: str, name: str, fixed_id: str) -> None:
    """For each line of input, ``FIRST COUNT``: open everything anew, append so many records from there on, say it is done."""
    for line in sys.stdin:
        first, count = map(int, line.split())
        with open_store(url) as store:
            (last,) = store.tail(REF, 1) or [None]
            assert first == (last.seq + 1 if last else 0), (
                f"{name} does not see what the other has stored before {first}: {last}"
            )
            with store.writer(REF, writer_id=fixed_id or None) as writer:
                for n in range(first, first + count):
                    assert writer.append({"n": n, "replica": name}) == n
                writer_id = writer.writer_id
        print(writer_id, flush=True)


def follow(url: str) -> None:
    """Print each record as it comes."""
    with open_store(url) as store, store.follow(REF, min_interval=0.1, max_interval=0.5) as follower:
        threading.Thread(target=lambda: (sys.stdin.read(), follower.close()), daemon=True).start()
        for record in follower:
            print(record.seq, record.writer_id, record.json()["n"], flush=True)


def compact(url: str) -> None:
    """Compact all the time; print how many segments were merged."""
    with open_store(url) as store:
        with store.compactor(CompactionPolicy(min_segments=8), interval=0.2, refs=lambda: [REF]) as compactor:
            sys.stdin.read()
        assert compactor.errors == 0, compactor.last_error
        print(compactor.totals.segments)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    {"replica": replica, "follow": follow, "compact": compact}[role](*arguments)
