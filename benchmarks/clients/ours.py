"""This package, through its public API."""

from __future__ import annotations

from typing import Any

from benchmarks.clients import Threaded
from benchmarks.places import Place
from transcript_backends import TranscriptRef, open_store


def ref(session: str) -> TranscriptRef:
    return TranscriptRef("default", "agent", session)


class Store(Threaded):
    """A store of one engine. ``store`` is what workloads use that only it can do."""

    def __init__(self, place: Place, **options: Any) -> None:
        self.store = open_store(place.url(options.pop("scheme", "")), **options)

    def append(self, session: str, seq: int, line: bytes) -> object:
        return self.store.append_segment(ref(session), seq, seq, "writer", line)

    def list(self, session: str) -> int:
        return len(self.store.list_segments(ref(session)))

    def read(self, session: str) -> int:
        return sum(1 for _ in self.store.records(ref(session)))

    def close(self) -> None:
        self.store.close()
