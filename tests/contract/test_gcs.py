"""Google Cloud Storage, as fake-gcs-server speaks it, against the shipped contract: bare and below prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from contract.grid import driver_on
from localstack_servers import Server

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers.driver import Meaning, ObjectStore
from transcript_backends.drivers.wrappers import Operation, WrapperObjectStore
from transcript_backends.testing import DriverContract, SharedStoreContract, StoreContract

_T = TypeVar("_T")


class _GetAgain(WrapperObjectStore):
    """After a 416 fake-gcs-server ends the connection and does not say so: it may break under the request that comes next."""

    def _around(self, operation: Operation, key: str, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except Exception as error:
            failure = self.classify(error)
            if operation != "get" or not failure or failure.meaning is not Meaning.TRY_AGAIN:
                raise
        return request()


class TestGCSDriver(DriverContract):
    @pytest.fixture
    def driver(self, fake_gcs_server: Server) -> Iterator[ObjectStore]:
        with driver_on(fake_gcs_server, "sdk") as driver:
            yield _GetAgain(driver)


class TestGCSStore(StoreContract):
    @pytest.fixture
    def store(self, fake_gcs_server: Server, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(fake_gcs_server.new_bucket().url(prefix), engine="sdk") as store:
            yield store


class TestSharedGCSStore(SharedStoreContract):
    @pytest.fixture
    def store_url(self, fake_gcs_server: Server) -> str:
        return f"{fake_gcs_server.new_bucket().url('shared')}&engine=sdk"
