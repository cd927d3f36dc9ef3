"""The in-memory backend against the shipped contract."""

from collections.abc import Iterator

import pytest

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.drivers.memory import MemoryObjectStore
from transcript_backends.drivers.wrappers import FaultyObjectStore, LatencyObjectStore, RecordingObjectStore
from transcript_backends.testing import DriverContract, StoreContract


class TestMemoryDriver(DriverContract):
    @pytest.fixture
    def driver(self) -> ObjectStore:
        return MemoryObjectStore()


class TestWrappedDriver(DriverContract):
    @pytest.fixture
    def driver(self) -> ObjectStore:
        return RecordingObjectStore(LatencyObjectStore(FaultyObjectStore(MemoryObjectStore(page_size=3)), 0.0))


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(f"memory:///{prefix}") as store:
            yield store
