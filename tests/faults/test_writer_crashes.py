"""Real writers, killed at random moments: what they said is safe is there, once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.setups import REF

from transcript_backends import open_store

TESTS = Path(__file__).resolve().parent.parent
KILLS = 100


@pytest.mark.parametrize("spooled", [True, False], ids=["spool", "no spool"])
def test_a_writer_killed_at_random_moments_loses_nothing_that_was_safe(tmp_path: Path, spooled: bool) -> None:
    chance = random.Random(11)
    url, spool_dir = f"file://{tmp_path}/store", f"{tmp_path}/spool" if spooled else ""
    program = (
        "import sys, transcript_backends.writing\nfrom faults import crashing\nfrom transcript_backends import open_store\n"
    )
    program += "while line := sys.stdin.readline():\n"
    program += " import os\n if os.fork() == 0:\n  print(os.getpid(), flush=True)\n"
    program += f"  crashing.append(open_store({url!r}), line, {spool_dir!r})\n os.wait()\n print('dead', flush=True)\n"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    safe: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for life in range(KILLS):
            nursery.stdin.write(f"{life}\n")
            nursery.stdin.flush()
            pid = int(nursery.stdout.readline())
            time.sleep(0.08 + 0.2 * chance.random() ** 2)
            os.kill(pid, signal.SIGKILL)
            said = [0]
            while (line := nursery.stdout.readline()) != "dead\n":
                said.append(int(line))
            safe.append(said[-1])
        nursery.stdin.close()
    with open_store(url) as store:
        store.writer(REF, spool_dir=spool_dir or None).close()
        found = [(entry["life"], entry["n"]) for entry in (record.json() for record in store.records(REF))]
        assert store.verify(REF).ok
    assert found == sorted(set(found))
    assert sum(safe) > 5 * KILLS
    for life, count in enumerate(safe):
        numbers = [n for each, n in found if each == life]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
