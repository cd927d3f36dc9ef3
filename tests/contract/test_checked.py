"""What it costs, on each backend, to compare what is merged or copied with the sha256 that it was stored with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.grid import ENGINES
from localstack_servers import Server

from transcript_backends import CompactionPolicy, ObjectTranscriptStore, TranscriptRef, copy_transcript, open_store
from transcript_backends.drivers.wrappers import RecordingObjectStore

REF = TranscriptRef("checked", "agent", "session")
_MANY = 12


class CostsNothing:
    """One get for each source, and no head."""

    heads = 0

    @pytest.fixture
    def recorded(self, store: ObjectTranscriptStore, monkeypatch: pytest.MonkeyPatch) -> RecordingObjectStore:
        for seq in range(_MANY):
            store.append_segment(REF, seq, seq, "w", b"{}")
        recording = RecordingObjectStore(store._container.driver)
        monkeypatch.setattr(store._container, "driver", recording)
        return recording

    def test_a_compaction_asks_for_each_source_once(self, store: ObjectTranscriptStore, recorded: RecordingObjectStore) -> None:
        assert len(store.compact(REF, CompactionPolicy(full=True)).merged) == 1
        assert (recorded.counts["get"], recorded.counts["head"]) == (_MANY, self.heads)

    def test_a_copy_asks_for_each_source_once(self, store: ObjectTranscriptStore, recorded: RecordingObjectStore) -> None:
        with open_store("memory://") as other:
            assert copy_transcript(store, other, REF, verify="off").segments == _MANY
        assert (recorded.counts["get"], recorded.counts["head"]) == (_MANY, self.heads)

    def test_a_reader_asks_for_no_metadata(self, store: ObjectTranscriptStore, recorded: RecordingObjectStore) -> None:
        assert len(list(store.records(REF))) == _MANY
        assert (recorded.counts["get"], recorded.counts["head"]) == (_MANY, 0)


@pytest.mark.parametrize("engine", ENGINES)
class TestS3(CostsNothing):
    @pytest.fixture
    def store(self, moto_server: Server, engine: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(moto_server.new_bucket().url(), engine=engine) as store:
            yield store


@pytest.mark.parametrize("engine", ENGINES)
class TestAzure(CostsNothing):
    @pytest.fixture
    def store(self, azurite_server: Server, engine: str) -> Iterator[ObjectTranscriptStore]:
        with open_store(azurite_server.new_bucket().url(), engine=engine) as store:
            yield store


class TestGCSOnTheSDK(CostsNothing):
    """The JSON API sends no metadata with a download: it is asked for, where bytes are moved."""

    heads = _MANY

    @pytest.fixture
    def store(self, fake_gcs_server: Server) -> Iterator[ObjectTranscriptStore]:
        with open_store(fake_gcs_server.new_bucket().url(), engine="sdk") as store:
            yield store


class TestDirectory(CostsNothing):
    """No metadata is kept, so there is nothing to compare."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectTranscriptStore]:
        with open_store(str(tmp_path)) as store:
            yield store
