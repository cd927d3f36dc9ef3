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
from faults import disks
from faults.setups import REF

from transcript_backends import open_store

TESTS = Path(__file__).resolve().parent.parent
KILLS = 50


@pytest.mark.parametrize(
    ("kind", "has_power"),
    [("no spool", True), *((kind, has_power) for kind in ("healthy", "full", "failing") for has_power in (True, False))],
    ids=lambda value: value if isinstance(value, str) else "killed" if value else "power cut",
)
def test_a_writer_that_ends_at_random_moments_loses_nothing_that_was_safe(tmp_path: Path, kind: str, has_power: bool) -> None:
    chance = random.Random(11)
    spooled = kind != "no spool"
    url, spool_dir, notes = f"file://{tmp_path}/store", f"{tmp_path}/spool" if spooled else "", f"{tmp_path}/notes"
    program = (
        "import sys, transcript_backends.writing\nfrom faults import crashing\nfrom transcript_backends import open_store\n"
    )
    program += "while line := sys.stdin.readline():\n"
    program += " import os\n if os.fork() == 0:\n  print(os.getpid(), flush=True)\n"
    program += f"  crashing.append(open_store({url!r}), line, {spool_dir!r}, {kind!r}, {'' if has_power else notes!r})\n"
    program += " os.wait()\n print('dead', flush=True)\n"
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
            said = [0]
            if life % 3:  # in the midst of its work; else perhaps before it, as it opens
                said += (int(nursery.stdout.readline()) for _ in range(chance.randint(1, 15)))
            time.sleep(0.05 * chance.random() ** 2)
            os.kill(pid, signal.SIGKILL)
            while (line := nursery.stdout.readline()) != "dead\n":
                said.append(int(line))
            safe.append(said[-1])
            if not has_power:
                disks.cut_power(spool_dir, notes)
        nursery.stdin.close()
    with open_store(url) as store:
        store.writer(REF, spool_dir=spool_dir or None).close()
        found = [(entry["life"], entry["n"]) for entry in (record.json() for record in store.records(REF))]
        assert store.verify(REF).ok
    assert found == sorted(set(found))
    assert sum(safe) > 3 * KILLS
    for life, count in enumerate(safe):
        numbers = [n for each, n in found if each == life]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
