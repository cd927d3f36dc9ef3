"""Azure Blob Storage as Azurite speaks it, against the shipped contract: bare and below prefixes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from azure.storage.blob import generate_container_sas
from contract.grid import TwoEngineStoreContract, driver_on
from localstack_servers import Server

from transcript_backends import (
    AccessDeniedError,
    AzureTranscriptStore,
    CompactionPolicy,
    ContainerNotFoundError,
    ObjectTranscriptStore,
    PartialDeleteError,
    SegmentConflictError,
    TranscriptRef,
    open_store,
)
from transcript_backends.drivers.driver import ObjectStore
from transcript_backends.testing import DriverContract, SharedStoreContract


class TestAzureDriver(DriverContract):
    @pytest.fixture
    def driver(self, azurite_server: Server, engine: str) -> Iterator[ObjectStore]:
        with driver_on(azurite_server, engine) as driver:
            yield driver


class TestAzureStore(TwoEngineStoreContract):
    @pytest.fixture
    def store(self, azurite_server: Server, prefix: str, engine: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(azurite_server.new_bucket().url(prefix), engine=engine) as store:
            yield store


class TestSharedAzureStore(SharedStoreContract):
    @pytest.fixture
    def store_url(self, azurite_server: Server, engine: str) -> str:
        return f"{azurite_server.new_bucket().url('shared')}&engine={engine}"


# --- ways to be let in, which only a server that checks signatures can show --------------------------------------------


REF = TranscriptRef("tenant", "agent", "session")


def sas(server: Server, permissions: str, hours: float = 1) -> str:
    """A shared access signature for the server's container."""
    client = server.client()
    with client:
        return generate_container_sas(
            client.account_name,
            server.bucket,
            account_key=client.credential.account_key,
            permission=permissions,
            expiry=datetime.now(timezone.utc) + timedelta(hours=hours),
        )


def use_all_of(store: ObjectTranscriptStore) -> None:
    """Append, append again, list, read, compact and delete."""
    for seq in (0, 1, 2, 2):
        store.append_segment(REF, seq, seq, "w", b"{}\n")
    with pytest.raises(SegmentConflictError):
        store.append_segment(REF, 2, 2, "w", b'{"a":1}\n')
    assert store.compact(REF, CompactionPolicy(min_segments=2, full=True)).segments_after == 1
    assert [record.seq for record in store.records(REF)] == [0, 1, 2]
    assert store.delete(REF, purge=True).deleted > 0


def test_a_sas_for_the_container_is_enough_for_all_a_store_does(azurite_server: Server, engine: str) -> None:
    server = azurite_server.new_bucket()
    with open_store(server.url("p"), engine=engine, sas_token=f"?{sas(server, 'rcwdl')}") as store:
        use_all_of(store)


def test_a_connection_string_is_enough_too(azurite_server: Server, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    server = azurite_server.new_bucket()
    for text in (
        f"BlobEndpoint={server.endpoint}/;SharedAccessSignature={sas(server, 'rcwdl')}",
        "AccountName=devstoreaccount1;AccountKey={};BlobEndpoint={};".format(
            os.environ["AZURE_STORAGE_ACCOUNT_KEY"], server.endpoint
        ),
    ):
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        with open_store(f"az://{server.bucket}/p", engine=engine) as store:
            use_all_of(store)


def test_a_reader_may_have_a_sas_to_read_and_list_and_is_refused_the_rest(azurite_server: Server, engine: str) -> None:
    server = azurite_server.new_bucket()
    with open_store(server.url("p")) as store:
        store.append_segment(REF, 0, 0, "w", b"{}\n")
    with open_store(server.url("p"), engine=engine, sas_token=sas(server, "rl")) as store:
        assert [record.seq for record in store.records(REF)] == [0]
        assert list(store.list_refs()) == [REF]
        for call in (lambda: store.append_segment(REF, 1, 1, "w", b"{}\n"), lambda: store.delete(REF)):
            with pytest.raises(AccessDeniedError):
                call()


@pytest.mark.parametrize(
    "options", [{"account_key": "d3Jvbmc="}, {"anon": True}, {"sas_token": None}], ids=["key", "anon", "SAS"]
)
def test_who_is_not_let_in_is_told_so(azurite_server: Server, options: dict[str, object], engine: str) -> None:
    chosen = options if "sas_token" not in options else {"sas_token": sas(azurite_server, "rcwdl", hours=-1)}
    with open_store(azurite_server.url("p"), engine=engine, **chosen) as store:
        for call in (lambda: store.list_segments(REF), lambda: store.append_segment(REF, 0, 0, "w", b"{}\n")):
            with pytest.raises(AccessDeniedError, match="HTTP 403"):
                call()


def test_a_container_that_is_not_there_is_never_an_empty_transcript(azurite_server: Server, engine: str) -> None:
    with open_store(azurite_server._replace(bucket="nowhere").url("p"), engine=engine) as store:
        for call in (lambda: store.list_segments(REF), lambda: store.append_segment(REF, 0, 0, "w", b"{}\n")):
            with pytest.raises(ContainerNotFoundError, match="az://nowhere"):
                call()


def test_what_has_a_snapshot_or_a_lease_is_not_deleted_but_named(azurite_server: Server) -> None:
    server = azurite_server.new_bucket()
    with server.client() as client, AzureTranscriptStore(client, server.bucket, "p") as store:
        keys = [store.append_segment(REF, seq, seq, "w", b"{}\n") for seq in range(4)]
        blobs = [client.get_blob_client(server.bucket, key) for key in keys[:2]]
        blobs[0].create_snapshot()
        lease = blobs[1].acquire_lease()
        with pytest.raises(PartialDeleteError) as caught:
            store.delete(REF)
        reasons = [caught.value.failed[key] for key in keys[:2]]
        assert ["SnapshotsPresent" in reasons[0], "LeaseIdMissing" in reasons[1]] == [True, True]
        blobs[0].delete_blob(delete_snapshots="only")
        lease.release()
        assert store.delete(REF).deleted == 2
