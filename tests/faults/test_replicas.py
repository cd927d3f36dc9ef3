"""Two replicas take turns in one session while others follow and compact it, all of them processes of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.setups import REF
from localstack_servers import ENVIRONMENT, Server

from transcript_backends import open_store

TESTS = Path(__file__).resolve().parent.parent
Process = subprocess.Popen[str]


@pytest.fixture(params=["file", "ministack"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    server: Server = request.getfixturevalue("ministack_server")
    return server.new_bucket().url()


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[Process]:
    command = [sys.executable, "-W", "error", "-m", "faults.replicas", *arguments]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(TESTS)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as started:
        try:
            yield started
        finally:
            started.kill()


def answer(started: Process, line: str = "") -> str:
    """Give a process a line; gives its next."""
    assert started.stdin is not None
    assert started.stdout is not None
    assert started.stderr is not None
    if line:
        started.stdin.write(f"{line}\n")
        started.stdin.flush()
    return started.stdout.readline().strip() or pytest.fail(started.stderr.read())


def end(started: Process) -> str:
    """End a process; gives what it still had to say."""
    output, errors = started.communicate(timeout=120)
    assert (started.returncode, errors) == (0, "")
    return output


def take_turns(url: str, records: int, most: int) -> None:
    """The check, with so many records; at most so many in a turn."""
    chance = random.Random(5)
    expected: list[tuple[int, str, int]] = []
    with (
        process("replica", url, "one", "") as one,  # a random id for each writer
        process("replica", url, "two", "replica-two") as two,  # one id for all of them
        process("follow", url) as follower,
        process("compact", url) as compactor,
    ):
        turns = itertools.cycle((one, two))
        while len(expected) < records:
            count = min(chance.randint(1, most), records - len(expected))
            writer_id = answer(next(turns), f"{len(expected)} {count}")
            expected += [(n, writer_id, n) for n in range(len(expected), len(expected) + count)]
        end(one)
        end(two)
        followed = [answer(follower) for _ in range(records)]
        assert int(end(compactor)) > 10
        with open_store(url) as store:
            store.append_segment(REF, records, records, "end", b'{"n":-1}\n')
            followed.append(answer(follower))  # and nothing came again before it
            assert end(follower) == ""
            expected.append((records, "end", -1))
            found = [(record.seq, record.writer_id, record.json()["n"]) for record in store.records(REF)]
            report = store.verify(REF)
    assert found == expected
    assert followed == [" ".join(map(str, each)) for each in expected]
    assert report.ok, report.problems


def test_replicas_that_take_turns_lose_nothing_and_double_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    take_turns(url, 400, 3 if url.startswith("file") else 20)  # opening a client of S3 is what takes long
