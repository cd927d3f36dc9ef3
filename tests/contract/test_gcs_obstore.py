"""Google Cloud Storage through obstore against the shipped contract, on the XML API as a server of the tests speaks it.

fake-gcs-server does not (fsouza/fake-gcs-server#331).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.test_checked import CostsNothing
from faults.gcs_server import GCSServer

from transcript_backends import ObjectTranscriptStore, open_store
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.testing import DriverContract, StoreContract


@pytest.fixture
def own_url() -> Iterator[str]:
    server = GCSServer()
    yield f"gs://bucket/{{prefix}}?endpoint_url={server.url}&anon=true&engine=obstore"
    server.close()
    assert server.errors == []


class TestGCSDriverOnObstore(DriverContract):
    @pytest.fixture
    def driver(self, own_url: str) -> Iterator[ObjectStore]:
        with open_store(own_url) as store:
            yield store._container.driver


class TestGCSStoreOnObstore(StoreContract):
    rounds = 8

    @pytest.fixture
    def store(self, own_url: str, prefix: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(own_url.replace("{prefix}", prefix)) as store:
            yield store


class TestChecksOnObstore(CostsNothing):
    @pytest.fixture
    def store(self, own_url: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(own_url.replace("{prefix}", "")) as store:
            yield store
