"""Real compactors, killed at random moments while others write and read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.setups import REF
from localstack_servers import ENVIRONMENT, Server

from transcript_backends import CompactionPolicy, open_store

TESTS = Path(__file__).resolve().parent.parent
KILLS = 80
WRITERS = ("one", "two")


@pytest.fixture(params=["file", "seaweedfs"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    server: Server = request.getfixturevalue("seaweedfs_server")
    return server.new_bucket().url()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, "PYTHONPATH": str(TESTS)}


def test_compactors_killed_at_random_moments_lose_and_double_nothing(url: str, environment: dict[str, str]) -> None:
    def start(role: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "faults.crashing", role, url, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def result(process: subprocess.Popen[str]) -> int:
        output, errors = process.communicate("stop", timeout=240)
        assert process.returncode == 0, errors
        return int(output)

    pause, longest = ("0.01", "0.12") if url.startswith("file") else ("0.03", "0.4")
    writers = {name: start("write", name, pause) for name in WRITERS}
    readers = [start("read") for _ in range(2)]
    killer = start("kill", str(KILLS), "7", longest)
    assert result(killer) == KILLS
    assert all(result(reader) > 0 for reader in readers)
    written = {name: result(writer) for name, writer in writers.items()}

    with open_store(url) as store:
        expected = sorted((seq, name) for name, count in written.items() for seq in range(count))
        assert len(expected) > KILLS
        assert [record[:2] for record in store.records(REF)] == expected
        assert all(record.json() == {"writer": record.writer_id, "n": record.seq} for record in store.records(REF))
        for _ in range(2):
            store.compact(REF, CompactionPolicy(full=True))
        assert [record[:2] for record in store.records(REF)] == expected
        assert len(store.list_segments(REF)) == 1
        report = store.verify(REF)
        assert report.ok, report.problems
        assert report.records == len(expected)
