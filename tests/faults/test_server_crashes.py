"""Servers that are killed and come back: what they acknowledged is there, and a writer goes on by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import localstack_servers
import pytest
from faults.setups import REF

from transcript_backends import CompactionPolicy, open_store


class Writer(threading.Thread):
    """Appends a record at a time; what is acknowledged is counted."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(name=name)
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._store = open_store(url, retry_deadline=120, max_attempts=1000, read_timeout=10)
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                seq = self.acknowledged
                self._store.append_segment(REF, seq, seq, self.name, b'{"n":%d}\n' % seq)
                self.acknowledged += 1
        except BaseException as error:
            self.failure = error

    def stop(self) -> int:
        self._stopped.set()
        self.join(130)
        self._store.close()
        assert self.failure is None, self.failure
        return self.acknowledged

    def wait_for(self, more: int, seconds: float = 60) -> None:
        goal, deadline = self.acknowledged + more, time.monotonic() + seconds
        while self.acknowledged < goal:
            assert self.failure is None, self.failure
            assert time.monotonic() < deadline, f"{self.acknowledged} acknowledged, {goal} expected"
            time.sleep(0.01)


@pytest.mark.parametrize("name", ["ministack", "seaweedfs"])
def test_a_writer_outlives_a_killed_server_and_nothing_it_acknowledged_is_lost_or_doubled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in localstack_servers.ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    port = localstack_servers.free_port()
    with localstack_servers.running(name, data=tmp_path, port=port) as server:
        url = server.url()
        writers = [Writer(url, f"writer{number}") for number in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.wait_for(30)
        server.kill()
        time.sleep(1)
    with localstack_servers.running(name, data=tmp_path, port=port):
        for writer in writers:
            writer.wait_for(30)
        expected = sorted((seq, writer.name) for writer in writers for seq in range(writer.stop()))
        with open_store(url) as store:
            assert [record[:2] for record in store.records(REF)] == expected
            store.compact(REF, CompactionPolicy(full=True))
            assert [record[:2] for record in store.records(REF)] == expected
            assert store.verify(REF).ok
            assert list(store.list_refs()) == [REF]
