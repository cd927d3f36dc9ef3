from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from faults.engines import HAS_OBSTORE, check_engine
from faults.s3_server import S3Server
from faults.setups import REF, FakeClock, OpenS3

from transcript_backends import ObjectTranscriptStore, open_store

collect_ignore = [] if HAS_OBSTORE else ["test_obstore.py"]


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine() -> str:
    """The engine of what is opened; a module that is for both imports its own from `faults.engines`."""
    return "sdk"


@pytest.fixture
def server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()
    assert server.errors == []


@pytest.fixture
def open_s3(server: S3Server, clock: FakeClock, engine: str) -> Iterator[OpenS3]:
    """Opens ``s3://bucket/p`` on the server; what is given is passed to `open_store`."""
    opened = []

    def open_s3(bucket: str = "bucket", **options: Any) -> ObjectTranscriptStore:
        keys = {"access_key_id": "AKIATEST", "secret_access_key": "secret", "region": "eu-test-1"}
        chosen = {**keys, "clock": clock, "engine": engine, **options}
        store = open_store(f"s3://{bucket}/p?endpoint_url={server.url}", **chosen)
        opened.append(store)
        return store

    yield open_s3
    for store in opened:
        store.close()


@pytest.fixture
def store(open_s3: OpenS3, server: S3Server, engine: str) -> ObjectTranscriptStore:
    """A store whose server has proved to honour conditions; nothing is stored, and the log is empty."""
    store = open_s3()
    check_engine(store, engine)
    store.append_segment(REF, 0, 0, "prover", b"{}\n")
    server.objects.clear()
    server.log.clear()
    return store
