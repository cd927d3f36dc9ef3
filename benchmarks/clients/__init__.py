"""Who is measured: this package's engines, and what else people use, each doing the same work its own way."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from benchmarks.places import Place

AT_ONCE = 32
_SEGMENT = re.compile(r"(\d+)-(\d+)-([^.]+)\.jsonl")


class Client(Protocol):
    """One way to keep transcripts."""

    def append(self, session: str, seq: int, line: bytes) -> object:
        """Store one record as a segment of its own, durably."""

    def append_all(self, session: str, seqs: Sequence[int], line: bytes) -> object:
        """Store so many, 32 at a time."""

    def list(self, session: str) -> int:
        """Find all segments, with what their names tell; gives how many there are."""

    def read(self, session: str) -> int:
        """Find and read all records in order; gives how many there are."""

    def close(self) -> None: ...


class Threaded:
    """What clients that block do with threads."""

    append: Callable[[str, int, bytes], object]

    def append_all(self, session: str, seqs: Sequence[int], line: bytes) -> object:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda seq: self.append(session, seq, line), seqs))

    def close(self) -> None:
        pass


def segment_key(session: str, seq: int, writer_id: str = "writer") -> str:
    """The key under which this package, and the rivals that are free to choose, keep a segment of one record."""
    return f"{prefix(session)}{seq:019d}-{seq:019d}-{writer_id}.jsonl"


def prefix(session: str) -> str:
    """What comes before the names of a session's segments."""
    return f"default/agent/{session}/events/"


def parsed(keys: Iterable[str]) -> list[tuple[int, int, str, str]]:
    """First and last seq, writer and key of each segment, in order."""
    names = ((_SEGMENT.fullmatch(key.rpartition("/")[2]), key) for key in keys)
    return sorted((int(name[1]), int(name[2]), name[3], key) for name, key in names if name)


def count_lines(bodies: Iterable[bytes]) -> int:
    """How many records bodies hold, each looked at as this package looks at them."""
    return sum(1 for body in bodies for line in body.split(b"\n") if line)


class Kind(NamedTuple):
    """How a client is made: ``module:class``, and what it takes besides the place."""

    home: str
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def open(self, place: Place) -> Client:
        module, _, name = self.home.partition(":")
        client: Client = getattr(importlib.import_module(f"benchmarks.clients.{module}"), name)(place, **self.options)
        return client


KINDS = {
    "sdk engine": Kind("ours:Store", {"engine": "sdk"}),
    "obstore engine": Kind("ours:Store", {"engine": "obstore"}),
    "sdk engine, hedged": Kind("ours:Store", {"engine": "sdk", "hedge": True}),
    "obstore engine, hedged": Kind("ours:Store", {"engine": "obstore", "hedge": True}),
    "boto3": Kind("s3:Boto3"),
    "aiobotocore": Kind("s3:Aiobotocore"),
    "Strands": Kind("s3:Strands"),
    "whole file": Kind("s3:WholeFile"),
    "google-cloud-storage": Kind("vendors:Google"),
    "azure-storage-blob": Kind("vendors:Azure"),
    "obstore": Kind("obstores:Obstore"),
    "raw sockets": Kind("raw:Raw"),
    "file store": Kind("ours:Store"),
    "fsspec store": Kind("ours:Store", {"scheme": "fsspec+file"}),
    "fsspec": Kind("files:Fsspec"),
    "system calls": Kind("files:SystemCalls"),
    "one file": Kind("files:OneFile"),
    "SQLite": Kind("files:SQLite"),
    "entries": Kind("typed:Entries"),
    "msgspec": Kind("typed:Msgspec"),
    "pydantic": Kind("typed:Pydantic"),
    "json": Kind("typed:Json"),
}
