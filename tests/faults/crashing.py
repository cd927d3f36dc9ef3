"""The processes of `test_compactor_crashes.py`: ``python -m faults.crashing ROLE URL ...``; each ends when its input does."""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time

from faults import disks
from faults.setups import REF

from transcript_backends import CompactionPolicy, JournalError, ObjectTranscriptStore, open_store
from transcript_backends.writing import TranscriptWriter


def told_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def kill_compactors(store: ObjectTranscriptStore, kills: str, seed: str, longest: str) -> int:
    """Fork a compactor and SIGKILL it within ``longest`` seconds, again and again; gives how many died at work."""
    chance = random.Random(seed)
    died = 0
    for _ in range(int(kills)):
        child = os.fork()
        if not child:
            while True:
                store.compact(REF, CompactionPolicy(min_segments=chance.choice((2, 3, 5)), full=chance.random() < 0.2))
        time.sleep(chance.random() ** 2 * float(longest))
        os.kill(child, signal.SIGKILL)
        died += os.waitpid(child, 0)[1] == signal.SIGKILL
    return died


def write(store: ObjectTranscriptStore, writer: str, pause: str) -> int:
    """Append a record at a time; gives how many were acknowledged."""
    seq = 0
    while not told_to_stop():
        store.append_segment(REF, seq, seq, writer, b'{"writer":"%s","n":%d}\n' % (writer.encode(), seq))
        seq += 1
        time.sleep(float(pause))
    return seq


def read(store: ObjectTranscriptStore) -> int:
    """Read again and again: in order, nothing twice, and all that was there before; gives how often."""
    before: set[tuple[int, str]] = set()
    reads = 0
    while not told_to_stop():
        identities = [record[:2] for record in store.records(REF)]
        assert identities == sorted(set(identities)), "out of order, or twice"
        assert before <= set(identities), f"lost {sorted(before - set(identities))[:5]}"
        for writer in {writer for _, writer in identities}:
            seqs = [seq for seq, who in identities if who == writer]
            assert seqs == list(range(len(seqs))), f"{writer} has a gap before {seqs[-1]}"
        before = set(identities)
        reads += 1
    return reads


def append(store: ObjectTranscriptStore, life: str, spool_dir: str, kind: str = "healthy", notes: str = "") -> None:
    """Append a record a millisecond, and say what is safe: with a spool each at once, without each after a flush."""
    machine = disks.machine(kind, spool_dir, notes)
    while True:
        try:
            writer = TranscriptWriter(store, REF, spool_dir=spool_dir or None, max_age=0.02, machine=machine)
            break
        except JournalError:
            time.sleep(0.001)
    n = 0
    while True:
        for _ in range(1 if spool_dir else 10):
            try:
                writer.append({"life": int(life), "n": n})
                n += 1
            except JournalError:  # it was not taken, and is appended again
                pass
            time.sleep(0.001)
        if not spool_dir:
            writer.flush()
        os.write(1, b"%d\n" % n)


if __name__ == "__main__":
    role, url, *arguments = sys.argv[1:]
    print({"kill": kill_compactors, "write": write, "read": read, "append": append}[role](open_store(url), *arguments))
